"""How long work says how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""Called with a stage, the steps done and the steps there are; None if nobody knows."""


def no_progress(stage: str, done: int, total: int | None) -> None:
    """Report nothing."""
