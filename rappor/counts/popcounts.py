"""Popcounts that no honest device sends.

The number of ones in an honest report with B true bits is the sum of Binomial(B, q*) and
Binomial(k - B, p*). A report outside what any B of its encoding shows, but for a chance of
1e-9, is forged or broken. Forgeries that match in popcount are not seen.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params

CHANCE: Final = 1e-9
"""False-alarm rate of an honest report, split between both ends."""


@functools.lru_cache(maxsize=1024)
def popcount_range(params: Params) -> tuple[int, int]:
    """Return the least and the most ones that an honest report shows, but for CHANCE."""
    true_bits = encoding_of(params).true_bits  # ones grow with them
    low = np.cumsum(_law(params, true_bits[0]))
    high = np.cumsum(_law(params, true_bits[-1])[::-1])
    least = int(np.searchsorted(low, CHANCE / 2, side="right"))
    return least, params.k - int(np.searchsorted(high, CHANCE / 2, side="right"))


def is_suspicious(bits: bytes, params: Params) -> bool:
    """Tell whether a report's popcount is outside its range."""
    least, most = popcount_range(params)
    return not least <= int.from_bytes(bits, "little").bit_count() <= most


def _law(params: Params, n_true: int) -> NDArray[np.float64]:
    """Return the chances of 0 to k ones, (k + 1,) float64, with so many true bits."""
    return np.convolve(
        _binomial(n_true, params.q_star), _binomial(params.k - n_true, params.p_star)
    )


def _binomial(n: int, chance: float) -> NDArray[np.float64]:
    """Return the law of n coins by adding one at a time: exact to rounding, no logarithms."""
    law = np.ones(1)
    for _ in range(n):
        law = np.convolve(law, (1 - chance, chance))
    return law
