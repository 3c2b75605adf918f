"""Metric and Registry: what is collected, by whom, until when and under which parameters."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Self

from rappor.errors import MetricError
from rappor.files import read_text
from rappor.protocol.params import Params
from rappor.protocol.wire import METRIC_NAME
from rappor.registry.toml_file import check_known, fault, read_entries

_EPOCHS: Final[Mapping[str | None, tuple[str, str]]] = {
    None: ("empty, for life", r""),
    "year": ("a year as 2026", r"[0-9]{4}"),
    "quarter": ("a quarter as 2026-Q4", r"[0-9]{4}-Q[1-4]"),
    "month": ("a month as 2026-11", r"[0-9]{4}-(0[1-9]|1[0-2])"),
}
_INTERVALS: Final = (None, "hour", "day", "week")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One thing that is collected.

    `expires` is the last day of collection. `epoch` is None for permanent responses that last
    for life, else "year", "quarter" or "month". `candidates` is a path relative to the
    registry's file. Raises MetricError, one sentence, for whatever is not as it should be.
    """

    name: str
    params: Params
    description: str
    owner: str
    expires: datetime.date
    epoch: str | None = None
    interval: str | None = None
    candidates: str | None = None
    min_reports: int = 0
    keep_reports: bool = False

    def __post_init__(self) -> None:
        """Check every field once."""
        if not isinstance(self.name, str) or not METRIC_NAME.fullmatch(self.name):
            raise MetricError(
                f"a metric's name must match {METRIC_NAME.pattern}, got {self.name!r}"
            )
        if not isinstance(self.params, Params):
            raise fault(self.name, "params", "Params", self.params)
        self._check_text("description", self.description)
        self._check_text("owner", self.owner)
        if not _is_date(self.expires):
            raise fault(self.name, "expires", "a date as 2026-11-30", self.expires)
        if not isinstance(self.epoch, str | None) or self.epoch not in _EPOCHS:
            raise fault(self.name, "epoch", "absent or one of year, quarter, month", self.epoch)
        if not isinstance(self.interval, str | None) or self.interval not in _INTERVALS:
            raise fault(self.name, "interval", "absent or one of hour, day, week", self.interval)
        if self.candidates is not None:
            self._check_text("candidates", self.candidates)
        if type(self.min_reports) is not int or self.min_reports < 0:
            raise fault(self.name, "min_reports", "an integer of at least 0", self.min_reports)
        if not isinstance(self.keep_reports, bool):
            raise fault(self.name, "keep_reports", "true or false", self.keep_reports)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the parameters, which every report carries."""
        return self.params.fingerprint

    def check_active(self, today: datetime.date) -> None:
        """Raise MetricError once the last day of collection is over."""
        if today > self.expires:
            raise MetricError(f"metric {self.name!r} expired on {self.expires}")

    def epoch_at(self, day: datetime.date) -> str:
        """Return the epoch that a day (UTC) belongs to; empty for life."""
        match self.epoch:
            case "year":
                return f"{day.year:04}"
            case "quarter":
                return f"{day.year:04}-Q{(day.month + 2) // 3}"
            case "month":
                return f"{day.year:04}-{day.month:02}"
            case _:
                return ""

    def check_epoch(self, text: str) -> None:
        """Raise MetricError unless the text is written as this metric's epochs are."""
        form, pattern = _EPOCHS[self.epoch]
        if not re.fullmatch(pattern, text):
            raise fault(self.name, "epoch", form, text)

    def _check_text(self, key: str, text: object) -> None:
        if not isinstance(text, str) or not text.strip():
            raise fault(self.name, key, "a non-empty text", text)


class Registry(Mapping[str, Metric]):
    """Metrics by name, in the order of their declaration."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        """Take metrics with distinct names."""
        self._metrics: dict[str, Metric] = {}
        for metric in metrics:
            if metric.name in self._metrics:
                raise MetricError(f"metric {metric.name!r} must be declared once")
            self._metrics[metric.name] = metric

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a registry's file; FileError if it is none, MetricError for a wrong entry."""
        return cls.loads(read_text(path), path=os.fspath(path))

    @classmethod
    def loads(cls, text: str, *, path: str = "registry") -> Self:
        """Read a registry from its text; `path` is for messages."""
        return cls(Metric(**fields) for fields in read_entries(text, path))

    def __getitem__(self, name: str) -> Metric:
        return self._metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)

    def __repr__(self) -> str:
        return f"Registry({list(self)})"

    def metric(self, name: str) -> Metric:
        """Return the metric, or raise MetricError with the names that come close."""
        check_known(name, self._metrics, "metric")
        return self._metrics[name]

    def lookup(self, metric: str, fingerprint: str) -> Params | None:
        """Return the metric's parameters if they have this fingerprint, else None."""
        known = self._metrics.get(metric)
        return known.params if known and known.fingerprint == fingerprint else None


def _is_date(value: object) -> bool:
    """Tell a date from a moment, which is a date to Python."""
    return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
