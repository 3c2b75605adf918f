"""Lower bound on the privacy loss, from a game that an observer plays.

A device has one of two values, drawn by a fair coin. The observer knows both values, sees the
device's response, and either names one value or passes. With loss epsilon, right guesses are at
most e^epsilon times as frequent as wrong guesses, for every rule of the observer: each right guess
of a value would be a wrong guess if the device had the other value. So ln(right / wrong) of any
rule is a lower bound on epsilon. The best rule, by likelihood ratio, reaches epsilon.

The rule reads a response as two numbers: the ones among the bits that only the named value sets,
and the ones among the bits that only the other value sets. These numbers preserve the event with
the largest ratio under the mechanism of [EPK14]. The rule is learned on the first half of the
trials and tested on the second half, so no correction for the search is needed. The two frequencies
are bounded by the method of Clopper and Pearson (1934), at half the error rate each.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params

LEVEL: Final = 1e-4
"""Largest probability that a lower bound exceeds the true loss.

The rate is larger than FALSE_ALARM_RATE: at 1e-9 a bound needs 2.5 times the trials for the same
distance to the claim.
"""


def compute_game_keys(
    ones: Integers, own: Booleans, other: Booleans, params: Params, n: int
) -> tuple[Integers, Integers]:
    """Reduce responses to the integers that the observer's rule reads.

    `ones` is (trials, k): the number of ones of each bit in n responses of a trial. `own` and
    `other` are (trials, k) bool: the true bits of the device's value, and of the other value of the
    pair. Returns two (trials,) arrays: the keys for naming the device's value, a right guess, and
    for naming the other value, a wrong guess.
    """
    only_own, only_other = own & ~other, other & ~own
    ones_own, ones_other = (np.where(bits, ones, 0).sum(axis=1) for bits in (only_own, only_other))
    n_own, n_other = only_own.sum(axis=1), only_other.sum(axis=1)
    max_ones = get_encoding(params).true_bit_counts[-1]
    shape = (n * max_ones + 1, n * max_ones + 1, max_ones + 1, max_ones + 1)
    right = np.ravel_multi_index((ones_own, ones_other, n_own, n_other), shape)
    wrong = np.ravel_multi_index((ones_other, ones_own, n_other, n_own), shape)
    return right.astype(np.int64), wrong.astype(np.int64)


def bound_loss(right: Integers, wrong: Integers, *, level: float = LEVEL) -> float:
    """Compute a lower bound on the loss in nats, with error probability `level`.

    `right` and `wrong` are (trials,) keys from `compute_game_keys`, of independent trials.
    """
    half = len(right) // 2
    keys, codes = np.unique(np.concatenate([right, wrong]), return_inverse=True)
    rights, wrongs = codes[: len(right)], codes[len(right) :]
    learned_right, learned_wrong = (
        np.bincount(codes[:half], minlength=len(keys)) for codes in (rights, wrongs)
    )
    # Half an answer is added to each count, so that keys seen once on one side have a place.
    order = np.argsort(-(learned_right + 0.5) / (learned_wrong + 0.5), kind="stable")
    reached = bound_log_ratio(
        np.cumsum(learned_right[order]), np.cumsum(learned_wrong[order]), half, level
    )
    named = order[: int(np.argmax(reached)) + 1]
    n_right, n_wrong = (np.isin(codes[half:], named).sum() for codes in (rights, wrongs))
    bound = bound_log_ratio(n_right, n_wrong, len(right) - half, level)
    return max(0.0, float(bound))


def bound_log_ratio(
    n_right: NDArray[Any] | np.integer, n_wrong: NDArray[Any] | np.integer, n: int, level: float
) -> Floats:
    """Compute lower bounds of ln(P(right) / P(wrong)) from counts among n trials."""
    lower = np.where(n_right > 0, stats.beta.ppf(level / 2, n_right, n - n_right + 1), 0.0)
    upper = np.where(n_wrong < n, stats.beta.isf(level / 2, n_wrong + 1, n - n_wrong), 1.0)
    with np.errstate(divide="ignore"):
        bounds: Floats = np.log(lower) - np.log(upper)
    return bounds


def estimate_reachable_bound(
    params: Params, n: int | None, trials: int, *, level: float = LEVEL
) -> float:
    """Estimate the bound that `trials` devices of a correct encoder of strings give.

    Assumptions: all counts equal their means, and the two values of a pair have h bits each and
    none in common, so k >= 2h. `n` is the number of reports, or None for the permanent response.
    The rarest event of the best rule limits the bound: for the permanent response it has
    probability (f1 f0)^h.
    """
    zero, one = (_compute_ones_distribution(params, n, truth=truth) for truth in (0, 1))
    right, wrong = np.outer(one, zero).ravel(), np.outer(zero, one).ravel()
    order = np.argsort(-right / np.maximum(wrong, _TINY), kind="stable")
    n_tested = trials // 2
    rights, wrongs = (
        n_tested * np.minimum(np.cumsum(events[order]), 1.0) for events in (right, wrong)
    )
    return max(0.0, float(np.nanmax(bound_log_ratio(rights, wrongs, n_tested, level))))


_TINY: Final = 1e-300
"""Replaces the probability of an event that is never wrong, so that its ratio is the largest."""


def _compute_ones_distribution(params: Params, n: int | None, *, truth: int) -> Floats:
    """Compute the distribution of the number of ones in n responses of h bits with one true bit."""
    a = 1 - params.f0 if truth else params.f1  # of a 1 in the permanent response
    if n is None:
        bit = np.array([1 - a, a])
    else:
        ones = np.arange(n + 1)
        bit = (1 - a) * stats.binom.pmf(ones, n, params.p)
        bit += a * stats.binom.pmf(ones, n, params.q)
    distribution = np.ones(1)
    for _ in range(params.h):
        distribution = np.convolve(distribution, bit)
    return distribution
