"""Empirical-Bayes prior of the shares of all candidates: a mixture of point masses on a grid.

Theory of operation
-------------------
Everything here is in standard errors. An estimate divided by its standard error is a score z, and z
= theta + a standard normal error, theta being the candidate's share in standard errors.

The prior of theta is learnt from the scores of all candidates (empirical Bayes, [JS04]). It has no
assumed shape: it is a mixture of point masses, of which the first is at zero (the candidate is
absent) and the others lie on a grid. Only the weights are fitted, by maximum likelihood, which is a
concave problem (Kiefer and Wolfowitz, Annals of Mathematical Statistics 1956; [KCS20]). A prior
with an assumed shape biases every sum: a mixture of exponential distributions, which decreases
everywhere, shrank 30 equal strings towards zero, and the unallocated share was wrong by two
standard errors.

Beyond `_EXACT` standard errors the parts of the mixture become normal distributions, whose standard
deviation grows with the distance. Nothing is gained by telling apart two shares there, and a grid
of point masses would need thousands of them.

The fitted prior is itself uncertain. `Posterior.sum` therefore computes the moments of a sum of
shares from a profile likelihood, with the weights w of the prior and the scores of c candidates:

    K(t) = max over w of  sum_i log E_w[exp(t a_i theta_i) phi(z_i - theta_i)]

with S = sum a_i theta_i. K is the logarithm of the joint likelihood of the scores and of exp(t S),
at the prior that makes it largest. If the maximum is interior and t small, expanding in w gives
Laplace's approximation,

    K(t) - K(0) = t E[S] + t^2 / 2 (posterior variance of S + d' I^-1 d),    d = gradient of E[S]

with I the information about w. This is the delta method, and K''(0) is the variance of S with both
parts: of the shares under the prior, and of the prior. Most weights are zero, so the maximum is on
the boundary, and I^-1 does not exist on the grid. K does, because each of its values is a maximum
over all weights that are not negative. The variance is the second difference of K, at steps of one
standard error of the sum of the scores. A half or a quarter of the step changes it by 1 % to 4 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from scipy import linalg, optimize, special

from rappor.counts.arrays import Floats, Integers

NO_NOISE: Final = 1e-12
"""Standard error that replaces an error of 0, so that scores stay finite."""

_BINS: Final = 16
"""Number of bins per standard error. The prior is fitted to rounded scores, so a million candidates
cost as much as a few hundred. The largest rounding error is 1/32."""

_SPACING: Final = 0.25
"""Distance of two point masses, in standard errors. The normal error hides a smaller one: with .5
the errors of sums are the same. The total variation of distributions is 3 % larger with .5."""

_EXACT: Final = 16.0
"""Standard errors up to which parts of the prior are point masses. If it grows, equal shares are
recognised farther from zero, and the fit takes longer."""

_WIDENING: Final = 8.0
"""Distance from `_EXACT`, in standard deviations of the part that lies there."""

SMOOTH: Final = 0.1
"""Candidates that are added to each part of a smoothed prior. With .5 the total variation of
distributions is .7 % smaller, but lists of 10,000 absent candidates get a share of .03 % instead of
none. With 0 it is 3 % larger."""

_OVERLAP: Final = 16.0
"""Distance from `_EXACT`, in distances of two neighbouring parts. At twice `_WIDENING`, neighbours
are half a standard deviation apart, and the mixture has no gaps."""

_REACH: Final = 4.0
"""Standard deviations around a score within which parts are kept. A part that is farther from every
score has no weight."""

_STEPS: Final = 60
"""Largest number of steps of Newton's method for the weights. Ten to twenty are usual."""

_SETTLED: Final = 1e-6
"""Increase of the log-likelihood in a step below which the weights have converged. Statistical
differences are of size 1."""

_KEPT: Final = 0.01
"""Share of each weight that a step keeps. No weight becomes 0 before all have converged."""

_RESTARTED: Final = 0.1
"""Share of equal weights in the start of a tilted fit."""

_RIDGE: Final = 1e-9
"""Ridge on the diagonal, absolute and relative. Neighbouring parts of the mixture are nearly equal,
and some explain no estimate, so the matrix would be singular."""

_HALVINGS: Final = 40
"""Number of bisections of an interval of shares. 2^-40 of its length is far below a standard error.
"""

