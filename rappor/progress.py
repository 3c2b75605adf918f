"""How long work says how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the name of a stage, the steps that are done and the steps that there are."""


def no_progress(stage: str, done: int, total: int) -> None:
    """Report nothing."""
