"""Commands of the step "Try": simulated devices, and what a device would send."""
