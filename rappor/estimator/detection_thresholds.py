"""Detection thresholds: the largest p-value at which a candidate is detected.

With 1,000 candidates that no device has, about 50 p-values are below .05 by chance. So a candidate
is detected only if its p-value is below a stricter threshold, which depends on the number of
candidates c. The decoder builds a `Thresholds` from an `ErrorControl` (method and error rate alpha)
and the p-values, and reads which candidates are detected. It proceeds in three steps:

1. `ThresholdSequence` computes a threshold for each place in the order of the p-values.
2. The sorted p-values are compared with these thresholds, each with the threshold of its place. The
   largest p-value that passes is `Thresholds.largest`. Bonferroni has one threshold for all places,
   and `largest` is this threshold.
3. Every candidate with a p-value up to `largest` is detected, also if it failed at its own place.

With p_(i) the i-th smallest p-value, `largest` depends on the method:

| method | `largest` | error rate that is at most alpha |
|---|---|---|
| bonferroni | alpha / c | probability of any false detection |
| bh | largest p_(i) with p_(i) <= i alpha / c | expected share of false detections [BH95] |
| adaptive | as bh, with the estimated number of absent candidates in place of c | as bh [STS04] |

*Example.* Four p-values .001, .02, .03, .4 and alpha = .05. Bonferroni has the threshold .0125 and
detects one candidate. Benjamini-Hochberg compares them with .0125, .025, .0375 and .05, and detects
three.

For a ranked list with the weights w (`rappor.estimator.rank_weights`), whose sum is S, a candidate
is compared with its own threshold:

| method | a candidate is detected if | error rate that is at most alpha |
|---|---|---|
| bonferroni | p <= alpha w / S | probability of any false detection |
| bh | p <= min(alpha, alpha w R / S) | expected share of false detections [GRW06] |

R is the largest number for which at least R candidates fulfil the condition. Both methods compare
the ratio p / w with one threshold, for all candidates with p <= alpha. So the code works with
ratios. Without weights w is 1, S is c, and the ratio is the p-value.

A stream of millions of candidates has only its best candidates in memory, with exact p-values. The
p-values of its other candidates are in a histogram (`rappor.estimator.p_values`), which has no
names. If one of these candidates might be detected, `Thresholds.largest` refuses the list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from rappor.base.errors import DecodeError
from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.estimator.error_control import ErrorControl
from rappor.estimator.p_values import EDGES, PValues
from rappor.estimator.rank_weights import RankWeights, compute_ratios, count_ratios

_MOST_LAMBDA: Final = 0.5
"""Largest lambda. P-values above lambda are used to count the absent candidates. One half is the
usual choice [STS04]. With a smaller lambda more present candidates are counted as absent."""

_LEAST_ABOVE: Final = 20
"""Smallest expected number of p-values above lambda if all candidates are absent. The estimate adds
one p-value to their number, which then costs at most a twentieth of the level. For c candidates,
lambda is at most 1 - 20 / c: 1/3 for 30 candidates. A larger number costs less of the level, but
short lists get a smaller lambda."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdSequence:
    """The thresholds of a correction for multiple tests.

    The i-th smallest p-value is compared with the i-th threshold.

    Attributes
    ----------
    level : alpha, the error rate.
    rising : True if the i-th threshold is i times the first threshold (step-up). False if all
        thresholds are equal.
    n_absent : number by which the level is divided: all candidates, or the estimated number of
        absent candidates.
    largest : upper bound on all thresholds: lambda, or 1.
    """

    level: float
    rising: bool
    n_absent: float
    largest: float = 1.0

    @classmethod
    def of(
        cls, detection: ErrorControl, *, n_candidates: float, n_within: Callable[[float], float]
    ) -> ThresholdSequence:
        """Compute the thresholds of a correction.

        The method "adaptive" estimates the number of absent candidates from the p-values above
        lambda. P-values of absent candidates are uniform, so the part 1 - lambda of them is above
        lambda, and nearly no p-value of a present candidate is. The estimate is

            (1 + number of p-values above lambda) / (1 - lambda)

        For example, 300 of 1,000 p-values are above 1/2. The estimate is 602 absent candidates, and
        the thresholds are 1,000 / 602 times as large as those of Benjamini-Hochberg.

        The 1 in the numerator keeps the false discovery rate at most `level` for every number of
        independent p-values ([STS04] theorem 3). Without the 1, the bound holds only for large
        numbers.

        Parameters
        ----------
        detection : error rate and method.
        n_candidates : number of tested candidates, or the sum of their weights.
        n_within : function that counts the p-values up to a bound.
        """
        level = detection.alpha
        if detection.method != "adaptive":
            rising = detection.method == "bh"
            return cls(level=level, rising=rising, n_absent=n_candidates)
        # Lambda must depend on the number of candidates only. A lambda that depends on the p-values
        # would break the bound of the theorem. Case: about 20 candidates or fewer. Then 1 - 20 / c
        # is below the level or negative. No threshold is above lambda, and the largest threshold of
        # Benjamini-Hochberg is the level, so lambda is at least the level.
        largest = max(level, min(_MOST_LAMBDA, 1 - _LEAST_ABOVE / n_candidates))
        n_absent = (n_candidates - n_within(largest) + 1) / (1 - largest)
        return cls(level=level, rising=True, n_absent=n_absent, largest=largest)

    def at(self, rank: Integers | float) -> Floats:
        """Compute the thresholds of ranks. The smallest p-value (or ratio) has rank 1."""
        steps = np.multiply(self.level, rank if self.rising else 1) / self.n_absent
        return np.asarray(np.minimum(steps, self.largest))


