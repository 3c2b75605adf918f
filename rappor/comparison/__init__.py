"""Comparisons of samples over time, between collections and between segments."""
