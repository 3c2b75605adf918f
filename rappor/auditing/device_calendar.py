"""Calendar of a client audit: the days on which simulated devices run, and their roles.

`rappor.auditing.device_histories` runs the devices on these days, and `rappor.auditing.device`
compares the reports of days by their roles: the days of the first epoch, of the next epoch, and of
the first epoch after the clock was set back.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Final, NamedTuple

from rappor.protocol.params import EXCLUDED_DAYS
from rappor.registry.metric import Metric

BEFORE_THE_END: Final = datetime.timedelta(days=1500)
"""Time before the metric expires at which a history begins.

A device records nothing after the metric expires. Three yearly epochs take at most 1,096 days.
"""

RUNS_PER_ORDER: Final = 3
"""Number of days in a row on which the devices run in one order.

A client may seed its generator equally in every process. The same device then has the same coins in
two runs only if the order of the devices is the same in both. After these days `run_histories` uses
another order, so that another device is the first of its process.
"""

FIRST_DAY, RESTART_DAY = 0, 1
"""Indices of the day on which devices start, and of the day of their first restart.

The second twins record another value on all days after `RESTART_DAY`.
"""

_HOURS: Final = (12, 21, 4, 23, 8, 17)
"""Hours (UTC) of the first event, by index of the day in its epoch.

Twins record at the same time. If a client drops the events of one value in the evening, one twin of
a pair therefore has a report less. The first three hours are at noon, in the evening and at night,
because a weekly metric has only three days in its first epoch.
"""


class Day(NamedTuple):
    """One day of all devices.

    `epoch` is the index of the epoch in the history, from 0. `changed_twins` names the twins that
    record another value than on the first day: "" (neither), "second" or "both". `hour` is the hour
    (UTC) of the first event of the day.
    """

    day: datetime.date
    epoch: int
    changed_twins: str = ""
    hour: int = 12

    @property
    def start(self) -> datetime.datetime:
        """The time of the day's first event."""
        return datetime.datetime.combine(self.day, datetime.time(self.hour), datetime.UTC)


