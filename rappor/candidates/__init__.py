"""Candidate strings, and their bits."""
