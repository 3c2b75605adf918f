"""`trend`: the share of each string by day, week or month, and tests of its changes.

The samples are consecutive periods. Three kinds of contrasts (weighted sums of the periods, with
weights that sum to 0) answer three questions:

| kind | question | weights |
|---|---|---|
| slope | did a share change over the whole range? | the trend line's, see `_request_contrasts` |
| thirds | by how much? | mean of the last third minus mean of the first third |
| step | when? | one period minus the period before |
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from rappor.base.argument_checks import check_type, explain_error_control
from rappor.base.errors import DecodeError
from rappor.base.progress import Progress, no_progress
from rappor.base.ranges import check_integer
from rappor.candidates.candidates import Candidates
from rappor.comparison.compare_samples import UNKNOWN_CORRELATION
from rappor.comparison.comparison import Comparison, Sample, build_comparison, select_thirds
from rappor.comparison.per_sample import SampleEstimates
from rappor.comparison.periods import CalendarPeriod, split_periods
from rappor.comparison.sample_contrasts import RequestedContrast
from rappor.comparison.samples import Samples
from rappor.counts.released_counts import Period, ReleasedCounts
from rappor.decoding.estimates import Estimates
from rappor.estimator.error_control import ErrorControl


@explain_error_control
def trend(  # noqa: PLR0913 - all that a caller may know of the counts
    released: ReleasedCounts,
    candidates: Candidates | Iterable[str] | None = None,
    *,
    by: str | None = None,
    smooth: int = 1,
    error_control: ErrorControl = ErrorControl(),
    complete: bool = False,
    progress: Progress = no_progress,
) -> Comparison:
    """Estimate the share of each string in each day, week or month, and test for changes.

    The primary test asks if a share changed over the whole range, by a line through all periods,
    weighted by their precision. The last third against the first describes the change without a
    test. Steps between consecutive periods are supplementary tests. README.md of this package has
    the statistics.

    Parameters
    ----------
    released : counts with their days, as `CollectorClient.counts(..., by="day")` and
        `ReleasedCounts.load` return them.
    candidates : strings to test, as for `decode`, at most 131,072. Encodings of categories take no
        candidates.
    by : "day", "week" or "month", no finer than the counts. By default the length of the counts'
        periods.
    smooth : number of periods of a moving window, for smoothed estimates: each period is decoded
        together with the `smooth` - 1 periods before it. 1 for no smoothed estimates.
    error_control : error rate of the detected strings, of the slopes and of the steps, and the
        confidence level. The test of presence combines several periods, so its method is "bh" even
        if "adaptive" is requested.
    complete : as for `decode`: True if every value is in one of the categories of the metric, so
        that the shares add to 1.
    progress : as for `decode`.

    Returns
    -------
    Comparison. Its contrast "slope" is the change over the range by the line, "thirds" the change
    of the last third, each "step" the change of one period. The result is deterministic.

    Raises
    ------
    ParamsError
        `released` is no `ReleasedCounts`, or an argument is outside its range.
    DecodeError
        There are no reports or no candidates, or the counts do not fit together.

    Examples
    --------
    >>> import datetime
    >>> from rappor import Params, Population, trend
    >>> from rappor.counts.released_counts import Period, ReleasedCounts
    >>> from rappor.simulation import simulate_days
    >>> population = Population(["cat", "dog"], [3, 1])
    >>> counts = simulate_days(
    ...     population, Params.profile("balanced"), n_devices=1e5, n_days=3, seed=1
    ... )
    >>> days = [datetime.date(2026, 11, day) for day in (1, 2, 4)]
    >>> periods = tuple(
    ...     Period(first=day, last=day, collections=(collection,))
    ...     for day, collection in zip(days, counts, strict=True)
    ... )
    >>> comparison = trend(
    ...     ReleasedCounts(metric="", first=days[0], last=days[-1], periods=periods, withheld=()),
    ...     ["cat", "dog", "emu"],
    ... )
    >>> [comparison.candidates[i] for i in comparison.shown_rows]
    ['cat', 'dog']
    >>> [sample.reports for sample in comparison.samples]
    [100000, 100000, 0, 100000]
    """
    # Case: the caller passes plain `Counts`. They contain no days, and a trend needs the days that
    # a collector stores beside its counts. The message names the function for counts without days.
    check_type(
        "released", released, ReleasedCounts, "compare_samples compares collections without days"
    )
    check_integer("smooth", smooth, 1, error=DecodeError)
    kind, periods = split_periods(released, by)
    collections = [period.collections for period in periods]
    samples = Samples.from_collections(
        collections,
        candidates,
        error_control,
        device_correlation=None,
        complete=complete,
        progress=progress,
    )
    columns = [
        Sample.from_collections(
            period.name,
            added,
            first=period.first,
            last=period.last,
            missing_days=period.missing_days,
            withheld=period.withheld,
        )
        for period, added in zip(periods, samples.added, strict=True)
    ]
    comparison = build_comparison(
        samples,
        columns,
        list(_request_contrasts(samples, columns)),
        progress,
        metric=released.metric,
        by=kind,
        window=smooth,
        assumptions=samples.describe_assumptions(kind, UNKNOWN_CORRELATION),
        installations=released.installations,
    )
    if smooth == 1:
        return comparison
    return replace(comparison, smoothed=_smooth(periods, samples, comparison, smooth))


def _request_contrasts(samples: Samples, columns: Sequence[Sample]) -> Iterator[RequestedContrast]:
    """Yield the slope, the last third against the first, and the steps between periods.

    The slope is the change along a straight line through the shares of all periods. Let d_t be the
    middle day of period t, and p_t its precision (1 / variance of a share). D is the number of days
    between the first and the last period with reports. Periods with a large precision count more
    (generalised least squares). The change along the line is a sum of the shares with the weights

        D p_t (d_t - mean d) / sum of p_t (d_t - mean d)^2,    mean d weighted by p_t

    Periods without reports have the weight 0.

    Example: three weeks of equal precision have d = 0, 7 and 14, mean d = 7 and D = 14. The weights
    are 14 (-7) / 98 = -1, 0 and 1: the last week minus the first.

    Parameters
    ----------
    samples : the decoded periods.
    columns : descriptions of the periods.
    """
    # Row t of `unit` contains the weights that select period t.
    nonempty, unit = samples.nonempty.tolist(), np.eye(len(columns))
    # One period with reports cannot be compared with another period.
    if len(nonempty) < 2:
        return
    # Days are counted from the first period. Ordinals near 740,000 would cost digits of the slope.
    days = np.array(
        [
            (_convert_to_ordinal(sample.first) + _convert_to_ordinal(sample.last)) / 2
            for sample in columns
        ]
    )
    days -= days[0]
    precision = samples.precision
    # Weights of the precision-weighted means of the first and of the last third of the periods.
    thirds = select_thirds(nonempty)
    first, last = (unit[list(third)].sum(axis=0) * precision for third in thirds)
    first, last = first / first.sum(), last / last.sum()
    centered = days - np.average(days, weights=precision)
    slope = precision * centered / (precision * centered**2).sum()
    # Tables show a share before and after the change. A line has no such shares, so the slope is
    # shown beside the means of the first and of the last third.
    yield RequestedContrast(
        kind="slope",
        name=f"from {columns[nonempty[0]].name} to {columns[nonempty[-1]].name}, by the trend line",
        weights=slope * (days[nonempty[-1]] - days[nonempty[0]]),
        before=first,
        after=last,
    )
    # With two periods, thirds and steps would repeat the slope.
    if len(nonempty) > 2:
        first_days, last_days = (
            _name_days(columns[third[0]], columns[third[-1]]) for third in thirds
        )
        yield RequestedContrast.from_weights(
            "thirds", f"from the first third ({first_days}) to the last ({last_days})", last - first
        )
        for before, after in itertools.pairwise(nonempty):
            name = f"from {columns[before].name} to {columns[after].name}"
            yield RequestedContrast.from_weights("step", name, unit[after] - unit[before])


def _name_days(first: Sample, last: Sample) -> str:
    """Return the days from the beginning of one period to the end of another, as ISO 8601."""
    assert first.first is not None
    assert last.last is not None
    return Period(first=first.first, last=last.last, collections=()).name


def _convert_to_ordinal(day: datetime.date | None) -> int:
    """Return the ordinal number of a period's day. Periods of a trend always have days."""
    assert day is not None
    return day.toordinal()


def _smooth(
    periods: Sequence[CalendarPeriod],
    samples: Samples,
    comparison: Comparison,
    window: int,
) -> SampleEstimates:
    """Decode each period with reports together with the `window` - 1 periods before it.

    The first `window` - 1 periods have too few predecessors, so their rows are NaN.
    """
    estimates: list[Estimates | None] = []
    for last, period in enumerate(periods):
        periods_in_window = periods[max(last - window + 1, 0) : last + 1]
        collections = [counts for member in periods_in_window for counts in member.collections]
        is_decoded = len(periods_in_window) == window and period.n_reports > 0
        estimates.append(samples.decode(collections) if is_decoded else None)
    return samples.separate.tabulate(comparison._order, estimates)
