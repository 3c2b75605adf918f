"""Active installations: the number of devices that reported a metric, by day, week or epoch.

Theory of operation
-------------------
A device sends at most one report of a metric in each interval (a day, a week or an epoch). So the
number of reports of an interval is a number of devices. No identifier of a device is needed.

A collector releases reports in blocks of consecutive days. A block that touches d intervals counts
with 1/d of its reports in each of them, because the block does not contain the days of its reports.
A number may therefore be a fraction.

With `sampling_rate` s < 1, the secret of each device decides whether the device takes part, with
probability s. The reports of an interval may have several rates, for example if devices with an
older registry report under another fingerprint (short hash of the parameters). Each device has one
rate s and sends one report in an interval. D_s is the number of all devices with the rate s,
whether they take part or not, and N_s is the number of their reports. N_s is binomial with D_s
trials and probability s, and the numbers of different rates are independent:

    estimate of D = sum of D_s         D^ = sum of N_s / s
    standard error of the estimate     e = sqrt(sum of N_s (1 - s) / s^2)

If a part of the reports has an unknown rate, the interval has no estimate.

The change from an interval with the estimate D^ to an interval with the estimate D^' is
D^' / D^ - 1. By the delta method, its standard error is

    (D^' / D^) sqrt((e / D^)^2 + (e' / D^')^2)

if the two intervals sample devices independently. Within one epoch and under the same parameters,
a device that takes part with one rate takes part with every larger rate. Then D^ and D^' grow
together, and the error of the change is smaller.

Two intervals are compared if both have the same length in the calendar and are released completely.
A part that is released later would otherwise look like a decline.
"""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

_PACES: Final = ("day", "week", "month", "quarter", "year")
"""Lengths of an interval. A metric with `interval = "epoch"` has the length of its epoch."""


