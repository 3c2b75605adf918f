"""Shares with standard errors and intervals, as arrays of one shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rappor.counts.arrays import Floats
from rappor.decoding.estimates import number_or_none


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShareTable:
    """Estimated shares of one table: (A, B) cells, or (A,) or (B,) margins.

    Attributes
    ----------
    share : float64. Shares, unclipped: noise makes some negative. NaN where the counts contain no
        information about a conditional share.
    std_error : float64. Standard errors. Infinite where the share is NaN.
    ci_low, ci_high : float64. Ends of two-sided intervals, whose confidence holds for each share
        separately (`Association.confidence`). 0 and 1 where the share is NaN.
    """

    share: Floats
    std_error: Floats
    ci_low: Floats
    ci_high: Floats

    @classmethod
    def from_variance(cls, share: Floats, variance: Floats, critical_value: float) -> ShareTable:
        """Create a table with normal intervals of `critical_value` standard errors.

        A negative variance is a rounding error and counts as 0.
        """
        std_error = np.sqrt(np.maximum(variance, 0.0))
        return cls(
            share=share,
            std_error=std_error,
            ci_low=share - critical_value * std_error,
            ci_high=share + critical_value * std_error,
        )

    def row(self, *index: int) -> dict[str, Any]:
        """Return the numbers of one share, ready for JSON. A number that is not finite is None."""
        return {
            name: number_or_none(float(getattr(self, name)[index]))
            for name in ("share", "std_error", "ci_low", "ci_high")
        }
