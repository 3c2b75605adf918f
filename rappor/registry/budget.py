"""What a registry costs a device in a calendar year, in nats: decided before anything happens.

A scope is one metric in one epoch under one permanent response. Its price is what it can cost
at most: the loss of all reports of one value, whose number epoch and interval
may bound. A device reserves the prices of all scopes that touch the calendar year (UTC). They
depend on the registry and the calendar alone, so that silence tells nothing of values.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from rappor.base.errors import MetricError
from rappor.protocol.loss import epsilon_inf, epsilon_n
from rappor.registry.metric import Metric

LONGEST_EPOCH_DAYS: Final = {"year": 366, "quarter": 92, "month": 31}
"""Days of an epoch at most."""

_EPOCHS_A_YEAR: Final = {"life": 1, "year": 1, "quarter": 4, "month": 12}


class Reservation(NamedTuple):
    """What one metric reserves of a calendar year: a price for each scope that touches it."""

    metric: str
    price: float
    scopes: int

    @property
    def total(self) -> float:
        """The prices of all scopes, in nats."""
        return self.scopes * self.price if self.scopes else 0.0


def most_reports(metric: Metric) -> int | None:
    """Return the most reports that a device sends in one epoch; None if nothing bounds them."""
    if metric.epoch == "life" or metric.interval == "none":
        return None
    days = LONGEST_EPOCH_DAYS[metric.epoch]
    match metric.interval:
        case "epoch":
            return 1
        case "day":
            return days
        case _:  # weeks from Monday to Sunday that an epoch touches
            return 1 + math.ceil((days - 1) / 7)


def scope_loss(metric: Metric, reports: int | None = None) -> float:
    """Return the loss of this number of reports of one value in a scope; of all, if None.

    In nats. No more reports are counted than `most_reports`.
    """
    n = min((each for each in (reports, most_reports(metric)) if each is not None), default=None)
    return epsilon_inf(metric.params) if n is None else epsilon_n(metric.params, n)


def scope_cost(metric: Metric) -> float:
    """Return what one scope can cost at most, in nats, rounded up to a thousandth.

    The parts of a metric have the same noise, and a device answers for one.
    """
    loss = scope_loss(metric)
    return math.ceil(1000 * loss) / 1000 if loss < math.inf else math.inf


def scope_identity(metric: Metric) -> str:
    """Return what a metric's scopes depend on beyond its name; other scopes cost anew."""
    parts = " ".join(params.permanent_fingerprint for params in metric.part_sets)
    return f"{metric.epoch} {parts}"


def reserve(metric: Metric, *, year: int | None = None) -> Reservation:
    """Return what a metric reserves of a calendar year, or of a whole one if none is named.

    Epochs that begin after the metric has expired are not reserved.
    """
    scopes = _EPOCHS_A_YEAR[metric.epoch]
    if year is not None:
        last = min(metric.expires, datetime.date(year, 12, 31))
        days = (datetime.date(year, month, 1) for month in range(1, 13))
        scopes = len({metric.epoch_at(day) for day in days if day <= last})
    return Reservation(metric.name, scope_cost(metric), scopes)


def check_budget(
    metrics: Iterable[Metric], total: float, *, year: int | None = None
) -> tuple[Reservation, ...]:
    """Return what each metric reserves; MetricError, with the total that would do, if too much."""
    reserved = tuple(reserve(metric, year=year) for metric in metrics)
    needed = math.fsum(each.total for each in reserved)
    if needed == math.inf > total:
        names = ", ".join(each.metric for each in reserved if each.total == math.inf)
        raise MetricError(
            f"budget: total must be inf, got {total:g}: the loss of {names} has no limit. Unless "
            "bits are forced both to 1 and to 0 (f above 0, g between 0 and 1), a limit needs a "
            "bounded number of reports: an epoch that ends, and an interval"
        )
    if needed > total + 1e-9:  # sums of thousandths
        parts = ", ".join(f"{each.metric} {each.total:g}" for each in reserved)
        raise MetricError(
            f"budget: total must be at least {needed:g} nats for these metrics in a calendar "
            f"year ({parts}), got {total:g}"
        )
    return reserved
