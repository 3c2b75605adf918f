"""Lower bound on the privacy loss, from a game between a device and an observer.

One trial of the game: a device has one of two values, drawn by a fair coin. The observer knows both
values and sees the device's n reports, or its permanent response. The observer either names one of
the values or passes.

Why the game bounds the loss: let the loss be epsilon. Take any rule of the observer and any set of
responses after which the rule names a value. If the device had the other value, the same responses
would be at least e^-epsilon times as probable, and the guess would be wrong. So

    P(right guess) <= e^epsilon P(wrong guess),    ln(P(right) / P(wrong)) <= epsilon.

The second inequality gives a lower bound on epsilon for every rule. The rule by likelihood ratio
reaches epsilon: it names a value only after the responses with the largest ratio of probabilities.

Example: one bit, reported with probability .75 as it is. The rule "name the reported value" is
right in .75 and wrong in .25 of the trials, and ln(.75 / .25) = 1.0986 nats is the loss. With
10,000 tested trials the counts are about 7,500 and 2,500, and their limits give a bound of 1.01.

How the rule reads a response: as a *key*, one integer made of four numbers:

- the number of bits that only the named value sets, and the number of ones among them,
- the number of bits that only the other value sets, and the number of ones among them.

Under the mechanism of [EPK14] all other bits have equal distributions for both values, so the key
preserves the event with the largest ratio. Each trial has two keys: the key for naming the device's
value (right) and the key for naming the other value (wrong). The rule is a set of keys: the
observer names a value if the value's key is in the set.

How the set is chosen and tested: the set is learned on the first half of the trials and tested on
the second half. The test needs no correction for the search, because its trials are new. The two
frequencies are bounded by the method of Clopper and Pearson (1934), at half the error rate each.

The bound exceeds the true loss with probability at most `LEVEL`. The game misses a leak through the
cohort or through bits that neither value sets: `rappor.auditing.evidence.LearnedDistinguisher`
looks there. It also misses a leak so rare that the trials do not show it.

[EPK14] Erlingsson, Pihur, Korolova. RAPPOR. CCS 2014.
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

The rate is larger than FALSE_ALARM_RATE of the other checks (1e-9), because at 1e-9 a bound needs
2.5 times the trials for the same distance to the claim.
"""


def compute_game_keys(
    ones: Integers, own_bits: Booleans, other_bits: Booleans, params: Params, n: int
) -> tuple[Integers, Integers]:
    """Reduce the responses of each trial to the two keys that the observer's rule reads.

    Parameters
    ----------
    ones : (trials, k) int64. Number of the n responses in which each bit is 1.
    own_bits, other_bits : (trials, k) bool. True bits of the device's value, and of the other
        value.
    params : parameters of the encoder. They give the largest number of true bits of a value.
    n : number of responses in each trial.

    Returns
    -------
    Two (trials,) int64 arrays: the keys for naming the device's value, a right guess, and the keys
    for naming the other value, a wrong guess.
    """
    only_own, only_other = own_bits & ~other_bits, other_bits & ~own_bits
    ones_own, ones_other = (np.where(bits, ones, 0).sum(axis=1) for bits in (only_own, only_other))
    n_own, n_other = only_own.sum(axis=1), only_other.sum(axis=1)
    max_ones = get_encoding(params).true_bit_counts[-1]
    # A key is the index of the four numbers in an array of this shape. Each number of ones is at
    # most n times the number of true bits of a value.
    shape = (n * max_ones + 1, n * max_ones + 1, max_ones + 1, max_ones + 1)
    right = np.ravel_multi_index((ones_own, ones_other, n_own, n_other), shape)
    wrong = np.ravel_multi_index((ones_other, ones_own, n_other, n_own), shape)
    return right.astype(np.int64), wrong.astype(np.int64)


