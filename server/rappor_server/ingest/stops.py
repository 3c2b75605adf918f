"""The kill switch: an operator stops metrics on all devices until a day.

Every response to an upload lists the stopped metrics, and devices skip them.
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Container, Mapping
from typing import Final, Self

import msgspec

from rappor.base.errors import FileError

_MAX_DAYS: Final = 30
"""Longest stop in days. A forgotten stop ends by itself; a lasting one belongs into the
registry."""


class Stops:
    """The last day (UTC) of the stop of each stopped metric."""

    def __init__(self, until: Mapping[str, datetime.date] | None = None) -> None:
        """Stop metrics until their days; by default no metric is stopped."""
        self._until = dict(until or {})

    @classmethod
    def loads(cls, text: str, *, path: str, metrics: Container[str], today: datetime.date) -> Self:
        """Parse TOML such as `search_engine = 2026-12-01`; raise FileError for anything else."""
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise FileError(path, f"it must be TOML: {error}") from None
        for name, day in document.items():
            if name not in metrics:  # a typing error must not let the operator believe in a stop
                raise FileError(path, f"{name} must be a metric of the registry")
            # `type`, because a TOML date-time is a `datetime`, which is a `date`, too.
            if type(day) is not datetime.date or (day - today).days > _MAX_DAYS:
                raise FileError(path, f"{name} must end on a day in the next {_MAX_DAYS} days")
        return cls(document)

    def get(self, metric: str) -> datetime.date | None:
        """Return the last day of the stop of a metric, or None if the metric has no stop."""
        return self._until.get(metric)

    def attach(self, response: bytes, *, today: datetime.date) -> bytes:
        """Return the JSON of a response with the stops in force today.

        The stops are spliced before the closing brace, because the response is encoded already.
        """
        current = {name: day for name, day in self._until.items() if today <= day}
        if not current:
            return response
        return response[:-1] + b',"stop":' + msgspec.json.encode(current) + b"}"
