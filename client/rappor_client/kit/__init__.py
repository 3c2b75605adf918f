"""Telemetry for a program in five lines: consent question, commands, and recorded names.

`click`, `mcp` and `web` attach telemetry to a program of one library each. `host` has everything
that they share.
"""
