"""The privacy budget of a device: the nats that metrics reserve of a calendar year.

How to think about it
---------------------
A scope is one metric in one epoch under one permanent response. The cost of a scope is an upper
bound on its privacy loss: the loss of all reports of one value that epoch and interval allow. If
they allow any number of reports, the cost is epsilon_inf.

A device reserves the costs of all scopes that touch the calendar year (UTC), before it reports
anything. The reserved nats depend on the registry and the calendar only. A device that lacks budget
for a metric therefore reveals nothing about its values by not reporting.

Example: the profile "balanced" costs 4 nats a scope. A metric with quarters as epochs touches four
epochs of a year, so it reserves 16 nats. A metric for life reserves 4 nats in every year.
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
"""Days of the longest epoch of each length. A cost must cover every epoch, also a leap year."""

_EPOCHS_A_YEAR: Final = {"life": 1, "year": 1, "quarter": 4, "month": 12}
"""A calendar year has this number of epochs of each length. An epoch for life counts as one."""

_TOLERANCE: Final = 1e-9
"""Nats by which a sum of costs may exceed the total, to allow for rounding errors. A cost is a
multiple of 0.001 nats, which a float cannot represent exactly: 3 * 0.1 > 0.3 in floats."""


class Reservation(NamedTuple):
    """The nats that one metric reserves of a calendar year.

    Attributes
    ----------
    metric : name of the metric.
    cost : cost of one scope, in nats.
    scopes : number of scopes that touch the year.
    """

    metric: str
    cost: float
    scopes: int

    @property
    def total(self) -> float:
        """Cost of all scopes, in nats."""
        # Case: an expired metric without scopes and with infinite cost. 0 * inf would be NaN.
        return self.scopes * self.cost if self.scopes else 0.0


def most_reports(metric: Metric) -> int | None:
    """Return the largest number of reports of a device in one epoch, or None without a bound."""
    return count_most_reports(metric.epoch, metric.interval)


def count_most_reports(epoch: str, interval: str) -> int | None:
    """Return the largest number of intervals in one epoch, or None if the epoch is "life"."""
    if epoch == "life":
        return None
    days = LONGEST_EPOCH_DAYS[epoch]
    match interval:
        case "epoch":
            return 1
        case "day":
            return days
        case _:
            # Weeks run from Monday to Sunday. An epoch touches one week on its first day, and
            # another week for every seven following days or part of seven.
            return 1 + math.ceil((days - 1) / 7)


def scope_loss(metric: Metric, reports: int | None = None) -> float:
    """Compute the privacy loss of several reports of one value in a scope, in nats.

    Parameters
    ----------
    metric : the metric.
    reports : number of reports; None for all reports that epoch and interval allow. A larger number
        is reduced to the number that they allow.
    """
    # epsilon_inf bounds the loss of any number of reports ([EPK14] Theorem 1). A limited number of
    # reports costs less.
    limits = [n for n in (reports, most_reports(metric)) if n is not None]
    if not limits:
        return epsilon_inf(metric.params)
    return epsilon_n(metric.params, min(limits))


def scope_cost(metric: Metric) -> float:
    """Compute the cost of one scope, in nats, rounded up to a thousandth.

    The parts of a metric have the same noise, and a device reports one part. A metric with parts
    therefore costs as much as a metric without parts.
    """
    # People read and add costs, so a cost has three decimals. Rounding up keeps it an upper bound.
    loss = scope_loss(metric)
    return math.ceil(1000 * loss) / 1000 if loss < math.inf else math.inf


def scope_identity(metric: Metric) -> str:
    """Return a text that is equal for two entries of a metric if their scopes are the same.

    Scopes depend on the length of an epoch and on the permanent fingerprints. An entry with other
    scopes costs a device anew.
    """
    fingerprints = " ".join(params.permanent_fingerprint for params in metric.part_sets)
    return f"{metric.epoch} {fingerprints}"


def reserve(metric: Metric, *, year: int | None = None) -> Reservation:
    """Compute the nats that a metric reserves of a calendar year.

    Epochs that begin after the metric's last day are not reserved.

    Parameters
    ----------
    metric : the metric.
    year : the calendar year (UTC); None for a year in which the metric does not expire.
    """
    scopes = _EPOCHS_A_YEAR[metric.epoch]
    if year is not None:
        last = min(metric.expires, datetime.date(year, 12, 31))
        # Every epoch begins on the first day of a month.
        days = (datetime.date(year, month, 1) for month in range(1, 13))
        scopes = len({metric.epoch_at(day) for day in days if day <= last})
    return Reservation(metric.name, scope_cost(metric), scopes)


def check_budget(
    metrics: Iterable[Metric], total: float, *, year: int | None = None
) -> tuple[Reservation, ...]:
    """Compute the reservation of each metric, and check that their sum is at most the total.

    Parameters
    ----------
    metrics : all metrics of a registry.
    total : the budget of a device for a calendar year, in nats.
    year : the calendar year (UTC); None for a year in which no metric expires.

    Raises
    ------
    MetricError
        The metrics reserve more than the total. The message contains a total that is enough.
    """
    reservations = tuple(reserve(metric, year=year) for metric in metrics)
    needed = math.fsum(reservation.total for reservation in reservations)
    # Case: the loss of a scope is infinite. No finite total is enough, so the message says how to
    # limit the loss.
    if needed == math.inf and total < math.inf:
        names = ", ".join(
            reservation.metric for reservation in reservations if reservation.total == math.inf
        )
        raise MetricError(
            f"budget: total must be inf, got {total:g}: the loss of {names} has no limit. Unless "
            "bits are forced both to 1 and to 0 (f above 0, g between 0 and 1), a limit needs a "
            "bounded number of reports: an epoch that ends"
        )
    if needed > total + _TOLERANCE:
        parts = ", ".join(
            f"{reservation.metric} {format_nats(reservation.total)}" for reservation in reservations
        )
        raise MetricError(
            f"budget: total must be at least {format_nats(needed)} nats for these metrics in a "
            f"calendar year ({parts}), got {total:g}"
        )
    return reservations


def format_nats(total: float) -> str:
    """Write a sum of costs with all its decimals, at most three, or "inf".

    Bad case: six significant digits would write 1625.364 as 1625.36, and a registry with this total
    would be refused again.
    """
    return f"{round(total, 3):.15g}"
