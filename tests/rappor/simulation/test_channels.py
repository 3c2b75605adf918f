"""Noise on packed bits, by a channel: the probabilities of a reported 1 for a true bit 0 and 1.

A bit becomes 1 if its 64-bit coin is below the threshold of the channel. Coins are compared by
their highest bytes first. If the highest byte of a coin equals that of the threshold, the bit is
*tied*, and the remaining 56 bits are drawn to decide.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from enumeration import (
    enumerate_instantaneous_response,
    enumerate_permanent_response,
    enumerate_reports,
)
from numpy.typing import NDArray

from rappor.protocol.params import Params
from rappor.simulation import compiled_loops
from rappor.simulation.channels import (
    Channel,
    ChannelNoise,
    build_threshold_words,
    count_reports_per_piece,
)
from rappor.simulation.keystream import Keystream

NOISES = [
    (0.5, 0.25, 0.75),
    (0.0, 0.25, 0.75),
    (0.5, 0.0, 1.0),
    (0.0, 0.0, 1.0),
    (2**-31, 2**-32, 1 - 2**-32),
    (1 - 2**-31, 0.0, 2**-32),
    (0.25, 1 - 2**-32, 1.0),
    (0.238406, 0.059601, 0.559601),
]
"""Values of f, p and q: without one or both kinds of noise, at the smallest and largest
probabilities above 0 and below 1, and those of the profile balanced."""


def make_bit_params(f: float, p: float, q: float) -> Params:
    """Return parameters of one bit."""
    return Params(k=1, encoding="boolean", f=f, p=p, q=q, insecure=True)


@pytest.mark.parametrize(("f", "p", "q"), NOISES)
def test_a_channel_has_the_probabilities_of_the_devices_responses(
    f: float, p: float, q: float
) -> None:
    """The probabilities of a channel equal an enumeration of all coins, in exact fractions."""
    params = make_bit_params(f, p, q)
    for bit in (0, 1):
        for channel, outcomes in (
            (Channel.permanent(params), enumerate_permanent_response(bytes([bit]), params)),
            (Channel.instantaneous(params), enumerate_instantaneous_response(bytes([bit]), params)),
            (Channel.report(params), enumerate_reports(bytes([bit]), params, 1)),
        ):
            coins = (channel.of_zero, channel.of_one)[bit]
            assert Fraction(coins, 2**64) == outcomes.get(b"\1", Fraction(0))


@pytest.mark.slow
@pytest.mark.parametrize(("f", "p", "q"), NOISES)
def test_number_of_coins_that_make_a_one_is_the_threshold(f: float, p: float, q: float) -> None:
    """Of all 2^64 coins, as many as the threshold turn a true bit into a 1."""
    params = make_bit_params(f, p, q)
    for make in (Channel.permanent, Channel.instantaneous, Channel.report):
        channel = make(params)
        for bit, coins in enumerate((channel.of_zero, channel.of_one)):
            assert count_ones(build_threshold_words(channel), bit) == coins


def count_ones(thresholds: NDArray[np.uint64], bit: int) -> int:
    """Count the 64-bit coins that turn a true bit into a 1.

    The loop decides the 255 highest bytes that are not tied. For the tied byte, a bisection finds
    the number of coins.
    """
    every_byte = np.arange(256, dtype=np.uint8)
    planes = np.packbits(every_byte[None] >> np.arange(8)[:, None] & 1, axis=1, bitorder="little")
    truth = np.full(4, 2**64 - 1 if bit else 0, dtype=np.uint64)
    noisy, tied = np.empty_like(truth), np.empty_like(truth)
    n_tied = compiled_loops.compare_high_bytes(
        truth, np.ascontiguousarray(planes).view("<u8"), thresholds, noisy, tied
    )
    decided = np.bitwise_count(noisy & ~tied).sum()
    already = np.bitwise_count(noisy & tied).sum()
    assert n_tied == np.bitwise_count(tied).sum() == 1
    if already:
        # The tied bit is 1 before the low bits are drawn: every coin of this byte makes a 1.
        return (int(decided) + 1) << 56

    def is_one(low_bits: int) -> bool:
        """Return whether the tied coin with these 56 low bits makes a 1."""
        decided_bits = noisy.copy()
        coin = np.array([low_bits << 8], dtype=np.uint64)
        compiled_loops.break_ties(truth, tied, coin, thresholds, decided_bits)
        assert not ((decided_bits ^ noisy) & ~tied).any()
        return bool((decided_bits & tied).any())

    low, high = 0, 1 << 56  # the number of tied coins that make a 1 is in [low, high]
    while low < high:
        middle = (low + high) // 2
        if is_one(middle):
            low = middle + 1
        else:
            high = middle
    return (int(decided) << 56) + low


@pytest.mark.parametrize("k", [1, 5, 8, 13, 64, 129])
def test_a_report_follows_from_its_coins(k: int) -> None:
    """Every bit equals a comparison of Python integers: coin < threshold. Padding bits are 0.

    The reports are more than fit in one piece. A piece is the number of reports whose coins are
    drawn at a time. Highest bytes come from one substream and the low bits of ties from another.
    """
    low = 2**55 + 12345  # about half of the tied bits become 1
    channel, n = Channel(2**61 + low, 2**63 + low), count_reports_per_piece((k + 7) // 8) + 3
    true = np.random.default_rng(k).integers(0, 2, (n, k), dtype=np.uint8)
    packed = np.packbits(true, axis=1, bitorder="little")
    noisy = ChannelNoise(channel, Keystream(5), k)(packed)
    highest_bytes, low_bits = Keystream(5).spawn(0), Keystream(5).spawn(1)
    noisy_bits = np.unpackbits(noisy, axis=1, bitorder="little")
    assert not noisy_bits[:, k:].any()
    for start in range(0, n, count_reports_per_piece(packed.shape[1])):
        piece = packed[start : start + count_reports_per_piece(packed.shape[1])]
        planes = highest_bytes.coins((8, -(-piece.size // 8), 2)).astype("<u4")
        stream = np.unpackbits(planes.view(np.uint8).reshape(8, -1), axis=1, bitorder="little")
        highest = (stream.astype(int) << np.arange(8)[:, None]).sum(axis=0)
        bits = np.zeros(stream.shape[1], dtype=int)
        bits[: 8 * piece.size] = np.unpackbits(piece.reshape(-1), bitorder="little")
        expected = []
        for byte, bit in zip(highest.tolist(), bits.tolist(), strict=True):
            threshold = (channel.of_zero, channel.of_one)[bit]
            is_tied = byte == threshold >> 56
            low = int(low_bits.coins(2).astype("<u4").view("<u8")[0]) >> 8 if is_tied else 0
            expected.append(int(byte << 56 | low) < threshold)
        rows = np.array(expected[: 8 * piece.size]).reshape(len(piece), -1)
        assert np.array_equal(noisy_bits[start : start + len(piece), :k], rows[:, :k])


def test_noise_of_no_reports_is_empty() -> None:
    """An array without rows gives an array without rows."""
    assert ChannelNoise(Channel(1, 2), Keystream(1), 8)(np.empty((0, 1), np.uint8)).shape == (0, 1)
