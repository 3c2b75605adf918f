"""`compare`: what changed between two periods, segments or metrics, or several."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from rappor.candidates.candidates import Candidates
from rappor.candidates.stream import CandidateStream
from rappor.counts.counts import Counts
from rappor.decoding.blas_threads import one_thread
from rappor.decoding.comparison.answer_changes import answer_changes
from rappor.decoding.comparison.changes import Changes, find_changes
from rappor.decoding.comparison.comparison import Against, Compared, Comparison
from rappor.decoding.comparison.differences import (
    Sample,
    differences,
    estimated_overlap,
    shared_params,
)
from rappor.decoding.decoder import decode, is_told_elsewhere
from rappor.decoding.design import Design
from rappor.decoding.detection import Detection
from rappor.decoding.devices import merge
from rappor.decoding.estimates import Estimates
from rappor.decoding.p_values import PValues
from rappor.decoding.thresholds import Thresholds
from rappor.ground.errors import DecodeError
from rappor.ground.progress import Progress, no_progress
from rappor.ground.ranges import check_choice, check_number
from rappor.protocol.encodings import encoding_of

BASELINES: Final = ("first", "previous")
"""What a sample is compared with: the first one, or the one before it."""

CollectionsOf = Counts | Sequence[Counts]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """A sample, and what it says alone: one entry a candidate, in one order for all samples."""

    sample: Sample
    estimates: Estimates
    proportion: NDArray[np.float64]
    std_error: NDArray[np.float64]
    detected: NDArray[np.bool_]
    group: NDArray[np.int64]


def compare(
    samples: Mapping[str, CollectionsOf],
    candidates: Candidates | CandidateStream | Iterable[str] | None = None,
    *,
    detection: Detection = Detection(),
    overlap: float | None = None,
    baseline: str = "first",
    progress: Progress = no_progress,
) -> Comparison:
    """Estimate how much the share of each candidate differs from the first sample to the others.

    Samples are periods, segments or metrics of the same values. Where they have the same k, h and
    m, their bits are compared one by one: strings whose share is unchanged cancel, also those that
    are no candidates. README.md in this folder has the statistics.

    Parameters
    ----------
    samples : two or more collections, or lists of them, by their names. Several collections of one
        sample are merged as `decode` merges them.
    candidates : strings to compare, as for `decode`, but no stream; other encodings take none.
    detection : how sure to be; its level is that of what is called changed, over all candidates
        and samples.
    overlap : rho, from 0 for other devices in each sample to 1 for the same ones with reports in
        proportion. If omitted it is estimated from the variance of the bits where possible, else
        taken for 0, which makes errors too large for devices that are the same.
    baseline : "first" compares each sample with the first one, "previous" with the one before it.

    Returns
    -------
    Comparison. Deterministic.

    Raises
    ------
    DecodeError
        There are fewer than two samples, one has no reports, or they do not have the same values.

    Examples
    --------
    >>> from rappor import Params, Population, compare, simulate_counts
    >>> params = Params.profile("balanced")
    >>> before = simulate_counts(Population(["cat", "dog"], [3, 1]), params, n_reports=1e5, seed=1)
    >>> after = simulate_counts(Population(["cat", "dog"], [1, 3]), params, n_reports=1e5, seed=2)
    >>> found = compare({"May": before, "June": after}, ["cat", "dog", "emu"])
    >>> [(row["candidate"], row["kind"]) for row in found.rows(changed_only=True)]
    [('dog', 'rise'), ('cat', 'fall')]
    """
    if overlap is not None:
        check_number("overlap", overlap, "[0, 1]", error=DecodeError)
    check_choice("baseline", baseline, BASELINES, error=DecodeError)
    merged = [_sample(name, collections) for name, collections in samples.items()]
    if len(merged) < 2:
        raise DecodeError(f"samples must number at least 2, got {len(merged)}")
    listed = _listed(merged, candidates)
    sides = [_side(sample, samples[sample.name], listed, detection, progress) for sample in merged]
    pairs = [
        (sides[number - 1 if baseline == "previous" else 0], sides[number])
        for number in range(1, len(sides))
    ]
    rho = [
        estimated_overlap(base.sample, each.sample) if overlap is None else overlap
        for base, each in pairs
    ]
    with one_thread():
        found = [
            _changes(base, each, each_rho, listed, exact=overlap is not None, progress=progress)
            for (base, each), each_rho in zip(pairs, rho, strict=True)
        ]
    names = sides[0].estimates.candidates if listed is None else listed.strings
    if listed is not None and any(is_told_elsewhere(each.counts) for each in merged):
        found = [_without_empty(changes, names.index("")) for changes in found]
    return _conclude(pairs, names, rho, found, detection, given=overlap is not None)


def _sample(name: str, collections: CollectionsOf) -> Sample:
    """Merge the collections of a sample."""
    if not isinstance(name, str) or not name:
        raise DecodeError("samples must be collections by their names")
    listed = [collections] if isinstance(collections, Counts) else collections
    if not isinstance(listed, Sequence) or not all(isinstance(each, Counts) for each in listed):
        raise DecodeError(f"sample {name!r} must be Counts or a list of them")
    if not sum(counts.n_reports for counts in listed):
        raise DecodeError(f"sample {name!r} must have at least 1 report, got 0")
    # The name of the metric does not matter: two metrics may be compared.
    merged, repetitions = merge(listed)
    return Sample(name=name, counts=tuple(merged), repetitions=tuple(repetitions))


def _listed(
    samples: Sequence[Sample],
    candidates: Candidates | CandidateStream | Iterable[str] | None,
) -> Candidates | None:
    """Return the candidates, normalised as the devices did; None where bits are answers."""
    params = [counts.params for sample in samples for counts in sample.counts]
    hashed = {encoding_of(each).hashed for each in params}
    if len(hashed) > 1:
        raise DecodeError("samples must have the same kind of values: strings or answers")
    if not hashed.pop():
        if candidates is not None:
            raise DecodeError("candidates must be omitted: this encoding answers for every bit")
        return None
    normalizers = sorted({each.normalize for each in params})
    if len(normalizers) > 1:
        raise DecodeError(f"samples must share one normalizer, got {normalizers}")
    if isinstance(candidates, Candidates):
        listed = candidates
    else:
        if isinstance(candidates, str | CandidateStream):
            raise DecodeError("candidates must be a list of strings; a stream is not compared")
        listed = Candidates.from_list(candidates or (), normalize=normalizers[0])
    if len(listed) == 0:
        raise DecodeError("candidates must number at least 1, got 0; give a list of strings")
    if any(is_told_elsewhere(each.counts) for each in samples):
        return listed.with_empty()
    return listed


def _side(
    sample: Sample,
    collections: CollectionsOf,
    candidates: Candidates | None,
    detection: Detection,
    progress: Progress,
) -> _Side:
    """Decode a sample alone, and put its rows into the order of the candidates."""
    estimates = decode(
        collections,
        candidates,
        detection=detection,
        progress=progress,
    )
    names = estimates.candidates if candidates is None else candidates.strings
    place = {name: i for i, name in enumerate(estimates.candidates)}
    order = np.array([place[name] for name in names])
    detected = estimates.detected[order]
    if candidates is not None and is_told_elsewhere(sample.counts):
        detected[names.index("")] = True  # it is there, though it is no discovery
    return _Side(
        sample=sample,
        estimates=estimates,
        proportion=estimates.proportion[order],
        std_error=estimates.std_error[order],
        detected=detected,
        group=estimates.group[order],
    )


def _changes(
    base: _Side,
    other: _Side,
    overlap: float,
    candidates: Candidates | None,
    *,
    exact: bool,
    progress: Progress,
) -> Changes:
    """Compare a sample with the baseline, in the way that their parameters allow."""
    if candidates is None:
        return answer_changes(base.sample, other.sample, overlap=overlap)
    if not base.sample.shapes() & other.sample.shapes():
        return _apart(base, other)
    design = Design(candidates, shared_params(base.sample, other.sample))
    explained = _explained(base, design), _explained(other, design)
    target = differences(base.sample, other.sample, explained, overlap=overlap)
    if not target.reports.any():  # no cohort has reports in both
        return _apart(base, other)
    # Whether nothing changed is asked at the largest errors, unless the overlap is known.
    null = target if exact else differences(base.sample, other.sample, explained, overlap=0.0)
    return find_changes(target, candidates, _sampling(base, other, overlap), progress, null=null)


def _without_empty(changes: Changes, empty: int) -> Changes:
    """Return the changes without a test of the empty text, for which a category stands."""
    p_value = changes.p_value.copy()
    p_value[[empty, *(i for group in changes.ties if empty in group for i in group)]] = 1.0
    return dataclasses.replace(changes, p_value=p_value)


def _explained(side: _Side, design: Design) -> NDArray[np.float64]:
    """Return what the detected strings of a sample set in each row, (n,)."""
    detected = np.flatnonzero(side.detected)
    # A group of indistinguishable candidates counts once, with the first of its members.
    group = side.group[detected]
    first = np.unique(np.where(group > 0, group, -1 - np.arange(len(group))), return_index=True)[1]
    chosen = np.sort(detected[first])
    return np.asarray(design.columns(chosen) @ side.proportion[chosen])


def _sampling(base: _Side, other: _Side, overlap: float) -> NDArray[np.float64]:
    """Return the variance, (c,), that the rows of one string share and their noise leaves out.

    With h > 1 bits a string's devices are spread over the cohorts once, not once a bit: of their
    sampling (1 - 1/h) is missing (`rappor.decoding.decoder`).
    """
    h = max(counts.params.h for counts in base.sample.counts)
    a, b = (
        np.clip(side.proportion, 0, 1) * (1 - np.clip(side.proportion, 0, 1))
        for side in (base, other)
    )
    a, b = a / base.sample.n_devices, b / other.sample.n_devices
    return np.asarray((1 - 1 / h) * (a + b - 2 * overlap * np.sqrt(a * b)))


def _apart(base: _Side, other: _Side) -> Changes:
    """Subtract the estimates of samples that share no bits; their errors add up."""
    difference = other.proportion - base.proportion
    std_error = np.hypot(other.std_error, base.std_error)
    with np.errstate(invalid="ignore"):
        z = np.where(np.isfinite(std_error), np.abs(difference) / std_error, 0.0)

    def interval(error: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        reach = float(-special.ndtri(error / 2))
        return difference - reach * std_error, difference + reach * std_error

    return Changes(
        difference=difference,
        std_error=std_error,
        p_value=np.minimum(2 * special.ndtr(-z), 1.0),
        interval=interval,
        ties=[],
        how="apart",
    )


def _conclude(
    pairs: Sequence[tuple[_Side, _Side]],
    names: tuple[str, ...],
    rho: Sequence[float],
    found: Sequence[Changes],
    detection: Detection,
    *,
    given: bool,
) -> Comparison:
    """Decide over all candidates and samples together what changed."""
    every = np.concatenate([changes.p_value for changes in found])
    threshold = Thresholds(detection, PValues(rows=every)).largest
    error = 1 - detection.confidence
    # False coverage rate, as in `inference`: the R changed of n get intervals at 1 - R alpha / n.
    adjusted = error * max(int((every <= threshold).sum()), 1) / len(every)
    largest = np.max([np.abs(changes.difference) for changes in found], axis=0)
    unchanged = np.all([changes.p_value > threshold for changes in found], axis=0)
    order = np.arange(len(names))
    first = pairs[0][0]
    if encoding_of(first.sample.counts[0].params).hashed:
        order = np.lexsort((-largest, unchanged))
    group = np.zeros(len(names), dtype=np.int64)
    for number, members in enumerate(found[0].ties, start=1):
        group[members] = number
    against = tuple(
        _against(pair, overlap, changes, order, threshold, (error, adjusted))
        for pair, overlap, changes in zip(pairs, rho, found, strict=True)
    )
    least = min(each.unchanged_p_value for each in against)
    return Comparison(
        baseline=_compared(first),
        against=against,
        candidates=tuple(names[i] for i in order),
        group=group[order],
        unchanged_p_value=min(least * len(against), 1.0),
        assumed=_assumed(pairs, rho, given=given),
        warnings=tuple(_warnings([first, *(each for _, each in pairs)], found)),
        detection=detection,
    )


def _against(
    pair: tuple[_Side, _Side],
    overlap: float,
    changes: Changes,
    order: NDArray[np.int64],
    threshold: float,
    errors: tuple[float, float],
) -> Against:
    """Make the rows of one sample, the second of a pair."""
    base, other = pair
    (low, high), (low_adjusted, high_adjusted) = map(changes.interval, errors)
    changed = changes.p_value <= threshold
    strings = min(float(changes.p_value.min()) * len(changed), 1.0)
    parts = [strings] if changes.rows_p_value is None else [strings, changes.rows_p_value]
    return Against(
        baseline=base.sample.name,
        sample=_compared(other),
        overlap=overlap,
        how=changes.how,
        baseline_proportion=base.proportion[order],
        proportion=other.proportion[order],
        difference=changes.difference[order],
        std_error=changes.std_error[order],
        ci_low=low[order],
        ci_high=high[order],
        p_value=changes.p_value[order],
        changed=changed[order],
        ci_low_adjusted=np.where(changed, low_adjusted, np.nan)[order],
        ci_high_adjusted=np.where(changed, high_adjusted, np.nan)[order],
        kind=tuple(_kind(base, other, changes, i) if changed[i] else "" for i in order),
        unchanged_p_value=min(len(parts) * min(parts), 1.0),
        rows_p_value=changes.rows_p_value,
    )


def _kind(base: _Side, other: _Side, changes: Changes, i: int) -> str:
    """Name a change: a newcomer is detected in the sample and not in the baseline."""
    if changes.difference[i] > 0:
        return "newcomer" if other.detected[i] and not base.detected[i] else "rise"
    return "leaver" if base.detected[i] and not other.detected[i] else "fall"


def _compared(side: _Side) -> Compared:
    return Compared(
        name=side.sample.name,
        reports=side.sample.n_reports,
        devices=side.sample.n_devices,
        assumed=side.estimates.assumed,
    )


def _assumed(pairs: Sequence[tuple[_Side, _Side]], rho: Sequence[float], *, given: bool) -> str:
    """Return one line that says what is assumed of the devices."""
    sides = [pairs[0][0], *(each for _, each in pairs)]
    known = ", ".join(f"{each.sample.n_devices:,.0f} in {each.sample.name}" for each in sides)
    if not any(rho) and not given:
        shared = "No device is assumed to be in two samples, which is the cautious choice."
    else:
        listed = ", ".join(
            f"{overlap:.2f} of {each.sample.name}"
            for (_, each), overlap in zip(pairs, rho, strict=True)
        )
        how = "as given" if given else "estimated from the bits, minus one standard error"
        shared = f"Overlap with {_before(pairs)}: {listed} ({how})."
    return f"Assumed: an effective number of devices of {known}. {shared}"


def _before(pairs: Sequence[tuple[_Side, _Side]]) -> str:
    """Name what the samples are compared with."""
    names = {base.sample.name for base, _ in pairs}
    return names.pop() if len(names) == 1 else "the sample before each"


def _warnings(sides: Sequence[_Side], found: Sequence[Changes]) -> Iterator[str]:
    """Yield the warnings of each sample, and those of their differences."""
    for side in sides:
        for warning in side.estimates.warnings:
            yield f"{side.sample.name}: {warning.sentence}"
    for side, changes in zip(sides[1:], found, strict=True):
        if changes.filled:
            yield (
                f"{side.sample.name}: too many strings changed for this number of bits. Some may "
                "be missed, and intervals are too narrow. More cohorts would help."
            )
