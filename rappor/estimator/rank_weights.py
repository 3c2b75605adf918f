"""Weights of a ranked list: the order of the candidates as prior knowledge.

The order of a list of candidates may contain prior knowledge: the most likely candidates come
first, for example in a list of words that is sorted by frequency. The tests of such a list have
weights [GRW06]: the larger the weight of a candidate, the larger the p-value at which the candidate
is detected. The p-values do not change.

Theory of operation
-------------------
The weight of the candidate with rank r, counted from 1, is

    w_r = scale / (r + 100)

with the scale that gives the weights of the whole list the mean 1. So a list of 10,000 candidates
has the weights 21 at rank 1, 11 at rank 100, 1 at rank 2,069 and .2 at rank 10,000. The 100 keeps
the first candidates from taking all of the error rate: without the 100, rank 1 alone would have a
tenth of the sum of the weights.

An identifiability group (candidates with the same bits) has one p-value and one test. Its weight is
the sum of the weights of its members.

The weights control the error rate if they do not depend on the p-values. The order must therefore
not come from reports of the same metric. The hash functions of a metric are the same in every
epoch, so the collisions of its strings repeat: an absent string that collided with a frequent
string last quarter has a small p-value in this quarter, too.

A stream keeps the best candidates in memory. Another candidate might be detected if its weight is
large. So the stream counts the ratios p / w of all candidates that are not in memory
(`RatioCounts`), and the decoder refuses the list if one of them might be detected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import special

from rappor.counts.arrays import Floats, Integers
from rappor.estimator.p_values import count_p_values

RANK_OFFSET: Final = 100
"""Number that is added to a rank. With a larger number the weights are more equal, so that a list
in the right order gains less, and a list in a wrong order loses less."""


def compute_weight_scale(n_ranks: int) -> float:
    """Compute the scale that gives the weights of the ranks 1 to n the mean 1.

    The scale is n / (sum of 1 / (r + 100)). The sum of inverse integers is a difference of two
    values of the digamma function, so a stream of 1e8 candidates needs no loop.
    """
    inverse_sum = special.digamma(n_ranks + RANK_OFFSET + 1) - special.digamma(RANK_OFFSET + 1)
    return float(n_ranks / inverse_sum)


def invert_ranks(ranks: Integers) -> Floats:
    """Compute the weights of ranks before scaling, 1 / (r + 100). The first rank is 1."""
    return np.asarray(1 / (ranks + RANK_OFFSET))


def compute_ratios(p_values: Floats, weights: Floats, level: float) -> Floats:
    """Compute p / w, (c,), which the weighted procedures compare with one threshold.

    The ratio is infinite for p-values above the error rate. A candidate with such a p-value is not
    detected, whatever its weight is.

    Parameters
    ----------
    p_values, weights : (c,) float64.
    level : the error rate.
    """
    return np.where(p_values <= level, p_values / weights, np.inf)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RatioCounts:
    """The ratios p / w of the candidates of a stream that are not in memory.

    Attributes
    ----------
    counts : (b,) int64. Histogram of the finite ratios by `count_ratios`.
    least : lower bound on these ratios. It may be sharper than the bins.
    """

    counts: Integers
    least: float


def count_ratios(ratios: Floats) -> Integers:
    """Count the finite ratios, (c,) float64, in the bins of a histogram of p-values.

    A ratio above 1 is in the last bin, as the p-value 1 is. No candidate with such a ratio is
    detected, because all thresholds are at most 1 (`ThresholdSequence.largest`).
    """
    return count_p_values(ratios[np.isfinite(ratios)])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankWeights:
    """The weights of the tests of a ranked list.

    Attributes
    ----------
    in_memory : (e,) float64. Weight of each entry in memory: of a candidate, or of a group.
    total : sum of the weights of all tested candidates, in memory or not.
    others : ratios of all other candidates. None if all candidates are in memory.
    """

    in_memory: Floats
    total: float
    others: RatioCounts | None = None

    @classmethod
    def of(
        cls,
        ranks: Integers,
        entry: Integers,
        *,
        n_ranks: int,
        repeated: float = 0.0,
        others: RatioCounts | None = None,
    ) -> RankWeights:
        """Compute the weights of entries from the ranks of their candidates.

        Parameters
        ----------
        ranks : (c,) int64. Rank of each candidate in memory.
        entry : (c,) int64. Entry of each candidate. The numbers are 0 to e - 1.
        n_ranks : number of ranks of the whole list.
        repeated : sum of the weights before scaling of the ranks that repeated strings take up.
            They are not tested. In a list in memory, repeated strings have no ranks.
        others : as in the class.
        """
        scale = compute_weight_scale(n_ranks)
        weights = scale * invert_ranks(ranks)
        return cls(
            in_memory=np.asarray(np.bincount(entry, weights), dtype=np.float64),
            total=n_ranks - scale * repeated,
            others=others,
        )