class Thresholds:
    """The detection thresholds of a set of p-values.

    An *entry* is a candidate, or a group of candidates with the same bits, which have one p-value.

    Attributes
    ----------
    detection : error rate and method.
    p_values : p-values of all candidates: exact p-values of the e entries in memory, and a
        histogram of all others. Only entries in memory can be detected.
    weights : weights of a ranked list. None without weights.
    """

    def __init__(
        self, detection: ErrorControl, p_values: PValues, weights: RankWeights | None = None
    ) -> None:
        """Store the p-values of e entries and their weights, None without weights."""
        self.detection, self.p_values, self.weights = detection, p_values, weights
        self._steps = ThresholdSequence.of(
            detection,
            n_candidates=p_values.n if weights is None else weights.total,
            n_within=p_values.n_within,
        )

    @cached_property
    def _ratios(self) -> Floats:
        """(e,) float64. Ratios p / w, which are p-values without weights."""
        p_values = self.p_values.in_memory
        if self.weights is None:
            return p_values
        # The ratio is infinite if p exceeds alpha, because such an entry is never detected.
        return compute_ratios(p_values, self.weights.in_memory, self.detection.alpha)

    @cached_property
    def largest(self) -> float:
        """Largest p-value at which a candidate is detected.

        For Bonferroni it is the threshold. For the other methods it is the p-value of a detected
        candidate, or 0 if no candidate is detected. With weights, it is a ratio p / w.

        Raises
        ------
        DecodeError
            A candidate that exists only in the histogram might be detected.
        """
        largest = float(self._steps.at(1))
        if self._steps.rising:
            ordered = np.sort(self._ratios)
            passing = np.flatnonzero(ordered <= self._steps.at(np.arange(1, len(ordered) + 1)))
            largest = float(ordered[passing[-1]]) if len(passing) else 0.0
        # The histogram has no exact p-values. If a candidate in it passed a threshold, the table
        # could neither name nor count it, and the result would be silently wrong.
        if self._others_may_pass(largest):
            raise DecodeError(
                f"more than the {len(self.p_values.in_memory):,} best candidates of the stream may "
                "be detected: use fewer candidates as a list, or a lower level"
            )
        return largest

    @property
    def detected(self) -> Booleans:
        """(e,) bool, True for the detected entries."""
        return self._ratios <= self.largest

    @property
    def detected_thresholds(self) -> Floats:
        """(e,) float64. Largest p-value at which a detected entry would still be detected.

        All other detected entries keep their p-values.
        """
        return self._weigh(float(self._steps.at(max(int(self.detected.sum()), 1))))

    @property
    def next_threshold(self) -> float:
        """Largest p-value at which one more candidate, of weight 1, would be detected."""
        threshold = float(self._steps.at(min(int(self.detected.sum()) + 1, self.p_values.n)))
        return threshold if self.weights is None else min(threshold, self.detection.alpha)

    def scale_error(self, error: float) -> Floats:
        """Compute the errors of the adjusted intervals of detected entries, (e,).

        False coverage rate (Benjamini and Yekutieli 2005, definition 1): with R detected of c
        candidates, an interval at confidence 1 - `error` is widened to 1 - R `error` / c. For
        example, 10 of 1,000 candidates are detected, and `error` is .05: the error of each interval
        is .0005. With weights, the error of an entry of weight w is min(error, error w R / S), the
        condition of "bh" in the module docstring with `error` in place of alpha.
        """
        n_detected = max(int(self.detected.sum()), 1)
        if self.weights is None:
            return np.full(len(self._ratios), error * (n_detected / self.p_values.n))
        return np.minimum(error, error * self.weights.in_memory * n_detected / self.weights.total)

    def _weigh(self, threshold: float) -> Floats:
        """Compute the threshold of each entry, (e,), from the threshold of weight 1."""
        if self.weights is None:
            return np.full(len(self._ratios), threshold)
        return np.minimum(self.weights.in_memory * threshold, self.detection.alpha)

    def _others_may_pass(self, largest: float) -> bool:
        """Return whether a candidate that exists only in the histogram may pass its threshold.

        Parameters
        ----------
        largest : the largest ratio that is detected in memory.
        """
        if self.weights is None:
            other_counts, least_ratio = self.p_values.other_counts, self.p_values.least_other
        else:
            ratios = self.weights.others
            other_counts, least_ratio = (
                (None, 1.0) if ratios is None else (ratios.counts, ratios.least)
            )
        if other_counts is None:
            return False
        # Ratios in memory are counted, too. If one of them passes by its rank among all ratios, so
        # does every smaller ratio of the histogram.
        counts = other_counts + count_ratios(self._ratios)
        has_ratios = counts > 0
        lowest, high = np.maximum(EDGES[:-1], least_ratio), EDGES[1:]
        # Bins that end below `least_ratio` contain no ratio of the histogram.
        may_have_others = lowest <= high
        # In its bin, the smallest ratio is at least `lowest`. Its rank is at most the number of
        # ratios up to the end of the bin. If `lowest` exceeds the threshold of this rank, no ratio
        # of the bin passes. A ratio up to `largest` is detected whatever its rank is.
        highest_threshold = np.maximum(self._steps.at(np.cumsum(counts)), largest)
        return bool(np.any(has_ratios & may_have_others & (lowest <= highest_threshold)))
