"""`trend`: how the share of each string runs over days, weeks or months."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rappor.candidates.candidates import Candidates
from rappor.candidates.stream import CandidateStream
from rappor.counts.counts import Counts
from rappor.counts.released import Released
from rappor.decoding.comparison.compare import compare
from rappor.decoding.comparison.comparison import Comparison
from rappor.decoding.decoder import decode
from rappor.decoding.estimates import Estimates
from rappor.decoding.inference import ErrorControl
from rappor.decoding.p_values import PValues
from rappor.decoding.trends.stretches import Stretch, stretches
from rappor.decoding.trends.trend import InUse, Levels, ParamsChange, Trend, TrendPeriod
from rappor.errors import DecodeError
from rappor.progress import Progress, no_progress
from rappor.protocol.encodings import encoding_of
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import Params
from rappor.ranges import check_integer

_REASONS = {
    "counts": "the most that the counts allow",
    "days": "as the scatter of the counts that were added tells",
    "unknown": "because nothing is known of them: if devices reported again within one, the errors "
    "are larger than these",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What every stretch is asked: all candidates, at one confidence."""

    candidates: Candidates | None
    control: ErrorControl

    def ask(self, collections: Sequence[Counts]) -> Estimates:
        """Decode the counts of a stretch."""
        return decode(
            collections,
            self.candidates,
            level=self.control.level,
            correction=self.control.correction,
            confidence=self.control.confidence,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """Which candidates the trend shows, (s,) int64, in their order, and how they were chosen."""

    names: tuple[str, ...]
    rows: NDArray[np.int64]
    n_candidates: int
    error: float


def trend(
    released: Released,
    candidates: Candidates | Iterable[str] | None = None,
    *,
    by: str | None = None,
    smooth: int = 1,
    level: float = 0.05,
    correction: str = "bh",
    confidence: float = 0.95,
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
    level, correction : error rate of the strings that are shown, and of the steps that are called
        changes. "adaptive" is applied as "bh".
    confidence : probability with which an interval holds the truth.

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
    applied = "bh" if correction == "adaptive" else correction
    control = ErrorControl(level=level, correction=applied, confidence=confidence)
    check_integer("smooth", smooth, 1, error=DecodeError)
    kind, found = stretches(released, by)
    every = [counts for each in found for counts in each.collections]
    listed = _listed(candidates, every)
    # Half of the level is for strings that all days together show: see _choose.
    whole = _Question(candidates=listed, control=replace(control, level=level / 2)).ask(every)
    error = (1 - confidence) * _share_of_candidates(whole, listed)
    question = _Question(candidates=listed, control=replace(control, confidence=1 - error))
    alone: list[Estimates | None] = []
    for number, each in enumerate(found):
        progress(f"{kind}s", number, len(found))
        alone.append(question.ask(each.collections) if each.n_reports else None)
    chosen = _choose(whole, alone, listed, control, error)
    return Trend(
        metric=released.metric,
        by=kind,
        periods=tuple(map(_period, found, alone)),
        candidates=chosen.names,
        levels=_levels(alone, chosen, control, [1] * len(found)),
        window=smooth,
        smoothed=None if smooth == 1 else _smoothed(found, question, chosen, control, smooth),
        steps=_steps(found, chosen, listed, control),
        params_changes=tuple(_params_changes(found)),
        n_candidates=chosen.n_candidates,
        assumed=_assumed(kind, [each for each in alone if each is not None]),
        warnings=tuple(_warnings(found, alone)),
        level=level,
        correction=applied,
        confidence=confidence,
    )


def _listed(
    candidates: Candidates | Iterable[str] | None, counts: Sequence[Counts]
) -> Candidates | None:
    """Return the candidates, normalised as the devices did; None where bits are answers."""
    if isinstance(candidates, str | CandidateStream):
        raise DecodeError("candidates must be a list of strings; a trend takes no stream")
    if isinstance(candidates, Candidates):
        return candidates
    if not any(encoding_of(each.params).hashed for each in counts):
        if candidates is not None:
            raise DecodeError("candidates must be left out: this encoding answers for every bit")
        return None
    return Candidates.from_list(candidates or (), normalize=counts[0].params.normalize)


def _distinct(estimates: Estimates) -> NDArray[np.bool_]:
    """Tell which rows, (c,), stand for themselves: the first one of each group of equal ones."""
    group = estimates.group
    first = np.zeros(len(group), dtype=bool)
    first[np.unique(group, return_index=True)[1]] = True
    return np.asarray((group == 0) | first)


def _share_of_candidates(whole: Estimates, listed: Candidates | None) -> float:
    """Return how large a part of the candidates are shown, at least; 1 where all are."""
    if listed is None:
        return 1.0
    distinct = _distinct(whole)
    return max(int((whole.detected & distinct).sum()), 1) / int(distinct.sum())


def _choose(
    whole: Estimates,
    alone: Sequence[Estimates | None],
    listed: Candidates | None,
    control: ErrorControl,
    error: float,
) -> _Chosen:
    """Choose the strings that are shown: those that all days together show, or any one stretch.

    The p-value of a string is twice the smaller one of two: that of all days, and T times the
    least of T stretches. Whatever all days detect at half the level passes, so that as many
    strings pass as the intervals were widened for.
    """
    if listed is None:
        rows = np.arange(len(whole))
        return _Chosen(names=whole.candidates, rows=rows, n_candidates=len(rows), error=error)
    known = [_by_name(each, whole) for each in alone if each is not None]
    least = np.min([each.p_value for each in known], axis=0)
    p_value = np.minimum(2 * np.minimum(whole.p_value, len(known) * least), 1.0)
    distinct = _distinct(whole)
    threshold = control.threshold(PValues(rows=p_value[distinct]))
    rows = np.flatnonzero(p_value <= threshold)
    return _Chosen(
        names=tuple(whole.candidates[i] for i in rows),
        rows=rows,
        n_candidates=int(distinct.sum()),
        error=error,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Columns of estimates in another order of the candidates, (c,) each."""

    proportion: NDArray[np.float64]
    std_error: NDArray[np.float64]
    ci_low: NDArray[np.float64]
    ci_high: NDArray[np.float64]
    p_value: NDArray[np.float64]


def _by_name(estimates: Estimates, like: Estimates | None = None, *names: str) -> _Rows:
    """Return the columns in the order of other estimates, or of names."""
    place = {name: i for i, name in enumerate(estimates.candidates)}
    order = [place[name] for name in (names if like is None else like.candidates)]
    return _Rows(
        proportion=estimates.proportion[order],
        std_error=estimates.std_error[order],
        ci_low=estimates.ci_low[order],
        ci_high=estimates.ci_high[order],
        p_value=estimates.p_value[order],
    )


def _levels(
    alone: Sequence[Estimates | None],
    chosen: _Chosen,
    control: ErrorControl,
    counted: Sequence[int],
) -> Levels:
    """Put the chosen rows of every stretch into tables, (t, s) each."""
    shape = (len(alone), len(chosen.names))
    tables = {name: np.full(shape, np.nan) for name in _Rows.__slots__}
    for number, each in enumerate(alone):
        if each is not None:
            rows = _by_name(each, None, *chosen.names)
            for name, table in tables.items():
                table[number] = getattr(rows, name)
    # Families of strings that were chosen keep the level times the part that was chosen [BB14].
    least = control.level * (chosen.error / (1 - control.confidence))
    p_value = tables.pop("p_value")
    return Levels(
        **tables,
        detected=np.nan_to_num(p_value, nan=1.0) <= least,
        unallocated=np.array([np.nan if each is None else each.unallocated for each in alone]),
        unallocated_std_error=np.array(
            [np.nan if each is None else each.unallocated_std_error for each in alone]
        ),
        counted=tuple(n if each is not None else 0 for n, each in zip(counted, alone, strict=True)),
    )


def _smoothed(
    found: Sequence[Stretch],
    question: _Question,
    chosen: _Chosen,
    control: ErrorControl,
    smooth: int,
) -> Levels:
    """Decode each stretch with reports together with the ones before it, if these are enough."""
    together: list[Estimates | None] = []
    counted: list[int] = []
    for last in range(len(found)):
        window = found[max(last - smooth + 1, 0) : last + 1]
        collections = [counts for each in window for counts in each.collections]
        known = len(window) == smooth and found[last].n_reports > 0
        together.append(question.ask(collections) if known else None)
        counted.append(sum(each.n_reports > 0 for each in window))
    return _levels(together, chosen, control, counted)


def _steps(
    found: Sequence[Stretch],
    chosen: _Chosen,
    listed: Candidates | None,
    control: ErrorControl,
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
        level=control.level,
        correction=control.correction,
        confidence=control.confidence,
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


def _assumed(kind: str, alone: Sequence[Estimates]) -> str:
    """Return one line that says what is assumed of the devices of each stretch."""
    repeated = [each.repetition for estimates in alone for each in estimates.collected]
    most = max(each.reports_per_device for each in repeated)
    reasons = "; or ".join(dict.fromkeys(_REASONS[each.source] for each in repeated))
    if most <= 1:
        return f"Assumed: within a {kind} every report comes from another device, {reasons}."
    return f"Assumed: within a {kind} a device sent up to {most:.3g} reports, {reasons}."


def _warnings(found: Sequence[Stretch], alone: Sequence[Estimates | None]) -> Iterator[str]:
    """Yield what speaks against an answer, once, with the stretches that it is about."""
    about: dict[str, list[str]] = defaultdict(list)
    for stretch, estimates in zip(found, alone, strict=True):
        for warning in () if estimates is None else estimates.warnings:
            about[warning].append(stretch.name)
    for warning, names in about.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"{names[0]}{more}: {warning}"
