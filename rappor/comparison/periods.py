"""The days, weeks or months of a trend, with those that have no reports."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from rappor.base.errors import DecodeError
from rappor.base.ranges import check_choice
from rappor.counts.calendar import STRETCHES, Days, stretch_of
from rappor.counts.counts import Counts
from rappor.counts.released import Period, Released

MOST: Final = 1000
"""Stretches of one trend: more than two years of days."""


@dataclass(slots=True)
class Stretch:
    """A day, week or month: its counts, how many of its days have none, and how many wait.

    `missing_days` is None where its counts do not keep days apart.
    """

    first: datetime.date
    last: datetime.date
    missing_days: int | None = None
    withheld: int = 0
    collections: list[Counts] = field(default_factory=list)

    @property
    def n_reports(self) -> int:
        """Reports under all parameter sets."""
        return sum(counts.n_reports for counts in self.collections)

    @property
    def name(self) -> str:
        """The day, or both ends, as a `Period` is named."""
        return Period(first=self.first, last=self.last, collections=()).name


def stretches(released: Released, by: str | None) -> tuple[str, list[Stretch]]:
    """Return what a stretch is ("day", "week", "month", "period"), and all of the range in order.

    Parameters
    ----------
    by : "day", "week" or "month", no finer than the periods; if omitted, what the periods are.
        Other periods stay as they are, and nothing is known to be missing.

    Raises
    ------
    DecodeError
        There are no reports, a period does not fit into one stretch, or there are too many.
    """
    if by is not None:
        check_choice("by", by, STRETCHES, error=DecodeError)
    periods = [period for period in released.periods if period.n_reports]
    if not periods:
        raise DecodeError("counts must have at least 1 report, got 0")
    within = _range(released, periods)
    kind = by or _kind(periods, within)
    if kind is None:
        found = [Stretch(period.first, period.last) for period in periods]
    else:
        found = list(_calendar(kind, within))
    places = {each.first: each for each in found}
    daily = kind is not None and all(period.first == period.last for period in periods)
    for period in periods:
        first, last = stretch_of(period.first, kind, within=within) if kind else _days(period)
        if period.last > last:
            raise DecodeError(
                f"by must not be finer than the counts, got {by} for the period {period.name}"
            )
        places[first].collections += period.collections
    for day in released.withheld:
        for each in found:
            each.withheld += each.first <= day <= each.last
    days = {period.first for period in periods}
    for each in found:
        if daily or not each.collections:
            n_days = (each.last - each.first).days + 1
            each.missing_days = n_days - sum(each.first <= day <= each.last for day in days)
    return kind or "period", found


def _days(period: Period) -> Days:
    return period.first, period.last


def _range(released: Released, periods: Sequence[Period]) -> Days:
    """Return the days that were asked for; a range without a beginning begins with its reports.

    So a range without an end ends with them. Collectors write such ranges with the first and the
    last day that there can be.
    """
    first, last = released.first, released.last
    if first == datetime.date.min:
        first = min([periods[0].first, *released.withheld])
    if last == datetime.date.max:
        last = max([periods[-1].last, *released.withheld])
    return first, last


def _kind(periods: Sequence[Period], within: Days) -> str | None:
    """Return what all periods are, None where they are of several kinds or of none."""
    for kind in STRETCHES:
        if all(stretch_of(each.first, kind, within=within) == _days(each) for each in periods):
            return kind
    return None


def _calendar(kind: str, within: Days) -> Iterator[Stretch]:
    """Yield every stretch of the range."""
    day, n = within[0], 0
    while day <= within[1]:
        first, last = stretch_of(day, kind, within=within)
        if n == MOST:
            raise DecodeError(
                f"a trend has at most {MOST:,} {kind}s, from {within[0]}: ask for less"
            )
        yield Stretch(first, last)
        n += 1
        if last == datetime.date.max:
            return
        day = last + datetime.timedelta(1)
