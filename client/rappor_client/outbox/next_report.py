"""The day from which a metric may record a value, and the day on which its report may leave.

A person who has just agreed sees that nothing is sent. With `interval = "epoch"`, a metric records
nothing before the day that the secret of the device draws, which may be weeks ahead:

    Dec 1     the person agrees
    Dec 13    the drawn day: the first day that is recorded
    Dec 14    the report of December 13 may leave

The days are lower bounds. A report leaves later if no value is recorded on its first day, if the
program does not run, or if the collector cannot be reached.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Final, NamedTuple

from rappor.registry.metric import Metric
from rappor_client.budget.state import State
from rappor_client.outbox.metric_cache import build_cache
from rappor_client.outbox.stops import Stops
from rappor_client.periods import DAY, LAST_TIME, day_of, find_interval_end

_MAX_DAYS: Final = 800
"""Number of days that are examined. An epoch has at most 366 days, so a device that is in the
sample of the next epoch finds its day. A larger number takes longer for a device that is not."""


class NextReport(NamedTuple):
    """First days of the next report of a metric (UTC).

    Attributes
    ----------
    recorded_from
        First day, from today on, of which a value is recorded.
    leaves_from
        First day on which a report of this value may leave.
    """

    recorded_from: datetime.date
    leaves_from: datetime.date


def find_next_report(
    metric: Metric,
    state: State,
    now: float,
    stops: Stops,
    find_unaffordable: Callable[[State, int], frozenset[str]],
) -> NextReport | None:
    """Return the first days of the next report of a metric; None if no day is found.

    The parameters are those of `build_cache`, which decides about each day. So this function has no
    rule of its own. No day is found for a metric that has ended, and for a device that is in no
    sample of the next two years.
    """
    timestamp = now
    for _ in range(_MAX_DAYS):
        if day_of(timestamp) > metric.expires or timestamp >= LAST_TIME:
            return None
        cache = build_cache(metric, state, timestamp, stops, find_unaffordable)
        if cache.skip_reason is None:
            scope = cache.memoized_scope
            interval = metric.interval if scope is None else scope.interval
            end = find_interval_end(interval, timestamp)
            return NextReport(day_of(timestamp), day_of(end))
        timestamp = (timestamp // DAY + 1) * DAY
    return None
