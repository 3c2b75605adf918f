"""What helps those who build a device into a program: typed handles and previews."""
