"""Released counts of a metric: counts of days, weeks or months, and days that are not released yet.

A collector adds reports by day and joins consecutive days of a cohort into blocks. A block is
closed when it has enough reports. Closed blocks that together have the metric's minimum of reports
form a release window, once and for good, so that no sum shows a single device. A window is dated by
the last day of its blocks, and a period contains the windows that are dated inside it.

`ReleasedCounts` is the response of a collector to a request for the counts of a metric. The file
format is the JSON of that response (`counts_file`), so a response that curl or another program
saved can be loaded. `Counts.load_all` reads the same file without its days.
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
from rappor.counts.counts_file import CountsFields, parse_collector_response
from rappor.counts.installations import Installations


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """The counts of a range of days.

    Attributes
    ----------
    first, last : first and last day, both included. A range without a first day has
        `datetime.date.min`, and a range without a last day has `datetime.date.max`.
    collections : counts of each parameter set that had reports.

    Examples
    --------
    >>> november = datetime.date(2026, 11, 1), datetime.date(2026, 11, 30)
    >>> Period(first=november[0], last=november[1], collections=()).name
    '2026-11-01/2026-11-30'
    """

    first: datetime.date
    last: datetime.date
    collections: tuple[Counts, ...]

    @property
    def n_reports(self) -> int:
        """Number of reports under all parameter sets."""
        return sum(counts.n_reports for counts in self.collections)

    @property
    def name(self) -> str:
        """The day as 2026-11-30, or the range as 2026-11-01/2026-11-30 (ISO 8601).

        A half-open range is "from 2026-11-01" or "to 2026-11-30", and an open range "all days".
        """
        has_first, has_last = self.first > datetime.date.min, self.last < datetime.date.max
        if has_first and has_last:
            return f"{self.first}" if self.first == self.last else f"{self.first}/{self.last}"
        if has_first:
            return f"from {self.first}"
        return f"to {self.last}" if has_last else "all days"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedCounts:
    """The released counts of a metric in a range of days.

    Attributes
    ----------
    metric : name of the metric.
    first, last : first and last day of the requested range, both included.
    periods : counts by period, in the order of their days.
    withheld : days with reports that are in no release window yet.
    installations : active installations: the number of devices that reported a metric which the
        registry chooses for this purpose, often another metric. None if the registry chooses none.
    """

    metric: str
    first: datetime.date
    last: datetime.date
    periods: tuple[Period, ...]
    withheld: tuple[datetime.date, ...]
    installations: Installations | None = None

    @property
    def n_reports(self) -> int:
        """Number of reports of all periods."""
        return sum(period.n_reports for period in self.periods)

    @property
    def collections(self) -> list[Counts]:
        """Counts of all periods, as an argument of `decode`."""
        return [counts for period in self.periods for counts in period.collections]

    @classmethod
    def from_json(cls, data: bytes, *, name: str | os.PathLike[str] = "response") -> ReleasedCounts:
        """Parse the JSON in which a collector returns counts.

        Parameters
        ----------
        name : where the JSON comes from, for error messages.

        Raises
        ------
        FileError
            The JSON does not contain the counts of a collector.
        """
        try:
            document, entries = parse_collector_response(data)
            installations = document.get("installations")
            return cls(
                metric=document["metric"],
                first=_parse_day(document["from"]),
                last=_parse_day(document["to"]),
                periods=_group_by_period(document, entries),
                withheld=tuple(_parse_day(day) for day in document["withheld"]),
                installations=installations and Installations.from_dict(installations),
            )
        except (KeyError, TypeError):
            raise FileError(name, "it is not the counts of a collector") from None
        except (ValueError, MetricError, ReportError) as error:
            raise FileError(name, str(error)) from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ReleasedCounts:
        """Read a file with the response of a collector, written by `save` or another program.

        Raises
        ------
        FileError
            The file cannot be read, or contains something else.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise FileError(path, error.strerror or "unreadable") from None
        return cls.from_json(data, name=path)

    def to_json(self) -> bytes:
        """Return the JSON that `from_json` parses: UTF-8 in one line, with a newline at the end."""
        document: dict[str, Any] = {
            "metric": self.metric,
            "from": self.first.isoformat(),
            "to": self.last.isoformat(),
            "reports": self.n_reports,
            "collections": [
                _build_entry(counts, period)
                for period in self.periods
                for counts in period.collections
            ],
            "withheld": [day.isoformat() for day in self.withheld],
        }
        if self.installations is not None:
            document["installations"] = self.installations.to_dict()
        return json.dumps(document, separators=(",", ":")).encode() + b"\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that `load` reads. After a crash, the file is either complete or absent."""
        with replace_file(path) as file:
            file.write(self.to_json())


def _build_entry(counts: Counts, period: Period) -> dict[str, Any]:
    """Return the entry of `collections` for the counts of a period."""
    squares = counts.sum_squared_reports
    return {
        "fingerprint": counts.params.fingerprint,
        "params": json.loads(counts.params.to_json()),
        "reports": counts.cohort_reports.tolist(),
        "ones": counts.bit_counts.tolist(),
        "devices": None if squares is None else {"squares": squares},
        "from": period.first.isoformat(),
        "to": period.last.isoformat(),
    }


def _group_by_period(
    document: Mapping[str, Any], entries: list[CountsFields]
) -> tuple[Period, ...]:
    """Group the entries by their days. An entry without days has the days of the document."""
    by_days: dict[tuple[datetime.date, datetime.date], list[Counts]] = {}
    for entry, fields in zip(document["collections"], entries, strict=True):
        first, last = (_parse_day(entry.get(key) or document[key]) for key in ("from", "to"))
        by_days.setdefault((first, last), []).append(Counts(*fields))
    return tuple(
        Period(first=first, last=last, collections=tuple(by_days[first, last]))
        for first, last in sorted(by_days)
    )


def _parse_day(text: Any) -> datetime.date:
    """Parse a day of a document; raise ValueError for any other value."""
    try:
        return datetime.date.fromisoformat(text)
    except (TypeError, ValueError):
        raise ValueError("its days must be written as 2026-11-30") from None