@dataclass(frozen=True, slots=True)
class Calendar:
    """The days of all histories, in the order of the runs, and the indices of days with a role.

    The history of a daily metric has 13 days:

        index    day                             values
        0-1      first epoch                     first values
        2-5      first epoch                     another value of each second twin
        6-9      next epoch                      another value of both twins
        10-11    first epoch: clock set back     the values of the next epoch
        12       next epoch                      only ends the interval of the day before

    On the days 2 to 5 the other value must not change the permanent response, because a scope is
    memoized with its first value. On the days 10 and 11, a client that has forgotten the first
    epoch would make a third permanent response.

    A weekly metric has 3 + 2 + 1 + 1 days, a week apart. A metric whose epoch never ends (`life`)
    has only the first epoch and a last day. For a metric that reports once an epoch see
    `_create_for_once`.
    """

    days: tuple[Day, ...]
    first_epoch: range
    """Indices of the days of the first epoch, before the clock is set back."""
    next_epoch: range = range(0)
    """Indices of the days of the next epoch."""
    clock_set_back: range = range(0)
    """Indices of the days of the first epoch after the clock was set back."""
    is_once: bool = False
    """Whether the metric reports once an epoch. Then a report is sent within its epoch or never."""

    def list_run_pairs(self) -> list[tuple[int, int]]:
        """Return pairs of days of the first epoch whose runs have one order of the devices.

        A check compares the coins of both days, to find generators that restart with the process. A
        client draws the coins of a day's report in the run of the day, or in the next run, which
        finishes the report. Three runs have one order. The reports of the days 0 and 1 are drawn in
        the runs 0 and 1, or in the runs 1 and 2, so their order is the same in both cases.
        """
        return [
            (day, day + 1)
            for day in self.first_epoch[::RUNS_PER_ORDER]
            if day + 1 in self.first_epoch
        ]

    def list_epochs(self) -> list[int]:
        """Return the epochs of all days, each once."""
        return sorted({day.epoch for day in self.days})

    def may_drop(self, day: int) -> bool:
        """Return whether a device may drop finished reports on a day, because the epoch is over."""
        is_new_epoch = day > 0 and self.days[day].epoch != self.days[day - 1].epoch
        return self.is_once and is_new_epoch

    @classmethod
    def of(cls, metric: Metric) -> Calendar:
        """Return the days for a metric.

        A report is finished in the run of the next day, because this run ends its interval.
        """
        if metric.interval == "epoch":
            return cls._create_for_once(metric)
        is_weekly = metric.interval == "week"
        step = datetime.timedelta(days=7 if is_weekly else 1)
        # The first epoch may be a month of four weeks: three weeks before the clock is set back,
        # and one week afterwards.
        n_first, n_next, n_back = (3, 2, 1) if is_weekly else (6, 4, 2)
        first_start = find_next_epoch(metric, metric.expires - BEFORE_THE_END)
        first_epoch = [
            Day(first_start + i * step, 0, "second" if i > RESTART_DAY else "", _HOURS[i])
            for i in range(n_first)
        ]
        if metric.epoch == "life":
            return cls((*first_epoch, Day(first_start + n_first * step, 0)), range(n_first))
        next_start = find_next_epoch(metric, first_start)
        # The first day of the next epoch is left free for `ending`, the last run of the history.
        next_epoch = [Day(next_start + (i + 1) * step, 1, "both", _HOURS[i]) for i in range(n_next)]
        clock_set_back = [
            Day(first_start + (n_first + i) * step, 0, "both", _HOURS[i]) for i in range(n_back)
        ]
        # The last day only ends the interval of the day before, so that its report is finished.
        ending = Day(next_start, 1, "both")
        start_of_back = n_first + n_next
        return cls(
            (*first_epoch, *next_epoch, *clock_set_back, ending),
            range(n_first),
            range(n_first, start_of_back),
            range(start_of_back, start_of_back + n_back),
        )

    @classmethod
    def _create_for_once(cls, metric: Metric) -> Calendar:
        """Return the days for a metric that reports once an epoch: two days of each of two epochs.

        Each device draws a day of the epoch on which it reports, and never one of the last eight
        days (`EXCLUDED_DAYS`). So on the ninth day from the end every device reports an event, if
        it has recorded nothing before. The history has this day, and the day after it, which ends
        the interval within the epoch: a report is sent within its epoch or never. At the end the
        clock is set back to the first epoch, which has had its report, so that no device may make
        another report.
        """
        starts = [find_next_epoch(metric, metric.expires - BEFORE_THE_END)]
        for _ in range(2):
            starts.append(find_next_epoch(metric, starts[-1]))
        first_day, second_day = (
            start - datetime.timedelta(days=EXCLUDED_DAYS + 1) for start in starts[1:]
        )
        next_day = datetime.timedelta(days=1)
        first_epoch = [Day(first_day, 0), Day(first_day + next_day, 0)]
        evening = _HOURS[1]
        next_epoch = [
            Day(second_day, 1, "second", evening),
            Day(second_day + next_day, 1, "second", evening),
        ]
        clock_set_back = [Day(first_day, 0, "both"), Day(first_day + next_day, 0, "both")]
        # Only the first of the two days of an epoch has a report: the second day ends its interval.
        # After the clock was set back there is no report, so that no day has this role.
        return cls(
            (*first_epoch, *next_epoch, *clock_set_back), range(1), range(2, 3), is_once=True
        )


def find_next_epoch(metric: Metric, day: datetime.date) -> datetime.date:
    """Return the first day of the next epoch, or `day` itself for a metric without epochs."""
    later = day
    while metric.epoch != "life" and metric.epoch_at(later) == metric.epoch_at(day):
        later += datetime.timedelta(days=1)
    return later
