"""Several samples decoded apart, and the strings that all together, or any one of them, show.

A string has T + 1 tests: all samples together, and each of T. README.md of this folder says how
they become one p-value, and what the intervals of the strings that are found hold for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rappor.base.errors import DecodeError
from rappor.base.progress import Progress
from rappor.candidates.candidates import Candidates
from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.counts.counts import Counts
from rappor.decoding.decoder import MOST_ROWS, decode, normalize_candidates
from rappor.decoding.estimates import Estimates
from rappor.estimator.detection_thresholds import Thresholds
from rappor.estimator.error_control import ErrorControl
from rappor.estimator.p_values import PValues
from rappor.protocol.encodings import encoding_of

_COLUMNS: Final = ("share", "std_error", "ci_low", "ci_high")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Levels:
    """Shares of c strings in t samples; NaN where there are no reports.

    Attributes
    ----------
    share, std_error : (t, c) float64. Shares of all reports of the sample, unclipped.
    ci_low, ci_high : (t, c) float64. They hold for the strings that are found as a whole.
    detected : (t, c) bool. Whether the sample alone detects a string that is found. The share of
        absent strings among the detected ones of a sample is at most the level, on average.
    unallocated, unallocated_std_error : (t,) float64, as of `Estimates`.
    """

    share: Floats
    std_error: Floats
    ci_low: Floats
    ci_high: Floats
    detected: Booleans
    unallocated: Floats
    unallocated_std_error: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """What samples say alone (None of those without reports), and what all say together.

    Attributes
    ----------
    names : c candidates, in the order in which `found` has them.
    found : (c,) bool. Whether all samples together or any one of them shows the string.
    detection : how sure each sample was asked to be: its intervals are wider than asked for, as
        they hold for the strings that were found.
    level : largest p-value at which one sample detects a string: the level of the question times
        R / c, with R of c strings detected by all samples together.
    """

    names: tuple[str, ...]
    alone: tuple[Estimates | None, ...]
    whole: Estimates
    found: Booleans
    detection: ErrorControl
    level: float

    def levels(self, order: Integers, estimates: Sequence[Estimates | None]) -> Levels:
        """Put estimates of every sample into tables, (t, c) each, of the names in an order."""
        names = [self.names[i] for i in order]
        tables = {name: np.full((len(estimates), len(names)), np.nan) for name in _COLUMNS}
        detected = np.zeros((len(estimates), len(names)), dtype=bool)
        for number, sample in enumerate(estimates):
            if sample is not None:
                rows = sample.places(names)
                for name, table in tables.items():
                    table[number] = getattr(sample, name)[rows]
                # Three bounds, as each alone lets false detections through. `level` is
                # uncorrected where R = c: with 20 categories, each used on a day of its own, five
                # in a hundred of the others would be detected every day. The sample's own
                # correction divides its level by more. A string that is not found is detected
                # nowhere: a page would contradict its own number of strings in use.
                detected[number] = sample.detected[rows] & (sample.p_value[rows] <= self.level)
        detected &= self.found[order]
        left = [
            np.array([np.nan if each is None else getattr(each, name) for each in estimates])
            for name in ("unallocated", "unallocated_std_error")
        ]
        return Levels(
            **tables,
            detected=detected,
            unallocated=left[0],
            unallocated_std_error=left[1],
        )


def decode_apart(
    samples: Sequence[Sequence[Counts]],
    listed: Candidates | None,
    detection: ErrorControl,
    progress: Progress,
    *,
    complete: bool,
) -> Apart:
    """Decode all samples together, then each on its own, and find the strings that they show."""
    detection = detection.for_several_tests()
    together = [counts.unsegmented for each in samples for counts in each]
    # Half of the level is for strings that all samples together show: see _found.
    half = replace(detection, alpha=detection.alpha / 2)
    whole = decode(together, listed, error_control=half, complete=complete)
    # How large a part of the candidates is found, at least.
    n_detected = max(int((whole.detected & whole.distinct).sum()), 1)
    part = n_detected / int(whole.distinct.sum())
    # All categories are shown, whatever was found: nothing selects their intervals. Their tests
    # are selected as those of strings are.
    selected = 1.0 if listed is None else part
    each_alone = replace(detection, confidence=1 - (1 - detection.confidence) * selected)
    alone: list[Estimates | None] = []
    for number, collections in enumerate(samples):
        progress("decoding", number, len(samples))
        known = any(counts.n_reports for counts in collections)
        alone.append(
            decode(collections, listed, error_control=each_alone, complete=complete)
            if known
            else None
        )
    names = whole.candidates if listed is None else listed.strings
    return Apart(
        names=names,
        alone=tuple(alone),
        whole=whole,
        found=_found(names, whole, [each for each in alone if each is not None], detection),
        detection=each_alone,
        level=detection.alpha * part,
    )


def listed_candidates(
    candidates: Candidates | Iterable[str] | None, counts: Sequence[Counts]
) -> Candidates | None:
    """Return the candidates, normalised as the devices did; None where bits are answers."""
    hashed = {encoding_of(each.params).hashed for each in counts}
    if len(hashed) > 1:
        raise DecodeError("samples must have the same kind of values: strings or answers")
    found = normalize_candidates(candidates, (), counts, MOST_ROWS)
    if found is not None and not found.is_held:
        raise DecodeError(
            f"candidates of several samples must number at most {MOST_ROWS:,}, got more: "
            f"{found.name}"
        )
    return found


def _found(
    names: Sequence[str], whole: Estimates, alone: Sequence[Estimates], detection: ErrorControl
) -> Booleans:
    """Return which strings are found: those that all samples together show, or any one of them.

    The p-value of a string is twice the smaller one of two: that of all samples together, and
    T times the least of T samples. Whatever all together detect at half the level passes, so that
    as many strings pass as the intervals were widened for.
    """
    least = np.min([each.p_value[each.places(whole.candidates)] for each in alone], axis=0)
    p_value = np.minimum(2 * np.minimum(whole.p_value, len(alone) * least), 1.0)
    threshold = Thresholds(detection, PValues(rows=p_value[whole.distinct])).largest
    return np.asarray(p_value <= threshold)[whole.places(names)]