class SampledReports(NamedTuple):
    """Released reports of devices that took part with the same sampling rate.

    Attributes
    ----------
    sampling_rate : share of the devices that took part, in (0, 1]; None if the devices may have
        taken part with different rates.
    reports : number of reports.
    """

    sampling_rate: float | None
    reports: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveInterval:
    """Number of devices that reported in one interval.

    Attributes
    ----------
    first, last : first and last day of the interval, both included.
    parts : released reports of the interval, one entry for each sampling rate; empty if no report
        is released. (These parts have nothing to do with the parts of a string metric.)
    is_complete : whether all reports of the interval are released.

    Examples
    --------
    >>> october, november = (datetime.date(2026, month, 1) for month in (10, 11))
    >>> interval = ActiveInterval(
    ...     first=october, last=november - datetime.timedelta(days=1), is_complete=True,
    ...     parts=(SampledReports(0.5, 200.0), SampledReports(1.0, 30.0)),
    ... )
    >>> interval.reports, interval.estimate_devices()
    (230.0, (430.0, 20.0))
    """

    first: datetime.date
    last: datetime.date
    parts: tuple[SampledReports, ...]
    is_complete: bool

    @property
    def name(self) -> str:
        """The day as 2026-11-30, or the range as 2026-11-01/2026-11-30 (ISO 8601)."""
        return f"{self.first}" if self.first == self.last else f"{self.first}/{self.last}"

    @property
    def reports(self) -> float | None:
        """Number of released reports of the interval; None if no report is released."""
        return sum(part.reports for part in self.parts) if self.parts else None

    @property
    def has_unknown_rate(self) -> bool:
        """Whether devices may have taken part with different rates that nobody can separate."""
        return any(part.sampling_rate is None for part in self.parts)

    @property
    def sampling_rates(self) -> tuple[float, ...]:
        """The known sampling rates of the reports, in order."""
        rates = {part.sampling_rate for part in self.parts if part.sampling_rate is not None}
        return tuple(sorted(rates))

    def estimate_devices(self) -> tuple[float, float] | None:
        """Return the number of devices and its standard error by the sampling.

        The result is None without a released report, and if a sampling rate is unknown.
        """
        if not self.parts:
            return None
        devices = variance = 0.0
        for rate, reports in self.parts:
            if rate is None:
                return None
            devices += reports / rate
            variance += reports * (1 - rate) / rate**2
        return devices, math.sqrt(variance)


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
    intervals : the last intervals that have ended, in order.
    has_other_pace : whether reports of devices with another interval were excluded. A device with
        an older registry may still report daily although the registry now says weekly.

    Examples
    --------
    >>> october, november = (datetime.date(2026, month, 1) for month in (10, 11))
    >>> day = datetime.timedelta(days=1)
    >>> installations = Installations(
    ...     metric="page", pace="month", has_other_pace=False,
    ...     intervals=(
    ...         ActiveInterval(
    ...             first=october, last=november - day, is_complete=True,
    ...             parts=(SampledReports(0.5, 200.0),),
    ...         ),
    ...     ),
    ... )
    >>> installations.latest.estimate_devices()
    (400.0, 20.0)
    """

    metric: str
    pace: str
    intervals: tuple[ActiveInterval, ...]
    has_other_pace: bool

    @property
    def latest(self) -> ActiveInterval | None:
        """The last interval with a number of devices, or None without numbers."""
        numbered = [interval for interval in self.intervals if interval.estimate_devices()]
        return numbered[-1] if numbered else None

    def compute_change(self) -> Change | None:
        """Return the change to the latest interval with a number from the interval before it.

        Returns None if there is no such interval, or if the two cannot be compared.
        """
        latest = self.latest
        for before, after in itertools.pairwise(self.intervals):
            if after is not latest:
                continue
            estimate_before, estimate_after = before.estimate_devices(), after.estimate_devices()
            if estimate_before is None or estimate_after is None:
                return None
            devices_before, error_before = estimate_before
            devices_after, error_after = estimate_after
            # A change from 0 devices has no ratio, and a change to 0 has no error by the delta
            # method.
            if not (devices_before and devices_after):
                return None
            # Reports that are released later would look like a change.
            if not (before.is_complete and after.is_complete):
                return None
            # A week that an epoch cuts has fewer days, hence fewer devices.
            if self.pace == "week" and not _is_whole_week(before, after):
                return None
            ratio = devices_after / devices_before
            error = ratio * math.hypot(error_before / devices_before, error_after / devices_after)
            return Change(before=before, ratio=ratio - 1, std_error=error)
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the object that JSON contains under the key `installations`."""
        return {
            "metric": self.metric,
            "unit": "devices that reported",
            "interval": self.pace,
            "intervals": [_format_interval(interval) for interval in self.intervals],
            "other_intervals": self.has_other_pace,
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
        metric, pace = document["metric"], document["interval"]
        if not isinstance(metric, str) or pace not in _PACES:
            raise ValueError("its active installations must have a metric and interval")
        return cls(
            metric=metric,
            pace=pace,
            intervals=tuple(map(_parse_interval, document["intervals"])),
            has_other_pace=bool(document["other_intervals"]),
        )


def _is_whole_week(*intervals: ActiveInterval) -> bool:
    """Return whether all intervals have seven days."""
    return all((interval.last - interval.first).days == 6 for interval in intervals)


def _format_interval(interval: ActiveInterval) -> dict[str, Any]:
    """Return the entry of an interval, in which an unknown number is None.

    The sums are for people. `_parse_interval` computes them again from `parts`.
    """
    devices, error = interval.estimate_devices() or (None, None)
    return {
        "from": interval.first.isoformat(),
        "to": interval.last.isoformat(),
        "reports": interval.reports,
        "devices": devices,
        "std_error": error,
        "complete": interval.is_complete,
        "parts": [part._asdict() for part in interval.parts],
    }


def _parse_interval(entry: Mapping[str, Any]) -> ActiveInterval:
    """Parse an entry of `intervals`; raise ValueError for an impossible rate or number."""
    return ActiveInterval(
        first=datetime.date.fromisoformat(entry["from"]),
        last=datetime.date.fromisoformat(entry["to"]),
        parts=tuple(map(_parse_part, entry["parts"])),
        is_complete=bool(entry["complete"]),
    )


def _parse_part(entry: Mapping[str, Any]) -> SampledReports:
    """Parse an entry of `parts`; raise ValueError for an impossible rate or number of reports."""
    rate, reports = entry["sampling_rate"], entry["reports"]
    if rate is not None and not 0 < rate <= 1:
        raise ValueError("its active installations must have sampling rates in (0, 1]")
    if not (math.isfinite(reports) and reports >= 0):
        raise ValueError("its active installations must be numbers of at least 0")
    return SampledReports(None if rate is None else float(rate), float(reports))
