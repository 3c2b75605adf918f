"""Reports per device that a decode assumes, and sums of collections of one parameter set.

Why the number matters: thirty reports of one device repeat one permanent response, so they contain
less information than one report each of thirty devices. With p = .25 and q = .75, 30 reports per
device multiply the variance of the proportion of ones, if it is .5, by 1 + 29 / 4 = 8.25
(`rappor.estimator.debias`). If reports were counted as devices, 95 % intervals would cover 50 %.

Collections of one metric and one parameter set are added before anything is estimated, so a decode
does not distinguish days, shards and workers. The sum has one number R: the reports per device,
averaged over reports. With n_d reports of device d, R = sum of n_d^2 / sum of n_d
(`rappor.counts.squared_reports`). The effective number of devices is the number of reports divided
by R. R has one of four sources:

- `given`: the analyst passed it.
- `counts`: the counts contain the sum of n_d^2, or an upper bound on this sum. So R is the largest
  number of reports per device that the counts allow.
- `days`: several collections were added. R is estimated from the variance between the collections
  (`device_correlation`). Two extreme cases bound R:

      each collection has different devices    R is smallest
      all collections have the same devices    R is largest

  In two days of 1,000 reports each, one report per device and day, R is 1 in the first case and 2
  in the second case.

  An estimate below the smallest R is replaced by the smallest R. Then one standard error is added,
  and a sum above the largest R is replaced by the largest R. If the variance does not determine R,
  the largest R is assumed, because it gives the widest intervals. In all of these steps, a
  collection without R counts as one report per device.
- `unknown`: one collection without R. Each report is assumed to come from a different device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rappor.base.errors import DecodeError
from rappor.base.ranges import read_number
from rappor.counts.counts import Counts
from rappor.counts.squared_reports import compute_max_squares_of_days
from rappor.estimator.device_correlation import estimate_reports_per_device
from rappor.registry.metric import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """The assumed number of reports per device in one collection.

    Attributes
    ----------
    reports_per_device : R, at least 1.
    std_error : standard error of R. None if R is not an estimate.
    source : "given", "counts", "days" or "unknown", as in the module's docstring.
    collections : number of collections that were added.
    """

    reports_per_device: float
    std_error: float | None = None
    source: str
    collections: int = 1

    def describe(self, n_reports: int) -> str:
        """Describe the assumption about the devices as a clause of a sentence for analysts."""
        per_device = self.reports_per_device
        n = f"{n_reports:,} reports"
        if per_device <= 1:
            devices = f"each of {n} comes from a different device"
        else:
            n_devices = f"{n_reports / per_device:,.0f}"
            devices = (
                f"{n} from an effective number of {n_devices} devices, "
                f"{per_device:.3g} reports per device"
            )
        return f"{devices} ({self._describe_reason()})"

    def _describe_reason(self) -> str:
        """Describe the source of R."""
        if self.source == "days" and self.std_error is not None:
            return (
                f"estimated from the variance of {self.collections} collections, including one "
                f"standard error of {self.std_error:.2g}"
            )
        # The sum of squared reports in counts is often only an upper bound, so R is a bound as well
        # (`rappor.counts.squared_reports`).
        return {
            "given": "as given",
            "counts": "the most that the counts allow",
            "days": f"{self.collections} collections may be from the same devices",
            "unknown": "nothing is known of the devices; if they reported again, the errors are "
            "larger",
        }[self.source]


def describe_assumption(counts: Sequence[Counts], repetitions: Sequence[Repetition]) -> str:
    """Write one line that states the assumed number of devices."""
    clauses = [
        repetition.describe(collection.n_reports)
        for collection, repetition in zip(counts, repetitions, strict=True)
    ]
    return f"Assumed: {'; '.join(clauses)}."


class AddedCollections(NamedTuple):
    """Sums of collections, one per parameter set, and the reports per device of each sum."""

    counts: Sequence[Counts]
    repetitions: Sequence[Repetition]

    @property
    def n_devices(self) -> float:
        """Effective number of devices.

        This number of devices with one report each gives the same error.
        """
        pairs = zip(self.counts, self.repetitions, strict=True)
        return sum(counts.n_reports / repetition.reports_per_device for counts, repetition in pairs)


def add_collections(
    collections: Iterable[Counts],
    *,
    devices: float | None = None,
    reports_per_device: float | None = None,
) -> AddedCollections:
    """Add the collections of each metric and parameter set, and determine their reports per device.

    Parameters
    ----------
    collections : counts, with or without reports.
    devices : number of devices behind all reports together, if the analyst knows it.
    reports_per_device : R of all reports together, if the analyst knows it.

    Raises
    ------
    DecodeError
        There are no reports, or a number is out of its range.
    """
    groups = _group_collections(collections)
    if not groups:
        raise DecodeError("counts must have at least 1 report, got 0")
    merged = [_add(group) for group in groups]
    per_device = _read_reports_per_device(
        sum(counts.n_reports for counts in merged), devices, reports_per_device
    )
    if per_device is None:
        return AddedCollections(merged, [_determine_repetition(group) for group in groups])
    # The number is a mean over all parameter sets. A parameter set with fewer reports than this
    # number has at least one device, so its own number is at most the number of its reports.
    return AddedCollections(
        merged,
        [
            Repetition(reports_per_device=min(per_device, counts.n_reports), source="given")
            for counts in merged
        ],
    )


def add_collections_of_different_devices(collections: Iterable[Counts]) -> list[Counts]:
    """Add collections as `add_collections` does, if every collection comes from different devices.

    The sum keeps the repeated reports that a collection contains.
    """
    groups = _group_collections(collections)
    for group in groups:
        for index, counts in enumerate(group):
            # A collection without the number of repeated reports is taken for one report per
            # device.
            if counts.sum_squared_reports is None:
                group[index] = counts.with_devices(reports_per_device=1)
    return [_add(group, same_devices=False) for group in groups]


def add_collections_of_epoch(
    collections: list[Counts], metric: Metric | None, epochs: Sequence[str]
) -> list[Counts]:
    """Add collections of one epoch if each device reports once in an epoch.

    Such collections come from different devices. Other collections are returned unchanged: the same
    devices may have reported in several of them.

    Parameters
    ----------
    collections : the collections.
    metric : the metric of the collections, or None if it is unknown.
    epochs : the epochs of the days of the collections. Collections without days are assumed to be
        of one epoch.
    """
    if metric is None or metric.interval != "epoch" or len(epochs) > 1:
        return collections
    return add_collections_of_different_devices(collections)


def _group_collections(collections: Iterable[Counts]) -> list[list[Counts]]:
    """Group the collections that have reports by metric and parameter set."""
    groups: dict[tuple[str, str], list[Counts]] = {}
    for counts in collections:
        if counts.n_reports:
            groups.setdefault((counts.metric, counts.params.fingerprint), []).append(counts)
    return list(groups.values())


def _add(group: Sequence[Counts], *, same_devices: bool = True) -> Counts:
    """Add the collections of one group."""
    total = group[0]
    for counts in group[1:]:
        total = total.add(counts, same_devices=same_devices)
    return total


def _read_reports_per_device(
    n_reports: int, devices: float | None, reports_per_device: float | None
) -> float | None:
    """Compute R from the arguments of the analyst, None without such an argument."""
    if devices is not None and reports_per_device is not None:
        raise DecodeError("devices and reports_per_device must not be given both")
    if devices is not None:
        return n_reports / read_number("devices", devices, f"[1, {n_reports}]", error=DecodeError)
    if reports_per_device is not None:
        interval = f"[1, {n_reports}]"
        return read_number("reports_per_device", reports_per_device, interval, error=DecodeError)
    return None


def _determine_repetition(group: Sequence[Counts]) -> Repetition:
    """Determine R of the sum of one group of collections.

    The analyst passed no number, so the source is "counts", "days" or "unknown".
    """
    if len(group) == 1:
        per_device = group[0].reports_per_device
        if per_device is None:
            return Repetition(reports_per_device=1.0, source="unknown")
        return Repetition(reports_per_device=per_device, source="counts")
    own_reports_per_device = [counts.reports_per_device or 1.0 for counts in group]
    # A collection without R counts as one report per device, so `least` is a lower bound.
    least, most = _compute_repetition_bounds(group, own_reports_per_device)
    estimate = estimate_reports_per_device(group, own_reports_per_device)
    per_device = most
    if estimate is not None:
        per_device = max(estimate.reports_per_device, least) + estimate.std_error
    # Case: the days do not determine R, or the estimate exceeds `most`, the R if the same devices
    # report on all days. A larger R is impossible, so `most` is the safe assumption.
    if estimate is None or per_device >= most:
        return Repetition(reports_per_device=most, source="days", collections=len(group))
    return Repetition(
        reports_per_device=per_device,
        std_error=estimate.std_error,
        source="days",
        collections=len(group),
    )


def _compute_repetition_bounds(
    group: Sequence[Counts], own_reports_per_device: Sequence[float]
) -> tuple[float, float]:
    """Compute the smallest and the largest R of a group.

    The smallest R belongs to different devices in each collection, the largest to the same devices
    in all collections. Let a_d and b_d be the numbers of reports of device d in two collections.
    Different devices have the sum of squares sum a_d^2 + sum b_d^2. The same devices have the sum
    of (a_d + b_d)^2, which is at most (sqrt(sum a_d^2) + sqrt(sum b_d^2))^2 (triangle inequality).

    Parameters
    ----------
    group : the collections.
    own_reports_per_device : R of each collection alone.
    """
    reports = [counts.n_reports for counts in group]
    squares = [
        n * per_device for n, per_device in zip(reports, own_reports_per_device, strict=True)
    ]
    most = sum(square**0.5 for square in squares) ** 2
    # With one report per device and day, a device reports at most once a day. The bound is then
    # smaller.
    if max(own_reports_per_device) == 1:
        most = float(compute_max_squares_of_days(reports))
    return sum(squares) / sum(reports), most / sum(reports)
