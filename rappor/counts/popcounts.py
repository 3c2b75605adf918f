"""Popcounts that no honest device sends.

The number of ones in an honest report with B true bits is the sum of Binomial(B, q*) and
Binomial(k - B, p*). A popcount that no B of its encoding has with a probability of 1e-9 or more
means a report that is forged or broken. Forgeries with a plausible popcount are not found.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params

FALSE_ALARM: Final = 1e-9
"""Probability that an honest report is called suspicious, half of it at either end: one false
alarm in a billion reports."""


@functools.lru_cache(maxsize=1024)
def popcount_range(params: Params) -> tuple[int, int]:
    """Return the range of ones that honest reports have with probability 1 - FALSE_ALARM."""
    true_bits = encoding_of(params).true_bits  # the more of them, the more ones
    low = np.cumsum(_distribution(params, true_bits[0]))
    high = np.cumsum(_distribution(params, true_bits[-1])[::-1])
    least = int(np.searchsorted(low, FALSE_ALARM / 2, side="right"))
    return least, params.k - int(np.searchsorted(high, FALSE_ALARM / 2, side="right"))


def _distribution(params: Params, n_true: int) -> NDArray[np.float64]:
    """Return the probabilities of 0 to k ones, (k + 1,) float64, if n_true bits are true."""
    return np.convolve(
        _binomial(n_true, params.q_star), _binomial(params.k - n_true, params.p_star)
    )


def _binomial(n: int, probability: float) -> NDArray[np.float64]:
    """Return the distribution of n coins by adding one at a time: exact to rounding."""
    distribution = np.ones(1)
    for _ in range(n):
        distribution = np.convolve(distribution, (1 - probability, probability))
    return distribution
