"""Progress: how work that takes long tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""Called with a stage, how much of it is done and how much there is; None if nobody knows."""


def silent(_stage: str, _done: int, _total: int | None) -> None:
    """Report no progress."""
