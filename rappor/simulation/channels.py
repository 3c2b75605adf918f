"""Noise on packed bits of many devices, exact to the last bit of the thresholds.

The input is the packed true bits of n devices. The output is the packed bits after one response, or
after both. Only the simulator uses this module: a device adds noise to one report at a time.

Theory of operation
-------------------
A response turns a true 0 into a 1 with one probability, and a true 1 with another, each bit
independently. Both probabilities are whole multiples of 2^-64: one response compares a coin of 32
bits with a threshold, and the two responses of a report, one after the other, multiply two such
probabilities.

One coin of 64 bits therefore decides a bit: the bit is 1 if the coin is below the threshold. Only
the highest byte of the coin is drawn at first. It decides unless it equals the highest byte of the
threshold, which happens once in 256 times. Only then the remaining 56 bits are drawn. The
probabilities are exact to 64 bits, at an eighth of the random numbers.

Eight words of the keystream contain the highest bytes of 64 coins: word b contains bit b of each
byte. A comparison of all 64 coins then takes a few operations on words.

Example: a report of 128 bits needs 128 bytes of the keystream, and 128 / 256 * 8 = 4 more bytes on
average.

Generalized randomized response has no channel of single bits (`rappor.simulation.bucket_reports`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.protocol.params import Params
from rappor.protocol.thresholds import ONE
from rappor.simulation.bucket_reports import BucketNoise
from rappor.simulation.compiled_loops import break_ties, compare_high_bytes
from rappor.simulation.keystream import Keystream

_BYTE: Final = 8
"""A byte has eight bits."""

_LOW_BITS: Final = 56
"""A 64-bit coin has this number of bits below its highest byte."""

_ALL_ONES: Final = np.uint64((1 << 64) - 1)
"""A word in which all 64 bits are 1."""

_PIECE_BYTES: Final = 1 << 16
"""Number of packed bytes of reports that are drawn at a time, called a piece.

