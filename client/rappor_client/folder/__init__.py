"""The folder of a device: its thread, locks, files, database, and the failures of the disk."""
