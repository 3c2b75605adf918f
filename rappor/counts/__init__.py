"""Sums of reports."""
