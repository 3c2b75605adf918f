"""The files of `rappor trend` and `rappor publish`: counts with their days, candidates."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from rappor.base.errors import DecodeError, MetricError
from rappor.cli.count_files import days_of, read_released
from rappor.cli.input_paths import Source
from rappor.cli.numbers import WholeNumber
from rappor.cli.options import option_field

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates
    from rappor.counts.counts import Counts
    from rappor.counts.released import Period, Released


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendFiles(Source):
    """What the command line says about the counts, their days, and what their strings may be."""

    by: str | None = option_field(
        ["day", "week", "month"],
        "Length of a period, at least that of the counts. Default: that of the counts.",
    )
    first: datetime.datetime | None = option_field(  # noqa: RUF009  # a field
        "DAY",
        "Day (UTC) of the first file, for files without days. Each further file is of the "
        "next day, or of the next period of --by.",
        flags="--from",
    )
    smooth: int = option_field(
        WholeNumber(1),
        "Also estimate each period together with the N - 1 before it.",
        default=1,
        show_default=False,
    )

    def released(self) -> tuple[Released, Candidates | None]:
        """Read the counts with their days, and the candidates where they are needed."""
        released = self._joined() if self.first is None else self._from(self.first.date())
        if not released.n_reports:
            raise DecodeError("counts must have at least 1 report, got 0")
        samples = [list(period.collections) for period in released.periods if period.n_reports]
        return released, self.candidates(*samples)

    def _joined(self) -> Released:
        """Join the files that a collector answered."""
        found = []
        for path in self.paths:
            released = read_released(path, self.named_metric())
            if released is None:
                raise click.UsageError(
                    f"{path} has no days: give --from, the first day of the first file"
                )
            found.append(released)
        return _joined(found)

    def _from(self, first: datetime.date) -> Released:
        """Give each file a day, week or month, one after another."""
        from rappor.counts.released import Released

        read = [(path, self.read_file(path)) for path in self.paths]
        periods = tuple(_periods(read, first, self.by or "day"))
        metrics = {counts.metric for period in periods for counts in period.collections}
        return Released(
            metric=metrics.pop() if len(metrics) == 1 else "",
            first=first,
            last=periods[-1].last,
            periods=periods,
            withheld=(),
        )


def _periods(
    read: Sequence[tuple[str, list[Counts]]], first: datetime.date, by: str
) -> Iterator[Period]:
    from rappor.counts.calendar import stretch_of
    from rappor.counts.released import Period

    following: datetime.date | None = first
    for path, counts in read:
        if days_of(path):
            raise click.UsageError(f"{path} has its own days: omit --from")
        if following is None:
            raise DecodeError(f"the days of {path} must be before the year 10000")
        last = stretch_of(following, by, within=(following, datetime.date.max))[1]
        yield Period(first=following, last=last, collections=tuple(counts))
        following = None if last == datetime.date.max else last + datetime.timedelta(1)


def _joined(found: list[Released]) -> Released:
    """Put the periods of several answers into one, in the order of their days."""
    from rappor.counts.released import Released

    if len({each.metric for each in found}) > 1:
        raise MetricError(f"counts must be of one metric, got {', '.join(e.metric for e in found)}")
    periods = sorted((p for each in found for p in each.periods), key=lambda period: period.first)
    for before, after in itertools.pairwise(periods):
        if after.first <= before.last:
            raise DecodeError(f"periods must not overlap, got {before.name} and {after.name}")
    return Released(
        metric=found[0].metric,
        first=min(each.first for each in found),
        last=max(each.last for each in found),
        periods=tuple(periods),
        withheld=tuple(sorted(day for each in found for day in each.withheld)),
    )
