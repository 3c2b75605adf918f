"""What a decode assumes of the devices behind its counts, and merging counts of the same kind.

Collections of one metric and one parameter set are added before anything is estimated: a
collection a day, a shard or a worker is one collection in the end. What is known of the devices is
one number R for each sum, the reports per device, averaged over reports (`rappor.counts.devices`):

- `given`: the analyst stated it;
- `counts`: the counts have it;
- `days`: there are several collections, and it is estimated from the variance between them
  (`overlap`). The estimate is at least R of different devices in each collection. One standard
  error is added, up to R of the same devices in all of them, which is assumed if the variance
  shows nothing. A collection without R counts as one report per device;
- `unknown`: one collection without R. Each report is assumed to come from a different device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rappor.base.errors import DecodeError
from rappor.base.ranges import check_number
from rappor.counts.counts import Counts
from rappor.counts.devices import squares_of_days
from rappor.estimator.device_correlation import estimate_overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """How often devices are assumed to have reported in one collection.

    `reports_per_device` is R; `std_error` that of its estimate, None where it is none; `source` is
    "given", "counts", "days" or "unknown"; `collections` says how many were added.
    """

    reports_per_device: float
    std_error: float | None = None
    source: str
    collections: int = 1

    def describe(self, n_reports: int) -> str:
        """Say in a clause what is assumed of the reports."""
        each = self.reports_per_device
        n = f"{n_reports:,} reports"
        if each <= 1:
            devices = f"each of {n} comes from a different device"
        else:
            devices = (
                f"{n} from an effective number of {n_reports / each:,.0f} devices, {each:.3g} "
                "reports each"
            )
        return f"{devices} ({self._reason()})"

    def _reason(self) -> str:
        if self.source == "days" and self.std_error is not None:
            return (
                f"estimated from the variance of {self.collections} collections, including one "
                f"standard error of {self.std_error:.2g}"
            )
        return {
            "given": "as given",
            "counts": "the most that the counts allow",
            "days": f"{self.collections} collections may be from the same devices",
            "unknown": "nothing is known of the devices; if they reported again, the errors are "
            "larger",
        }[self.source]


def assumption(counts: Sequence[Counts], repetitions: Sequence[Repetition]) -> str:
    """Return one line that says what a decode assumes of the devices."""
    clauses = [
        repetition.describe(collection.n_reports)
        for collection, repetition in zip(counts, repetitions, strict=True)
    ]
    return f"Assumed: {'; '.join(clauses)}."


class Merged(NamedTuple):
    """Collections, each under a parameter set of its own, and how their devices repeat."""

    counts: Sequence[Counts]
    repetitions: Sequence[Repetition]

    @property
    def n_devices(self) -> float:
        """Effective number of devices: as many reports of different devices have the same error."""
        pairs = zip(self.counts, self.repetitions, strict=True)
        return sum(counts.n_reports / each.reports_per_device for counts, each in pairs)


def merge(
    collections: Iterable[Counts],
    *,
    devices: float | None = None,
    reports_per_device: float | None = None,
) -> Merged:
    """Add collections of one metric and parameter set, and say how their devices repeat.

    An analyst may say one of the numbers for all reports together. Raises DecodeError where there
    are no reports at all, or a number is impossible.
    """
    groups = _groups(collections)
    if not groups:
        raise DecodeError("counts must have at least 1 report, got 0")
    merged = [_add(group) for group in groups]
    each = _given(sum(counts.n_reports for counts in merged), devices, reports_per_device)
    if each is None:
        return Merged(merged, [_repetition(group) for group in groups])
    given = (min(each, counts.n_reports) for counts in merged)
    return Merged(merged, [Repetition(reports_per_device=r, source="given") for r in given])


def add_different(collections: Iterable[Counts]) -> list[Counts]:
    """Add collections as `merge` does, each report of which comes from another device.

    Where counts know of devices that reported again in one collection, the sum knows it too.
    """
    groups = _groups(collections)
    for group in groups:
        for place, counts in enumerate(group):
            if counts.sum_squared_reports is None:
                group[place] = counts.with_devices(reports_per_device=1)
    return [_add(group, same_devices=False) for group in groups]


def _groups(collections: Iterable[Counts]) -> list[list[Counts]]:
    """Return the collections with reports, those of one metric and parameter set together."""
    groups: dict[tuple[str, str], list[Counts]] = {}
    for counts in collections:
        if counts.n_reports:
            groups.setdefault((counts.metric, counts.params.fingerprint), []).append(counts)
    return list(groups.values())


def _add(group: Sequence[Counts], *, same_devices: bool = True) -> Counts:
    total = group[0]
    for counts in group[1:]:
        total = total.add(counts, same_devices=same_devices)
    return total


def _given(n_reports: int, devices: float | None, reports_per_device: float | None) -> float | None:
    """Return the reports a device that were said, None if none were."""
    if devices is not None and reports_per_device is not None:
        raise DecodeError("devices and reports_per_device must not be given both")
    if devices is not None:
        check_number("devices", devices, f"[1, {n_reports}]", error=DecodeError)
        return n_reports / devices
    if reports_per_device is not None:
        interval = f"[1, {n_reports}]"
        check_number("reports_per_device", reports_per_device, interval, error=DecodeError)
    return reports_per_device


def _repetition(group: Sequence[Counts]) -> Repetition:
    """Return what the collections of one group know of their devices."""
    if len(group) == 1:
        known = group[0].reports_per_device
        if known is None:
            return Repetition(reports_per_device=1.0, source="unknown")
        return Repetition(reports_per_device=known, source="counts")
    repeated = [counts.reports_per_device or 1.0 for counts in group]
    least, most = _bounds(group, repeated)
    found = estimate_overlap(group, repeated)
    each = most
    if found is not None:
        each = max(found.reports_per_device, least) + found.std_error
    if found is None or each >= most:
        return Repetition(reports_per_device=most, source="days", collections=len(group))
    return Repetition(
        reports_per_device=each,
        std_error=found.std_error,
        source="days",
        collections=len(group),
    )


def _bounds(group: Sequence[Counts], repeated: Sequence[float]) -> tuple[float, float]:
    """Return R of other devices in each collection, and of the same ones in all of them."""
    reports = [counts.n_reports for counts in group]
    squares = [n * each for n, each in zip(reports, repeated, strict=True)]
    most = sum(square**0.5 for square in squares) ** 2
    if max(repeated) == 1:
        most = float(squares_of_days(reports))
    return sum(squares) / sum(reports), most / sum(reports)
