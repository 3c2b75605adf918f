"""Strings that nobody thought of."""
