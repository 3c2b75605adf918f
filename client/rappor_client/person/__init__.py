"""The device and its person: who it is, what it has kept, and how all of it is erased."""
