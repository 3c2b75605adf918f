"""Weights of the tests of a planned list, by class of strings.

`rappor.planning.power` predicts how many strings a decode detects. In a ranked list, the threshold
of a candidate depends on its weight, and the weight on its rank (`rappor.estimator.rank_weights`).
A plan has the shares of the strings, but not their ranks, so it assumes two things: the list is
in the order of the shares, and its absent candidates are spread evenly between the present
candidates. So absent candidates have the same mean weights as the present candidates around them.
Without ranks all tests have the weight 1.

*Example.* Of 1,000 candidates, 100 are present. The most frequent string is assumed to have rank
10, the next rank 20, and so on. Nine absent candidates stand before each present candidate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from rappor.counts.arrays import Floats
from rappor.estimator.error_control import ErrorControl
from rappor.estimator.rank_weights import RANK_OFFSET, compute_weight_scale
from rappor.planning.frequencies import Frequencies


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlannedWeights:
    """Weights of present and of absent candidates.

    Present candidates are in classes of nearly equal shares (`Frequencies`). Absent candidates are
    in groups of nearly equal weights. Without ranks there is one group. With ranks there is one
    group for each class of present candidates.

    Attributes
    ----------
    shares : (classes,) float64. Share of a string of each class, increasing.
    weights : (classes,) float64. Mean weight of a present candidate of each class, in the order of
        the frequencies.
    sorted_weights : (classes,) float64. The same weights in the order of `shares`.
    absent : (groups,) float64. Number of absent candidates in each group.
    absent_weights : (groups,) float64. Mean weight of the absent candidates in each group.
    largest_p_value : upper bound on the p-values that are detected: the error rate of a ranked
        list, otherwise 1.
    """

    shares: Floats
    weights: Floats
    sorted_weights: Floats
    absent: Floats
    absent_weights: Floats
    largest_p_value: float

    @classmethod
    def of(cls, frequencies: Frequencies, error_control: ErrorControl) -> PlannedWeights:
        """Compute the weights of the strings of a plan.

        Parameters
        ----------
        frequencies : shares of the strings, and number of absent candidates.
        error_control : states whether the list is ranked.
        """
        n_present = float(frequencies.candidates.sum())
        weights = np.ones(len(frequencies.shares))
        absent, absent_weights = np.array([float(frequencies.absent)]), np.ones(1)
        if error_control.ranked and n_present:
            weights = _compute_mean_weights(frequencies)
            absent = frequencies.absent / n_present * frequencies.candidates
            absent_weights = weights
        order = np.argsort(frequencies.shares, kind="stable")
        return cls(
            shares=frequencies.shares[order],
            weights=weights,
            sorted_weights=weights[order],
            absent=absent,
            absent_weights=absent_weights,
            largest_p_value=error_control.alpha if error_control.ranked else 1.0,
        )

    def weigh_present(self, threshold: float | Floats) -> Floats:
        """Compute the p-value thresholds of the classes from the threshold of weight 1.

        `threshold` is one number, or (classes,) float64. The result is (classes,) float64.
        """
        return np.minimum(self.weights * threshold, self.largest_p_value)

    def weigh_shares(self, shares: Floats, threshold: float) -> Floats:
        """Compute the p-value thresholds of strings with some shares.

        A string with such a share has the rank of the strings with nearly the same share.

        Parameters
        ----------
        shares : (s,) float64.
        threshold : p-value threshold of weight 1.

        Returns
        -------
        (s,) float64.
        """
        weights = np.interp(shares, self.shares, self.sorted_weights)
        return np.minimum(weights * threshold, self.largest_p_value)

    def count_absent(self, threshold: float) -> float:
        """Compute the expected number of absent candidates that are detected.

        The p-value of an absent candidate is uniform, so it is below a threshold with a probability
        equal to the threshold.

        Parameters
        ----------
        threshold : p-value threshold of weight 1.
        """
        p_values = np.minimum(self.absent_weights * threshold, self.largest_p_value)
        return float(self.absent @ p_values)


def _compute_mean_weights(frequencies: Frequencies) -> Floats:
    """Compute the mean weight of the ranks of each class, (classes,) float64.

    If n of c candidates are present, the j-th most frequent string has the rank j c / n. So the
    number of ranks of a class is proportional to its number of strings. The weight of rank r is
    scale / (r + 100) (`rappor.estimator.rank_weights`). The sum of 1 / (r + 100) over the ranks of
    a class is a difference of two values of the digamma function, because the ranks are
    consecutive.
    """
    n_present, n = float(frequencies.candidates.sum()), frequencies.n_candidates
    order = np.argsort(-frequencies.shares, kind="stable")
    n_ranks = frequencies.candidates[order] * n / n_present
    last_rank = np.cumsum(n_ranks)
    before = last_rank - n_ranks
    inverse_sum = special.digamma(last_rank + RANK_OFFSET + 1)
    inverse_sum -= special.digamma(before + RANK_OFFSET + 1)
    # A class whose strings are no candidates has no ranks. It gets the weight of the rank at its
    # place in the list.
    has_ranks = n_ranks > 0
    mean = 1 / (before + RANK_OFFSET + 1)
    mean[has_ranks] = inverse_sum[has_ranks] / n_ranks[has_ranks]
    weights = np.empty(len(order))
    weights[order] = compute_weight_scale(n) * mean
    return weights
