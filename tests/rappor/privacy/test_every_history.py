"""Enumeration of short histories: the loss between any two histories is within its bound.

A history is the sequence of values that a device records, and of the reports that it makes. The
promise of a metric holds for any two histories of values, not only for two constant values. The
tests enumerate all histories of up to four reports.

The coins of a permanent response are derived from a string: scope and true bits. Two responses have
the same coins if these strings are equal, and independent coins otherwise. Given its permanent
responses, the reports of a device are independent, bit by bit. The loss between two histories
therefore follows from the strings, which the tests take from the code. The largest log-likelihood
ratio of a history is the sum over its bits.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import pytest
from registries import build_metric

from rappor.privacy.parameter_changes import compute_change_loss
from rappor.protocol.encodings import get_encoder
from rappor.protocol.loss import epsilon_n
from rappor.protocol.params import Params
from rappor.protocol.randomizer import encode_scope
from rappor.registry.metric import Metric

NOISE: dict[str, Any] = {"f": 0.5, "p": 0.25, "q": 0.75}
"""Noise that forces a bit to 1 and to 0 with the same probability, .25."""

RARE_ONES: dict[str, Any] = {"f": 0.6, "g": 0.1, "p": 0.25, "q": 0.75}
"""Noise that forces a bit to 1 with probability .06 and to 0 with probability .54. Its largest loss
comes from another report than under symmetric noise."""

ROUNDING = 1e-9
"""Tolerance in nats. Losses are sums of logarithms of exact fractions."""

Report = tuple[Params, bytes, int]
"""Everything on which the distribution of a report depends: its parameters, the string from which
its permanent coins are derived, and its true bits."""

Bit = tuple[tuple[int, int, Params], ...]
"""Type of one bit of a history. For each report it has the number of its permanent coin, the true
bit, and the parameters. Reports with the same number repeat one permanent response."""


@functools.cache
def enumerate_bit(bit: Bit) -> dict[tuple[int, ...], Fraction]:
    """Return the exact distribution of the reports of one bit.

    Each permanent coin forces the bit to 1 or to 0, or leaves the true bit ("t"). All combinations
    are enumerated with their probabilities.
    """
    coins = sorted({coin for coin, _, _ in bit})
    distribution: dict[tuple[int, ...], Fraction] = {}
    for forced in itertools.product("10t", repeat=len(coins)):
        weight = Fraction(1)
        probabilities_of_one = []
        for coin, truth, params in bit:
            outcome = forced[coins.index(coin)]
            permanent_bit = truth if outcome == "t" else int(outcome)
            probabilities_of_one.append(
                Fraction(params.t_q if permanent_bit else params.t_p, 2**32)
            )
        for outcome, coin in zip(forced, coins, strict=True):
            params = next(params for number, _, params in bit if number == coin)
            n_coins = {"1": params.t_1, "0": params.t_0, "t": 2**32 - params.t_1 - params.t_0}
            weight *= Fraction(n_coins[outcome], 2**32)
        for reports in itertools.product((0, 1), repeat=len(bit)):
            factors = (
                probability if is_one else 1 - probability
                for is_one, probability in zip(reports, probabilities_of_one, strict=True)
            )
            distribution[reports] = distribution.get(reports, Fraction(0)) + math.prod(
                factors, start=weight
            )
    return distribution


@functools.cache
def compute_bit_loss(first_bit: Bit, second_bit: Bit) -> float:
    """Return the largest log-likelihood ratio of one bit's reports under two histories."""
    first, second = enumerate_bit(first_bit), enumerate_bit(second_bit)
    ratios = [
        math.log(p / second[reports]) if second[reports] else math.inf
        for reports, p in first.items()
        if p
    ]
    return max(ratios)


def list_bits(history: Sequence[Report]) -> Iterator[Bit]:
    """Yield, for every bit of the reports, the coins, true bits and parameters of its reports."""
    names = {name: number for number, name in enumerate(dict.fromkeys(n for _, n, _ in history))}
    for i in range(max(params.k for params, _, _ in history)):
        yield tuple(
            (names[name], bits >> i & 1, params) for params, name, bits in history if i < params.k
        )


