"""Queries of analysts: computed in processes of their own, and kept as files."""
