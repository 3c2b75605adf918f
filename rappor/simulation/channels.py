"""Noise on packed bits in bulk, exact to the last bit of the thresholds.

Theory of operation
-------------------
A response turns a true 0 into a 1 with one probability and a true 1 with another, each bit on its
own. Both probabilities are whole multiples of 2^-64: one response compares a coin of 32 bits with
a threshold, and the two responses of a report, one after the other, multiply two such
probabilities.

So one coin of 64 bits decides a bit: it is a 1 if the coin is below the threshold. Of that coin
only the highest byte is drawn. It decides unless it equals the threshold's highest byte, once in
256 times, and only then are the other 56 bits drawn. The probabilities are those of 64 bits, at
an eighth of the stream.

Eight words of the stream hold the bytes of 64 bits, a bit of each byte in each word. Comparing
them is a few operations on words for 64 bits at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.protocol.params import ONE, Params
from rappor.simulation.compiled_loops import break_ties, compare_high_bytes
from rappor.simulation.keystream import Keystream

_BYTE: Final = 8
_LOW_BITS: Final = 56
"""Bits of a coin below its highest byte."""

_ALL: Final = np.uint64((1 << 64) - 1)

_PIECE: Final = 1 << 16
"""Packed bytes of a piece: its coins, 512 KiB, stay in a core's cache."""


@dataclass(frozen=True, slots=True)
class Channel:
    """How a response answers: how many of 2^64 coins make a 1 of a true 0, and of a true 1."""

    of_zero: int
    of_one: int

    @classmethod
    def permanent(cls, params: Params) -> Channel:
        """Return the permanent response."""
        return cls(params.t_1 * ONE, (ONE - params.t_0) * ONE)

    @classmethod
    def instantaneous(cls, params: Params) -> Channel:
        """Return the instantaneous response to a permanent one."""
        return cls(params.t_p * ONE, params.t_q * ONE)

    @classmethod
    def report(cls, params: Params) -> Channel:
        """Return both responses in one step, for devices that report once."""
        t_1, t_0 = params.t_1, params.t_0
        return cls(
            (ONE - t_1) * params.t_p + t_1 * params.t_q,
            t_0 * params.t_p + (ONE - t_0) * params.t_q,
        )


def reports_per_piece(n_bytes: int) -> int:
    """Return how many reports of a length are drawn at a time."""
    return max(_PIECE // n_bytes, 1)


class ChannelNoise:
    """A channel with a stream of coins: called with true bits it answers for them."""

    def __init__(self, channel: Channel, stream: Keystream, k: int) -> None:
        """Prepare the thresholds for reports of k bits."""
        self._thresholds = build_threshold_words(channel)
        self._first, self._rest = stream.spawn(0), stream.spawn(1)
        self._last_byte = np.uint8(0xFF >> -k % 8)

    def __call__(self, bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Answer for packed bits, (n, ceil(k/8)) uint8, with a packed array of that shape.

        What is drawn depends on the calls: devices are answered for in pieces of `n_in_piece`, and
        a call ends a piece.
        """
        answers = np.empty_like(bits)
        step = reports_per_piece(bits.shape[1])
        for start in range(0, len(bits), step):
            self._answer(bits[start : start + step], answers[start : start + step])
        if len(bits):
            answers[:, -1] &= self._last_byte
        return answers

    def _answer(self, bits: NDArray[np.uint8], answers: NDArray[np.uint8]) -> None:
        truth = np.zeros(-(-bits.size // 8), dtype=np.uint64)
        truth.view(np.uint8)[: bits.size] = bits.reshape(-1)
        planes = np.empty((_BYTE, len(truth)), dtype=np.uint64)
        self._first.fill(planes)
        answer, tied = np.empty_like(truth), np.empty_like(truth)
        rest = np.empty(
            compare_high_bytes(truth, planes, self._thresholds, answer, tied), dtype="<u8"
        )
        self._rest.fill(rest)
        rest = rest.astype(np.uint64, copy=False)
        break_ties(truth, tied, rest, self._thresholds, answer)
        answers.reshape(-1)[:] = answer.view(np.uint8)[: bits.size]


def build_threshold_words(channel: Channel) -> NDArray[np.uint64]:
    """Return what the loops compare with, (3, 8) uint64.

    Rows 0 and 1 are the highest bytes of both thresholds, a word for each bit, 0 or all ones: the
    first of a true 0, the second what differs for a true 1. Row 2 begins with the low 56 bits of
    both, and what a true 1 adds: all ones where it is a 1 for every coin, 2^64 of them.
    """
    zero, one = (min(of, 2**64 - 1) for of in (channel.of_zero, channel.of_one))
    words = np.zeros((3, _BYTE), dtype=np.uint64)
    for bit in range(_BYTE):
        place = _LOW_BITS + bit
        words[0, bit] = _ALL if zero >> place & 1 else 0
        words[1, bit] = _ALL if (zero ^ one) >> place & 1 else 0
    low = (1 << _LOW_BITS) - 1
    words[2, :3] = zero & low, one & low, _ALL if channel.of_one == 2**64 else 0
    return words