def compute_loss(first_history: Sequence[Report], second_history: Sequence[Report]) -> float:
    """Return the largest log-likelihood ratio of all reports under two histories, in nats."""
    return sum(
        compute_bit_loss(first, second)
        for first, second in zip(list_bits(first_history), list_bits(second_history), strict=True)
    )


def describe_report(metric: Metric, epoch: str, value: object, cohort: int) -> Report:
    """Return everything on which the distribution of a report depends, in a cohort of the scope."""
    bits = get_encoder(metric.params).encode(value, cohort)
    name = encode_scope(metric.name, epoch, metric.params)
    return metric.params, name + b"\0" + bits, int.from_bytes(bits, "little")


def replay(steps: Sequence[tuple[Metric, str, int]], values: Sequence[object]) -> list[Report]:
    """Return the reports of a device that records these values, one at each step.

    A step is a metric, an epoch and a cohort. Each scope repeats the response of its first value.
    """
    memoized: dict[bytes, tuple[bytes, int]] = {}
    history = []
    for (metric, epoch, cohort), value in zip(steps, values, strict=True):
        params, name, bits = describe_report(metric, epoch, value, cohort)
        key = encode_scope(metric.name, epoch, params)
        history.append((params, *memoized.setdefault(key, (name, bits))))
    return history


def make_params(encoding: str, *names: str, **changes: Any) -> Params:
    """Return parameters of an encoding with these categories or edges."""
    k = len(names) + (encoding == "buckets")
    fields: dict[str, Any] = {"k": k, "encoding": encoding, "categories": names}
    return Params(**fields | NOISE | changes)


ENCODINGS: dict[str, tuple[Params, tuple[object, ...]]] = {
    "bloom": (Params(k=4, h=2, m=2, **NOISE), ("a", "b", "c")),
    "onehot": (make_params("onehot", "a", "b"), ("a", "b", "z")),
    "boolean": (Params(k=1, encoding="boolean", **NOISE), (True, False)),
    "buckets": (make_params("buckets", "0"), (-1, 1, math.nan)),
    "bloom, rare ones": (Params(k=4, h=1, m=2, **RARE_ONES), ("a", "b", "c")),
    "onehot, rare ones": (make_params("onehot", "a", "b", **RARE_ONES), ("a", "b", "z")),
    "boolean, rare ones": (Params(k=1, encoding="boolean", **RARE_ONES), (True, False)),
    "buckets, rare ones": (make_params("buckets", "0", **RARE_ONES), (-1, 1, math.nan)),
}
"""Parameters and values of every encoding. The last value of some sets no bit ("z", NaN)."""


def list_histories(
    steps: Sequence[tuple[Metric, str, int]], values: Sequence[object]
) -> list[list[Report]]:
    """Return every distinct history of reports for all sequences of values."""
    distinct = {
        tuple(replay(steps, history)) for history in itertools.product(values, repeat=len(steps))
    }
    return [list(history) for history in distinct]


