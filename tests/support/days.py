"""Days of a device of a test. Its clock is moved, so that intervals end and reports are made."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from devices import CLOCKS, metric_of
from rappor_client import Client

from rappor import Metric

_LOCK_SECONDS = 5.0
"""Limits the wait for another process that has the lock of the folder. It never takes that long."""


def release(client: Client) -> None:
    """Finish the reports of all intervals that are over, as the sender does; nothing is sent."""
    writer = client._writer
    assert writer is not None
    writer.run(lambda _: None, patience=_LOCK_SECONDS, release_until=client._clock())


def finish(client: Client, *, days: int = 1) -> None:
    """Move the clock by some days, and finish the reports of the intervals that end by then."""
    client.queued_count()  # which writes the events in memory under the time at which they happened
    CLOCKS[client].advance(days=days)
    release(client)


def record_days(client: Client, name: str, values: Iterable[object]) -> None:
    """Record one value on each day, beginning today, and finish the report of each day."""
    for value in values:
        assert client.record(name, value)
        finish(client)


def metrics_of(n: int, **fields: Any) -> tuple[Metric, ...]:
    """Return n metrics that differ in their names only: `page0`, `page1` ..."""
    return tuple(metric_of(f"page{i}", **fields) for i in range(n))


class FallingCoins:
    """Coins of which each one is smaller than all before it.

    So the tag of each event is the smallest of its interval, and every event replaces the one
    before it.
    """

    def __init__(self) -> None:
        self._left = itertools.count(2**32 - 1, -1)

    def __call__(self, n: int) -> Sequence[int]:
        """Return the next n coins."""
        return list(itertools.islice(self._left, n))
