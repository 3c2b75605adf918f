"""A lower bound on the privacy loss, from a game that an observer plays.

A device holds one of two values, drawn by a fair coin. The observer knows both, sees how the
device responds, and names one of them or passes. With loss epsilon, right answers can be at most
e^epsilon times as frequent as wrong ones, whatever the observer's rule, because each right answer
in favour of a value would be a wrong one if the device held the other value. So ln(right / wrong)
of any rule bounds epsilon from below. The best rule, by likelihood ratio, reaches it.

The rule sees a response as two numbers: the ones among the bits that only the value to be named
sets, and those among the bits that only the other value sets. This keeps the event with the
largest ratio of the mechanism of [EPK14]. The rule is learned on the first half of the trials and
the bound taken on the second, so that no correction for the search is needed. The two frequencies
are bounded by Clopper and Pearson (1934) at half the error rate each.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params

LEVEL: Final = 1e-4
"""Probability at most that a bound is above the loss.

It is not ALARM: at 1e-9 a bound needs 2.5 times the trials to come as near to the claim.
"""


def compute_game_keys(
    ones: Integers, own: Booleans, other: Booleans, params: Params, n: int
) -> tuple[Integers, Integers]:
    """Condense responses into what the observer's rule reads.

    `ones` is (trials, k), how often each bit was one in n responses of a trial; `own` and `other`
    are (trials, k) bool, the true bits of the value held and of the other one. Returns (trials,)
    twice: the keys for naming the value that is held, which is right, and the other, which is not.
    """
    only_own, only_other = own & ~other, other & ~own
    ones_own, ones_other = (np.where(bits, ones, 0).sum(axis=1) for bits in (only_own, only_other))
    n_own, n_other = only_own.sum(axis=1), only_other.sum(axis=1)
    most = encoding_of(params).true_bits[-1]
    shape = (n * most + 1, n * most + 1, most + 1, most + 1)
    right = np.ravel_multi_index((ones_own, ones_other, n_own, n_other), shape)
    wrong = np.ravel_multi_index((ones_other, ones_own, n_other, n_own), shape)
    return right.astype(np.int64), wrong.astype(np.int64)


def bound_loss(right: Integers, wrong: Integers, *, level: float = LEVEL) -> float:
    """Return a lower bound of the loss, in nats, that is too high with probability `level`.

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
    reached = log_ratio_bound(
        np.cumsum(learned_right[order]), np.cumsum(learned_wrong[order]), half, level
    )
    named = order[: int(np.argmax(reached)) + 1]
    n_right, n_wrong = (np.isin(codes[half:], named).sum() for codes in (rights, wrongs))
    bound = log_ratio_bound(n_right, n_wrong, len(right) - half, level)
    return max(0.0, float(bound))


def log_ratio_bound(
    n_right: NDArray[Any] | np.integer, n_wrong: NDArray[Any] | np.integer, n: int, level: float
) -> Floats:
    """Return lower bounds of ln(right / wrong) frequencies from counts among n trials."""
    least = np.where(n_right > 0, stats.beta.ppf(level / 2, n_right, n - n_right + 1), 0.0)
    most = np.where(n_wrong < n, stats.beta.isf(level / 2, n_wrong + 1, n - n_wrong), 1.0)
    with np.errstate(divide="ignore"):
        bounds: Floats = np.log(least) - np.log(most)
    return bounds


def estimate_reachable_bound(
    params: Params, n: int | None, trials: int, *, level: float = LEVEL
) -> float:
    """Return about the bound that `trials` devices of a correct encoder of strings give.

    It is the bound of the best rule when all counts are at their means and the two values of a
    pair have h bits each, none in common; k must be at least 2h for that. `n` is the number
    of reports, None for the permanent response. The rarest event of the best rule limits the
    bound: it has probability (f1 f0)^h for the permanent response.
    """
    zero, one = (_ones_distribution(params, n, truth=truth) for truth in (0, 1))
    right, wrong = np.outer(one, zero).ravel(), np.outer(zero, one).ravel()
    order = np.argsort(-right / np.maximum(wrong, _TINY), kind="stable")
    n_tested = trials // 2
    rights, wrongs = (
        n_tested * np.minimum(np.cumsum(events[order]), 1.0) for events in (right, wrong)
    )
    return max(0.0, float(np.nanmax(log_ratio_bound(rights, wrongs, n_tested, level))))


_TINY: Final = 1e-300
"""Stands for the probability of an event that cannot be wrong: its ratio then ranks first."""


def _ones_distribution(params: Params, n: int | None, *, truth: int) -> Floats:
    """Return the distribution of the sum of ones in n responses of h bits of one truth."""
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