def find_worst_loss(steps: Sequence[tuple[Metric, str, int]], values: Sequence[object]) -> float:
    """Return the largest loss between any two histories of values."""
    return max(
        compute_loss(first, second)
        for first, second in itertools.permutations(list_histories(steps, values), 2)
    )


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_a_memoized_scope_bounds_every_pair_of_histories(name: str, n: int) -> None:
    """All n reports of one scope lose at most epsilon_n, whatever values a device records.

    If the reports belong to two epochs, the losses of both epochs add.
    """
    params, values = ENCODINGS[name]
    metric = build_metric(params, epoch="year")
    for cohort in range(params.m):
        assert (
            find_worst_loss([(metric, "2026", cohort)] * n, values)
            <= epsilon_n(params, n) + ROUNDING
        )
    split = [(metric, "2026", 0)] * (n // 2) + [(metric, "2027", params.m - 1)] * (n - n // 2)
    bound = sum(epsilon_n(params, reports) for reports in (n // 2, n - n // 2) if reports)
    assert find_worst_loss(split, values) <= bound + ROUNDING


def test_the_bound_is_reached() -> None:
    """Some pair of histories reaches the bound epsilon_n, so no smaller bound would be right.

    The test also shows that the enumeration finds the worst pair.
    """
    for name, (params, values) in ENCODINGS.items():
        for n in (1, 2, 3):
            reached = max(
                find_worst_loss([(build_metric(params), "", cohort)] * n, values)
                for cohort in range(params.m)
            )
            # The bound of strings is for values that differ in 2h bits. The three strings of four
            # bits here differ in three bits at most, so they reach only a part of the bound.
            if name.startswith("bloom"):
                assert reached > 0.7 * epsilon_n(params, n)
            else:
                assert reached == pytest.approx(epsilon_n(params, n), abs=1e-9)


CHANGES: dict[str, tuple[Params, Params, tuple[object, ...]]] = {
    "category inserted": (
        make_params("onehot", "a", "b"),
        make_params("onehot", "a", "c", "b"),
        ("a", "b"),
    ),
    "category appended": (
        make_params("onehot", "a", "b"),
        make_params("onehot", "a", "b", "c"),
        ("a", "b"),
    ),
    "categories reordered": (
        make_params("onehot", "a", "b"),
        make_params("onehot", "b", "a"),
        ("a", "b"),
    ),
    "category renamed": (
        make_params("onehot", "a", "b"),
        make_params("onehot", "a", "B"),
        ("a", "b", "B"),
    ),
    "edge inserted": (make_params("buckets", "0"), make_params("buckets", "-1", "0"), (-2, 1)),
    "f": (make_params("onehot", "a", "b"), make_params("onehot", "a", "b", f=0.4), ("a", "b")),
    "g": (make_params("onehot", "a", "b"), make_params("onehot", "a", "b", g=0.4), ("a", "b")),
    "p and q, rare ones": (
        make_params("onehot", "a", "b", **RARE_ONES),
        make_params("onehot", "a", "b", **RARE_ONES | {"p": 0.4, "q": 0.9}),
        ("a", "b"),
    ),
    "p and q": (
        make_params("onehot", "a", "b"),
        make_params("onehot", "a", "b", p=0.4, q=0.9),
        ("a", "b"),
    ),
    "normalizer": (
        make_params("onehot", "a", "b"),
        make_params("onehot", "a", "b", normalize="casefold"),
        ("a", "A", "b"),
    ),
    "k": (Params(k=3, m=2, **NOISE), Params(k=4, m=2, **NOISE), ("a", "b", "c")),
    "h": (Params(k=3, h=1, **NOISE), Params(k=3, h=2, **NOISE), ("a", "b", "c")),
    "m": (Params(k=3, m=1, **NOISE), Params(k=3, m=2, **NOISE), ("a", "b", "c")),
    "p and q of strings": (
        Params(k=3, h=2, m=2, **NOISE),
        Params(k=3, h=2, m=2, f=0.5, p=0.1, q=0.6),
        ("a", "b", "c"),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 1), (1, 2), (2, 2), (1, 3)])
def test_a_change_of_parameters_stays_within_its_loss(name: str, before: int, after: int) -> None:
    """Any two histories across a change of parameters lose at most `compute_change_loss`.

    A history has `before` reports with the old and `after` reports with the new parameters, in any
    cohorts of the two scopes. `cost.kept` is True if the change keeps the permanent response, as a
    change of p and q alone does.
    """
    old, new, values = CHANGES[name]
    cost = compute_change_loss(old, new, before=before, after=after)
    assert cost.kept == name.startswith("p and q")
    old_metric, new_metric = build_metric(old), build_metric(new)
    for old_cohort, new_cohort in itertools.product(range(old.m), range(new.m)):
        if cost.kept and old_cohort != new_cohort:
            continue  # a change of p and q keeps the cohort
        steps_before = [(old_metric, "", old_cohort)] * before
        steps = steps_before + [(new_metric, "", new_cohort)] * after
        assert find_worst_loss(steps, values) <= cost.epsilon + ROUNDING