_FARTHEST: Final = 8.0
"""Standard errors above the score, and above zero, that limit the search for a quantile. A normal
distribution has a probability of 6e-16 beyond."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prior:
    """Mixture of normal distributions of a candidate's share, in standard errors.

    Attributes
    ----------
    centers : (t,) float64, increasing. The first one is 0: absent candidates.
    widths : (t,) float64. Standard deviation of each part; 0 for a point mass.
    weights : (t,) float64. Portion of candidates in each part.
    """

    centers: Floats
    widths: Floats
    weights: Floats


class SumMoments(NamedTuple):
    """Moments of a weighted sum of shares.

    Attributes
    ----------
    mean : float. Sum of posterior means.
    variance : float. Of the shares and of the fitted prior, for independent scores.
    influence : (u,) float64. Derivative of the mean by each score, one candidate of it.
    """

    mean: float
    variance: float
    influence: Floats


def round_scores(z: Floats) -> tuple[Floats, Integers, Integers]:
    """Round scores to bins.

    Returns
    -------
    The distinct rounded scores, (u,), the index of each score among them, and their counts, (u,).
    """
    rounded, bins, counts = np.unique(
        np.rint(z * _BINS) / _BINS, return_inverse=True, return_counts=True
    )
    return rounded, bins, counts


def fit_prior(z: Floats, counts: Integers, *, smoothing: float = 0.0) -> Prior:
    """Fit the weights of the mixture by maximum likelihood.

    The likelihood is largest at a few point masses, however smooth the shares are. Sums of shares
    do not suffer from the gaps between them, but quantiles of single shares jump. A smoothed prior
    has no gaps, but its small shares are too many, and sums are too large.

    Parameters
    ----------
    z : (u,) float64. Scores.
    counts : (u,) int64. Number of candidates with each score.
    smoothing : number of candidates that are added to each part.
    """
    centers, widths = _place_parts(z)
    n = len(centers)
    weights = np.full(n, 1 / n)
    for is_last in (False, True):
        logs = _log_densities(z, centers, widths)
        numbers = counts
        if smoothing:
            # An added candidate is known to be of its part.
            logs = np.vstack([logs, np.where(np.eye(n, dtype=bool), 0.0, -np.inf)])
            numbers = np.append(counts, np.full(n, smoothing))
        weights, _ = _maximize_likelihood(logs, numbers, weights)
        if not is_last:
            centers = _move_centers(z, counts, logs[: len(z)], weights, centers)
    return Prior(centers=centers, widths=widths, weights=weights)


def _move_centers(
    z: Floats, counts: Integers, logs: Floats, weights: Floats, centers: Floats
) -> Floats:
    """Move each part except absence to the mean score of its candidates, within its cell.

    This is one step of expectation and maximisation, so the likelihood increases. Without it, the
    share of a single string far from all others is rounded to the grid, by an eighth of its error.
    """
    odds = np.exp(logs - logs.max(axis=1, keepdims=True)) * weights
    odds *= (counts / odds.sum(axis=1))[:, None]
    numbers = odds.sum(axis=0)
    means = np.where(numbers > 0, z @ odds / np.where(numbers > 0, numbers, 1.0), centers)
    middles = (centers[1:] + centers[:-1]) / 2
    next_centers = np.clip(means[1:], middles, np.append(middles[1:], np.inf))
    return np.append(0.0, next_centers)


def _place_parts(z: Floats) -> tuple[Floats, Floats]:
    """Compute the centers and the widths of the parts, (t,) each, absence first."""
    centers = [_SPACING]
    while centers[-1] < z.max() + _SPACING:
        beyond = centers[-1] - _EXACT
        centers.append(centers[-1] + max(_SPACING, beyond / _OVERLAP))
    grid = np.array(centers)
    widths = np.maximum(grid - _EXACT, 0.0) / _WIDENING
    ordered = np.sort(z)
    reach = _REACH * np.hypot(1.0, widths)
    # A part is kept if a score lies in its reach.
    first = np.searchsorted(ordered, grid - reach, side="left")
    is_reached = first < np.searchsorted(ordered, grid + reach, side="right")
    return np.append(0.0, grid[is_reached]), np.append(0.0, widths[is_reached])


def _log_densities(z: Floats, centers: Floats, widths: Floats) -> Floats:
    """Compute the logarithm of the density of each score under each part, (u, t)."""
    variance = 1 + widths**2
    deviations = (z[:, None] - centers) ** 2 / variance
    return np.asarray(-(deviations + np.log(2 * np.pi * variance)) / 2)


def _maximize_likelihood(
    logs: Floats, counts: Integers | Floats, start: Floats
) -> tuple[Floats, float]:
    """Maximise the likelihood. Returns the weights, (t,), and the logarithm of the likelihood.

    Each step of Newton's method is a non-negative least-squares problem. The logarithm is concave
    in the weights, so a step that decreases it is halved ([KCS20], mix-SQP).

    Parameters
    ----------
    logs : (u, t) float64. Logarithms of the densities.
    counts : (u,) int64 or float64. Number of candidates at each score.
    start : (t,) float64, positive. Weights of the first step.
    """
    largest = logs.max(axis=1)
    # Each row is scaled so that its largest entry is one: only ratios matter to the weights.
    likelihood = np.exp(logs - largest[:, None])
    n = float(counts.sum())
    parts = counts / n

    def loss(weights: Floats) -> float:
        return float(weights.sum() - parts @ np.log(likelihood @ weights))

    weights = start
    for _ in range(_STEPS):
        step = (1 - _KEPT) * _newton_step(likelihood, parts, weights) + _KEPT * weights
        while (gain := loss(weights) - loss(step)) < 0:
            step = (weights + step) / 2
        weights = step / step.sum()
        if gain * n < _SETTLED:
            break
    return weights, float(counts @ largest + n * (1 - loss(weights)))


def _newton_step(likelihood: Floats, parts: Floats, weights: Floats) -> Floats:
    """Compute the weights, (t,), that minimise the second-order expansion of the loss."""
    odds = likelihood / (likelihood @ weights)[:, None]
    curvature = (odds * parts[:, None]).T @ odds
    curvature[np.diag_indices_from(curvature)] += _RIDGE * (1 + curvature.diagonal())
    root = linalg.cholesky(curvature)
    # The slope is 1 - odds' parts, and odds' parts is the curvature times the weights.
    right = 2 * curvature @ weights - 1
    try:
        step, _ = optimize.nnls(root, linalg.solve_triangular(root, right, trans="T"))
    except RuntimeError:
        # Rounding can make the search for the step cycle. Use one step of expectation and
        # maximisation instead.
        step = weights * (odds.T @ parts)
    return np.asarray(step)


class Posterior:
    """Distribution of shares given u scores, both in standard errors.

    Under a part with center c and width s, a share has a normal distribution with the variance v =
    s^2 / (1 + s^2) and the mean c + v (z - c).

    Attributes
    ----------
    mean, variance : (u,) float64.
    """

    def __init__(self, prior: Prior, z: Floats) -> None:
        """Compute the probability of each part and the mean of a share in it, (u, t) both."""
        self._prior, self._z = prior, z
        self._logs = _log_densities(z, prior.centers, prior.widths)
        self._variances = prior.widths**2 / (1 + prior.widths**2)
        self._means = prior.centers + self._variances * (z[:, None] - prior.centers)
        self._parts = self._weigh_parts(self._logs, prior.weights)
        self.mean: Floats = (self._parts * self._means).sum(axis=1)
        squares = (self._parts * (self._variances + self._means**2)).sum(axis=1)
        self.variance = np.maximum(squares - self.mean**2, 0.0)

    @staticmethod
    def _weigh_parts(logs: Floats, weights: Floats) -> Floats:
        """Compute the probability of each part given each score, (u, t)."""
        joint = np.exp(logs - logs.max(axis=1, keepdims=True)) * weights
        return np.asarray(joint / joint.sum(axis=1, keepdims=True))

    def quantile(self, quantile: float) -> Floats:
        """Compute this quantile of each share, (u,).

        The quantile is the smallest share whose cumulative probability is at least `quantile`.
        """
        low, high = np.zeros(len(self._z)), np.maximum(self._z, 0.0) + _FARTHEST
        is_zero = self._cumulate(np.zeros(len(self._z))) >= quantile
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            is_low = self._cumulate(middle) < quantile
            low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
        return np.where(is_zero, 0.0, high)

    def _cumulate(self, share: Floats) -> Floats:
        """Compute the probability that each share is at most a value, (u,)."""
        spread = np.sqrt(self._variances)
        distance = share[:, None] - self._means
        has_width = spread > 0
        below = np.where(
            has_width, special.ndtr(distance / np.where(has_width, spread, 1.0)), distance >= 0
        )
        return np.asarray((self._parts * below).sum(axis=1))

    def sum(self, coefficients: Floats, counts: Integers) -> SumMoments:
        """Compute the moments of a weighted sum of shares, with the error of the fitted prior.

        Parameters
        ----------
        coefficients : (u,) float64. Coefficient of each candidate with this score.
        counts : (u,) int64. Number of candidates with each score, those to which the prior was
            fitted.
        """
        mean = float(counts * coefficients @ self.mean)
        step = 1 / np.sqrt(max(float(counts @ coefficients**2), np.finfo(float).tiny))
        n = len(self._prior.weights)
        start = (1 - _RESTARTED) * self._prior.weights + _RESTARTED / n
        # All three maxima start from the same weights. Their small errors of convergence then
        # cancel in the difference.
        _, untilted = _maximize_likelihood(self._logs, counts, start)
        rise, tilted_means = 0.0, []
        for sign in (1, -1):
            tilt = (sign * step * coefficients)[:, None]
            logs = self._logs + tilt * self._means + tilt**2 * self._variances / 2
            weights, likelihood = _maximize_likelihood(logs, counts, start)
            rise += likelihood - untilted
            tilted = self._weigh_parts(logs, weights) * (self._means + tilt * self._variances)
            tilted_means.append(tilted.sum(axis=1))
        # The slope of log f(z) is E[theta | z] - z. The slope of dK / dt by z is this difference.
        influence = (tilted_means[0] - tilted_means[1]) / (2 * step)
        return SumMoments(mean, max(rise / step**2, 0.0), influence)
