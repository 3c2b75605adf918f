"""Conversion of parameter sets to shapes for the kernel, and of the sums of the kernel to `Counts`.

The kernel (`rappor.engines.sums`) runs on workers without registry and protocol. `shapes_of`
therefore reduces each parameter set to its shape: the number k of bits of a report, the number m of
cohorts, and whether exactly one bit is 1. After the kernel, `counts_of` converts its sums to
`Counts` with metric and parameters.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from rappor.counts.counts import Counts
from rappor.counts.squared_reports import compute_max_squares_by_pace
from rappor.engines.sums import Key, Shape, Shapes, Sums, Total
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

Collection = tuple[str, ...]
"""Reports that are added together: metric, fingerprint, and the values of the columns `by`."""


def shapes_of(registry: Registry) -> Shapes:
    """Return the shape of every parameter set that a registry accepts."""
    return {
        (name, fingerprint): Shape.of(params)
        for name, metric in registry.items()
        for fingerprint, params in metric.accepted.items()
    }


def counts_of(sums: Sums, registry: Registry) -> dict[Collection, Counts]:
    """Return the Counts of each collection, over all days.

    If every report has a day, the interval of the metric limits the reports of a device in these
    days. The Counts then contain an upper bound on the sum of squared reports of the devices.
    """
    days: defaultdict[Collection, list[tuple[Key, Total]]] = defaultdict(list)
    for key, total in sums.totals.items():
        days[key[0], key[1], *key[3:]].append((key, total))
    return {
        collection: _add_days(registry[collection[0]], collection[1], totals)
        for collection, totals in sorted(days.items(), key=lambda item: tuple(map(str, item[0])))
    }


def _add_days(metric: Metric, fingerprint: str, totals: Sequence[tuple[Key, Total]]) -> Counts:
    """Add the sums of all days of one collection."""
    params = metric.accepted[fingerprint]
    ones = np.sum([total.ones for _, total in totals], axis=0)
    reports = np.sum([total.reports for _, total in totals], axis=0)
    days = {key[2]: int(total.reports.sum()) for key, total in totals}
    return Counts(params, ones, reports, metric.name, _bound_squares(metric, days))


def _bound_squares(metric: Metric, days: dict[datetime.date | None, int]) -> int | None:
    """Return an upper bound on the sum of squared reports of the devices.

    Parameters
    ----------
    metric : the metric, whose interval limits the reports of a device
    days : number of reports of each day. The day is None for reports without a day.

    Returns
    -------
    The bound. None if any reports have no day, because a device may have sent any number of them.
    """
    # The key None stands for reports without a day. A date is true in Python, None is false.
    if not all(days):
        return None
    dated = ((day, day, n) for day, n in days.items() if day)
    return compute_max_squares_by_pace(metric.pace, metric.epoch, dated)
