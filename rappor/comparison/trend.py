"""`trend`: how the share of each string runs over days, weeks or months."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from rappor.base.errors import DecodeError
from rappor.base.progress import Progress, no_progress
from rappor.base.ranges import check_integer
from rappor.candidates.candidates import Candidates
from rappor.comparison.compare_samples import UNKNOWN
from rappor.comparison.comparison import Comparison, Sample, panel
from rappor.comparison.per_sample import Levels
from rappor.comparison.periods import Stretch, stretches
from rappor.comparison.sample_contrasts import Asked
from rappor.comparison.samples import Samples
from rappor.counts.released import Released
from rappor.decoding.estimates import Estimates
from rappor.estimator.error_control import ErrorControl


def trend(  # noqa: PLR0913 - all that a caller may know of the counts
    released: Released,
    candidates: Candidates | Iterable[str] | None = None,
    *,
    by: str | None = None,
    smooth: int = 1,
    error_control: ErrorControl = ErrorControl(),
    complete: bool = False,
    progress: Progress = no_progress,
) -> Comparison:
    """Estimate the share of each string on each day, week or month, and how it moved.

    The question is whether a share changed over the whole range: a line through all stretches of
    days decides it, weighted by their precision. The last third against the first describes it,
    and steps from one stretch to the next are tested too. README.md in this folder says how.

    Parameters
    ----------
    released : counts with their days, as `CollectorClient.counts(..., by="day")` and
    `Released.load` return them.
    candidates : the strings to look for, as for `decode`, at most 131,072; other encodings take
        none.
    by : "day", "week" or "month", no finer than the counts; what the counts have if omitted.
    smooth : number of stretches that are decoded together, each with the ones before it, for
        estimates beside those of single stretches; 1 for none.
    error_control : how sure to be; its level is that of the strings that are found, of the slopes
    that are called changes, and of the steps. For the strings "adaptive" is applied as "bh".
    complete : as for `decode`: every value is in one of the categories or buckets.

    Returns
    -------
    Panel. Its contrast "slope" is the change over the range by the line, "thirds" that of the last
    third, each "step" that of one stretch. Deterministic.

    Raises
    ------
    DecodeError
        There are no reports or no candidates, or the counts do not go together.

    Examples
    --------
    >>> import datetime
    >>> from rappor import Params, Population, trend
    >>> from rappor.counts.released import Period, Released
    >>> from rappor.simulation import simulate_days
    >>> population = Population(["cat", "dog"], [3, 1])
    >>> counts = simulate_days(
    ...     population, Params.profile("balanced"), n_devices=1e5, n_days=3, seed=1
    ... )
    >>> days = [datetime.date(2026, 11, day) for day in (1, 2, 4)]
    >>> periods = tuple(
    ...     Period(first=day, last=day, collections=(each,))
    ...     for day, each in zip(days, counts, strict=True)
    ... )
    >>> found = trend(
    ...     Released(metric="", first=days[0], last=days[-1], periods=periods, withheld=()),
    ...     ["cat", "dog", "emu"],
    ... )
    >>> [found.candidates[i] for i in found.shown], [each.reports for each in found.samples]
    (['cat', 'dog'], [100000, 100000, 0, 100000])
    """
    check_integer("smooth", smooth, 1, error=DecodeError)
    kind, found = stretches(released, by)
    collections = [each.collections for each in found]
    decoded = Samples.decoded(
        collections, candidates, error_control, overlap=None, complete=complete, progress=progress
    )
    described = [
        Sample.of(
            each.name,
            merged,
            first=each.first,
            last=each.last,
            missing_days=each.missing_days,
            withheld=each.withheld,
        )
        for each, merged in zip(found, decoded.merged, strict=True)
    ]
    answer = panel(
        decoded,
        described,
        list(_asked(decoded, described)),
        progress,
        metric=released.metric,
        by=kind,
        window=smooth,
        assumptions=decoded.assumed(kind, UNKNOWN),
    )
    if smooth == 1:
        return answer
    return replace(answer, smoothed=_smoothed(found, decoded, answer, smooth))


def _asked(decoded: Samples, described: Sequence[Sample]) -> Iterator[Asked]:
    """Ask for the slope, the last third against the first, and steps from period to period."""
    known, one = decoded.known.tolist(), np.eye(len(described))
    if len(known) < 2:
        return
    # From the first one, so that no digit is lost.
    days = np.array([(_day(each.first) + _day(each.last)) / 2 for each in described])
    days -= days[0]
    precision = decoded.precision
    n = max(len(known) // 3, 1)
    first, last = (one[part].sum(axis=0) * precision for part in (known[:n], known[-n:]))
    first, last = first / first.sum(), last / last.sum()
    # Generalised least squares: the line through all shares, each by its precision.
    away = days - np.average(days, weights=precision)
    slope = precision * away / (precision * away**2).sum()
    yield Asked(
        kind="slope",
        name=f"from {described[known[0]].name} to {described[known[-1]].name}, by the trend line",
        weights=slope * (days[known[-1]] - days[known[0]]),
        before=first,
        after=last,
    )
    if len(known) > 2:
        yield Asked.of("thirds", "from the first third to the last", last - first)
        for a, b in itertools.pairwise(known):
            name = f"from {described[a].name} to {described[b].name}"
            yield Asked.of("step", name, one[b] - one[a])


def _day(day: datetime.date | None) -> int:
    assert day is not None
    return day.toordinal()


def _smoothed(
    found: Sequence[Stretch], decoded: Samples, answer: Comparison, smooth: int
) -> Levels:
    """Decode each stretch with reports together with the ones before it, if these are enough."""
    together: list[Estimates | None] = []
    for last, stretch in enumerate(found):
        window = found[max(last - smooth + 1, 0) : last + 1]
        collections = [counts for each in window for counts in each.collections]
        known = len(window) == smooth and stretch.n_reports > 0
        together.append(decoded.decode(collections) if known else None)
    return decoded.apart.levels(answer._order, together)
