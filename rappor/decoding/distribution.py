"""The distribution answer: the whole list with the smallest total error.

Theory of operation
-------------------
This is another question than detection: which shares, of all candidates and of the rest, have the
smallest expected total variation? With s_i the shares, T their sum and q_i the answer, that is

    E sum |q_i - s_i| + E |sum q_i - T|,    so    P(s_i <= q_i) = u = P(T >= sum q_i)

for every i: the answer is a quantile of each posterior, the same one for all, at which the
probability that more is missing is that of the quantile. Where much mass is spread over strings of
which each is doubtful, a string that is left out is missing twice, from its own share and from the
rest's, and u is well above one half. No constant is chosen.

The prior is learnt from all candidates together (empirical Bayes, Johnstone and Silverman,
Annals of Statistics 2004): a portion of them is absent, and the others follow a mixture of
exponential distributions whose means are fixed on a grid. Such mixtures are the smooth
decreasing (completely monotone) densities: few heavy strings, more light ones. Only the
mixture's weights are fitted, by maximum likelihood, which is a concave problem with one optimum
(Stephens, Biostatistics 2017, section 2). Where the truth is another, say hundreds of equally
frequent strings near the limit, the answer is less sharp than it could be, but its threshold
still follows the data.

T is at most one. Before that is known it is normal: its mean is the sum of the posterior means,
its variance that of the posteriors and of the prior's own weights, which move all means together.

Estimates are divided by their standard errors (z scores), so that one curve from z to share
answers for all candidates. The standard error of a share is the root of its mean squared error
under the posterior: the posterior's variance, and the squared distance from its mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import linalg, optimize, special

from rappor.counts.arrays import Floats, Integers

_ABSENT: Final = 2.0
"""Absent candidates that are added to the fit, so that a list without any does not make absence
impossible. None or 5 change the total variation by less than 1 %."""

_SMALLEST: Final = 0.25
"""Mean of the mixture's lightest part in standard errors; each next mean is twice as large. A
lighter part is indistinguishable from absence."""

_BINS: Final = 64
"""Bins of a standard error: the prior is fitted to z scores rounded to them, so that a million
candidates cost as much as a few thousand."""

NO_NOISE: Final = 1e-12
"""Standard error that stands for none: an estimate with less is its own answer."""

_STEPS: Final = 50
"""Steps of Newton's method at most that fit the mixture's weights; ten to twenty are usual."""

_SETTLED: Final = 1e-9
"""Rise of the log-likelihood by a step, for each candidate, where weights have settled."""

_KEPT: Final = 0.01
"""Part of each weight that a step keeps, so that none is zero before all have settled."""

_RIDGE: Final = 1e-9
"""On the diagonal, and relative to it: neighbouring parts of the mixture are nearly the same, and
some explain no estimate."""

_LEAST_KNOWN: Final = 0.01
"""Information on the logarithm of a weight at least: what the estimates do not tell at all is known
to within a factor of e^10. With 1 the error of a sum lacks a fifth of what the prior brings."""

_FINE: Final = 1e-4
"""Error of the quantile: it moves a share by a thousandth of its error at most."""

_HALVINGS: Final = 40
"""Halvings of an interval of z scores: 2^-40 of its length is far below the width of a bin."""

_FARTHEST: Final = 8.0
"""Standard errors above the estimate within which the quantile is sought; a normal distribution
leaves 6e-16 above them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prior:
    """What a candidate's share may be, in standard errors.

    Attributes
    ----------
    means : (t,) float64. Mean of each exponential part.
    weights : (1 + t,) float64. Portion of absent candidates, then of each part.
    """

    means: Floats
    weights: Floats


def estimate_shares(estimate: Floats, std_error: Floats) -> tuple[Floats, Floats]:
    """Estimate the shares of the whole list at once, and their standard errors, (c,) each.

    Shares are not negative, and sum to at most one.

    Parameters
    ----------
    estimate, std_error : (c,) float64. De-biased proportions and their standard errors;
        a candidate with an infinite error gets no share, and its error stays infinite.

    Examples
    --------
    >>> shares, errors = estimate_shares(np.array([0.5, 0.2, 0.01, -0.01]), np.full(4, 0.01))
    >>> [round(float(share), 2) for share in shares]
    [0.5, 0.2, 0.0, 0.0]
    """
    share, error = np.zeros(len(estimate)), np.full(len(estimate), np.inf)
    known = np.isfinite(std_error)
    if not known.any():
        return share, error
    scale = np.maximum(std_error[known], NO_NOISE)
    z = estimate[known] / scale
    rounded, place, counts = np.unique(
        np.rint(z * _BINS) / _BINS, return_inverse=True, return_counts=True
    )
    posterior = Posterior(fit_prior(rounded, counts), rounded)
    mean, variance = posterior.mean[place], posterior.variance[place]
    off = z - rounded[place]
    moves = scale @ posterior.slopes()[place]
    spread = variance @ scale**2 + moves @ posterior.prior_covariance(counts) @ moves
    total = float((mean + off) @ scale), max(math.sqrt(max(spread, 0.0)), NO_NOISE)

    def quantiles(quantile: float) -> Floats:
        curve = posterior.quantile(quantile)[place]
        # Where the curve is not zero its slope is near one, so what rounding took is added back.
        return np.asarray(np.where(curve > 0, np.maximum(curve + off, 0.0), 0.0) * scale)

    level = optimize.brentq(
        lambda u: u - _exceeds(*total, float(quantiles(u).sum())), 0.0, 1.0, xtol=_FINE
    )
    share[known] = quantiles(level)
    share /= max(float(share.sum()), 1.0)
    away = (mean + off) * scale - share[known]
    error[known] = np.sqrt(variance * scale**2 + away**2)
    return share, error


