"""The p-values of all candidates, of which most may be known as a histogram only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from rappor.counts.arrays import Floats, Integers
from rappor.estimator.debias import Target

EDGES: Final = np.append(0.0, 2.0 ** (np.arange(-512, 1) / 8))
"""Bin b of a histogram holds the p-values in (EDGES[b], EDGES[b + 1]], the first one 0 too. Eight
bins are an octave, 1/2 is an edge, and the last one above 0 is 2^-64."""


def least_p_value(target: Target) -> float:
    """Return the smallest p-value that these counts can support.

    An absent string has one pattern of bits in each cohort with reports. A cohort has k^h patterns,
    so a string that is present everywhere has the same pattern as an absent string with probability
    prod_j k^-h. No p-value can honestly be smaller.
    """
    log_patterns = sum(
        counts.params.h * math.log(counts.params.k) * int((counts.cohort_reports > 0).sum())
        for counts in target.counts
    )
    return math.exp(-log_patterns)


def count_p_values(p_values: Floats) -> Integers:
    """Return how many p-values are in each bin, (len(EDGES) - 1,) int64."""
    places = np.searchsorted(EDGES[1:-1], p_values, side="left")
    return np.bincount(places, minlength=len(EDGES) - 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PValues:
    """The p-values of the rows of a table, and the histogram of all others.

    Attributes
    ----------
    rows : (c,) float64.
    others : (b,) int64, as `count_p_values` returns it, or None if there are no others.
    least : no other p-value is below it.
    more : how many p-values there are beside, of which nothing is known: they count as large.
    """

    rows: Floats
    others: Integers | None = None
    least: float = 1.0
    more: int = 0

    @property
    def n(self) -> int:
        """How many there are in all."""
        return len(self.rows) + self.more + (0 if self.others is None else int(self.others.sum()))

    @property
    def counts(self) -> Integers:
        """The histogram of all of them."""
        rows = count_p_values(self.rows)
        return rows if self.others is None else rows + self.others

    def n_within(self, bound: float) -> int:
        """Count those up to a bound; of the others only those in bins that end there or below."""
        within = int((self.rows <= bound).sum())
        if self.others is not None:
            within += int(self.others[EDGES[1:] <= bound].sum())
        return within
