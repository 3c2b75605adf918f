"""What a device and a collector must agree on, to the last bit."""
