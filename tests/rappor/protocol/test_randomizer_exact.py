"""The real randomizer, run for every outcome of its coins, with exact fractions as probabilities.

The code compares a coin with thresholds only, so all coins between two thresholds give the same
response. One coin represents them, with the weight (width of the range) / 2^32. The first test
checks this assumption: its coins record every comparison, and raise for every other operation.

Each further test compares the enumerated distribution with the theory: probabilities of bits, and
the privacy losses epsilon_1, epsilon_n and epsilon_inf as largest ratios of probabilities.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from enumeration import (
    Distribution,
    compute_largest_log_ratio,
    enumerate_instantaneous_response,
    enumerate_permanent_response,
    enumerate_reports,
)

from rappor.protocol.loss import epsilon_1, epsilon_inf, epsilon_n
from rappor.protocol.params import Params
from rappor.protocol.randomizer import draw_instantaneous_response, draw_permanent_response
from rappor.protocol.thresholds import ONE

NOISES: list[dict[str, Any]] = [
    {"f": 0.5, "p": 0.5, "q": 0.75},
    {"f": 0.3, "p": 0.1, "q": 0.9},
    {"f": 0.25, "p": 0.0, "q": 1.0},
    {"f": 0.0, "p": 0.2, "q": 0.7},
    {"f": 0.9, "p": 0.013, "q": 0.55},
    {"f": 0.6, "g": 0.2, "p": 0.19, "q": 0.75},
    {"f": 0.5, "g": 0.9, "p": 0.0, "q": 1.0},
    {"f": 0.4, "g": 0.0, "p": 0.1, "q": 0.8},
    {"f": 0.4, "g": 1.0, "p": 0.1, "q": 0.8},
]
"""Noise with and without permanent or instantaneous noise, and with forced bits that become 1 with
probability 1/2 (the default of g), seldom, often, never and always."""


class RecordingCoin(int):
    """A coin that records every comparison by `<`, and raises if code uses it in another way."""

    comparisons: list[tuple[str, int]]

    @classmethod
    def create(cls, value: int, comparisons: list[tuple[str, int]]) -> RecordingCoin:
        """Return a coin that appends its comparisons to `comparisons`."""
        coin = cls(value)
        coin.comparisons = comparisons
        return coin

    def __lt__(self, threshold: int) -> bool:
        self.comparisons.append(("<", threshold))
        return int(self) < threshold

    def _unexpected(self, operand: object) -> Any:
        raise AssertionError(f"a coin was used for more than <: {operand!r}")

    __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _unexpected
    __and__ = __rand__ = __or__ = __xor__ = __add__ = __radd__ = __sub__ = _unexpected
    __mul__ = __rmul__ = __rshift__ = __lshift__ = __mod__ = __floordiv__ = _unexpected
    __truediv__ = __float__ = __index__ = __bool__ = _unexpected  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


def compute_product(bits: bytes, p_of_zero: Fraction, p_of_one: Fraction, k: int) -> Distribution:
    """Return the distribution of independent bits with these probabilities of a 1."""
    distribution: Distribution = {}
    true_bits = int.from_bytes(bits, "little")
    for outcome in range(2**k):
        weight = Fraction(1)
        for i in range(k):
            probability = p_of_one if true_bits >> i & 1 else p_of_zero
            weight *= probability if outcome >> i & 1 else 1 - probability
        if weight:
            distribution[outcome.to_bytes((k + 7) // 8, "little")] = weight
    return distribution


def list_inputs(params: Params) -> list[bytes]:
    """Return every pattern of true bits that a value of the encoding can set."""
    if params.encoding == "bloom":
        # A string sets 1 to h bits, because its hash functions may collide.
        most = min(params.h, params.k)
        combinations = itertools.chain.from_iterable(
            itertools.combinations(range(params.k), n) for n in range(1, most + 1)
        )
        masks = [sum(1 << i for i in indices) for indices in combinations]
    elif params.encoding in ("onehot", "buckets"):
        masks = [1 << i for i in range(params.k)]
    else:
        masks = list(range(2**params.k))
    return [mask.to_bytes(params.n_bytes, "little") for mask in masks]


def list_params(noise: dict[str, Any]) -> list[Params]:
    """Return small parameter sets of every encoding.

    Some Bloom filters have k < 2 h, so that no two strings differ in 2 h bits, the case with the
    largest loss for larger k.
    """
    names = ("a", "b", "c")
    bloom = [(2, 1), (3, 1), (3, 2), (4, 2), (2, 2), (4, 3)]
    return [
        *(Params(k=k, h=h, **noise, insecure=True) for k, h in bloom),
        Params(k=3, encoding="onehot", categories=names, **noise, insecure=True),
        Params(k=1, encoding="boolean", **noise, insecure=True),
        Params(k=3, encoding="buckets", categories=("0", "1"), **noise, insecure=True),
    ]


every_noise = pytest.mark.parametrize("noise", NOISES, ids=str)


@every_noise
def test_coins_are_compared_with_the_thresholds_and_used_for_nothing_else(
    noise: dict[str, Any],
) -> None:
    """Coins are compared with the thresholds, by `<`, and used for nothing else.

    The permanent response compares with t_1, then with t_1 + t_0. The instantaneous response
    compares with t_q for a 1, and with t_p for a 0.
    """
    params = Params(k=5, **noise, insecure=True)
    for value in (0, params.t_1, params.t_1 + params.t_0, params.t_p, ONE - 1):
        comparisons: list[tuple[str, int]] = []

        def coins(
            n: int, value: int = value, comparisons: list[tuple[str, int]] = comparisons
        ) -> Sequence[int]:
            return [RecordingCoin.create(value, comparisons) for _ in range(n)]

        draw_permanent_response(bytes([0b01101]), params, coins)
        forced_to_1, forced_to_0 = ("<", params.t_1), ("<", params.t_1 + params.t_0)
        one_bit = [forced_to_1] if value < params.t_1 else [forced_to_1, forced_to_0]
        assert comparisons == one_bit * params.k
        comparisons.clear()
        draw_instantaneous_response(bytes([0b01101]), params, coins)
        p, q = ("<", params.t_p), ("<", params.t_q)
        assert comparisons == [q, p, q, q, p]


@every_noise
def test_each_response_is_the_product_of_its_bits(noise: dict[str, Any]) -> None:
    """The bits of a response are independent, and each bit is 1 with exactly its probability.

    The probability is f1 or 1 - f0 in a permanent response, p or q in an instantaneous response to
    it, and p* or q* in both together ([EPK14] Lemma 1).
    """
    params = Params(k=3, h=3, **noise, insecure=True)
    forced_1, forced_0 = Fraction(params.t_1, ONE), Fraction(params.t_0, ONE)
    p, q = Fraction(params.t_p, ONE), Fraction(params.t_q, ONE)
    p_star, q_star = (
        probability * q + (1 - probability) * p for probability in (forced_1, 1 - forced_0)
    )
    assert float(p_star) == pytest.approx(params.p_star, rel=1e-14)
    assert float(q_star) == pytest.approx(params.q_star, rel=1e-14)
    for bits in (bytes([mask]) for mask in range(8)):
        assert enumerate_permanent_response(bits, params) == compute_product(
            bits, forced_1, 1 - forced_0, 3
        )
        assert enumerate_instantaneous_response(bits, params) == compute_product(bits, p, q, 3)
        assert enumerate_reports(bits, params, 1) == compute_product(bits, p_star, q_star, 3)


@pytest.mark.slow
@every_noise
def test_largest_ratio_of_one_report_is_epsilon_one(noise: dict[str, Any]) -> None:
    """The largest likelihood ratio of a report, over all pairs of inputs, is exp(epsilon_1)."""
    for params in list_params(noise):
        distributions = [enumerate_reports(bits, params, 1) for bits in list_inputs(params)]
        assert compute_largest_log_ratio(distributions) == pytest.approx(
            epsilon_1(params), rel=1e-9
        )


@every_noise
def test_largest_ratio_of_the_permanent_response_is_epsilon_inf(noise: dict[str, Any]) -> None:
    """The largest likelihood ratio of a permanent response is exp(epsilon_inf)."""
    for params in list_params(noise):
        distributions = [enumerate_permanent_response(bits, params) for bits in list_inputs(params)]
        assert compute_largest_log_ratio(distributions) == pytest.approx(
            epsilon_inf(params), rel=1e-9
        )


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("noise", [*NOISES[:2], *NOISES[5:]], ids=str)
def test_largest_ratio_of_n_reports_is_epsilon_n(n: int, noise: dict[str, Any]) -> None:
    """The largest likelihood ratio of n reports, by enumeration, is exp(epsilon_n)."""
    sets = [Params(k=2, h=1, **noise), Params(k=2, h=2, **noise)]
    sets += [Params(k=1, encoding="boolean", **noise)]
    sets += [Params(k=2, encoding="onehot", categories=("a", "b"), **noise)]
    sets += [Params(k=2, encoding="buckets", categories=("0",), **noise)]
    for params in sets:
        distributions = [enumerate_reports(bits, params, n) for bits in list_inputs(params)]
        assert compute_largest_log_ratio(distributions) == pytest.approx(
            epsilon_n(params, n), rel=1e-9
        )
