"""Several samples decoded apart, and the strings that all together, or any one of them, show.

A string has T + 1 tests: all samples together, and each of T. README.md of `trends` says how they
become one p-value, and what the intervals of the strings that are shown hold for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.candidates.candidates import Candidates
from rappor.candidates.stream import CandidateStream
from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode, is_told_elsewhere
from rappor.decoding.detection import Detection
from rappor.decoding.diagnostics import Caution
from rappor.decoding.estimates import Estimates
from rappor.decoding.p_values import PValues
from rappor.decoding.thresholds import Thresholds
from rappor.ground.errors import DecodeError
from rappor.ground.progress import Progress
from rappor.protocol.encodings import encoding_of

_REASONS: Final = {
    "counts": "the most that the counts allow",
    "days": "estimated from the variance of the counts that were added",
    "unknown": "nothing is known of the devices; if they reported again within one, the errors are "
    "larger",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Levels:
    """Shares of s strings in t samples, such as periods; NaN where there are no reports.

    Attributes
    ----------
    proportion, std_error : (t, s) float64. Shares of all reports of the sample, unclipped.
    ci_low, ci_high : (t, s) float64. They hold for the strings that are shown as a whole.
    detected : (t, s) bool. Whether the sample alone detects the string.
    unallocated, unallocated_std_error : (t,) float64, as of `Estimates`.
    counted : samples with reports behind each estimate, t of them.
    """

    proportion: NDArray[np.float64]
    std_error: NDArray[np.float64]
    ci_low: NDArray[np.float64]
    ci_high: NDArray[np.float64]
    detected: NDArray[np.bool_]
    unallocated: NDArray[np.float64]
    unallocated_std_error: NDArray[np.float64]
    counted: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The s candidates that are shown, in their order, of how many, and what intervals miss."""

    names: tuple[str, ...]
    n_candidates: int
    error: float

    def detection(self, asked: Detection) -> Detection:
        """Return how sure to be of what these strings do, chosen as they were by the same counts.

        Families of hypotheses that were chosen, R of c, are tested at R / c of the level [BB14].
        """
        part = self.error / (1 - asked.confidence)
        return replace(asked, level=asked.level * part, confidence=1 - self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """What samples say apart: None of those without reports; and the strings that are shown.

    `detection` is how sure each sample was asked to be.
    """

    alone: tuple[Estimates | None, ...]
    chosen: Chosen
    detection: Detection


def decode_apart(
    together: Sequence[Counts],
    samples: Sequence[Sequence[Counts]],
    listed: Candidates | None,
    detection: Detection,
    progress: Progress,
) -> Apart:
    """Decode all samples together, then each on its own, and choose the strings to show."""
    # Half of the level is for strings that all samples together show: see _choose.
    half = replace(detection, level=detection.level / 2)
    whole = decode(together, listed, detection=half)
    error = (1 - detection.confidence) * _share_of_candidates(whole, listed)
    each_alone = replace(detection, confidence=1 - error)
    alone: list[Estimates | None] = []
    for number, collections in enumerate(samples):
        progress("decoding", number, len(samples))
        known = any(counts.n_reports for counts in collections)
        alone.append(decode(collections, listed, detection=each_alone) if known else None)
    chosen = _choose(whole, alone, listed, detection, error)
    return Apart(alone=tuple(alone), chosen=chosen, detection=each_alone)


def told_once(names: Sequence[str], said: Sequence[Sequence[Caution]]) -> list[str]:
    """Return what is said of samples, each sentence once, with the samples that it is about."""
    about: dict[str, list[str]] = {}
    for name, some in zip(names, said, strict=True):
        for each in some:
            about.setdefault(each.sentence, []).append(name)
    return [
        f"{named[0]}{f' and {len(named) - 1} more' if len(named) > 1 else ''}: {sentence}"
        for sentence, named in about.items()
    ]


def listed_candidates(
    candidates: Candidates | Iterable[str] | None, counts: Sequence[Counts]
) -> Candidates | None:
    """Return the candidates, normalised as the devices did; None where bits are answers."""
    if isinstance(candidates, str | CandidateStream):
        raise DecodeError(
            "candidates must be a list of strings; several samples do not accept a stream"
        )
    if isinstance(candidates, Candidates):
        return _with_empty(candidates, counts)
    if not any(encoding_of(each.params).hashed for each in counts):
        if candidates is not None:
            raise DecodeError("candidates must be omitted: this encoding answers for every bit")
        return None
    listed = Candidates.from_list(candidates or (), normalize=counts[0].params.normalize)
    return _with_empty(listed, counts)


def _with_empty(listed: Candidates, counts: Sequence[Counts]) -> Candidates:
    """Return candidates, with the empty text where a category stands for it; decoding asks some."""
    return listed.with_empty() if len(listed) and is_told_elsewhere(counts) else listed


def _distinct(estimates: Estimates) -> NDArray[np.bool_]:
    """Return which rows, (c,), are the first one of each group of equal ones."""
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
    detection: Detection,
    error: float,
) -> Chosen:
    """Choose the strings that are shown: those that all samples together show, or any one of them.

    The p-value of a string is twice the smaller one of two: that of all samples together, and
    T times the least of T samples. Whatever all together detect at half the level passes, so that
    as many strings pass as the intervals were widened for.
    """
    if listed is None:
        return Chosen(names=whole.candidates, n_candidates=len(whole), error=error)
    known = [_by_name(each, whole) for each in alone if each is not None]
    least = np.min([each.p_value for each in known], axis=0)
    p_value = np.minimum(2 * np.minimum(whole.p_value, len(known) * least), 1.0)
    distinct = _distinct(whole)
    threshold = Thresholds(detection, PValues(rows=p_value[distinct])).largest
    rows = np.flatnonzero(p_value <= threshold)
    return Chosen(
        names=tuple(whole.candidates[i] for i in rows),
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


def levels_of(
    alone: Sequence[Estimates | None],
    chosen: Chosen,
    detection: Detection,
    counted: Sequence[int],
) -> Levels:
    """Put the chosen rows of every sample into tables, (t, s) each."""
    shape = (len(alone), len(chosen.names))
    tables = {name: np.full(shape, np.nan) for name in _Rows.__slots__}
    for number, each in enumerate(alone):
        if each is not None:
            rows = _by_name(each, None, *chosen.names)
            for name, table in tables.items():
                table[number] = getattr(rows, name)
    p_value = tables.pop("p_value")
    return Levels(
        **tables,
        detected=np.nan_to_num(p_value, nan=1.0) <= chosen.detection(detection).level,
        unallocated=np.array([np.nan if each is None else each.unallocated for each in alone]),
        unallocated_std_error=np.array(
            [np.nan if each is None else each.unallocated_std_error for each in alone]
        ),
        counted=tuple(n if each is not None else 0 for n, each in zip(counted, alone, strict=True)),
    )


def assumption_within(kind: str, alone: Sequence[Estimates]) -> str:
    """Return one line that says what is assumed of the devices within each sample."""
    repeated = [each.repetition for estimates in alone for each in estimates.collected]
    most = max(each.reports_per_device for each in repeated)
    reasons = "; or ".join(dict.fromkeys(_REASONS[each.source] for each in repeated))
    if most <= 1:
        return f"Assumed: within a {kind} every report comes from another device, {reasons}."
    return f"Assumed: within a {kind} a device sent up to {most:.3g} reports, {reasons}."
