"""Stops: the kill switch by which an operator stops a metric on all devices until a day.

The operator writes a line into the file of the setting `stop_file`, and sends SIGHUP:

    search_engine = 2026-12-01

Until that day (UTC, included) reports of the metric are refused, and every response to an upload
contains the stops, so that devices skip the metric:

    {"reports":[{"status":"refused","reason":"stopped"}],"stop":{"search_engine":"2026-12-01"}}

A stop is the same for all devices. A stop for some devices would be a way to mark them.
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Container, Iterable, Mapping
from typing import Final, Self

import msgspec

from rappor.base.errors import FileError

_MAX_DAYS: Final = 30
"""Longest stop in days. Devices accept no longer stop (protocol), and a forgotten stop ends by
itself. An operator who wants to end a metric for good changes its last day in the registry."""


class Stops:
    """The last day (UTC) of the stop of each stopped metric.

    Attributes
    ----------
    ignored : names in the file that are no metrics of the registry, in order
    """

    def __init__(
        self,
        until: Mapping[str, datetime.date] | None = None,
        *,
        ignored: Iterable[str] = (),
    ) -> None:
        """Stop metrics until their days; by default no metric is stopped."""
        self._until = dict(until or {})
        self.ignored = tuple(sorted(ignored))

    @classmethod
    def loads(cls, text: str, *, path: str, metrics: Container[str], today: datetime.date) -> Self:
        """Parse TOML such as `search_engine = 2026-12-01`; raise FileError for anything else."""
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise FileError(path, f"it must be TOML: {error}") from None
        for name, day in document.items():
            # A TOML date-time is a `datetime`, for which `isinstance(day, date)` is true. A stop in
            # the past is valid, because a file may stay as it is after its stops have ended.
            if type(day) is not datetime.date or (day - today).days > _MAX_DAYS:
                raise FileError(path, f"{name} must end on a day in the next {_MAX_DAYS} days")
        # The registry may have lost a metric that is stopped. Refusing the file would end the start
        # of a collector that has run for weeks. No report of such a metric is accepted anyway.
        until = {name: day for name, day in document.items() if name in metrics}
        return cls(until, ignored=document.keys() - until.keys())

    def get(self, metric: str) -> datetime.date | None:
        """Return the last day of the stop of a metric, or None if the metric has no stop."""
        return self._until.get(metric)

    def list_active(self, today: datetime.date) -> dict[str, datetime.date]:
        """Return the last day of each stop that has not ended, by the name of its metric."""
        return {name: day for name, day in self._until.items() if today <= day}

    def attach(self, response: bytes, *, today: datetime.date) -> bytes:
        """Return the JSON of a response with the stops in force today.

        The response is the JSON of an object and is encoded already. The stops are inserted before
        its closing brace, because decoding and encoding it again would take longer.
        """
        current = self.list_active(today)
        if not current:
            return response
        return response[:-1] + b',"stop":' + msgspec.json.encode(current) + b"}"
