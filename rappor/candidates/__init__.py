"""Strings asked about, and their bits."""
