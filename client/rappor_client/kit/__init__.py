"""Telemetry for a program in five lines: the question, the commands, and what is recorded."""
