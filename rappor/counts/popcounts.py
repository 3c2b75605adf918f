"""Range of the popcounts of honest reports, by which forged or broken reports are recognised.

The popcount of a report is its number of ones. An honest report has k bits, of which B are 1 before
the noise (true bits). With the noise, a true 1 is sent as 1 with probability q*, and a true 0 with
probability p*. The popcount is therefore a sum of two independent binomial numbers:

    Binomial(B, q*) + Binomial(k - B, p*)

A report of generalized randomized response names one bucket, so its popcount is 1.

A popcount outside the range belongs to a forged or broken report. A forger can choose a popcount
inside the range, so the check does not recognise every forged report.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params

FALSE_ALARM: Final = 1e-9
"""Largest probability that an honest report has a popcount outside the range, half at either end.
A convention: one false alarm in a billion reports. A larger value recognises more forged reports
and accuses more honest devices."""


@functools.lru_cache(maxsize=1024)
def compute_popcount_range(params: Params) -> tuple[int, int]:
    """Return the smallest and the largest popcount that is plausible for an honest report.

    An honest report is inside the range with probability 1 - `FALSE_ALARM` or more.

    Examples
    --------
    >>> compute_popcount_range(Params(k=128, h=2, m=8, f=0.5, p=0.5, q=0.75))
    (38, 105)
    """
    if params.response.is_exclusive:
        return 1, 1
    # p* < q*, so more true bits give more ones. The smallest possible number of true bits
    # determines the lower end, and the largest number determines the upper end.
    true_bit_counts = get_encoding(params).true_bit_counts
    # low[c] is the probability of a popcount of at most c, with the fewest true bits. high[c] is
    # the probability of a popcount of at least k - c, with the most true bits. `searchsorted`
    # returns the smallest c at which this probability exceeds half of `FALSE_ALARM`.
    low = np.cumsum(_compute_popcount_distribution(params, true_bit_counts[0]))
    high = np.cumsum(_compute_popcount_distribution(params, true_bit_counts[-1])[::-1])
    least = int(np.searchsorted(low, FALSE_ALARM / 2, side="right"))
    return least, params.k - int(np.searchsorted(high, FALSE_ALARM / 2, side="right"))


def _compute_popcount_distribution(params: Params, n_true_bits: int) -> NDArray[np.float64]:
    """Return the probabilities of 0 to k ones for a number of true bits, (k + 1,) float64."""
    return np.convolve(
        _compute_binomial(n_true_bits, params.q_star),
        _compute_binomial(params.k - n_true_bits, params.p_star),
    )


def _compute_binomial(n: int, probability: float) -> NDArray[np.float64]:
    """Return the binomial probabilities of 0 to n successes, (n + 1,) float64.

    Adding one trial at a time adds positive numbers only, so the tails are exact up to rounding.
    Formulas with factorials lose the digits of tails near 1e-9.
    """
    distribution = np.ones(1)
    for _ in range(n):
        distribution = np.convolve(distribution, (1 - probability, probability))
    return distribution
