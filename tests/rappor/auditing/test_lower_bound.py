"""The lower bound on a loss: its error rate is exact, and it reaches the loss with many trials.

The bound comes from a game. An observer who sees the responses of a device names one of two values
or passes. A *key* is what his rule reads of a response, and a rule is a set of keys. The logarithm
of P(right guess) / P(wrong guess) is at most the loss.
"""

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


def compute_sides(
    distribution: Distribution, params: Params, n: int
) -> dict[int, tuple[Fraction, Fraction]]:
    """Return the exact probabilities of a right and of a wrong guess for each key of the game.

    The true bits of the device's value are the first h bits, and those of the other value are the
    remaining bits.
    """
    outcomes = unpack(b"".join(distribution), params)
    bit_counts = outcomes.reshape(len(distribution), n, params.k).sum(axis=1)
    true_bits = np.broadcast_to(np.arange(params.k) < params.h, bit_counts.shape)
    sides: dict[int, tuple[Fraction, Fraction]] = {}
    for keys, is_right in zip(
        compute_game_keys(bit_counts, true_bits, ~true_bits, params, n), (True, False), strict=True
    ):
        for key, weight in zip(keys.tolist(), distribution.values(), strict=True):
            right, wrong = sides.get(key, (Fraction(0), Fraction(0)))
            sides[key] = (right + weight, wrong) if is_right else (right, wrong + weight)
    return sides


@pytest.mark.parametrize(("h", "n"), [(1, 1), (1, 2), (2, 1)])
def test_best_rule_of_the_game_reaches_the_loss_exactly(h: int, n: int) -> None:
    """The largest ratio of right to wrong guesses of any key is e^epsilon, over all outcomes.

    So a rule that reads keys instead of responses can reach the loss, and cannot exceed it.
    """
    params = Params(k=2 * h, h=h, f=0.5, p=0.25, q=0.625)
    own = bytes([(1 << h) - 1])
    for distribution, reports, loss in (
        (enumerate_reports(own, params, n), n, epsilon_n(params, n)),
        (enumerate_permanent_response(own, params), 1, epsilon_inf(params)),
    ):
        sides = compute_sides(distribution, params, reports).values()
        assert math.log(max(a / b for a, b in sides)) == pytest.approx(loss, rel=1e-12)


@pytest.mark.parametrize("n", [5, 40, 300])
def test_limits_of_each_frequency_have_half_of_the_level(n: int) -> None:
    """The limits of Clopper and Pearson err with at most half of the level, summed over all counts.

    `bound_log_ratio` is ln(lower limit of P(right)) - ln(upper limit of P(wrong)). The limits are
    computed back from it: with n wrong guesses of n, the upper limit is 1 and its logarithm is 0.
    """
    counts = np.arange(n + 1)
    level = 0.02
    all_counts = np.full(n + 1, n)
    low = np.exp(bound_log_ratio(counts, all_counts, n, level))
    largest = bound_log_ratio(all_counts, np.zeros(n + 1, dtype=int), n, level)[0]
    assert np.isfinite(largest)
    low_of_all = math.exp(float(bound_log_ratio(all_counts, all_counts, n, level)[0]))
    high = low_of_all / np.exp(bound_log_ratio(all_counts, counts, n, level))
    for probability in np.linspace(0.01, 0.99, 99):
        distribution = stats.binom.pmf(counts, n, probability)
        assert distribution[low > probability].sum() <= level / 2
        assert distribution[high < probability].sum() <= level / 2


@pytest.mark.parametrize(("h", "n"), [(1, 1), (2, 1), (1, 2)])
def test_bound_exceeds_the_loss_at_most_at_its_level(h: int, n: int) -> None:
    """The probability that the bound exceeds the loss is at most the level, for every best rule.

    A best rule has the keys with the largest ratios. The probability is summed over all counts of
    right and wrong guesses in `tested` trials.
    """
    params = Params(k=2 * h, h=h, f=0.5, p=0.25, q=0.625)
    distribution = enumerate_reports(bytes([(1 << h) - 1]), params, n)
    sides = sorted(
        compute_sides(distribution, params, n).values(), key=lambda pair: -pair[0] / pair[1]
    )
    rules = np.cumsum(np.array(sides, dtype=float), axis=0)
    tested, level = 60, 0.05
    counts = np.arange(tested + 1)
    bounds = bound_log_ratio(counts[:, None], counts[None, :], tested, level)
    above = (bounds > epsilon_n(params, n)) & (counts[:, None] + counts[None, :] <= tested)
    assert above.any()
    for right, wrong in rules:
        if right + wrong > 1 - 1e-9:
            # The rule of all keys never passes. Its conditional probability of a wrong guess below
            # would be 1 with rounding errors.
            continue
        probability_right = stats.binom.pmf(counts, tested, right)[:, None]
        # Only trials without a right guess can have a wrong guess.
        probability_wrong = stats.binom.pmf(
            counts[None, :], tested - counts[:, None], wrong / (1 - right)
        )
        assert (probability_right * probability_wrong)[above].sum() <= level


def test_bound_of_equal_and_of_separate_keys() -> None:
    """The bound is 0 if keys do not distinguish the values, and limited by the number of trials.

    If every guess is right, the bound follows from the limits of 500 and of 0 among 500 tested
    trials.
    """
    same = np.zeros(1000, dtype=np.int64)
    assert bound_loss(same, same) == 0
    certain = bound_loss(same, same + 1)
    assert certain == pytest.approx(
        math.log(stats.beta.ppf(LEVEL / 2, 500, 1) / stats.beta.isf(LEVEL / 2, 1, 500))
    )


@pytest.mark.parametrize("h", [1, 2])
def test_reachable_bound_tends_to_the_claim(h: int) -> None:
    """The reachable bound of a correct encoder grows to the claim with the number of trials.

    A million trials reach 95 % of epsilon_inf and 90 % of epsilon_1.
    """
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
