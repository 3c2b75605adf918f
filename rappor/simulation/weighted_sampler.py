"""Random values by weight, and random cohorts, for many devices at a time.

`WeightedSampler` inverts the cumulated distribution of the weights with a guide table (Chen and
Asau 1974). Example: the weights .5, .25 and .25 cumulate to .5, .75 and 1. The uniform number .6
selects index 1, the first cumulated weight above .6. A search from index 0 would take long. So the
interval [0, 1) is divided into equal parts, and a guide table contains, for each part, the index at
which the search for a number in this part begins:

    uniform number    0 to .25    .25 to .5    .5 to .75    .75 to 1
    guide             0           0            1            2
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.protocol.params import Params
from rappor.simulation.compiled_loops import pick_values
from rappor.simulation.keystream import Keystream

_MOST_BITS: Final = 22
"""Largest number of bits of an index into the guide.

The number bounds memory: the guide then has 4 million entries, 16 MB. A smaller guide makes draws
slower if there are millions of values.
"""


class WeightedSampler:
    """Draws indices of values by weight.

    A uniform number falls between two cumulated weights. The first bits of the number are an index
    into the guide, whose entry is the value at which the search begins. A draw therefore takes
    about one step, whatever the number of values is.

    Parameters
    ----------
    weights : (n_values,) float64, not all 0.
    """

    def __init__(self, weights: NDArray[np.float64]) -> None:
        """Cumulate the weights, and compute the guide."""
        # (n_values,): cumulated weights. The last is exactly 1, which no uniform number reaches.
        self._steps = np.cumsum(weights)
        self._steps /= self._steps[-1]
        # Two to four entries of the guide for each value, so that most searches end at once.
        self._bits = min(len(weights).bit_length() + 1, _MOST_BITS)
        # Entry i: the first value whose cumulated weight exceeds i / 2^bits.
        firsts = np.arange(1 << self._bits) / (1 << self._bits)
        self._guide = np.searchsorted(self._steps, firsts, side="right").astype(np.int32)

    def draw(self, stream: Keystream, n: int) -> NDArray[np.int64]:
        """Draw (n,) int64 indices, each from a word of 64 bits, of which 53 bits are used."""
        # The words are little-endian on every machine, so that a seed always gives the same values.
        words = np.empty(n, dtype="<u8")
        stream.fill(words)
        values = np.empty(n, dtype=np.int64)
        pick_values(
            words.astype(np.uint64, copy=False), self._guide, self._bits, self._steps, values
        )
        return values


def draw_cohorts(stream: Keystream, n: int, params: Params) -> NDArray[np.uint16]:
    """Draw (n,) uint16 cohorts: floor(c m / 2^32) for a random integer c of 32 bits.

    A device computes its cohort from a random integer (a coin) by the same formula.
    """
    cohorts = stream.coins(n) * np.uint64(params.m) >> np.uint64(32)
    return cohorts.astype(np.uint16)
