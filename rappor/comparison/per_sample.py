"""Separate decodes of several samples, and the strings that the samples detect.

With T samples, a string has T + 1 tests: one of all samples pooled, with p-value p_pooled, and one
of each sample t, with p-value p_t. The pooled test detects a string that is present in all samples.
The test of one sample detects a string that is frequent in this sample only. The p-value of the
string combines all tests by Bonferroni's inequality:

    p = min(1, 2 min(p_pooled, T min over t of p_t))

*Example.* With T = 10 samples, a string has p_pooled = .04, and p_t = .0001 in one sample. Then
10 p_t = .001, and p = 2 (.001) = .002.

The functions run in this order: `normalize_for_samples` reads the candidates, `decode_separately`
decodes, and `SeparateDecodes.tabulate` writes the tables of a comparison. README.md of this package
describes which coverage the intervals of the detected strings have.
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
from rappor.protocol.encodings import get_encoding

_COLUMNS: Final = ("share", "std_error", "ci_low", "ci_high")
"""Attributes of `Estimates` that a table of all samples repeats."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleEstimates:
    """Shares of c strings in T samples. NaN for a sample without reports.

    Attributes
    ----------
    share, std_error : (T, c) float64. Shares of all reports of the sample, unclipped.
    ci_low, ci_high : (T, c) float64. Intervals. Of the intervals of the strings that are detected
        overall, the expected share that misses the truth is at most 1 - confidence [BB14].
    detected : (T, c) bool. True if the sample detects the string by itself and the string is
        detected overall. In each sample, the expected share of absent strings among the detected
        strings is at most the error rate.
    unallocated, unallocated_std_error : (T,) float64, as in `Estimates`.
    """

    share: Floats
    std_error: Floats
    ci_low: Floats
    ci_high: Floats
    detected: Booleans
    unallocated: Floats
    unallocated_std_error: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparateDecodes:
    """Estimates of each sample by itself, and estimates of all samples pooled.

    Attributes
    ----------
    candidates : c strings, in the order of `detected`.
    per_sample : (T,) estimates of each sample. None for a sample without reports.
    pooled : estimates of all samples together, at half of the error rate.
    detected : (c,) bool. True if the pooled samples or any single sample detect the string.
    error_control : the error control of each sample's decode. For strings, its confidence level is
        higher than the requested level, because the detected strings were selected.
    largest_p_value : largest p-value at which one sample detects a string: the requested error rate
        times R / c, where the pooled samples detect R of c strings.
    """

    candidates: tuple[str, ...]
    per_sample: tuple[Estimates | None, ...]
    pooled: Estimates
    detected: Booleans
    error_control: ErrorControl
    largest_p_value: float

    def tabulate(self, order: Integers, estimates: Sequence[Estimates | None]) -> SampleEstimates:
        """Write the estimates of all samples into tables.

        Parameters
        ----------
        order : (c,) int64. Indices of `candidates`, in the order of the columns.
        estimates : (T,) estimates. None leaves a row of NaN.
        """
        names = [self.candidates[i] for i in order]
        tables = {name: np.full((len(estimates), len(names)), np.nan) for name in _COLUMNS}
        detected = np.zeros((len(estimates), len(names)), dtype=bool)
        for i, decoded in enumerate(estimates):
            if decoded is not None:
                rows = decoded.indices_of(names)
                for name, table in tables.items():
                    table[i] = getattr(decoded, name)[rows]
                # A detection needs three bounds, because each bound alone lets false detections
                # through:
                # - `largest_p_value` alone is uncorrected if R = c. With 20 categories, each used
                #   on a different day, 5 % of the unused ones would be detected every day.
                # - The sample's own correction alone has the threshold alpha R_t / c, if the sample
                #   detects R_t of c strings. If R_t exceeds R, this threshold is larger than
                #   `largest_p_value`. The third bound may then remove most of the R_t strings, and
                #   the false detections are more than the share alpha of the remaining strings.
                # - A string that is not detected overall must not be detected in a sample: the
                #   page would contradict its own number of strings in use.
                detected[i] = decoded.detected[rows] & (
                    decoded.p_value[rows] <= self.largest_p_value
                )
        detected &= self.detected[order]
        unallocated = [
            np.array(
                [np.nan if decoded is None else getattr(decoded, name) for decoded in estimates]
            )
            for name in ("unallocated", "unallocated_std_error")
        ]
        return SampleEstimates(
            **tables,
            detected=detected,
            unallocated=unallocated[0],
            unallocated_std_error=unallocated[1],
        )


