"""Pace of a collection: how often each device reports, and how many permanent responses it draws.

A device reports once in each interval (a day, a week or an epoch). An epoch (a month, a quarter, a
year or the device's life) is the time for which a device repeats one permanent response. Two
numbers of a plan follow from the pace:

- The mean number of reports of a device. Over 30 days with a daily interval it is 30. If the
  interval is an epoch, the secret of a device determines the day of its report. After 30 of the 91
  days of a quarter, a third of the devices has reported, so the mean is 0.33.
- The number of epochs. Each epoch has a permanent response and a privacy loss of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from rappor.base.errors import ParamsError
from rappor.planning.repeats import count_epochs, count_reports, count_responses
from rappor.registry.metric import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionPace:
    """Reports and permanent responses of a device during a collection.

    Attributes
    ----------
    interval : time in which a device reports once: "day", "week" or "epoch".
    epoch : time for which a device repeats a permanent response: "month", "quarter", "year" or
        "life".
    mean_reports : mean number of reports of a device, below 1 if some devices have not reported.
    epochs : largest number of permanent responses behind the reports of a device.
    """

    interval: str
    epoch: str
    mean_reports: float = 1
    epochs: int = 1

    @property
    def is_once(self) -> bool:
        """Whether a device reports once in an epoch, on a day that its secret draws."""
        return self.interval == "epoch"

    @property
    def share_of_devices(self) -> float:
        """Proportion of the devices that have reported at least once."""
        return min(1.0, self.mean_reports)

    @property
    def reports_per_device(self) -> float:
        """Mean number of reports of a device that has reported."""
        # max with the integer 1 keeps a whole number an integer. JSON then has no fraction.
        return max(1, self.mean_reports)


def choose_pace(
    metric: Metric | None,
    *,
    is_bare: bool,
    interval: str | None = None,
    epoch: str | None = None,
    days: int | None = None,
    reports_per_device: int | None = None,
) -> CollectionPace:
    """Return the pace of a collection.

    Parameters
    ----------
    metric : the metric whose interval and epoch are used, or None for a new metric.
    is_bare : True if a report is the permanent response itself, because both losses are equal.
    interval : interval in place of the metric's interval. A new metric has "day" by default, or
        "epoch" if `is_bare`.
    epoch : epoch in place of the metric's epoch. A new metric has "quarter" by default.
    days : days of the collection, from the first day of an epoch on.
    reports_per_device : reports of each device, in place of `days`.

    Raises
    ------
    ParamsError
        The interval, the epoch and the number of reports contradict each other.
    """
    usual_interval = "epoch" if is_bare else "day"
    interval = interval or (metric.interval if metric else usual_interval)
    epoch = epoch or (metric.epoch if metric else "quarter")
    if is_bare and interval != "epoch":
        # Case: both losses are equal, so p = 0 and q = 1. A second report would repeat the first
        # report bit by bit, and contain no information.
        raise ParamsError(
            f"interval must be epoch where both losses are equal, got {interval}: each report "
            "would be the permanent response itself"
        )
    if interval == "epoch":
        if epoch == "life":
            raise ParamsError("epoch must be year, quarter or month under interval epoch, got life")
        if (reports_per_device or 1) > 1:
            raise ParamsError(
                f"reports_per_device must be 1 under interval epoch, got {reports_per_device}: "
                "give the days of several epochs"
            )
    if days is None:
        return CollectionPace(interval=interval, epoch=epoch, mean_reports=reports_per_device or 1)
    once = interval == "epoch"
    return CollectionPace(
        interval=interval,
        epoch=epoch,
        mean_reports=count_responses(days, epoch) if once else count_reports(days, interval),
        epochs=count_epochs(days, epoch),
    )
