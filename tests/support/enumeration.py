"""Enumeration of all values of coins, each with its exact probability.

Coins are compared with thresholds only. All coins between two thresholds are therefore one class,
which one coin represents. Its probability is its width over 2^32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

from rappor.protocol.params import ONE, Params
from rappor.protocol.randomizer import Coins, instantaneous_response, permanent_response

Distribution = dict[bytes, Fraction]


def constant(coin: int) -> Coins:
    """Return coins that all have one value."""
    return lambda n: [coin] * n


def coin_classes(thresholds: Iterable[int]) -> list[tuple[int, Fraction]]:
    """Return the first coin and the probability of each class between the thresholds."""
    edges = sorted({0, ONE, *thresholds})
    return [(low, Fraction(high - low, ONE)) for low, high in itertools.pairwise(edges)]


def enumerate_coins(
    respond: Callable[[Coins], bytes], thresholds: Iterable[int], k: int
) -> Distribution:
    """Run a response for every combination of coin classes, and return its distribution."""
    outcomes: Distribution = {}
    for combination in itertools.product(coin_classes(thresholds), repeat=k):
        fixed = [coin for coin, _ in combination]

        def coins(n: int, fixed: Sequence[int] = fixed) -> Sequence[int]:
            return fixed[:n]

        weight = math.prod((weight for _, weight in combination), start=Fraction(1))
        outcome = respond(coins)
        outcomes[outcome] = outcomes.get(outcome, Fraction(0)) + weight
    return outcomes


def permanent_of(bits: bytes, params: Params) -> Distribution:
    """Return the distribution of the real permanent response."""
    return enumerate_coins(
        lambda coins: permanent_response(bits, params, coins),
        (params.t_1, params.t_1 + params.t_0),
        params.k,
    )


def instantaneous_of(memoised: bytes, params: Params) -> Distribution:
    """Return the distribution of the real instantaneous response."""
    return enumerate_coins(
        lambda coins: instantaneous_response(memoised, params, coins),
        (params.t_p, params.t_q),
        params.k,
    )


def histories_of(bits: bytes, params: Params, n: int) -> Distribution:
    """Return the distribution of n reports: one permanent response, n instantaneous responses."""
    distribution: Distribution = {}
    draws: dict[bytes, Distribution] = {}
    for memoised, probability in permanent_of(bits, params).items():
        once = draws.setdefault(memoised, instantaneous_of(memoised, params))
        for reports in itertools.product(once.items(), repeat=n):
            key = b"".join(report for report, _ in reports)
            weight = math.prod((w for _, w in reports), start=probability)
            distribution[key] = distribution.get(key, Fraction(0)) + weight
    return distribution


def worst_ratio(distributions: Sequence[Distribution]) -> float:
    """Return the natural logarithm of the largest ratio of one outcome's probabilities."""
    worst = 0.0
    for outcome in set().union(*distributions):
        shares = [distribution.get(outcome, Fraction(0)) for distribution in distributions]
        if min(shares) == 0:
            return math.inf
        ratio = max(shares) / min(shares)
        worst = max(worst, math.log(ratio.numerator) - math.log(ratio.denominator))
    return worst