def _exceeds(mean: float, spread: float, value: float) -> float:
    """Return the probability that a normal total which is at most one exceeds a value."""
    if value >= 1:
        return 0.0
    below, most = (special.log_ndtr((end - mean) / spread) for end in (value, 1.0))
    return float(-np.expm1(below - most))


def fit_prior(z: Floats, counts: Integers) -> Prior:
    """Fit the mixture's weights by Newton's method, each step a non-negative least squares.

    The logarithm is concave in the weights, so a step of half the length is taken where a whole one
    lowers it ([KCS20], mix-SQP).

    Parameters
    ----------
    z : (u,) float64. Distinct estimates in standard errors.
    counts : (u,) int64. Number of candidates at each.
    """
    largest = max(float(z.max()), 2 * _SMALLEST)
    n_parts = int(np.ceil(np.log2(largest / _SMALLEST))) + 1
    means = np.ldexp(_SMALLEST, np.arange(n_parts))
    likelihood = np.vstack([_likelihood(means, z), np.eye(1, 1 + n_parts)])
    parts = np.append(counts, _ABSENT) / (counts.sum() + _ABSENT)

    def loss(weights: Floats) -> float:
        return float(weights.sum() - parts @ np.log(likelihood @ weights))

    weights = np.full(1 + n_parts, 1 / (1 + n_parts))
    for _ in range(_STEPS):
        found = (1 - _KEPT) * _newton_step(likelihood, parts, weights) + _KEPT * weights
        while (gain := loss(weights) - loss(found)) < 0:
            found = (weights + found) / 2
        weights = found / found.sum()
        if gain < _SETTLED:
            break
    return Prior(means=means, weights=weights)


def _newton_step(likelihood: Floats, parts: Floats, weights: Floats) -> Floats:
    """Return the weights, (t,), at which the second order expansion of the loss is least.

    Where rounding makes the search for them go round, a step of expectation and maximisation.
    """
    odds = likelihood / (likelihood @ weights)[:, None]
    curvature = (odds * parts[:, None]).T @ odds
    curvature[np.diag_indices_from(curvature)] += _RIDGE * (1 + curvature.diagonal())
    root = linalg.cholesky(curvature)
    # The slope is 1 - odds' parts, and odds' parts is the curvature times the weights.
    right = 2 * curvature @ weights - 1
    try:
        found, _ = optimize.nnls(root, linalg.solve_triangular(root, right, trans="T"))
    except RuntimeError:
        found = weights * (odds.T @ parts)
    return np.asarray(found)


class Posterior:
    """The share given each of u estimates, both in standard errors.

    Under an exponential part of mean c it is a normal distribution around the estimate less 1/c,
    cut off at zero.

    Attributes
    ----------
    mean, variance : (u,) float64.
    """

    def __init__(self, prior: Prior, z: Floats) -> None:
        """Compute the probability of each part, its centre and its mean, (u, t) all three."""
        joint = _likelihood(prior.means, z) * prior.weights
        self._prior, self._z = prior, z
        self._parts = joint[:, 1:] / joint.sum(axis=1, keepdims=True)
        self._centre = z[:, None] - 1 / prior.means
        density = -(self._centre**2) / 2 - np.log(2 * np.pi) / 2
        self._means = self._centre + np.exp(density - special.log_ndtr(self._centre))
        self.mean: Floats = (self._parts * self._means).sum(axis=1)
        squares = (self._parts * (1 + self._centre * self._means)).sum(axis=1)
        self.variance = np.maximum(squares - self.mean**2, 0.0)

    def quantile(self, quantile: float) -> Floats:
        """Return this quantile of each share, (u,)."""
        whole = special.log_ndtr(self._centre)
        low, high = np.zeros(len(self._z)), np.maximum(self._z, 0.0) + _FARTHEST
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            tails = np.exp(special.log_ndtr(self._centre - middle[:, None]) - whole)
            is_low = (self._parts * tails).sum(axis=1) > 1 - quantile
            low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
        return np.asarray(np.where(self._parts.sum(axis=1) > 1 - quantile, low, 0.0))

    def slopes(self) -> Floats:
        """Return how the mean of each share, (u, 1 + t), moves with the log of each weight."""
        mean, present = self.mean[:, None], self._parts.sum(axis=1, keepdims=True)
        return np.hstack([(present - 1) * mean, self._parts * (self._means - mean)])

    def prior_covariance(self, counts: Integers) -> Floats:
        """Return the covariance, (1 + t, 1 + t), of the logs of weights fitted to these estimates.

        It is the inverse of their information, of weights that add up to one; `counts` are (u,), as
        in `fit_prior`.
        """
        odds = np.hstack([1 - self._parts.sum(axis=1, keepdims=True), self._parts])
        information = (odds * counts[:, None]).T @ odds
        information[np.diag_indices_from(information)] += _LEAST_KNOWN
        inverse = linalg.inv(information)
        sums = inverse @ self._prior.weights
        return np.asarray(inverse - np.outer(sums, sums) / (self._prior.weights @ sums))


def _likelihood(means: Floats, z: Floats) -> Floats:
    """Return the density of each estimate if absent and under each part, (u, 1 + t).

    Each row is scaled so that its largest entry is one: only ratios are used.
    """
    at, rate = z[:, None], 1 / means
    absent = -(at**2) / 2 - np.log(2 * np.pi) / 2
    present = np.log(rate) + rate**2 / 2 - rate * at + special.log_ndtr(at - rate)
    logs = np.hstack([absent, present])
    scaled: Floats = np.exp(logs - logs.max(axis=1, keepdims=True))
    return scaled
