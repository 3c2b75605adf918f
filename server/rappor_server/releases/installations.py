"""Active installations of a metric, from the numbers of reports of released blocks.

`rappor.counts.installations` explains what is counted. A block that touches d intervals counts with
1/d of its reports in each of them. This module adds up the blocks of release windows, and keeps the
promise of the windows.

Why a window is not divided at will
-----------------------------------
A release window (`storage.release_windows`) has at least `min_reports` reports of one fingerprint,
and nothing finer than a window is released. A window may contain blocks of several days, though:

    window of a rare segment, dated Wed, min_reports = 30
    blocks      Mon 12    Tue 15    Wed 11

The numbers of all other segments are known from their own windows. If Monday's number of devices
contained these 12 reports, a reader could subtract the other segments, and learn the 12 reports of
a segment whose minimum is 30.

So the shares of a window are joined from the latest interval to the earliest. A group of
neighbouring intervals is complete if both numbers are at least the `min_reports` that the window
needed when it was formed:

- the sum of the shares of the group
- the number of reports of the blocks that begin in the group

The intervals of a group get equal parts. The earliest shares may be too small for a group. They are
added to the reports of the earliest group, whose intervals stay the same:

    shares of the window         Mon 12    Tue 15    Wed 11    min_reports = 30
    groups                       {Mon, Tue, Wed} 38
    counted                      Mon 12.67 Tue 12.67 Wed 12.67

    shares of a common segment   Mon 10    Tue 10    Wed 5,000
    groups                       {Wed} 5,000, and 20 reports of Mon and Tue are too few
    counted                      Wed 5,020

The second case is a night in which nearly all cohorts have closed a block of one day, and one
cohort a block of three days. If its 20 reports formed a group with Wednesday, two thirds of
Wednesday's devices would be counted on the days before.

Why the shares alone do not suffice: a block of Tue and Wed with 60 reports and a block of Wed with
12 reports have the shares Tue 30 and Wed 42. Both are at least 30, but their difference is the
block of 12 reports. With both conditions, every sum or difference of the numbers of a window
contains all reports that begin in one group, which are at least `min_reports`. Proof: take the
latest group whose number is used. The blocks that begin in this group have shares in this group and
in later groups only, and no number of a later group is used. So their reports do not cancel. The
proof holds for any weights, so a reader may divide the numbers of each window by another sampling
rate. That is why the numbers of reports by sampling rate, and of devices, show nothing more.

All results of a day stay the same for ever, because a window never changes, and windows that are
dated after the day do not count.

Steps
-----
`read_installations` reads the numbers through a day T, the last day that was moved into blocks, or
an earlier day of the caller:

1. `_list_ended_intervals` lists the last intervals that have ended by T.
2. `_count_reports` reads the windows that are dated between the first day of these intervals and T.
   `_read_shares` divides the blocks of each window into shares by interval, and `join_small_shares`
   joins the shares. The shares of all windows are added, separately for each sampling rate.
3. `_list_unreleased` lists the days with reports that are in none of these windows. An interval
   that contains such a day is incomplete: its number may still be too small.
"""

from __future__ import annotations

import bisect
import datetime
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Final, NamedTuple

from sqlalchemy import Connection, Engine, func, select, union

from rappor.counts.calendar_periods import DayRange, find_interval, list_intervals
from rappor.counts.installations import ActiveInterval, Installations, SampledReports
from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor_server.releases.releases import read_params
from rappor_server.storage import schema
from rappor_server.storage.database import read_snapshot
from rappor_server.storage.release_windows import select_waiting_totals

_MAX_INTERVALS: Final = 8
"""Largest number of intervals of a result: a week of days, and the same day of the week before.
More intervals make the table of a page longer, and read more blocks."""

_DAY: Final = datetime.timedelta(days=1)

_Shares = defaultdict[DayRange, Fraction]
"""The number of reports of a window by interval. Thirds and sevenths are exact, so that a share of
100 reports is not below a minimum of 100 by rounding."""

Parts = defaultdict[DayRange, dict[float | None, Fraction]]
"""The number of reports of all windows by interval and sampling rate."""


class Block(NamedTuple):
    """Blocks of a window that have the same days.

    Attributes
    ----------
    intervals : intervals that the blocks touch, in order
    reports : number of reports of the blocks together
    """

    intervals: tuple[DayRange, ...]
    reports: int


