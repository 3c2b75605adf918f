"""The loss of a report in a large shuffled batch, against the exact loss of one-bit reports.

`test_shuffled_batches` explains the letters, and tests small batches. Here n is 1,000 and more, so
the batch is described by its number of ones.
"""

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
"""Probability with which the loss may exceed epsilon. A smaller delta gives a larger epsilon."""


def compute_symmetric_probabilities(epsilon: float) -> tuple[float, float]:
    """Return the probabilities of a 1 for a true 0 and for a true 1 under symmetric noise."""
    return 1 / (math.exp(epsilon) + 1), math.exp(epsilon) / (math.exp(epsilon) + 1)


def compute_distribution(
    own: float, low: float, high: float, n_ones: int, n: int
) -> NDArray[np.float64]:
    """Return the distribution of the number of ones in a batch of n reports of one bit.

    `own` is the probability of a 1 for the device under attack. `n_ones` of the other devices have
    the value 1, and report a 1 with probability `high`, the others with `low`.
    """
    sum_of_zeros = stats.binom.pmf(np.arange(n - n_ones), n - 1 - n_ones, low)
    sum_of_ones = stats.binom.pmf(np.arange(n_ones + 1), n_ones, high)
    sum_of_others = np.convolve(sum_of_zeros, sum_of_ones)
    return np.asarray(np.convolve(sum_of_others, [1 - own, own]), dtype=float)


def compute_exact_delta(epsilon: float, low: float, high: float, n: int) -> float:
    """Return the smallest delta for which a batch has the loss epsilon.

    The result is the largest over three sets of other devices: none, half, or all have the value 1.
    """
    worst = 0.0
    for n_ones in (0, n // 2, n - 1):
        from_zero, from_one = (
            compute_distribution(own, low, high, n_ones, n) for own in (low, high)
        )
        for first, second in ((from_zero, from_one), (from_one, from_zero)):
            worst = max(worst, float(np.maximum(first - math.exp(epsilon) * second, 0).sum()))
    return worst


@pytest.mark.parametrize("n", [1_000, 20_000])
@pytest.mark.parametrize("local", [0.1, 0.5, 1.0, 1.4])
def test_the_loss_holds_for_symmetric_noise(local: float, n: int) -> None:
    """The exact delta at the computed epsilon is at most the required delta.

    Shuffling reduces the loss by more than 20 %. At 0.7 epsilon, delta is larger than required, so
    the bound is not much larger than needed.
    """
    epsilon = compute_shuffled_epsilon(local, n, delta=DELTA)
    assert compute_exact_delta(epsilon, *compute_symmetric_probabilities(local), n) <= DELTA
    assert epsilon < 0.8 * local
    assert compute_exact_delta(0.7 * epsilon, *compute_symmetric_probabilities(local), n) > DELTA


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 5.0])
def test_find_local_epsilon_returns_the_largest_local_loss(epsilon: float) -> None:
    """`find_local_epsilon` returns the largest local loss that a batch reduces to epsilon.

    In a batch of one device, nothing hides the report, so the local loss is epsilon, except for the
    small part that delta allows.
    """
    local = find_local_epsilon(epsilon, 100_000, delta=DELTA)
    assert compute_shuffled_epsilon(local, 100_000, delta=DELTA) <= epsilon
    assert compute_shuffled_epsilon(local * (1 + 1e-9) + 1e-9, 100_000, delta=DELTA) > epsilon
    assert local >= epsilon
    assert find_local_epsilon(epsilon, 1, delta=DELTA) == pytest.approx(epsilon, abs=200 * DELTA)


def test_the_smallest_positive_delta_is_accepted() -> None:
    """With the smallest positive float as delta, no number overflows, and shuffling gains nothing.

    No cohort size is certain enough then, so the smallest cohort may be empty.
    """
    least = math.ulp(0.0)
    assert compute_shuffled_epsilon(1.0, 1_000, delta=least) == 1.0
    assert compute_smallest_cohort(1_000, 100, delta=least) == 0


@pytest.mark.parametrize(("n", "m"), [(1_000, 8), (100_000, 128), (1_000_000, 1024), (50, 128)])
@pytest.mark.parametrize("delta", [1e-3, 1e-9])
def test_likely_smallest_cohort(n: int, m: int, delta: float) -> None:
    """The probability that some cohort is smaller than `compute_smallest_cohort` is at most delta.

    The probability comes from the exact binomial distribution and the union bound over m cohorts.
    The size is not much smaller than needed. A single cohort has all devices.
    """
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
def test_arguments_outside_their_range_are_refused(
    arguments: tuple[Any, Any, float], message: str
) -> None:
    """An argument outside its range raises ParamsError with the argument's name."""
    local, n, delta = arguments
    with pytest.raises(ParamsError, match=message):
        compute_shuffled_epsilon(local, n, delta=delta)


@pytest.mark.parametrize(
    ("epsilon", "n", "delta"),
    [(math.nan, 10, 0.1), (math.inf, 10, 0.1), (-1.0, 10, 0.1), (1.0, 0, 0.1), (1.0, 10, 0.0)],
)
def test_find_local_epsilon_refuses_arguments_outside_their_range(
    epsilon: float, n: int, delta: float
) -> None:
    """An argument outside its range raises ParamsError with the argument's name."""
    with pytest.raises(ParamsError, match=r"(epsilon|n|delta) must be"):
        find_local_epsilon(epsilon, n, delta=delta)