def decode_separately(
    samples: Sequence[Sequence[Counts]],
    listed: Candidates | None,
    error_control: ErrorControl,
    progress: Progress,
    *,
    complete: bool,
) -> SeparateDecodes:
    """Decode all samples together, then each sample by itself, and detect strings.

    Parameters
    ----------
    samples : T lists of collections.
    listed : the candidates. None if the bits are categories.
    error_control : the requested error rate and confidence level.
    progress : function that reports the progress.
    complete : True if every value is in one of the categories.
    """
    error_control = error_control.for_several_tests()
    all_counts = [counts.without_segment for collection in samples for counts in collection]
    # The other half of the error rate is for strings that a single sample detects.
    # `_detect_overall` combines both tests with the factor 2.
    half_level = replace(error_control, alpha=error_control.alpha / 2)
    pooled = decode(all_counts, listed, error_control=half_level, complete=complete)
    # R / c: a lower bound on the share of the candidates that are detected. Only `distinct`
    # candidates count: one of each group of candidates with the same bits.
    n_detected = max(int((pooled.detected & pooled.distinct).sum()), 1)
    detected_share = n_detected / int(pooled.distinct.sum())
    # False coverage rate [BB14]: the intervals of R parameters that are selected out of c need the
    # level 1 - alpha R / c. All categories are displayed, detected or not, so nothing selects them.
    selected_share = 1.0 if listed is None else detected_share
    sample_control = replace(
        error_control, confidence=1 - (1 - error_control.confidence) * selected_share
    )
    per_sample: list[Estimates | None] = []
    for index, collections in enumerate(samples):
        progress("decoding", index, len(samples))
        has_reports = any(counts.n_reports for counts in collections)
        per_sample.append(
            decode(collections, listed, error_control=sample_control, complete=complete)
            if has_reports
            else None
        )
    names = pooled.candidates if listed is None else listed.strings
    return SeparateDecodes(
        candidates=names,
        per_sample=tuple(per_sample),
        pooled=pooled,
        detected=_detect_overall(
            names,
            pooled,
            [estimates for estimates in per_sample if estimates is not None],
            error_control,
        ),
        error_control=sample_control,
        largest_p_value=error_control.alpha * detected_share,
    )


def normalize_for_samples(
    candidates: Candidates | Iterable[str] | None, counts: Sequence[Counts]
) -> Candidates | None:
    """Return the candidates, normalised as devices normalise values.

    Returns
    -------
    None if the bits are categories, which need no candidates.

    Raises
    ------
    DecodeError
        The samples mix strings and categories, or the candidates are too many to keep in memory.
    """
    hashed = {get_encoding(collection.params).is_hashed for collection in counts}
    if len(hashed) > 1:
        raise DecodeError("samples must have the same kind of values: strings or categories")
    normalized = normalize_candidates(candidates, (), counts, MOST_ROWS)
    if normalized is not None and not normalized.is_in_memory:
        raise DecodeError(
            f"candidates of several samples must number at most {MOST_ROWS:,}, got more: "
            f"{normalized.name}"
        )
    return normalized


def _detect_overall(
    names: Sequence[str],
    pooled: Estimates,
    per_sample: Sequence[Estimates],
    error_control: ErrorControl,
) -> Booleans:
    """Decide which strings the pooled samples or any single sample detect, (c,) bool.

    The p-value of a string is twice the smaller of two p-values: the p-value of the pooled samples,
    and T times the smallest p-value of T samples (Bonferroni). Every string that the pooled samples
    detect at half of the error rate passes. So at least as many strings pass as the intervals were
    widened for.
    """
    smallest = np.min(
        [estimates.p_value[estimates.indices_of(pooled.candidates)] for estimates in per_sample],
        axis=0,
    )
    p_value = np.minimum(2 * np.minimum(pooled.p_value, len(per_sample) * smallest), 1.0)
    threshold = Thresholds(error_control, PValues(in_memory=p_value[pooled.distinct])).largest
    return np.asarray(p_value <= threshold)[pooled.indices_of(names)]