class _Window(NamedTuple):
    """A release window.

    Attributes
    ----------
    params : fingerprint
    first, last : days on which the earliest and the latest of its blocks end
    minimum : number of reports that the window needed when it was formed
    sampling_rate : share of the devices that took part; None if they may have had several rates
    """

    params: str
    first: datetime.date
    last: datetime.date
    minimum: int
    sampling_rate: float | None


def read_installations(engine: Engine, metric: Metric, through: datetime.date) -> Installations:
    """Return the number of devices that reported a metric, in its last intervals.

    Parameters
    ----------
    engine : the database
    metric : the metric; its `min_reports` is at least 1
    through : last day to read. An interval that ends later is left out, because its number would
        look like a decline. So is an interval that ends after the last day that was moved into
        blocks
    """
    with read_snapshot(engine) as db:
        blocked = schema.blocked.c
        query = select(blocked.through, blocked.forgotten).where(blocked.metric == metric.name)
        row = db.execute(query).one_or_none()
        # The result has no interval if no day was moved into blocks, or no interval has ended.
        intervals: list[DayRange] = []
        unreleased: list[DayRange] = []
        has_other_pace, parts = False, Parts(dict)
        if row is not None:
            through = min(row.through, through)
            intervals = _list_ended_intervals(db, metric, row.forgotten, through)
        if intervals:
            parts, has_other_pace = _count_reports(db, metric, intervals[0][0], through)
            unreleased = _list_unreleased(db, metric, through)
    return Installations(
        metric=metric.name,
        pace=metric.pace,
        intervals=tuple(
            ActiveInterval(
                first=first,
                last=last,
                parts=list_parts(parts[first, last]),
                is_complete=not any(start <= last and first <= end for start, end in unreleased),
            )
            for first, last in intervals
        ),
        has_other_pace=has_other_pace,
    )


def _list_ended_intervals(
    db: Connection, metric: Metric, forgotten: datetime.date, through: datetime.date
) -> list[DayRange]:
    """Return the last intervals that have ended by the day `through`, in order.

    There are at most `_MAX_INTERVALS`. No interval begins before `forgotten`, the first day from
    which no reports were deleted. Nor does one begin before the first block, so the interval in
    which the collection began is left out, unless it began on its first day.

    Example: a weekly metric began on Wed 4 Nov, and `through` is Thu 26 Nov. The weeks from 9 and
    from 16 Nov are returned. The first week lacks two days, and the last one has not ended.
    """
    total = schema.block_total.c
    query = select(func.min(total.first)).where(total.metric == metric.name)
    begin = db.execute(query).scalar()
    if begin is None:  # no block is closed
        return []
    begin = max(begin, forgotten)
    intervals: list[DayRange] = []
    first, last = find_interval(metric.pace, metric.epoch, through)
    if last > through:  # the interval of `through` has not ended
        last = first - _DAY
    # The loop goes from the latest interval to the earliest, and `last` is the last day of the
    # interval that it finds next.
    while len(intervals) < _MAX_INTERVALS:
        interval = find_interval(metric.pace, metric.epoch, last)
        if interval[0] < begin:
            break
        intervals.append(interval)
        last = interval[0] - _DAY
    return intervals[::-1]


def _count_reports(
    db: Connection, metric: Metric, first: datetime.date, through: datetime.date
) -> tuple[Parts, bool]:
    """Return the reports by interval and sampling rate, and whether another pace was left out.

    Parameters
    ----------
    db : the database
    metric : the metric
    first : first day of the first interval
    through : date of the last window
    """
    window = schema.release_window.c
    query = (
        select(window.params, window.first, window.last, window.minimum, window.sampling_rate)
        .where(window.metric == metric.name, window.last.between(first, through))
        .order_by(window.params, window.last)
    )
    windows = [_Window(*row) for row in db.execute(query)]
    params_by_fingerprint = read_params(db, {window.params for window in windows})
    parts = Parts(dict)
    has_other_pace = False
    for fingerprint, group in itertools.groupby(windows, key=lambda window: window.params):
        params, windows_of_params = params_by_fingerprint[fingerprint], list(group)
        if not _has_same_intervals(params, metric):
            has_other_pace = True
            continue
        all_shares = _read_shares(db, metric, params, windows_of_params)
        for window_of_params, shares in zip(windows_of_params, all_shares, strict=True):
            add_shares(parts, shares, window_of_params.sampling_rate)
    return parts, has_other_pace


