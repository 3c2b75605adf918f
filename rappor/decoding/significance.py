"""P-values and error control.

A candidate that nobody has sets bits at random: its score is a sum of residuals drawn at
random from each cohort. That distribution is known, residuals and all, whatever made them:
noise, rare strings, or heavy strings that nobody asked about. Its tail is computed from the
exact cumulant generating function by the saddlepoint formula of Lugannani and Rice
(Advances in Applied Probability 1980), so that skewed residuals do not pass for strings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from rappor.decoding.debias import Target
from rappor.decoding.fit import Fit

CORRECTIONS = ("bh", "bonferroni")

_TILTS = np.concatenate([np.linspace(-4.0, -0.1, 14), np.linspace(0.1, 8.0, 41)])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NullTail:
    """The upper tail of an absent candidate's standardised score.

    Attributes
    ----------
    scores : (t,) float64, increasing. Standardised scores at the tilts.
    log_tails : (t,) float64. Natural logarithm of P(score >= scores).
    """

    scores: NDArray[np.float64]
    log_tails: NDArray[np.float64]

    def p_values(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return one-sided p-values; beyond the last tilt its exponential bound holds."""
        log_p = np.interp(scores, self.scores, self.log_tails, left=0.0)
        beyond = scores > self.scores[-1]
        log_p[beyond] = self.log_tails[-1] - _TILTS[-1] * (scores[beyond] - self.scores[-1])
        return np.exp(log_p)


def null_tail(target: Target, fit: Fit) -> NullTail:
    """Compute the tail from the residuals of a fit, cohort by cohort."""
    tilts, first, second, cumulants = _TILTS, *np.zeros((3, len(_TILTS)))
    for draws, residuals in _cohorts(target, fit):
        squares = residuals**2
        for t, tilt in enumerate(tilts):
            powers = np.exp(tilt * residuals)
            mass = powers.sum(axis=1)
            mean = np.einsum("jk,jk->j", residuals, powers) / mass
            spread = np.einsum("jk,jk->j", squares, powers) / mass - mean**2
            spread = np.maximum(spread, 0.0)
            cumulants[t] += draws * np.log(mass / residuals.shape[1]).sum()
            first[t] += draws * mean.sum()
            second[t] += draws * spread.sum()
    signed = np.sign(tilts) * np.sqrt(np.maximum(2 * (tilts * first - cumulants), 0.0))
    steep = tilts * np.sqrt(second)
    # Without any residual spread both are zero and no tail is finite.
    with np.errstate(divide="ignore", invalid="ignore"):
        density = np.exp(-(signed**2) / 2) / np.sqrt(2 * np.pi)
        tails = special.ndtr(-signed) + density * (1 / steep - 1 / signed)
    usable = np.isfinite(tails) & (tails > 0)
    scores, log_tails = first[usable], np.log(np.minimum(tails[usable], 1.0))
    # Where the residuals' largest sum is near, the formula flattens: keep it decreasing.
    log_tails = np.minimum.accumulate(log_tails)
    scores = np.maximum.accumulate(scores)
    if len(scores) < 2:  # no residual spread at all: nothing can be told apart from chance
        return NullTail(scores=np.array([0.0, 1.0]), log_tails=np.zeros(2))
    return NullTail(scores=scores, log_tails=log_tails)


def _cohorts(target: Target, fit: Fit) -> list[tuple[int, NDArray[np.float64]]]:
    """Return for each collection its draws a cohort (h) and its (m, k) weighted residuals.

    They are centred in each cohort and scaled so that an absent candidate's whole score has
    variance one.
    """
    pieces = []
    variance = 0.0
    weighted = fit.weight * fit.residual
    for group, counts in enumerate(target.counts):
        params = counts.params
        table = weighted[target.group == group].reshape(params.m, params.k)
        table = table - table.mean(axis=1, keepdims=True)
        variance += params.h * float((table**2).mean(axis=1).sum())
        pieces.append((params.h, table))
    scale = np.sqrt(variance) if variance > 0 else 1.0
    return [(draws, table / scale) for draws, table in pieces]


def threshold(
    p_values: NDArray[np.float64], *, level: float, n_asked: int, correction: str
) -> float:
    """Return the largest p-value that is still detected, 0 if none is.

    Parameters
    ----------
    p_values : (c,) float64. At least the smallest ones of all that were asked about.
    level : error rate of detection: false discovery rate for "bh" [BH95], chance of any
        false detection for "bonferroni".
    n_asked : number of candidates asked about.
    """
    if correction == "bonferroni":
        return level / n_asked
    ordered = np.sort(p_values)
    passing = np.flatnonzero(ordered <= level * np.arange(1, len(ordered) + 1) / n_asked)
    return float(ordered[passing[-1]]) if len(passing) else 0.0