Each bit of the piece has a coin, whose highest byte is drawn. These are 512 KiB, which stay in a
core's cache. Another number would change the reports of a seed.
"""

Noise = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]
"""A noise function randomizes the packed bits of n devices, (n, ceil(k/8)) uint8."""


@dataclass(frozen=True, slots=True)
class Channel:
    """Binary channel of a response: its two probabilities, as numbers of coins out of 2^64.

    Attributes
    ----------
    of_zero : number of coins that turn a true 0 into a 1.
    of_one : number of coins that turn a true 1 into a 1.
    """

    of_zero: int
    of_one: int

    @classmethod
    def permanent(cls, params: Params) -> Channel:
        """Return the channel of the permanent response."""
        return cls(params.t_1 * ONE, (ONE - params.t_0) * ONE)

    @classmethod
    def instantaneous(cls, params: Params) -> Channel:
        """Return the channel from a permanent response to a report."""
        return cls(params.t_p * ONE, params.t_q * ONE)

    @classmethod
    def report(cls, params: Params) -> Channel:
        """Return the channel of both responses in one step, for devices that report once.

        A device that reports twice repeats its permanent response, which this channel cannot do.
        """
        # A true 0 becomes a permanent 1 with t_1 / 2^32 and stays 0 otherwise. A true 1 becomes a
        # permanent 0 with t_0 / 2^32. Products of two 32-bit thresholds are numbers out of 2^64.
        t_1, t_0 = params.t_1, params.t_0
        return cls(
            (ONE - t_1) * params.t_p + t_1 * params.t_q,
            t_0 * params.t_p + (ONE - t_0) * params.t_q,
        )


def count_reports_per_piece(n_bytes: int) -> int:
    """Return the number of reports of `n_bytes` bytes that are drawn at a time."""
    return max(_PIECE_BYTES // n_bytes, 1)


class ChannelNoise:
    """A channel with a keystream. A call adds noise to true bits.

    Parameters
    ----------
    channel : the probabilities.
    stream : source of the coins. Two substreams are used.
    k : number of bits of a report.
    """

    def __init__(self, channel: Channel, stream: Keystream, k: int) -> None:
        """Compute the thresholds."""
        self._thresholds = build_threshold_words(channel)
        self._high_bytes, self._low_bits = stream.spawn(0), stream.spawn(1)
        # The bits after bit k of the last byte are padding, and must be 0 in a report.
        self._last_byte = np.uint8(0xFF >> -k % 8)

    def __call__(self, bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Add noise to packed bits.

        The random numbers depend on how devices are divided into calls: a call draws in pieces of
        `count_reports_per_piece`, and its end ends a piece.

        Parameters
        ----------
        bits : (n, ceil(k/8)) uint8, the packed bits of n devices.

        Returns
        -------
        (n, ceil(k/8)) uint8, the packed noisy bits. Padding bits are 0.
        """
        responses = np.empty_like(bits)
        # Pieces bound the memory of the coins, which is eight bytes for each byte of a report.
        step = count_reports_per_piece(bits.shape[1])
        for start in range(0, len(bits), step):
            self._respond(bits[start : start + step], responses[start : start + step])
        if len(bits):
            responses[:, -1] &= self._last_byte
        return responses

    def _respond(self, bits: NDArray[np.uint8], responses: NDArray[np.uint8]) -> None:
        """Add noise to one piece, and write the result into `responses`."""
        # Eight packed bytes are a word of 64 bits. The last word is filled up with zeros, whose
        # responses are dropped.
        truth = np.zeros(-(-bits.size // 8), dtype=np.uint64)
        truth.view(np.uint8)[: bits.size] = bits.reshape(-1)
        # Row b contains bit b of the highest byte of every coin, 64 coins in a word.
        high_byte_planes = np.empty((_BYTE, len(truth)), dtype=np.uint64)
        self._high_bytes.fill(high_byte_planes)
        # A 1 in `tied` marks a coin whose highest byte equals that of its threshold (a tie). Only
        # for ties the remaining bits are drawn.
        response, tied = np.empty_like(truth), np.empty_like(truth)
        n_tied = compare_high_bytes(truth, high_byte_planes, self._thresholds, response, tied)
        low_bits = np.empty(n_tied, dtype="<u8")
        self._low_bits.fill(low_bits)
        # On a machine with big-endian integers the conversion reverses the bytes.
        low_bits = low_bits.astype(np.uint64, copy=False)
        break_ties(truth, tied, low_bits, self._thresholds, response)
        responses.reshape(-1)[:] = response.view(np.uint8)[: bits.size]


def create_report_noise(params: Params, stream: Keystream) -> Noise:
    """Return the noise from true bits to a report, for devices that report once."""
    if params.response.is_exclusive:
        return BucketNoise(params, stream)
    return ChannelNoise(Channel.report(params), stream, params.k)


def create_permanent_noise(params: Params, stream: Keystream) -> Noise:
    """Return the noise from true bits to a permanent response."""
    if params.response.is_exclusive:
        return BucketNoise(params, stream)
    return ChannelNoise(Channel.permanent(params), stream, params.k)


def build_threshold_words(channel: Channel) -> NDArray[np.uint64]:
    """Build the words with which the compiled loops compare coins, (3, 8) uint64.

    Row 0 contains the highest byte of the threshold of a true 0, one word of zeros or ones for each
    bit. Row 1 contains in the same way the bits in which the threshold of a true 1 differs. Row 2
    begins with the low 56 bits of both thresholds. Its third word is all ones if a true 1 is a 1
    for every coin.
    """
    # Case: a true 1 always becomes a 1, because the permanent response changes no 1 to 0 and q = 1.
    # Its threshold is 2^64, which does not fit 64 bits. The third word of row 2 replaces it.
    coins_of_zero, coins_of_one = (
        min(coins, 2**64 - 1) for coins in (channel.of_zero, channel.of_one)
    )
    words = np.zeros((3, _BYTE), dtype=np.uint64)
    for bit in range(_BYTE):
        position = _LOW_BITS + bit
        words[0, bit] = _ALL_ONES if coins_of_zero >> position & 1 else 0
        words[1, bit] = _ALL_ONES if (coins_of_zero ^ coins_of_one) >> position & 1 else 0
    low_mask = (1 << _LOW_BITS) - 1
    words[2, :2] = coins_of_zero & low_mask, coins_of_one & low_mask
    words[2, 2] = _ALL_ONES if channel.of_one == 2**64 else 0
    return words
