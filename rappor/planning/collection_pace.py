"""Pace of a collection: how often each device reports, and how many permanent responses it draws.

A device reports once in each interval (a day, a week or an epoch). An epoch (a month, a quarter, a
year or the device's life) is the time for which a device repeats one permanent response: the bits
of its value with noise that the device draws once. By default each report adds new noise, the
instantaneous response. Two numbers of a plan follow from the pace:

- The mean number of reports of a device. Over 30 days with a daily interval it is 30. If the
  interval is an epoch, the secret of a device determines the day of its report, which is not one of
  the last eight days of the epoch. After 30 of the 91 days of a quarter, 30 / 83 of the devices
  have reported, so the mean is 0.36.
- The number of epochs. Each epoch has a permanent response and a privacy loss of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from rappor.base.errors import ParamsError
from rappor.planning.repeats import count_epochs, count_reports, count_reports_once_per_epoch
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
    epochs : number of epochs in which a device reports, at most. The device draws one permanent
        response in each of them.
    """

    interval: str
    epoch: str
    mean_reports: float = 1
    epochs: int = 1

    @property
    def has_one_report_per_epoch(self) -> bool:
        """Whether a device reports once in an epoch, on a day that it derives from its secret."""
        return self.interval == "epoch"

    @property
    def share_of_devices(self) -> float:
        """Proportion of the devices that have reported at least once."""
        return min(1.0, self.mean_reports)

    @property
    def reports_per_device(self) -> float:
        """Mean number of reports of a device that has reported."""
        # The mean is below 1 if some devices have not reported. Each of the others sent 1 report.
        # The int 1 is the first argument, because max(1, 1.0) is 1 and max(1.0, 1) is 1.0. JSON
        # output must contain 1.
        return max(1, self.mean_reports)


def choose_pace(
    metric: Metric | None,
    *,
    has_instantaneous_noise: bool,
    interval: str | None = None,
    epoch: str | None = None,
    days: int | None = None,
    reports_per_device: int | None = None,
) -> CollectionPace:
    """Return the pace of a collection.

    Parameters
    ----------
    metric : the metric whose interval and epoch are used, or None for a new metric.
    has_instantaneous_noise : False if a report is the permanent response itself. This is the case
        if one report may cost as much privacy as all reports of a value (epsilon_1 = epsilon_inf).
    interval : interval in place of the metric's interval. A new metric has "day" by default, or
        "epoch" without instantaneous noise.
    epoch : epoch in place of the metric's epoch. A new metric has "quarter" by default.
    days : days of the collection, from the first day of an epoch on.
    reports_per_device : reports of each device. It has no effect if `days` is passed.

    Raises
    ------
    ParamsError
        The interval, the epoch and the number of reports contradict each other.
    """
    default_interval = "day" if has_instantaneous_noise else "epoch"
    interval = interval or (metric.interval if metric else default_interval)
    epoch = epoch or (metric.epoch if metric else "quarter")
    if interval != "epoch" and not has_instantaneous_noise:
        # Case: p = 0 and q = 1, so a permanent 0 is reported as 0 and a permanent 1 as 1. A second
        # report of the epoch would be equal to the first report, and contain no new information.
        raise ParamsError(
            f"interval must be epoch if epsilon_1 equals epsilon_inf, got {interval}: each report "
            "would be the permanent response itself"
        )
    if interval == "epoch":
        # Case: an epoch that never ends. No day can be drawn from it for the single report.
        if epoch == "life":
            raise ParamsError("epoch must be year, quarter or month under interval epoch, got life")
        if (reports_per_device or 1) > 1:
            raise ParamsError(
                f"reports_per_device must be 1 under interval epoch, got {reports_per_device}: a "
                "device reports once in each epoch, so pass the number of days of several epochs"
            )
    if days is None:
        # Case: the length of the collection is unknown. All reports are assumed to be in one epoch.
        return CollectionPace(interval=interval, epoch=epoch, mean_reports=reports_per_device or 1)
    if interval == "epoch":
        mean_reports = count_reports_once_per_epoch(days, epoch)
    else:
        mean_reports = count_reports(days, interval)
    return CollectionPace(
        interval=interval,
        epoch=epoch,
        mean_reports=mean_reports,
        epochs=count_epochs(days, epoch),
    )
