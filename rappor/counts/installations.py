"""Active installations: the number of devices that reported a metric, by day, week or epoch.

Theory of operation
-------------------
A device sends at most one report of a metric in each interval (a day, a week or an epoch). So the
number of reports of an interval is a number of devices. No identifier of a device is needed.

A collector releases reports in blocks of consecutive days. A block that touches d intervals counts
with 1/d of its reports in each of them, because the block does not contain the days of its reports.
A number may therefore be a fraction.

With `sampling_rate` s < 1, the secret of each device decides whether the device takes part, with
probability s. D devices then send N reports, and N is binomial with D trials and probability s:

    estimate of D                      N / s
    standard error of the estimate     sqrt(N (1 - s)) / s

The change from an interval with N reports to an interval with N' reports is N' / N - 1. By the
delta method, its standard error is

    (N' / N) sqrt((1 - s) (1 / N + 1 / N'))

if the two intervals sample devices independently. Within one epoch the same devices take part. Then
N and N' grow together, and the error of the change is smaller.

Two intervals are compared if both have the same length in the calendar and are released completely.
A part that is released later would otherwise look like a decline.
"""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_PACES: Final = ("day", "week", "month", "quarter", "year")
"""Lengths of an interval. A metric with `interval = "epoch"` has the length of its epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveInterval:
    """Number of devices that reported in one interval.

    Attributes
    ----------
    first, last : first and last day of the interval, both included.
    reports : number of released reports of the interval; None if no report of it is released.
    is_complete : whether all reports of the interval are released.
    """

    first: datetime.date
    last: datetime.date
    reports: float | None
    is_complete: bool

    @property
    def name(self) -> str:
        """The day as 2026-11-30, or the range as 2026-11-01/2026-11-30 (ISO 8601)."""
        return f"{self.first}" if self.first == self.last else f"{self.first}/{self.last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Change of the number of devices from one interval to the next.

    Attributes
    ----------
    before : the earlier interval.
    ratio : the change as a share of the earlier number; 0.03 is 3 % more.
    std_error : largest standard error of the ratio by the sampling of devices.
    """

    before: ActiveInterval
    ratio: float
    std_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Installations:
    """Number of devices that reported a metric, in its last intervals.

    Attributes
    ----------
    metric : name of the metric whose reports are counted.
    pace : length of an interval: "day", "week", "month", "quarter" or "year".
    sampling_rate : share of the devices that take part, in (0, 1].
    intervals : the last intervals that have ended, in order.
    has_other_pace : whether reports of devices with another interval were excluded. A device with
        an older registry may still report daily although the registry now says weekly.

    Examples
    --------
    >>> october, november = (datetime.date(2026, month, 1) for month in (10, 11))
    >>> day = datetime.timedelta(days=1)
    >>> installations = Installations(
    ...     metric="page", pace="month", sampling_rate=0.5, has_other_pace=False,
    ...     intervals=(
    ...         ActiveInterval(
    ...             first=october, last=november - day, reports=200.0, is_complete=True
    ...         ),
    ...     ),
    ... )
    >>> installations.estimate_devices(installations.intervals[0])
    (400.0, 20.0)
    """

    metric: str
    pace: str
    sampling_rate: float
    intervals: tuple[ActiveInterval, ...]
    has_other_pace: bool

    @property
    def latest(self) -> ActiveInterval | None:
        """The last interval with a number, or None without numbers."""
        numbered = [interval for interval in self.intervals if interval.reports is not None]
        return numbered[-1] if numbered else None

    def estimate_devices(self, interval: ActiveInterval) -> tuple[float, float]:
        """Return the number of devices of an interval with a number, and its standard error."""
        assert interval.reports is not None
        share = self.sampling_rate
        error = math.sqrt(interval.reports * (1 - share)) / share
        return interval.reports / share, error

    def compute_change(self) -> Change | None:
        """Return the change from the interval before the latest one; None if it is unknown."""
        latest = self.latest
        for before, after in itertools.pairwise(self.intervals):
            if after is not latest:
                continue
            if not (before.reports and after.reports):
                return None
            if not (before.is_complete and after.is_complete):
                return None
            # A week that an epoch cuts has fewer days, hence fewer devices.
            if self.pace == "week" and not _is_whole_week(before, after):
                return None
            ratio = after.reports / before.reports
            variance = (1 - self.sampling_rate) * (1 / before.reports + 1 / after.reports)
            return Change(before=before, ratio=ratio - 1, std_error=ratio * math.sqrt(variance))
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the object that JSON contains under the key `installations`."""
        return {
            "metric": self.metric,
            "unit": "devices that reported",
            "interval": self.pace,
            "sampling_rate": self.sampling_rate,
            "intervals": [self._format_interval(interval) for interval in self.intervals],
            "other_intervals": self.has_other_pace,
        }

    def _format_interval(self, interval: ActiveInterval) -> dict[str, Any]:
        """Return the entry of an interval. Numbers that are not released are None."""
        devices = error = None
        if interval.reports is not None:
            devices, error = self.estimate_devices(interval)
        return {
            "from": interval.first.isoformat(),
            "to": interval.last.isoformat(),
            "reports": interval.reports,
            "devices": devices,
            "std_error": error,
            "complete": interval.is_complete,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Installations:
        """Parse the object of `to_dict`.

        Raises
        ------
        KeyError, TypeError
            A key is missing, or has a value of another type.
        ValueError
            A value is outside its range.
        """
        metric, pace, share = (document[key] for key in ("metric", "interval", "sampling_rate"))
        if not isinstance(metric, str) or pace not in _PACES or not 0 < share <= 1:
            raise ValueError("its active installations must have a metric, interval and share")
        return cls(
            metric=metric,
            pace=pace,
            sampling_rate=float(share),
            intervals=tuple(map(_parse_interval, document["intervals"])),
            has_other_pace=bool(document["other_intervals"]),
        )


def _is_whole_week(*intervals: ActiveInterval) -> bool:
    """Return whether all intervals have seven days."""
    return all((interval.last - interval.first).days == 6 for interval in intervals)


def _parse_interval(entry: Mapping[str, Any]) -> ActiveInterval:
    """Parse an entry of `intervals`; raise ValueError for an impossible number of reports."""
    reports = entry["reports"]
    if reports is not None and not (math.isfinite(reports) and reports >= 0):
        raise ValueError("its active installations must be numbers of at least 0")
    return ActiveInterval(
        first=datetime.date.fromisoformat(entry["from"]),
        last=datetime.date.fromisoformat(entry["to"]),
        reports=reports,
        is_complete=bool(entry["complete"]),
    )
