"""Progress of long computations: a callable that receives the stage and the number of steps."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""Receives the name of a stage, the number of finished steps, and the number of all steps. The last
number is None if it is unknown."""


def no_progress(stage: str, done: int, total: int | None) -> None:
    """Ignore the progress of a computation."""
