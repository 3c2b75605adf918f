"""Nouns beside their numbers."""

from __future__ import annotations


def counted(n: int, noun: str) -> str:
    """Write a number with its noun: 1 report, 1,000 reports."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
