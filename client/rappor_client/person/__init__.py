"""A device and its person: opening an identity, showing its contents, and erasing it."""
