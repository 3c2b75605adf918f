"""Calendar of a client audit: the days on which simulated devices run, and their roles.

`rappor.auditing.device_histories` runs the devices on these days, and `rappor.auditing.device`
compares the reports of days by their roles: the days of the first epoch, of the next epoch, and of
the first epoch after the clock was set back.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Final, NamedTuple

from rappor.protocol.randomizer import EXCLUDED_DAYS
from rappor.registry.metric import Metric

BEFORE_THE_END: Final = datetime.timedelta(days=1500)
"""Time before the metric expires at which a history begins.

A device records nothing after the metric expires. Three yearly epochs take at most 1,096 days.
"""

RUNS_PER_ORDER: Final = 3
"""Number of days in a row on which the devices run in one order (see `run_histories`)."""

FIRST_DAY, RESTART_DAY = 0, 1
"""Indices of the day on which devices start, and of the day of their first restart.

The second twins record another value on all days after `RESTART_DAY`.
"""

_HOURS: Final = (12, 21, 4, 23, 8, 17)
"""Hours (UTC) of the first event, by index of the day in its epoch.

Twins record at the same time. So if a client drops the evening's events of one value, one twin of a
pair has a report less. The first three hours are at noon, in the evening and at night, because a
weekly metric has three days only.
"""


class Day(NamedTuple):
    """One day of all devices.

    `epoch` is the index of the epoch in the history, from 0. `other` names the twins that record
    another value than on the first day: "" (neither), "second" or "both". `hour` is the hour (UTC)
    of the first event of the day.
    """

    day: datetime.date
    epoch: int
    other: str = ""
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
    has only the first epoch and a last day. For a metric that reports once an epoch see `_of_once`.
    """

    days: tuple[Day, ...]
    same: range
    """Indices of the days of the first epoch, before the clock is set back."""
    later: range = range(0)
    """Indices of the days of the next epoch."""
    back: range = range(0)
    """Indices of the days of the first epoch after the clock was set back."""
    is_once: bool = False
    """Whether the metric reports once an epoch. Then a report is sent within its epoch or never."""

    def list_run_pairs(self) -> list[tuple[int, int]]:
        """Return pairs of days of the first epoch whose runs have one order of the devices.

        The pairs serve the check for generators that restart with the process. A client draws the
        coins of a day's report in the run of the day, or in the next run, which finishes the
        report. Let the days 0, 1 and 2 have one order. The reports of the days 0 and 1 were drawn
        in the runs 0 and 1, or in the runs 1 and 2. The order is the same in both cases.
        """
        return [(day, day + 1) for day in self.same[::RUNS_PER_ORDER] if day + 1 in self.same]

    def list_epochs(self) -> list[int]:
        """Return the epochs of all days, each once."""
        return sorted({day.epoch for day in self.days})

    def may_drop(self, day: int) -> bool:
        """Return whether a device may drop finished reports on a day, because the epoch is over."""
        is_new_epoch = day > 0 and self.days[day].epoch != self.days[day - 1].epoch
        return self.is_once and is_new_epoch

    @classmethod
    def of(cls, metric: Metric) -> Calendar:
        """Return the days for a metric. The run of the next day ends the interval of a report."""
        if metric.interval == "epoch":
            return cls._of_once(metric)
        is_weekly = metric.interval == "week"
        step = datetime.timedelta(days=7 if is_weekly else 1)
        # A month has four weeks: three, and one for the clock that is set back.
        n_same, n_later, n_back = (3, 2, 1) if is_weekly else (6, 4, 2)
        first = find_next_epoch(metric, metric.expires - BEFORE_THE_END)
        same = [
            Day(first + i * step, 0, "second" if i > RESTART_DAY else "", _HOURS[i])
            for i in range(n_same)
        ]
        if metric.epoch == "life":
            return cls((*same, Day(first + n_same * step, 0)), range(n_same))
        second = find_next_epoch(metric, first)
        later = [Day(second + (i + 1) * step, 1, "both", _HOURS[i]) for i in range(n_later)]
        back = [Day(first + (n_same + i) * step, 0, "both", _HOURS[i]) for i in range(n_back)]
        # The last day only ends the interval of the day before, so that its report is finished.
        ending = Day(second, 1, "both")
        start_of_back = n_same + n_later
        return cls(
            (*same, *later, *back, ending),
            range(n_same),
            range(n_same, start_of_back),
            range(start_of_back, start_of_back + n_back),
        )

    @classmethod
    def _of_once(cls, metric: Metric) -> Calendar:
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
        one, two = (start - datetime.timedelta(days=EXCLUDED_DAYS + 1) for start in starts[1:])
        next_day = datetime.timedelta(days=1)
        first = [Day(one, 0), Day(one + next_day, 0)]
        evening = _HOURS[1]
        second = [Day(two, 1, "second", evening), Day(two + next_day, 1, "second", evening)]
        back = [Day(one, 0, "both"), Day(one + next_day, 0, "both")]
        return cls((*first, *second, *back), range(1), range(2, 3), is_once=True)


def find_next_epoch(metric: Metric, day: datetime.date) -> datetime.date:
    """Return the first day of the next epoch, or `day` itself for a metric without epochs."""
    later = day
    while metric.epoch != "life" and metric.epoch_at(later) == metric.epoch_at(day):
        later += datetime.timedelta(days=1)
    return later
