"""Stopped metrics: the collector asks all devices to skip a metric for some days.

A response to an upload may contain the object `stop`: names of metrics, each with the last day
(UTC) of the stop, at most 30 days ahead. The newest response replaces all earlier stops, so a
response without `stop` ends them. A stop is the same for all devices, and it can only silence a
device. So a collector cannot use a stop to learn about one device, or to get more reports from it.

Example: on November 20 a response contains {"stop": {"editor": "2026-11-30"}}. Until November 30
the device records no event of `editor`, and queued reports of `editor` wait. A response on November
25 without `stop` ends the stop at once.

The spool is the device's database of finished reports that are not sent yet. It also stores the
newest stops, so that all processes of a device and the next run follow them.
"""

from __future__ import annotations

import datetime
import json
import sqlite3
from collections.abc import Mapping
from typing import Final

from rappor.protocol.wire import METRIC_NAME
from rappor_client.folder.spool_tables import read_value, write_value
from rappor_client.periods import find_day_end

_MAX_DURATION: Final = datetime.timedelta(days=30)
"""Longest duration of a stop. With a larger value, an operator's mistake would last longer."""
_MAX_METRICS: Final = 1000
"""Largest number of metrics that a response may stop. If a response contains more names, the device
ignores all of them: the spool would grow with them."""
_STATE: Final = "stopped"
"""Name under which the spool stores the stops."""


class Stops:
    """Stopped metrics, by the newest response that any process of the device has received.

    Attributes
    ----------
    last_days
        Last day of each stop, in ISO form, by metric. The mapping is replaced by another object
        only if its contents change. So `MetricCache` compares objects, and needs not compare
        contents.
    """

    def __init__(self) -> None:
        self.last_days: Mapping[str, str] = {}

    def reload(self, db: sqlite3.Connection) -> None:
        """Read the stops from the spool, because another process may have stored newer stops."""
        try:
            last_days = _parse_stops(json.loads(read_value(db, _STATE) or "{}"))
        except (TypeError, ValueError, RecursionError):  # a damaged spool stops no metric
            last_days = {}
        # An equal mapping stays the same object, so the caches of `record` stay valid.
        if last_days != self.last_days:
            self.last_days = last_days

    def apply_response(self, db: sqlite3.Connection, stop: object, today: datetime.date) -> None:
        """Store the stops of a response. `stop` may be any JSON value.

        A last day that is more than 30 days ahead is replaced by the day in 30 days.
        """
        self.reload(db)
        latest = (today + _MAX_DURATION).isoformat()
        last_days = {name: min(day, latest) for name, day in _parse_stops(stop).items()}
        if last_days != self.last_days:
            self.last_days = last_days
            write_value(db, _STATE, json.dumps(last_days))

    def list_stopped(self, today: datetime.date) -> list[str]:
        """Return the names of the metrics that are stopped today."""
        return sorted(name for name in self.last_days if self.is_stopped(name, today))

    def next_end(self, today: datetime.date) -> float | None:
        """Return the time at which the first stop ends, None without a stop."""
        days_or_none = [self._find_last_day(name, today) for name in self.last_days]
        days = [day for day in days_or_none if day is not None]
        return find_day_end(min(days)) if days else None

    def is_stopped(self, name: str, today: datetime.date) -> bool:
        """Return whether a metric is stopped today."""
        return self._find_last_day(name, today) is not None

    def _find_last_day(self, name: str, today: datetime.date) -> str | None:
        """Return the last day of a stop that covers today, or None.

        A stop that ends more than 30 days from today was stored when the clock was ahead. Such a
        stop is ignored, because it could silence the metric for years.
        """
        last_day = self.last_days.get(name)
        if last_day is None:
            return None
        # Days in ISO form have the order of the calendar.
        latest = (today + _MAX_DURATION).isoformat()
        return last_day if today.isoformat() <= last_day <= latest else None


def _parse_stops(stop: object) -> dict[str, str]:
    """Return the last days by metric, without the entries whose name or day has a wrong form."""
    # The collector is not trusted: a stop may be any JSON value of any size.
    if not isinstance(stop, dict) or len(stop) > _MAX_METRICS:
        return {}
    days = ((name, _parse_day(text)) for name, text in stop.items() if METRIC_NAME.fullmatch(name))
    return {name: day for name, day in days if day is not None}


def _parse_day(text: object) -> str | None:
    """Return a day in the form 2026-11-30, None for anything else.

    `fromisoformat` also accepts 20261130 and 2026-W49-1, which the JavaScript device does not
    accept. Two devices of one program must follow the same stops.
    """
    try:
        is_day = isinstance(text, str) and datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return None
    return str(text) if is_day else None
