"""Tests of coins: exact distributions, and bad generators that the tests find."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence

import pytest
from audits import SMALL_METRIC
from planted_faults import draw_biased_coins, make_twister_coins, make_xorshift_coins

from rappor.auditing import audit_coins
from rappor.auditing.randomness import compute_register_p_value, compute_shortest_register
from rappor.protocol.randomizer import draw_system_coins


def coin_faults(coins: Callable[[int], Sequence[int]]) -> set[str]:
    """Return the checks of the fresh coins that found a fault."""
    checks = audit_coins(SMALL_METRIC.params, coins)
    assert all(check.verdict == "pass" for check in checks if check.name.startswith("permanent"))
    return {
        check.name.removeprefix("fresh coins: ") for check in checks if check.verdict == "fault"
    }


@pytest.mark.slow
def test_bad_coins_are_found() -> None:
    """A Mersenne Twister is found for every seed, and so are smaller shift registers.

    The shipped coins fail with probability below 1e-8.
    """
    assert coin_faults(draw_system_coins) == set()
    assert coin_faults(make_twister_coins(int.from_bytes(os.urandom(4)))) == {"no shift register"}
    assert "no shift register" in coin_faults(make_xorshift_coins())
    assert "ones by position" in coin_faults(draw_biased_coins)
    assert "repetition" in coin_faults(lambda n: make_twister_coins(n)(n))
    counter = itertools.count()
    assert len(coin_faults(lambda n: [next(counter) for _ in range(n)])) >= 4


@pytest.mark.parametrize("n", [1, 2, 7, 10])
def test_register_lengths_have_their_exact_distribution(n: int) -> None:
    """Of all 2^n sequences, the formula gives the number that needs each length."""
    lengths = [compute_shortest_register(bits) for bits in itertools.product((0, 1), repeat=n)]
    for length in range(n + 1):
        below = sum(needed <= length for needed in lengths) / 2**n
        above = sum(needed >= length for needed in lengths) / 2**n
        assert compute_register_p_value(length, n) == pytest.approx(min(1, 2 * min(below, above)))


def test_shortest_register_is_the_shortest() -> None:
    """The result equals an exhaustive search over all registers, for every sequence of 8 bits."""
    for bits in itertools.product((0, 1), repeat=8):
        length = next(
            size
            for size in range(9)
            for taps in itertools.product((0, 1), repeat=size)
            if all(
                bits[i] == sum(t & bits[i - 1 - j] for j, t in enumerate(taps)) % 2
                for i in range(size, 8)
            )
        )
        assert compute_shortest_register(bits) == length
