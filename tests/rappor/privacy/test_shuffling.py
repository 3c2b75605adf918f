"""The loss of a shuffled report, against the exact loss of shuffled one-bit reports."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from rappor.base.errors import ParamsError
from rappor.privacy.shuffling import (
    compute_shuffled_epsilon,
    compute_smallest_cohort,
    find_local_epsilon,
)

DELTA = 1e-6


def symmetric_probabilities(epsilon: float) -> tuple[float, float]:
    """Return the probabilities of a 1 for a true 0 and for a true 1 under symmetric noise."""
    return 1 / (math.exp(epsilon) + 1), math.exp(epsilon) / (math.exp(epsilon) + 1)


def compute_distribution(
    own: float, low: float, high: float, n_ones: int, n: int
) -> NDArray[np.float64]:
    """Return the distribution of the number of ones, which is the content of a batch of bits."""
    zeros = stats.binom.pmf(np.arange(n - n_ones), n - 1 - n_ones, low)
    ones = stats.binom.pmf(np.arange(n_ones + 1), n_ones, high)
    others = np.convolve(zeros, ones)
    return np.asarray(np.convolve(others, [1 - own, own]), dtype=float)


def compute_exact_delta(epsilon: float, low: float, high: float, n: int) -> float:
    """Return the smallest delta at which the batch keeps epsilon.

    The other devices may have any values.
    """
    worst = 0.0
    for n_ones in (0, n // 2, n - 1):
        zero, one = (compute_distribution(own, low, high, n_ones, n) for own in (low, high))
        for first, second in ((zero, one), (one, zero)):
            worst = max(worst, float(np.maximum(first - math.exp(epsilon) * second, 0).sum()))
    return worst


@pytest.mark.parametrize("n", [1_000, 20_000])
@pytest.mark.parametrize("local", [0.1, 0.5, 1.0, 1.4])
def test_the_loss_holds_for_symmetric_noise(local: float, n: int) -> None:
    """The exact delta is at most the required delta, and the bound is near the truth."""
    epsilon = compute_shuffled_epsilon(local, n, delta=DELTA)
    assert compute_exact_delta(epsilon, *symmetric_probabilities(local), n) <= DELTA
    assert epsilon < 0.8 * local
    assert compute_exact_delta(0.7 * epsilon, *symmetric_probabilities(local), n) > DELTA


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 5.0])
def test_local_loss_for_a_batch(epsilon: float) -> None:
    """The result is the largest local loss that the batch reduces to epsilon.

    A device alone may lose hardly more than epsilon.
    """
    local = find_local_epsilon(epsilon, 100_000, delta=DELTA)
    assert compute_shuffled_epsilon(local, 100_000, delta=DELTA) <= epsilon
    assert compute_shuffled_epsilon(local * (1 + 1e-9) + 1e-9, 100_000, delta=DELTA) > epsilon
    assert local >= epsilon
    assert find_local_epsilon(epsilon, 1, delta=DELTA) == pytest.approx(epsilon, abs=200 * DELTA)


def test_the_least_delta_is_a_delta() -> None:
    """With the smallest positive delta no number overflows, and the local loss stays."""
    least = math.ulp(0.0)
    assert compute_shuffled_epsilon(1.0, 1_000, delta=least) == 1.0
    assert compute_smallest_cohort(1_000, 100, delta=least) == 0


@pytest.mark.parametrize(("n", "m"), [(1_000, 8), (100_000, 128), (1_000_000, 1024), (50, 128)])
@pytest.mark.parametrize("delta", [1e-3, 1e-9])
def test_likely_smallest_cohort(n: int, m: int, delta: float) -> None:
    """By the exact binomial, a cohort is below the bound with probability delta at most."""
    size = compute_smallest_cohort(n, m, delta=delta)
    assert m * stats.binom.cdf(size - 1, n, 1 / m) <= delta
    spread = math.sqrt(n / m) * stats.norm.isf(delta / m)
    assert size > n / m - 1.5 * spread - 1
    assert compute_smallest_cohort(n, 1, delta=delta) == n


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((math.nan, 10, 0.1), r"local must be a number in \[0, infinity\], got nan"),
        ((-0.1, 10, 0.1), "local must be"),
        ((1.0, 0, 0.1), "n must be an integer of at least 1, got 0"),
        ((1.0, 1.5, 0.1), "n must be"),
        ((1.0, True, 0.1), "n must be"),
        ((1.0, 10, 0.0), r"delta must be a number in \(0, 1\), got 0.0"),
        ((1.0, 10, 1.0), "delta must be"),
        ((1.0, 10, math.nan), "delta must be"),
    ],
)
def test_nonsense_is_refused(arguments: tuple[Any, Any, float], message: str) -> None:
    """An argument outside its range raises ParamsError."""
    local, n, delta = arguments
    with pytest.raises(ParamsError, match=message):
        compute_shuffled_epsilon(local, n, delta=delta)


@pytest.mark.parametrize(
    ("epsilon", "n", "delta"),
    [(math.nan, 10, 0.1), (math.inf, 10, 0.1), (-1.0, 10, 0.1), (1.0, 0, 0.1), (1.0, 10, 0.0)],
)
def test_no_local_loss_for_nonsense(epsilon: float, n: int, delta: float) -> None:
    """An argument outside its range raises ParamsError here, too."""
    with pytest.raises(ParamsError, match=r"(epsilon|n|delta) must be"):
        find_local_epsilon(epsilon, n, delta=delta)