def bound_loss(right: Integers, wrong: Integers, *, level: float = LEVEL) -> float:
    """Compute a lower bound on the loss in nats, with error probability `level`.

    `right` and `wrong` are (trials,) keys from `compute_game_keys`, of independent trials.
    """
    half = len(right) // 2
    # Number the distinct keys from 0: `codes` has the number of each trial's keys.
    keys, codes = np.unique(np.concatenate([right, wrong]), return_inverse=True)
    right_codes, wrong_codes = codes[: len(right)], codes[len(right) :]
    # Learn on the first half: order the keys by the ratio of right to wrong guesses, and take the
    # first keys of this order that together give the largest bound.
    learned_right, learned_wrong = (
        np.bincount(codes_of_guess[:half], minlength=len(keys))
        for codes_of_guess in (right_codes, wrong_codes)
    )
    # Half a guess is added to each count, so that a key that was never wrong has a finite ratio.
    order = np.argsort(-(learned_right + 0.5) / (learned_wrong + 0.5), kind="stable")
    learned_bounds = bound_log_ratio(
        np.cumsum(learned_right[order]), np.cumsum(learned_wrong[order]), half, level
    )
    rule = order[: int(np.argmax(learned_bounds)) + 1]
    # Test on the second half: count the trials in which the rule guesses right, and wrong.
    n_right, n_wrong = (
        np.isin(codes_of_guess[half:], rule).sum() for codes_of_guess in (right_codes, wrong_codes)
    )
    bound = bound_log_ratio(n_right, n_wrong, len(right) - half, level)
    return max(0.0, float(bound))


def bound_log_ratio(
    n_right: NDArray[Any] | np.integer, n_wrong: NDArray[Any] | np.integer, n: int, level: float
) -> Floats:
    """Compute lower bounds of ln(P(right) / P(wrong)) in nats from counts among n trials.

    The bound is ln of the lower Clopper-Pearson limit of P(right) minus ln of the upper limit of
    P(wrong). Each limit errs with probability level / 2. The bound is -inf without a right guess.
    """
    lower = np.where(n_right > 0, stats.beta.ppf(level / 2, n_right, n - n_right + 1), 0.0)
    upper = np.where(n_wrong < n, stats.beta.isf(level / 2, n_wrong + 1, n - n_wrong), 1.0)
    with np.errstate(divide="ignore"):
        bounds: Floats = np.log(lower) - np.log(upper)
    return bounds


def estimate_reachable_bound(
    params: Params, n: int | None, trials: int, *, level: float = LEVEL
) -> float:
    """Estimate the bound in nats that `trials` devices of a correct encoder of strings give.

    A reader of an audit compares the measured bound with this estimate: a bound far below the claim
    is usual with few trials. `n` is the number of reports, or None for the permanent response.

    Assumptions: all counts equal their means, and the two values of a pair have h bits each and
    none in common, so k >= 2h. The rarest event of the best rule limits the bound. For the
    permanent response this event has probability (f1 f0)^h.
    """
    if_zero, if_one = (_compute_ones_distribution(params, n, truth=truth) for truth in (0, 1))
    # Event (a, b): a ones among the named value's bits and b ones among the other value's bits.
    right, wrong = np.outer(if_one, if_zero).ravel(), np.outer(if_zero, if_one).ravel()
    order = np.argsort(-right / np.maximum(wrong, _TINY), kind="stable")
    n_tested = trials // 2
    n_right, n_wrong = (
        n_tested * np.minimum(np.cumsum(events[order]), 1.0) for events in (right, wrong)
    )
    return max(0.0, float(np.nanmax(bound_log_ratio(n_right, n_wrong, n_tested, level))))


_TINY: Final = 1e-300
"""Probability that replaces 0 for an event that is never wrong, so that its ratio is the largest.

The number is near the smallest positive float, and smaller than the probability of any event.
"""


def _compute_ones_distribution(params: Params, n: int | None, *, truth: int) -> Floats:
    """Compute the distribution of the number of ones of h bits with equal true bits in n responses.

    Returns an (h n + 1,) array of probabilities, indexed by the number of ones. If `n` is None, the
    response is the permanent response: (h + 1,).
    """
    permanent_one = 1 - params.f0 if truth else params.f1
    if n is None:
        bit = np.array([1 - permanent_one, permanent_one])
    else:
        ones = np.arange(n + 1)
        bit = (1 - permanent_one) * stats.binom.pmf(ones, n, params.p)
        bit += permanent_one * stats.binom.pmf(ones, n, params.q)
    # The h bits are independent, so the distributions of their numbers of ones are convolved.
    distribution = np.ones(1)
    for _ in range(params.h):
        distribution = np.convolve(distribution, bit)
    return distribution
