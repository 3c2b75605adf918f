"""What a collector releases of a metric: counts of days, weeks or months, and days not released.

Its file is the JSON that a collector answers for its counts (`counts_file`), so an answer that was
saved by any other program is read too, and `Counts.load_all` reads this file.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rappor.base.atomic_files import replace_file
from rappor.base.errors import FileError, MetricError, ReportError
from rappor.counts.counts import Counts
from rappor.counts.counts_file import Contents, parse_document


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """The counts of the days from `first` to `last`, both included: one Counts a parameter set."""

    first: datetime.date
    last: datetime.date
    collections: tuple[Counts, ...]

    @property
    def n_reports(self) -> int:
        """Reports under all parameter sets."""
        return sum(counts.n_reports for counts in self.collections)

    @property
    def name(self) -> str:
        """The day as 2026-11-30, both ends as 2026-11-01/2026-11-30 (ISO 8601), or those named."""
        begins, ends = self.first > datetime.date.min, self.last < datetime.date.max
        if begins and ends:
            return f"{self.first}" if self.first == self.last else f"{self.first}/{self.last}"
        return f"from {self.first}" if begins else f"to {self.last}" if ends else "all days"


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The released counts of a metric from `first` to `last`, both included.

    `periods` are in the order of their days. `withheld` are days with reports that wait: for the
    end of the day, for company in their cohort, or for a minimum in all.
    """

    metric: str
    first: datetime.date
    last: datetime.date
    periods: tuple[Period, ...]
    withheld: tuple[datetime.date, ...]

    @property
    def n_reports(self) -> int:
        """Reports of all periods."""
        return sum(period.n_reports for period in self.periods)

    @property
    def collections(self) -> list[Counts]:
        """The counts of all periods, as `decode` takes them."""
        return [counts for period in self.periods for counts in period.collections]

    @classmethod
    def from_json(cls, data: bytes, *, name: str | os.PathLike[str] = "answer") -> Released:
        """Read what a collector answers for its counts; FileError with this name if it is not."""
        try:
            document, entries = parse_document(data)
            return cls(
                metric=document["metric"],
                first=_day(document["from"]),
                last=_day(document["to"]),
                periods=_periods(document, entries),
                withheld=tuple(_day(day) for day in document["withheld"]),
            )
        except (KeyError, TypeError):
            raise FileError(name, "it is not the counts of a collector") from None
        except (ValueError, MetricError, ReportError) as error:
            raise FileError(name, str(error)) from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Released:
        """Read a file of `save`, or a collector's answer; raises FileError."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise FileError(path, error.strerror or "unreadable") from None
        return cls.from_json(data, name=path)

    def to_json(self) -> bytes:
        """Write what `from_json` reads, one line."""
        document = {
            "metric": self.metric,
            "from": self.first.isoformat(),
            "to": self.last.isoformat(),
            "reports": self.n_reports,
            "collections": [
                _entry(counts, period) for period in self.periods for counts in period.collections
            ],
            "withheld": [day.isoformat() for day in self.withheld],
        }
        return json.dumps(document, separators=(",", ":")).encode() + b"\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file, whole or not at all; `load` reads exactly the same."""
        with replace_file(path) as file:
            file.write(self.to_json())


def _entry(counts: Counts, period: Period) -> dict[str, Any]:
    return {
        "fingerprint": counts.params.fingerprint,
        "params": json.loads(counts.params.to_json()),
        "reports": counts.cohort_reports.tolist(),
        "ones": counts.bit_counts.tolist(),
        "devices": None
        if counts.sum_squared_reports is None
        else {"squares": counts.sum_squared_reports},
        "from": period.first.isoformat(),
        "to": period.last.isoformat(),
    }


def _periods(document: Mapping[str, Any], entries: list[Contents]) -> tuple[Period, ...]:
    """Put together the entries of the same days; those that name none are of the whole range."""
    found: dict[tuple[datetime.date, datetime.date], list[Counts]] = {}
    for entry, contents in zip(document["collections"], entries, strict=True):
        first, last = (_day(entry.get(key) or document[key]) for key in ("from", "to"))
        found.setdefault((first, last), []).append(Counts(*contents))
    return tuple(
        Period(first=first, last=last, collections=tuple(found[first, last]))
        for first, last in sorted(found)
    )


def _day(text: Any) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except (TypeError, ValueError):
        raise ValueError("its days must be written as 2026-11-30") from None