def add_shares(
    parts: Parts, shares: Mapping[DayRange, Fraction], sampling_rate: float | None
) -> None:
    """Add the joined shares of a window to the reports of all windows, under its sampling rate."""
    for interval, number in shares.items():
        of_interval = parts[interval]
        of_interval[sampling_rate] = of_interval.get(sampling_rate, Fraction(0)) + number


def list_parts(reports: Mapping[float | None, Fraction]) -> tuple[SampledReports, ...]:
    """Return the reports of an interval by sampling rate, in order. An unknown rate is the last."""
    rates = sorted(reports, key=lambda rate: math.inf if rate is None else rate)
    return tuple(SampledReports(rate, float(reports[rate])) for rate in rates)


def _has_same_intervals(params: Params, metric: Metric) -> bool:
    """Return whether devices with a parameter set report in the same intervals as the metric says.

    A device that reports daily would count seven times in the week of a weekly metric.
    """
    if params.pace != metric.pace:
        return False
    # An epoch ends a week. All other intervals are the same in all epochs.
    return params.pace != "week" or params.epoch == metric.epoch


def _read_shares(
    db: Connection, metric: Metric, params: Params, windows: list[_Window]
) -> Iterator[Mapping[DayRange, Fraction]]:
    """Yield the joined shares of each window of a fingerprint, by interval."""
    total = schema.block_total.c
    query = select(total.last, total.first, total.reports).where(
        total.metric == metric.name,
        total.params == params.fingerprint,
        # Windows of a fingerprint follow each other, so no other window is between these ones.
        total.last.between(windows[0].first, windows[-1].last),
    )
    dates = [window.last for window in windows]
    blocks: list[list[Block]] = [[] for _ in windows]
    for last, first, reports in db.execute(query):
        # The window of a block is the first one that is dated no earlier.
        blocks[bisect.bisect_left(dates, last)].append(
            Block(tuple(list_intervals(params.pace, params.epoch, first, last)), int(reports))
        )
    for window, of_window in zip(windows, blocks, strict=True):
        yield join_small_shares(of_window, window.minimum)


def join_small_shares(blocks: Sequence[Block], minimum: int) -> dict[DayRange, Fraction]:
    """Divide the blocks of a window among intervals, and join the shares that are too small.

    Parameters
    ----------
    blocks : the blocks of a window, together with at least `minimum` reports
    minimum : smallest number of reports of a group of neighbouring intervals, and of the blocks
        that begin in the group

    Returns
    -------
    The reports of each interval of a group. The intervals that are too small for a group are
    missing: the opening of the module has an example of each case.
    """
    shares, begun = _Shares(Fraction), _Shares(Fraction)
    for intervals, reports in blocks:
        begun[intervals[0]] += reports
        for interval in intervals:
            shares[interval] += Fraction(reports, len(intervals))
    groups: list[list[DayRange]] = []
    totals: list[Fraction] = []
    group: list[DayRange] = []
    total = n_begun = Fraction(0)
    for interval in sorted(shares, reverse=True):
        group.append(interval)
        total += shares[interval]
        n_begun += begun[interval]
        if min(total, n_begun) >= minimum:
            groups.append(group)
            totals.append(total)
            group, total, n_begun = [], Fraction(0), Fraction(0)
    # The remaining shares are the earliest, and too small for a group. A group exists, because each
    # block begins in some interval, and all blocks together have at least `minimum` reports.
    totals[-1] += total
    return {
        interval: total / len(intervals)
        for intervals, total in zip(groups, totals, strict=True)
        for interval in intervals
    }


def _list_unreleased(db: Connection, metric: Metric, through: datetime.date) -> list[DayRange]:
    """Return the days of blocks and counters of a metric that are in no window dated by a day."""
    block, tally = schema.block.c, schema.tally.c
    waiting = select_waiting_totals([metric.name], through=through)
    query = union(
        select(block.first, block.last).where(block.metric == metric.name, ~block.closed),
        select(waiting.c.first, waiting.c.last),
        select(tally.day, tally.day).where(tally.metric == metric.name),
    )
    return [(first, last) for first, last in db.execute(query)]
