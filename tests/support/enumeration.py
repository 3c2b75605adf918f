"""Exact distributions of the responses, by enumeration of the outcomes of all coins.

The code under test compares a coin with thresholds, and uses it for nothing else. So all coins
between two thresholds give the same response. They are a class of coins. The enumeration runs the
code once for each combination of classes, with the smallest coin of each class. The probability of
a class is the number of its coins / 2^32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

from rappor.protocol.params import Params
from rappor.protocol.randomizer import draw_instantaneous_response, draw_permanent_response
from rappor.protocol.responses.generalized_response import GeneralizedResponse
from rappor.protocol.responses.response import Coins
from rappor.protocol.thresholds import ONE

Distribution = dict[bytes, Fraction]
"""Type of an exact distribution: the probability of each outcome that is possible."""


def list_coin_classes(thresholds: Iterable[int]) -> list[tuple[int, Fraction]]:
    """Return the smallest coin and the probability of each class between the thresholds."""
    edges = sorted({0, ONE, *thresholds})
    return [(low, Fraction(high - low, ONE)) for low, high in itertools.pairwise(edges)]


def enumerate_coins(
    respond: Callable[[Coins], bytes], thresholds: Iterable[int], k: int
) -> Distribution:
    """Return the exact distribution of a response to k coins.

    `respond` takes a source of coins. The function runs it for all combinations of classes of coins
    between these thresholds, and adds the probabilities of equal outcomes.
    """
    outcomes: Distribution = {}
    for combination in itertools.product(list_coin_classes(thresholds), repeat=k):
        fixed = [coin for coin, _ in combination]

        def coins(n: int, fixed: Sequence[int] = fixed) -> Sequence[int]:
            return fixed[:n]

        weight = math.prod((weight for _, weight in combination), start=Fraction(1))
        outcome = respond(coins)
        outcomes[outcome] = outcomes.get(outcome, Fraction(0)) + weight
    return outcomes


def enumerate_permanent_response(bits: bytes, params: Params) -> Distribution:
    """Return the exact distribution of the permanent response of the production code."""
    return enumerate_coins(
        lambda coins: draw_permanent_response(bits, params, coins),
        (params.t_1, params.t_1 + params.t_0),
        params.k,
    )


def enumerate_instantaneous_response(permanent: bytes, params: Params) -> Distribution:
    """Return the exact distribution of the instantaneous response of the production code."""
    return enumerate_coins(
        lambda coins: draw_instantaneous_response(permanent, params, coins),
        (params.t_p, params.t_q),
        params.k,
    )


def enumerate_reports(bits: bytes, params: Params, n: int) -> Distribution:
    """Return the exact distribution of n reports of one value in one scope.

    The reports repeat one permanent response. An outcome is the bytes of all reports together.
    """
    distribution: Distribution = {}
    draws: dict[bytes, Distribution] = {}
    for permanent, probability in enumerate_permanent_response(bits, params).items():
        once = draws.setdefault(permanent, enumerate_instantaneous_response(permanent, params))
        for reports in itertools.product(once.items(), repeat=n):
            key = b"".join(report for report, _ in reports)
            weight = math.prod((w for _, w in reports), start=probability)
            distribution[key] = distribution.get(key, Fraction(0)) + weight
    return distribution


def choose_own_buckets(params: Params, bits: bytes, coins: Sequence[int]) -> list[int]:
    """Return the own buckets after padding or cutting, as the production code chooses them."""
    response = params.response
    assert isinstance(response, GeneralizedResponse)
    return response.choose_own_buckets(bits, lambda n: coins[:n])


def enumerate_buckets(bits: bytes, params: Params) -> Distribution:
    """Return the exact distribution of a report of generalized randomized response.

    The code multiplies a coin u by the length L of a list and drops 32 bits, so all coins between
    two multiples of 2^32 / L give the same index. Coin n is compared with the threshold of `keep`.
    """
    n, k = params.items, params.k
    response = params.response
    assert isinstance(response, GeneralizedResponse)
    n_own = int.from_bytes(bits, "little").bit_count()
    longest = n_own if n_own > n else k - n_own
    n_draws = n if n_own > n else n - n_own
    # Case: the set has exactly n own buckets, or few are missing. The response skips coins, which
    # then have one class.
    lengths = [[longest - i] if i < n_draws else [] for i in range(n)]
    classes = [list_coin_classes(list_index_edges(list_)) for list_ in lengths]
    classes += [list_coin_classes([response.t_keep]), list_coin_classes(list_index_edges([n, k]))]
    outcomes: Distribution = {}
    for combination in itertools.product(*classes):
        fixed = [coin for coin, _ in combination]
        weight = math.prod((weight for _, weight in combination), start=Fraction(1))

        def coins(n: int, fixed: Sequence[int] = fixed) -> Sequence[int]:
            return fixed[:n]

        outcome = draw_permanent_response(bits, params, coins)
        outcomes[outcome] = outcomes.get(outcome, Fraction(0)) + weight
    return outcomes


def list_index_edges(lengths: Iterable[int]) -> list[int]:
    """Return the smallest coin that gives each index of a list, for lists of these lengths."""
    return [-(-index * ONE // length) for length in lengths for index in range(length)]


def compute_largest_log_ratio(distributions: Sequence[Distribution]) -> float:
    """Return the privacy loss in nats: ln of the largest ratio of two probabilities of an outcome.

    Each distribution belongs to one input. The loss is infinite if an outcome is possible for one
    input and impossible for another.
    """
    largest = 0.0
    for outcome in set().union(*distributions):
        probabilities = [distribution.get(outcome, Fraction(0)) for distribution in distributions]
        if min(probabilities) == 0:
            return math.inf
        ratio = max(probabilities) / min(probabilities)
        largest = max(largest, math.log(ratio.numerator) - math.log(ratio.denominator))
    return largest
