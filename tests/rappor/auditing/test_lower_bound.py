"""The lower bound on a loss: exact error rate, and as tight as the trials allow."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from enumeration import Distribution, enumerate_permanent_response, enumerate_reports
from scipy import stats

from rappor import Params, epsilon_1, epsilon_inf
from rappor.auditing.lower_bound import (
    LEVEL,
    bound_log_ratio,
    bound_loss,
    compute_game_keys,
    estimate_reachable_bound,
)
from rappor.auditing.pairs import unpack
from rappor.protocol.loss import epsilon_n


def sides_of(
    distribution: Distribution, params: Params, n: int
) -> dict[int, tuple[Fraction, Fraction]]:
    """Return the probabilities of each key of the game, where the guess is right and wrong.

    The true bits are the first h of them.
    """
    outcomes = unpack(b"".join(distribution), params)
    ones = outcomes.reshape(len(distribution), n, params.k).sum(axis=1)
    mine = np.broadcast_to(np.arange(params.k) < params.h, ones.shape)
    sides: dict[int, tuple[Fraction, Fraction]] = {}
    for keys, is_right in zip(
        compute_game_keys(ones, mine, ~mine, params, n), (True, False), strict=True
    ):
        for key, weight in zip(keys.tolist(), distribution.values(), strict=True):
            right, wrong = sides.get(key, (Fraction(0), Fraction(0)))
            sides[key] = (right + weight, wrong) if is_right else (right, wrong + weight)
    return sides


@pytest.mark.parametrize(("h", "n"), [(1, 1), (1, 2), (2, 1)])
def test_best_rule_of_the_game_reaches_the_loss_exactly(h: int, n: int) -> None:
    """Over all the ways that coins can fall, the largest right / wrong ratio of any key is e^eps.

    The keys therefore lose nothing, and no rule on them can find more than the truth.
    """
    params = Params(k=2 * h, h=h, f=0.5, p=0.25, q=0.625)
    own = bytes([(1 << h) - 1])
    for distribution, reports, loss in (
        (enumerate_reports(own, params, n), n, epsilon_n(params, n)),
        (enumerate_permanent_response(own, params), 1, epsilon_inf(params)),
    ):
        sides = sides_of(distribution, params, reports).values()
        assert math.log(max(a / b for a, b in sides)) == pytest.approx(loss, rel=1e-12)


@pytest.mark.parametrize("n", [5, 40, 300])
def test_each_frequency_is_bounded_as_often_as_said(n: int) -> None:
    """Clopper and Pearson's limits err with at most half the level, summed exactly."""
    counts = np.arange(n + 1)
    level = 0.02
    alone = np.full(n + 1, n)  # ln of an upper limit of 1 is 0
    low = np.exp(bound_log_ratio(counts, alone, n, level))
    sure = bound_log_ratio(np.full(n + 1, n), np.zeros(n + 1, dtype=int), n, level)[0]
    assert np.isfinite(sure)
    least_of_all = math.exp(float(bound_log_ratio(alone, alone, n, level)[0]))
    high = least_of_all / np.exp(bound_log_ratio(alone, counts, n, level))
    for probability in np.linspace(0.01, 0.99, 99):
        distribution = stats.binom.pmf(counts, n, probability)
        assert distribution[low > probability].sum() <= level / 2
        assert distribution[high < probability].sum() <= level / 2


@pytest.mark.parametrize(("h", "n"), [(1, 1), (2, 1), (1, 2)])
def test_bound_is_above_the_loss_as_rarely_as_said(h: int, n: int) -> None:
    """The probability of an excess is summed over all counts, for every best rule."""
    params = Params(k=2 * h, h=h, f=0.5, p=0.25, q=0.625)
    distribution = enumerate_reports(bytes([(1 << h) - 1]), params, n)
    sides = sorted(sides_of(distribution, params, n).values(), key=lambda pair: -pair[0] / pair[1])
    rules = np.cumsum(np.array(sides, dtype=float), axis=0)
    tested, level = 60, 0.05
    counts = np.arange(tested + 1)
    bounds = bound_log_ratio(counts[:, None], counts[None, :], tested, level)
    above = (bounds > epsilon_n(params, n)) & (counts[:, None] + counts[None, :] <= tested)
    assert above.any()
    for right, wrong in rules:
        if right + wrong > 1 - 1e-9:  # the rule names somebody always: nothing bounds it
            continue
        seen = stats.binom.pmf(counts, tested, right)[:, None]
        others = stats.binom.pmf(
            counts[None, :], tested - counts[:, None], wrong / (1 - right)
        )  # what was named right was not named wrong
        assert (seen * others)[above].sum() <= level


def test_nothing_seen_bounds_nothing() -> None:
    """Without a right guess the bound is 0. A certain loss is bounded by the number of trials."""
    same = np.zeros(1000, dtype=np.int64)
    assert bound_loss(same, same) == 0
    certain = bound_loss(same, same + 1)
    assert certain == pytest.approx(
        math.log(stats.beta.ppf(LEVEL / 2, 500, 1) / stats.beta.isf(LEVEL / 2, 1, 500))
    )


@pytest.mark.parametrize("h", [1, 2])
def test_reach_tends_to_the_claim(h: int) -> None:
    """With more trials the bound of a correct encoder approaches the claim."""
    params = Params(k=8, h=h, f=0.5, p=0.25, q=0.75)
    for n, claim in ((1, epsilon_1(params)), (3, epsilon_n(params, 3)), (None, None)):
        limit = epsilon_inf(params) if claim is None else claim
        assert estimate_reachable_bound(params, n, 10**12) == pytest.approx(limit, rel=2e-3)
        assert (
            estimate_reachable_bound(params, n, 10**4)
            < estimate_reachable_bound(params, n, 10**6)
            < limit
        )
    assert estimate_reachable_bound(params, None, 10**6) > 0.95 * epsilon_inf(params)
    assert estimate_reachable_bound(params, 1, 10**6) > 0.9 * epsilon_1(params)
