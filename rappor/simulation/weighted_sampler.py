"""Values by weight and cohorts, for many devices at a time."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.protocol.params import Params
from rappor.simulation.compiled_loops import pick_values
from rappor.simulation.keystream import Keystream

_MOST_BITS: Final = 22
"""Bits of a guide's index at most: 16 MB."""


class WeightedSampler:
    """Numbers of values, drawn by weight.

    A uniform number falls between the cumulated weights. A guide says for its first bits where to
    begin to look, so a draw takes about one step however many values there are.
    """

    def __init__(self, weights: NDArray[np.float64]) -> None:
        """Cumulate the weights, (n_values,)."""
        self._steps = np.cumsum(weights)
        self._steps /= self._steps[-1]
        self._bits = min(len(weights).bit_length() + 1, _MOST_BITS)
        firsts = np.arange(1 << self._bits) / (1 << self._bits)
        self._guide = np.searchsorted(self._steps, firsts, side="right").astype(np.int32)

    def draw(self, stream: Keystream, n: int) -> NDArray[np.int64]:
        """Draw (n,) int64, each by 53 bits of the stream."""
        words = np.empty(n, dtype="<u8")
        stream.fill(words)
        values = np.empty(n, dtype=np.int64)
        pick_values(
            words.astype(np.uint64, copy=False), self._guide, self._bits, self._steps, values
        )
        return values


def draw_cohorts(stream: Keystream, n: int, params: Params) -> NDArray[np.uint16]:
    """Draw (n,) uint16, as a device's coin chooses its cohort."""
    cohorts = stream.coins(n) * np.uint64(params.m) >> np.uint64(32)
    return cohorts.astype(np.uint16)
