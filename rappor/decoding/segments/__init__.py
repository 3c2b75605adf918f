"""Shares in segments: groups of devices that tell a public property."""
