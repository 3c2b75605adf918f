"""Surveys by two coins (randomized response): probabilities, loss, estimates and intervals.

A first coin decides whether a person tells the truth (alpha). Otherwise a second coin decides on
"yes" (beta). p and q are the probabilities of "yes" without and with the property.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from enumeration import list_coin_classes
from scipy import stats

from rappor.base.errors import ParamsError
from rappor.protocol.thresholds import ONE, compute_threshold
from rappor.trust.coin_survey import MOST_EPSILON, CoinSurvey

SURVEYS = [(0.5, 0.5), (0.7, 0.25), (0.01, 0.9), (0.3, 0.0), (1.0, 0.5), (0.4, 1.0)]
"""Probabilities alpha and beta of each survey. The first one has two fair coins."""


def probability_of_yes(survey: CoinSurvey, *, truth: bool) -> Fraction:
    """Compute the exact probability of "yes", over all values of the two coins."""
    classes = list_coin_classes((compute_threshold(survey.alpha), compute_threshold(survey.beta)))
    yes = Fraction(0)
    for (first, x), (second, y) in itertools.product(classes, repeat=2):

        def coins(n: int, fixed: Sequence[int] = (first, second)) -> Sequence[int]:
            return fixed[:n]

        yes += x * y * survey.randomize(coins, truth=truth)
    return yes


def compute_loss(survey: CoinSurvey) -> float:
    """Return the log of the largest ratio of the probabilities of a response, over all coins."""
    low, high = (probability_of_yes(survey, truth=truth) for truth in (False, True))
    pairs = ((high, low), (1 - low, 1 - high))
    if any(smaller == 0 < larger for larger, smaller in pairs):
        return math.inf
    return math.log(max(larger / smaller for larger, smaller in pairs if smaller))


@pytest.mark.parametrize(("alpha", "beta"), SURVEYS)
def test_probabilities_of_a_survey_are_those_of_its_coins(alpha: float, beta: float) -> None:
    """p, q and epsilon equal the values that an enumeration of all coins gives."""
    survey = CoinSurvey(alpha, beta)
    assert survey.p == pytest.approx(float(probability_of_yes(survey, truth=False)), rel=1e-12)
    assert survey.q == pytest.approx(float(probability_of_yes(survey, truth=True)), rel=1e-12)
    assert survey.epsilon == pytest.approx(compute_loss(survey), rel=1e-9)


@pytest.mark.parametrize("odds", [Fraction(3, 2), Fraction(2), Fraction(5, 2), Fraction(3)])
def test_gain_of_randomized_response(odds: Fraction) -> None:
    """With the gain g = (e^eps - 1) / (2 (e^eps + 1)), the loss is eps.

    alpha is 2 g. A widely copied slide prints twice this g. A survey with the gain of the slide
    loses more than 2 eps. At e^eps = 3 (two fair coins), it would always tell the truth.
    """
    right = (odds - 1) / (2 * (odds + 1))
    epsilon = math.log(odds)
    assert compute_loss(CoinSurvey(float(2 * right), 0.5)) == pytest.approx(epsilon, rel=1e-8)
    assert CoinSurvey.at(epsilon).alpha == pytest.approx(float(2 * right), abs=2 / ONE)
    assert compute_loss(CoinSurvey(float(4 * right), 0.5)) > 2 * epsilon


@pytest.mark.parametrize("beta", [0.5, 0.25, 0.9])
@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 5.0, MOST_EPSILON])
def test_survey_at_an_epsilon_keeps_it(epsilon: float, beta: float) -> None:
    """The loss of `CoinSurvey.at(epsilon)` is at most epsilon.

    A larger alpha, by one step of a 32-bit coin, would exceed epsilon.
    """
    survey = CoinSurvey.at(epsilon, beta)
    assert survey.epsilon <= epsilon * (1 + 1e-9)
    assert CoinSurvey(survey.alpha + 1 / ONE, beta).epsilon > epsilon * (1 - 1e-9)


@pytest.mark.parametrize("beta", [1e-3, 1e-7, 1e-9, 1 - 1e-7])
def test_survey_with_a_rare_second_coin_keeps_its_epsilon(beta: float) -> None:
    """The loss is at most epsilon also if beta is near 0 or 1, where rounding to coins matters."""
    survey = CoinSurvey.at(3.0, beta)
    assert compute_loss(survey) <= 3.0 * (1 + 1e-12)
    assert CoinSurvey(survey.alpha + 1 / ONE, beta).epsilon > 3.0


def distribution_of_yes(survey: CoinSurvey, n_true: int, n: int) -> np.ndarray:
    """Return the distribution of the number of people who respond "yes".

    `n_true` of n people have the property.
    """
    with_property = stats.binom.pmf(np.arange(n_true + 1), n_true, survey.q)
    without_property = stats.binom.pmf(np.arange(n - n_true + 1), n - n_true, survey.p)
    return np.convolve(with_property, without_property)


@pytest.mark.parametrize(("alpha", "beta"), [*SURVEYS[:2], (0.3, 0.0)])
def test_estimate_and_variance_are_exact(alpha: float, beta: float) -> None:
    """The estimate has no bias, and the closed form of its variance is exact."""
    survey, n, n_true = CoinSurvey(alpha, beta), 300, 90
    distribution = distribution_of_yes(survey, n_true, n)
    estimates = np.array([survey.estimate(yes, n) for yes in range(n + 1)])
    mean = float(distribution @ estimates)
    assert mean == pytest.approx(n_true / n, rel=1e-9)
    assert survey.variance(n_true / n, n) == pytest.approx(
        float(distribution @ (estimates - mean) ** 2), rel=1e-9
    )


@pytest.mark.parametrize(("alpha", "beta"), [(0.9, 0.1), (0.99, 0.5), (0.5, 0.0), (0.1, 0.5)])
def test_interval_covers_every_share_with_little_noise(alpha: float, beta: float) -> None:
    """The exact coverage for every share of few people is at least the confidence of 95 %.

    The fewer random answers there are, the more the number of "yes" differs from a binomial number.
    """
    survey = CoinSurvey(alpha, beta)
    for n in (5, 20):
        low, high = np.transpose([survey.interval(yes, n) for yes in range(n + 1)])
        for n_true in range(n + 1):
            # With beta = 0, an end may be exactly 0. The bisection computes it to 1e-12.
            is_covered = (low - 1e-9 <= n_true / n) & (n_true / n <= high + 1e-9)
            assert distribution_of_yes(survey, n_true, n)[is_covered].sum() >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("n", [20, 100, 300])
def test_interval_covers(n: int, confidence: float) -> None:
    """The exact coverage of an interval is at least the confidence less 0.005, for every share.

    For n = 300, an interval misses at least half as often as its confidence allows, and a fifth for
    smaller n. So intervals are not much longer than necessary.
    """
    survey = CoinSurvey(0.5, 0.5)
    intervals = [survey.interval(yes, n, confidence=confidence) for yes in range(n + 1)]
    low, high = np.transpose(intervals)
    for share in (0.0, 0.05, 0.3, 0.7):
        is_covered = (low <= share) & (share <= high)
        covered = distribution_of_yes(survey, round(share * n), n)[is_covered].sum()
        least_missed = (1 - confidence) * (0.5 if n == 300 else 0.2)
        assert confidence - 0.005 <= covered <= 1 - least_missed, share


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CoinSurvey(0, 0.5), r"alpha must be a number in \(0, 1\], got 0"),
        (lambda: CoinSurvey(math.nan, 0.5), r"alpha must be a number in \(0, 1\], got nan"),
        (lambda: CoinSurvey(1e-12, 0.5), r"alpha must be at least 2\^-32, a coin's step"),
        (lambda: CoinSurvey(0.5, 1.5), r"beta must be a number in \[0, 1\], got 1.5"),
        (lambda: CoinSurvey(0.5, math.nan), r"beta must be a number in \[0, 1\], got nan"),
        (lambda: CoinSurvey.at(1.0, 0.0), r"beta must be a number in \(0, 1\), got 0.0"),
        (lambda: CoinSurvey.at(1e-3, 1e-7), "epsilon must be larger for 32-bit coins at beta"),
        (lambda: CoinSurvey.at(1.0, 1e-12), "epsilon must be larger for 32-bit coins at beta"),
        (lambda: CoinSurvey(0.5, 0.5).estimate(2, 1), r"n_yes must be an integer in \[0, 1\]"),
        (lambda: CoinSurvey(0.5, 0.5).estimate(0, 0), "n must be an integer of at least 1, got 0"),
        (lambda: CoinSurvey(0.5, 0.5).interval(1, 2, confidence=1.0), "confidence must be"),
    ],
)
def test_numbers_outside_their_range_are_refused(call: Callable[[], object], message: str) -> None:
    """A number outside its range is refused, and the message names the argument."""
    with pytest.raises(ParamsError, match=message):
        call()
