"""A lower bound on the privacy loss, from a game that an observer plays.

A device holds one of two values, drawn by a fair coin. The observer knows both, sees what the
device shows and names one of them or passes. With loss epsilon, right answers can be at most
e^epsilon times as frequent as wrong ones, whatever the observer's rule, because each right answer
in favour of a value is a wrong one had the other value been held. So ln(right / wrong) of any
rule bounds epsilon from below; the best rule, by likelihood ratio, reaches it.

What is shown enters the rule by two numbers: the ones among the bits that only the value under
suspicion sets, and those among the bits that only the other one sets. That keeps the event with
the largest ratio of the mechanism of [EPK14]. The rule is learned on the first half of the trials
and the bound taken on the second, so that no correction for the search is needed; its two
frequencies are bounded by Clopper and Pearson (1934) at half the error rate each.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params

LEVEL: Final = 1e-4
"""Chance that a bound is above the loss, at most."""

_Keys = NDArray[np.int64]


def game_keys(
    ones: NDArray[np.int64],
    own: NDArray[np.bool_],
    other: NDArray[np.bool_],
    params: Params,
    n: int,
) -> tuple[_Keys, _Keys]:
    """Condense what was shown into what the observer's rule reads.

    Parameters
    ----------
    ones : (trials, k), how often each bit was shown as one in n showings.
    own, other : (trials, k) bool, true bits of the value held and of the other one.
    params : says how many bits a value can set.
    n : showings of a trial.

    Returns
    -------
    (trials,) twice: the key under suspicion of the value that is held, where naming is right,
    and under suspicion of the other value, where it is wrong.
    """
    mine, its = own & ~other, other & ~own
    most = encoding_of(params).true_bits[-1]
    size, n_sizes = n * most + 1, most + 1
    a, b = (np.where(bits, ones, 0).sum(axis=1) for bits in (mine, its))
    n_mine, n_its = mine.sum(axis=1), its.sum(axis=1)
    right = ((a * size + b) * n_sizes + n_mine) * n_sizes + n_its
    wrong = ((b * size + a) * n_sizes + n_its) * n_sizes + n_mine
    return right, wrong


def loss_bound(right: _Keys, wrong: _Keys, *, level: float = LEVEL) -> float:
    """Return a lower bound of the loss, in nats, that holds but for a chance of `level`.

    `right` and `wrong` are (trials,) keys from `game_keys`, of independent trials.
    """
    half = len(right) // 2
    keys, codes = np.unique(np.concatenate([right, wrong]), return_inverse=True)
    rights, wrongs = codes[: len(right)], codes[len(right) :]
    learned_right, learned_wrong = (
        np.bincount(codes[:half], minlength=len(keys)) for codes in (rights, wrongs)
    )
    order = np.argsort(-(learned_right + 0.5) / (learned_wrong + 0.5), kind="stable")
    reached = log_ratio_bound(
        np.cumsum(learned_right[order]), np.cumsum(learned_wrong[order]), half, level
    )
    named = order[: int(np.argmax(reached)) + 1]
    n_right, n_wrong = (np.isin(codes[half:], named).sum() for codes in (rights, wrongs))
    bound = log_ratio_bound(n_right, n_wrong, len(right) - half, level)
    return max(0.0, float(bound))


def log_ratio_bound(
    n_right: NDArray[Any] | np.integer,
    n_wrong: NDArray[Any] | np.integer,
    n: int,
    level: float,
) -> NDArray[np.float64]:
    """Return lower bounds of ln(right / wrong) frequencies from counts among n trials."""
    least = np.where(n_right > 0, stats.beta.ppf(level / 2, n_right, n - n_right + 1), 0.0)
    most = np.where(n_wrong < n, stats.beta.isf(level / 2, n_wrong + 1, n - n_wrong), 1.0)
    with np.errstate(divide="ignore"):
        bounds: NDArray[np.float64] = np.log(least) - np.log(most)
    return bounds


def reachable(params: Params, n: int | None, trials: int, *, level: float = LEVEL) -> float:
    """Return the bound that a correct encoder of strings shows in so many trials, about.

    It is what the best rule shows when all counts fall as in the mean and the two values of a
    pair have h bits each, none in common; k must be at least 2h for that. `n` is the number
    of reports, None for the permanent response. The rarest event of the best rule is what limits
    it: one in (f/2)^(2h) for the permanent response.
    """
    zero, one = _sums(params, n, truth=0), _sums(params, n, truth=1)
    right = np.outer(one, zero).ravel()
    wrong = np.outer(zero, one).ravel()
    order = np.argsort(-right / np.maximum(wrong, 1e-300), kind="stable")
    n_tested = trials // 2
    rights, wrongs = (n_tested * np.minimum(np.cumsum(law[order]), 1.0) for law in (right, wrong))
    return max(0.0, float(np.nanmax(log_ratio_bound(rights, wrongs, n_tested, level))))


def _sums(params: Params, n: int | None, *, truth: int) -> NDArray[np.float64]:
    """Return the law of the ones that h bits of one truth show in n showings, all together."""
    chance = params.f / 2 if truth == 0 else 1 - params.f / 2  # of a 1 in the permanent response
    if n is None:
        bit = np.array([1 - chance, chance])
    else:
        shown = np.arange(n + 1)
        bit = (1 - chance) * stats.binom.pmf(shown, n, params.p)
        bit += chance * stats.binom.pmf(shown, n, params.q)
    law = np.ones(1)
    for _ in range(params.h):
        law = np.convolve(law, bit)
    return law
