"""Days of a test's device: functions that move the clock, end intervals and queue reports."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from devices import CLOCKS, build_metric, write_events
from rappor_client import Client

from rappor import Metric

_LOCK_SECONDS = 5.0
"""Longest wait for the lock of the folder, in seconds. No test has the lock for so long."""


def finish_ended_intervals(client: Client) -> None:
    """Queue the pending reports of all intervals that are over. Nothing is sent."""
    writer = client._writer
    assert writer is not None
    writer.run(lambda _: None, lock_seconds=_LOCK_SECONDS, queue_ended_by=client._clock())


def finish_days(client: Client, *, days: int = 1) -> None:
    """Move the clock by some days, and queue the reports of the intervals that end."""
    write_events(client)
    CLOCKS[client].advance(days=days)
    finish_ended_intervals(client)


def record_days(client: Client, name: str, values: Iterable[object]) -> None:
    """Record one value a day, beginning today, and queue the report of each day.

    `values` may be a text, whose letters are the values. So "xxy" is "x" on two days, then "y".
    """
    for value in values:
        assert client.record(name, value)
        finish_days(client)


def build_metrics(n: int, **fields: Any) -> tuple[Metric, ...]:
    """Return n metrics that differ only in their names: `page0`, `page1`, ..."""
    return tuple(build_metric(f"page{i}", **fields) for i in range(n))


class FallingCoins:
    """Source of coins of which each is smaller than all earlier coins.

    So every event has the smallest tag of its interval, and replaces the event before it.
    """

    def __init__(self) -> None:
        self._remaining = itertools.count(2**32 - 1, -1)

    def __call__(self, n: int) -> Sequence[int]:
        """Return the next n coins."""
        return list(itertools.islice(self._remaining, n))
