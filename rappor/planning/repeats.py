"""Repeated reports: one report per device, the planned number, and an unlimited number compared.

More reports of the same devices lower only one part of an error, the noise of the instantaneous
response, which each report draws anew. Two parts stay: the sampling of the devices, and the
permanent response, which all reports of an epoch repeat. An unlimited number of reports shows the
smallest error that these devices can give.

The decoder assumes that the same devices report in the next epoch, and so does this module.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Final

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_integer
from rappor.planning.plans import Plan
from rappor.planning.power import predict
from rappor.protocol import loss
from rappor.protocol.params import EXCLUDED_DAYS

_UNLIMITED_REPORTS: Final = 10**6
"""Number of reports per device that stands for an unlimited number. The noise of the instantaneous
response then has a millionth of its variance, which changes no printed digit."""

_REPORTS_PER_DAY: Final = {"day": 1.0, "week": 1 / 7}
"""Number of reports that a device sends in a day, for each interval."""

_EPOCH_DAYS: Final = {"month": 30.4375, "quarter": 91.3125, "year": 365.25}
"""Mean number of days of an epoch in the Julian calendar, whose years have 365.25 days."""

_MAX_UNEVEN_DAYS: Final = 1.5
"""Largest difference in days at which a number of days counts as a whole number of epochs. Months
have 28 to 31 days, so whole months are seldom a multiple of the mean length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedReports:
    """Detections and privacy loss for one number of reports per device.

    Attributes
    ----------
    reports_per_device : mean number of reports per device; None for an unlimited number.
    share : smallest detected share; None if no share is detected.
    absent_std_error : standard error of an absent candidate, as a share.
    epsilon : privacy loss, in nats, of a device that sends the most reports and keeps its value
        over all epochs.
    """

    reports_per_device: float | None
    share: float | None
    absent_std_error: float
    epsilon: float


def compare_repeats(
    planned: Plan, *, epochs: int = 1, once: bool = False
) -> tuple[RepeatedReports, ...]:
    """Compare one report per device with the planned number and with an unlimited number.

    Parameters
    ----------
    planned : the plan.
    epochs : number of epochs of the collection.
    once : True if devices report once in an epoch. An unlimited number of reports is then
        impossible and not compared.

    Returns
    -------
    One comparison for each number of reports, in increasing order.

    Raises
    ------
    ParamsError
        `epochs` is not a positive integer.
    """
    check_integer("epochs", epochs, 1)
    target = planned.target
    devices = planned.reports / target.reports_per_device

    def predict_for(reports_per_device: float) -> RepeatedReports:
        prediction = predict(
            planned.params,
            math.ceil(devices * reports_per_device),
            dataclasses.replace(target, reports_per_device=reports_per_device),
        )
        is_unlimited = reports_per_device == _UNLIMITED_REPORTS
        # A single report belongs to one epoch. A mean of more than one report may be a device with
        # a report in each epoch, so the loss of all epochs counts.
        return RepeatedReports(
            reports_per_device=None if is_unlimited else reports_per_device,
            share=prediction.detectable_share,
            absent_std_error=prediction.absent_std_error,
            epsilon=_compute_loss(
                planned, reports_per_device, epochs=1 if reports_per_device == 1 else epochs
            ),
        )

    report_numbers = {1, target.reports_per_device} | (set() if once else {_UNLIMITED_REPORTS})
    return tuple(predict_for(reports_per_device) for reports_per_device in sorted(report_numbers))


def _compute_loss(planned: Plan, reports_per_device: float, *, epochs: int) -> float:
    """Compute the loss of all reports of a device in nats: the losses of its epochs add."""
    if reports_per_device == _UNLIMITED_REPORTS:
        return epochs * planned.epsilon_inf
    return epochs * loss.epsilon_n(planned.params, math.ceil(reports_per_device / epochs))


def count_reports(days: int, interval: str) -> int:
    """Return the number of reports of a device in a number of days, one in each interval.

    Raises
    ------
    ParamsError
        The interval is "epoch", or `days` is not a positive integer.
    """
    check_integer("days", days, 1)
    if interval not in _REPORTS_PER_DAY:
        raise ParamsError(
            f"interval must be one of {', '.join(_REPORTS_PER_DAY)}, got {interval!r}"
        )
    return math.ceil(days * _REPORTS_PER_DAY[interval])


def count_reports_once_per_epoch(days: int, epoch: str) -> float:
    """Return the mean number of reports of a device that reports once in each epoch.

    The days begin with an epoch. A device derives its day from its secret, uniformly among the days
    of an epoch without the last eight (`EXCLUDED_DAYS`). After 7 of the 30 days of a month, 7 / 22
    of the devices have reported.
    """
    epoch_days = _EPOCH_DAYS[epoch]
    rounded = max(1, round(days / epoch_days))
    if abs(days - rounded * epoch_days) <= _MAX_UNEVEN_DAYS:
        return rounded
    whole_epochs, remaining_days = divmod(days, epoch_days)
    # In the last days of an epoch, all devices have reported.
    return whole_epochs + min(remaining_days / (epoch_days - EXCLUDED_DAYS), 1.0)


def count_epochs(days: int, epoch: str) -> int:
    """Return the largest number of permanent responses that a device uses in a number of days."""
    return math.ceil(count_reports_once_per_epoch(days, epoch)) if epoch in _EPOCH_DAYS else 1


def describe_once(epoch: str) -> str:
    """Return a sentence about the use of one report in an epoch."""
    share = count_reports_once_per_epoch(7, epoch)
    return (
        f"Each device reports once in a {epoch}, on a day that its secret draws. This is better "
        f"for results of a {epoch}, not of a week, after which only {100 * share:.0f} % of the "
        "devices have reported."
    )
