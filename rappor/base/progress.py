"""Progress of long computations: a function that gets the stage and the number of finished steps.

The library calls the function; the command line displays the progress.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""Type of a function that displays progress. Its arguments are the name of a stage, the number of
finished steps, and the number of all steps, which is None for an unknown number."""


def no_progress(stage: str, done: int, total: int | None) -> None:
    """Ignore the progress of a computation."""
