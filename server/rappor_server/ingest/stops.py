"""The kill switch: metrics that devices stop reporting, for all devices alike and for some days."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Container, Mapping
from typing import Final, Self

import msgspec

from rappor.base.errors import FileError

_MOST_DAYS: Final = 30


class Stops:
    """Until which day (UTC), that day included, each metric is stopped."""

    def __init__(self, until: Mapping[str, datetime.date] | None = None) -> None:
        """Take days by metrics; none are stopped without them."""
        self._until = dict(until or {})

    @classmethod
    def loads(cls, text: str, *, path: str, metrics: Container[str], today: datetime.date) -> Self:
        """Read TOML such as `search_engine = 2026-12-01`; FileError for anything else.

        A stop ends within 30 days, so that a forgotten one does not outlive its reason.
        """
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise FileError(path, f"it must be TOML: {error}") from None
        for name, day in document.items():
            if name not in metrics:
                raise FileError(path, f"{name} must be a metric of the registry")
            if type(day) is not datetime.date or (day - today).days > _MOST_DAYS:
                raise FileError(path, f"{name} must end on a day in the next {_MOST_DAYS} days")
        return cls(document)

    def get(self, metric: str) -> datetime.date | None:
        """Return the last day on which a metric is stopped, None if it never was."""
        return self._until.get(metric)

    def attach(self, answer: bytes, *, today: datetime.date) -> bytes:
        """Add the stops that hold today to the JSON of an answer to a device."""
        current = {name: day for name, day in self._until.items() if today <= day}
        if not current:
            return answer
        return answer[:-1] + b',"stop":' + msgspec.json.encode(current) + b"}"
