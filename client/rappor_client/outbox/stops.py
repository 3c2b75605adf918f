"""Metrics that the collector has asked everybody to stop reporting for some days.

An answer names a metric with the last day (UTC) of its silence, at most 30 days ahead. The newest
answer counts. A stop is the same for all devices; it can silence a device, never make it talk.
"""

from __future__ import annotations

import datetime
import json
import sqlite3
from collections.abc import Mapping
from typing import Final

from rappor.protocol.wire import METRIC_NAME
from rappor_client.folder.counters import read_state, write_state
from rappor_client.periods import after_day

_LONGEST: Final = datetime.timedelta(days=30)
_MOST: Final = 1000
"""Metrics that an answer may name."""
_STATE: Final = "stopped"


class Stops:
    """Which metrics are stopped, by the newest answer that this process or an earlier one got."""

    def __init__(self) -> None:
        """Begin without any."""
        self.until: Mapping[str, str] = {}

    def recall(self, db: sqlite3.Connection) -> None:
        """Follow the newest answer of an earlier process."""
        try:
            until = _read(json.loads(read_state(db, _STATE) or "{}"))
        except (TypeError, ValueError, RecursionError):
            until = {}
        if until != self.until:  # `until` is another object only where it says something else
            self.until = until

    def follow(self, db: sqlite3.Connection, asked: object, today: datetime.date) -> None:
        """Follow an answer, which may have asked for anything; a day too late means 30 days."""
        self.recall(db)  # another process may have had an answer since
        latest = (today + _LONGEST).isoformat()
        until = {name: min(day, latest) for name, day in _read(asked).items()}
        if until != self.until:
            self.until = until
            write_state(db, _STATE, json.dumps(until))

    def names(self, today: datetime.date) -> list[str]:
        """Return the metrics that are silent today."""
        return sorted(name for name in self.until if self._end(name, today) is not None)

    def next_end(self, today: datetime.date) -> float | None:
        """Return the moment when the first silence ends, None if no metric is silent."""
        ends = [self._end(name, today) for name in self.until]
        days = [day for day in ends if day is not None]
        return after_day(min(days)) if days else None

    def is_stopped(self, name: str, today: datetime.date) -> bool:
        """Return whether a metric is silent."""
        return self._end(name, today) is not None

    def _end(self, name: str, today: datetime.date) -> str | None:
        """Return the last day of a silence; a stop beyond 30 days is of a clock that was wrong."""
        until = self.until.get(name)
        latest = (today + _LONGEST).isoformat()
        return until if until is not None and today.isoformat() <= until <= latest else None


def _read(asked: object) -> dict[str, str]:
    """Return the days by metric, without whatever else is written there, such as other names."""
    if not isinstance(asked, dict) or len(asked) > _MOST:
        return {}
    days = ((name, _day(text)) for name, text in asked.items() if METRIC_NAME.fullmatch(name))
    return {name: day for name, day in days if day is not None}


def _day(text: object) -> str | None:
    """Return a day written as 2026-11-30, None for what other forms of ISO 8601 would read."""
    try:
        is_day = isinstance(text, str) and datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return None
    return str(text) if is_day else None
