"""Between a registry and sums: which reports are known, and the Counts that sums become."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from rappor.counts.counts import Counts
from rappor.counts.devices import squares_by_pace
from rappor.engines.sums import Key, Shape, Shapes, Sums, Total
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

Collection = tuple[str, ...]
"""Whose reports are counted together: metric, fingerprint, and the values of `by`."""


def shapes_of(registry: Registry) -> Shapes:
    """Return the shape of every parameter set that reports of a registry may carry."""
    return {
        (name, fingerprint): Shape(params.k, params.m)
        for name, metric in registry.items()
        for fingerprint, params in metric.accepted.items()
    }


def counts_of(sums: Sums, registry: Registry) -> dict[Collection, Counts]:
    """Return the Counts of each collection, over all days.

    Where every report has a day, the metric's pace bounds the reports of a device, and the
    Counts know it.
    """
    days: defaultdict[Collection, list[tuple[Key, Total]]] = defaultdict(list)
    for key, total in sums.totals.items():
        days[key[0], key[1], *key[3:]].append((key, total))
    return {
        collection: _counts(registry[collection[0]], collection[1], totals)
        for collection, totals in sorted(days.items(), key=lambda item: tuple(map(str, item[0])))
    }


def _counts(metric: Metric, fingerprint: str, totals: Sequence[tuple[Key, Total]]) -> Counts:
    params = metric.accepted[fingerprint]
    ones = np.sum([total.ones for _, total in totals], axis=0)
    reports = np.sum([total.reports for _, total in totals], axis=0)
    days = {key[2]: int(total.reports.sum()) for key, total in totals}
    return Counts(params, ones, reports, metric.name, _squares(metric, days))


def _squares(metric: Metric, days: dict[datetime.date | None, int]) -> int | None:
    """Return the most that the squares of the devices' reports sum to; None if nobody knows."""
    if not all(days):
        return None
    dated = ((day, day, n) for day, n in days.items() if day)
    return squares_by_pace(metric.pace, metric.epoch, dated)
