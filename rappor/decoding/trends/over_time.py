"""`trend`: how the share of each string runs over days, weeks or months."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rappor.candidates.candidates import Candidates
from rappor.counts.released import Released
from rappor.decoding.comparison.compare import compare
from rappor.decoding.comparison.comparison import Comparison
from rappor.decoding.decoder import decode
from rappor.decoding.detection import Detection
from rappor.decoding.estimates import Estimates
from rappor.decoding.side_by_side import (
    Apart,
    Chosen,
    Levels,
    assumption_within,
    decode_apart,
    levels_of,
    listed_candidates,
    told_once,
)
from rappor.decoding.trends.stretches import Stretch, stretches
from rappor.decoding.trends.trend import InUse, ParamsChange, Trend, TrendPeriod
from rappor.ground.errors import DecodeError
from rappor.ground.progress import Progress, no_progress
from rappor.ground.ranges import check_integer
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import Params


def trend(
    released: Released,
    candidates: Candidates | Iterable[str] | None = None,
    *,
    by: str | None = None,
    smooth: int = 1,
    detection: Detection = Detection(),
    progress: Progress = no_progress,
) -> Trend:
    """Estimate the share of each string on each day, week or month, and how it moved.

    Every stretch of days is decoded on its own, and each step from one to the next is estimated
    from the differences of their bits, where the noise that devices keep cancels. README.md in this
    folder says which strings are shown and what the intervals hold for.

    Parameters
    ----------
    released : counts with their days, as `Collector.counts(..., by="day")` and `Released.load`
        return them.
    candidates : the strings to look for, as for `decode`, but no stream; other encodings take none.
    by : "day", "week" or "month", no finer than the counts; what the counts have if omitted.
    smooth : number of stretches that are decoded together, each with the ones before it, for
        estimates beside those of single stretches; 1 for none.
    detection : how sure to be; its level is that of the strings that are shown, and of the steps
        that are called changes. "adaptive" is applied as "bh".

    Returns
    -------
    Trend. Deterministic.

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
    >>> found.candidates, [period.reports for period in found.periods]
    (('cat', 'dog'), [100000, 100000, 0, 100000])
    """
    detection = detection.for_several_tests()
    check_integer("smooth", smooth, 1, error=DecodeError)
    kind, found = stretches(released, by)
    every = [counts for each in found for counts in each.collections]
    listed = listed_candidates(candidates, every)
    apart = decode_apart(every, [each.collections for each in found], listed, detection, progress)
    alone, chosen = apart.alone, apart.chosen
    return Trend(
        metric=released.metric,
        by=kind,
        periods=tuple(map(_period, found, alone)),
        candidates=chosen.names,
        levels=levels_of(alone, chosen, detection, [1] * len(found)),
        window=smooth,
        smoothed=None if smooth == 1 else _smoothed(found, apart, detection, smooth, listed),
        steps=_steps(found, chosen, listed, detection),
        params_changes=tuple(_params_changes(found)),
        n_candidates=chosen.n_candidates,
        assumed=assumption_within(kind, [each for each in alone if each is not None]),
        warnings=tuple(
            told_once(
                [each.name for each in found],
                [() if each is None else each.warnings for each in alone],
            )
        ),
        detection=detection,
    )


def _smoothed(
    found: Sequence[Stretch],
    apart: Apart,
    detection: Detection,
    smooth: int,
    listed: Candidates | None,
) -> Levels:
    """Decode each stretch with reports together with the ones before it, if these are enough."""
    together: list[Estimates | None] = []
    counted: list[int] = []
    for last in range(len(found)):
        window = found[max(last - smooth + 1, 0) : last + 1]
        collections = [counts for each in window for counts in each.collections]
        known = len(window) == smooth and found[last].n_reports > 0
        together.append(decode(collections, listed, detection=apart.detection) if known else None)
        counted.append(sum(each.n_reports > 0 for each in window))
    return levels_of(together, apart.chosen, detection, counted)


def _steps(
    found: Sequence[Stretch],
    chosen: Chosen,
    listed: Candidates | None,
    detection: Detection,
) -> Comparison | None:
    """Compare each stretch with the one before it that has reports, by the chosen strings."""
    samples = {each.name: each.collections for each in found if each.n_reports}
    if len(samples) < 2 or not chosen.names:
        return None
    shown = None
    if listed is not None:
        shown = Candidates.from_list(chosen.names, normalize=listed.normalize)
    return compare(
        samples,
        shown,
        detection=chosen.detection(detection),
        baseline="previous",
    )


def _period(stretch: Stretch, estimates: Estimates | None) -> TrendPeriod:
    devices = 0.0
    if estimates is not None:
        devices = sum(
            each.n_reports / each.repetition.reports_per_device for each in estimates.collected
        )
    return TrendPeriod(
        first=stretch.first,
        last=stretch.last,
        name=stretch.name,
        reports=stretch.n_reports,
        devices=devices,
        fingerprints=tuple(_sets(stretch)),
        missing_days=stretch.missing_days,
        withheld=stretch.withheld,
    )


def _sets(stretch: Stretch) -> dict[str, Params]:
    """Return the parameter sets of a stretch, by their fingerprints."""
    sets = {each.params.fingerprint: each.params for each in stretch.collections if each.n_reports}
    return dict(sorted(sets.items()))


def _params_changes(found: Sequence[Stretch]) -> Iterator[ParamsChange]:
    """Yield the stretches whose parameters are not those of the one before with reports."""
    before: dict[str, Params] | None = None
    for each in found:
        if not each.n_reports:
            continue
        sets = _sets(each)
        if before is not None and sets.keys() != before.keys():
            yield ParamsChange(
                period=each.name,
                before=tuple(map(_in_use, before.values())),
                after=tuple(map(_in_use, sets.values())),
            )
        before = sets


def _in_use(params: Params) -> InUse:
    return InUse(
        fingerprint=params.fingerprint,
        epsilon_1=epsilon_1(params),
        epsilon_inf=epsilon_inf(params),
    )
