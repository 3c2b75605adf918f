"""The p-values of all candidates, exact or in a histogram.

Error control needs the p-value of every candidate of a list, detected or not. For a stream of
millions of candidates, only the best are in memory, and a histogram contains all other p-values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from rappor.counts.arrays import Floats, Integers
from rappor.estimator.debias import Target

EDGES: Final = np.append(0.0, 2.0 ** (np.arange(-512, 1) / 8))
"""Edges of the bins of a histogram of p-values, (514,). Bin b contains the p-values in (EDGES[b],
EDGES[b + 1]], and the first bin also 0. Eight bins are a factor of 2: the p-value .3 lies in the
bin (.297, .324]. 1/2 is an edge, so that p-values above lambda = 1/2 can be counted exactly
(`detection_thresholds`). The smallest edge above 0 is 2^-64.

A bin does not show its single p-values. The decoder refuses a stream if the smallest p-value that
its bin allows would pass the threshold (`Thresholds.largest`). That p-value may be 8 % smaller than
the true p-value. With finer bins the decoder would refuse fewer streams, and the histogram would
take more memory."""


def compute_least_p_value(target: Target) -> float:
    """Compute the smallest p-value that the counts can support.

    In a cohort of k bits, the h hash functions of an absent string have k^h equally likely
    outcomes. At least one of them sets the bits of a given present string. So an absent string has
    the bits of the present string in all cohorts with at least the probability k^-h, multiplied
    over the cohorts with reports. A smaller p-value would be wrong, however many reports there are.

    *Example.* With k = 32 and h = 1, the result is .031 for one cohort, .001 for two cohorts and
    8e-25 for 16 cohorts.
    """
    log_patterns = sum(
        counts.params.h * math.log(counts.params.k) * int((counts.cohort_reports > 0).sum())
        for counts in target.counts
    )
    return math.exp(-log_patterns)


def count_p_values(p_values: Floats) -> Integers:
    """Count the p-values, (c,) float64, in each bin of `EDGES`. Returns (513,) int64."""
    bins = np.searchsorted(EDGES[1:-1], p_values, side="left")
    return np.bincount(bins, minlength=len(EDGES) - 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PValues:
    """The p-values of the candidates in memory, and a histogram of all other p-values.

    Attributes
    ----------
    in_memory : (c,) float64. Exact p-values.
    other_counts : (513,) int64. Histogram of all other p-values by `count_p_values`, or None if
        there are no other p-values.
    least_other : lower bound on the p-values in the histogram. It may be sharper than the bins.
    n_further : number of candidates without a p-value. They count as large p-values. Case: while it
        searches, the selection computes p-values for the candidates with the best scores only. All
        other candidates of the list have no p-value then.
    """

    in_memory: Floats
    other_counts: Integers | None = None
    least_other: float = 1.0
    n_further: int = 0

    @property
    def n(self) -> int:
        """Number of all candidates."""
        n_others = 0 if self.other_counts is None else int(self.other_counts.sum())
        return len(self.in_memory) + self.n_further + n_others

    @property
    def counts(self) -> Integers:
        """(513,) int64. Histogram of all p-values, in memory or not."""
        rows = count_p_values(self.in_memory)
        return rows if self.other_counts is None else rows + self.other_counts

    def n_within(self, bound: float) -> int:
        """Count the p-values up to a bound.

        From the histogram, only complete bins below the bound count.
        """
        within = int((self.in_memory <= bound).sum())
        # A bin that extends beyond the bound may have p-values on both sides. The caller takes the
        # p-values that are not counted here as a sign of absent candidates. Leaving the bin out
        # makes the estimated number of absent candidates larger, and the thresholds smaller. So no
        # candidate is detected wrongly because of the bin.
        if self.other_counts is not None:
            within += int(self.other_counts[EDGES[1:] <= bound].sum())
        return within
