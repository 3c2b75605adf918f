"""Empirical-Bayes prior of the shares of all candidates: a mixture of point masses on a grid.

`contrasts.py` uses it for sums of detected rows, `distribution.py` for the whole list of shares.
The input is the z score of every candidate. The output is a `Prior`, and a `Posterior` of each
candidate's share given its score.

Theory of operation
-------------------
| symbol | meaning | shape and unit |
|---|---|---|
| z_i | score of candidate i: its estimate divided by its standard error | standard errors |
| theta_i | true share of the candidate | standard errors |
| w | weights of the t parts of the prior: portion of the candidates in each part | (t,), sum 1 |
| phi | density of the standard normal distribution | |
| a_i | coefficient of theta_i in a sum of shares S = sum a_i theta_i | |
| K(t) | logarithm of the likelihood of the scores, tilted by exp(t S) | |

Model: z_i = theta_i + a standard normal error, and theta_i is drawn from the prior. Scores are
rounded to bins, so arrays have one element for each of u distinct scores.

The prior of theta is learnt from the scores of all candidates (empirical Bayes, [JS04]). It has no
assumed shape: it is a mixture of point masses, of which the first is at zero (the candidate is
absent) and the others lie on a grid. Only the weights are fitted, by maximum likelihood, which is a
concave problem (Kiefer and Wolfowitz, Annals of Mathematical Statistics 1956; [KCS20]). A prior
with an assumed shape biases every sum: a mixture of exponential distributions, which decreases
everywhere, shrank 30 equal strings towards zero, and the unallocated share was wrong by two
standard errors.

Beyond `_EXACT` standard errors the parts of the mixture become normal distributions, whose standard
deviation grows with the distance. Nothing is gained by distinguishing two shares there, and a grid
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
"""Share of each weight that a step keeps. No weight becomes 0 before all weights have converged: a
weight of 0 could never grow again."""

_RESTARTED: Final = 0.1
"""Share of equal weights in the weights at which a tilted fit starts. The rest is the fitted prior.
Parts whose weight is 0 in the fitted prior can then grow."""

_RIDGE: Final = 1e-9
"""Ridge on the diagonal, absolute and relative. Neighbouring parts of the mixture are nearly equal,
and some explain no estimate, so the matrix would be singular."""

_HALVINGS: Final = 40
"""Number of bisections of an interval of shares. 2^-40 of its length is far below a standard error.
"""

_FARTHEST: Final = 8.0
"""Standard errors above the score, and above zero, that limit the search for a quantile. A normal
distribution has a probability of 6e-16 beyond this distance."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prior:
    """Mixture of t normal distributions (parts) of a candidate's share, in standard errors.

    Attributes
    ----------
    centers : (t,) float64, increasing. The first center is 0: absent candidates.
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
    mean : weighted sum of posterior means.
    variance : variance of the sum given the scores, if their errors are independent. It contains
        the variance of the shares under the prior, and the error of the fitted prior.
    influence : (u,) float64. Derivative of the mean by the score of one candidate of each bin.
    """

    mean: float
    variance: float
    influence: Floats


def round_scores(z: Floats) -> tuple[Floats, Integers, Integers]:
    """Round the scores of c candidates to bins.

    Returns
    -------
    rounded : (u,) float64, increasing. The distinct rounded scores.
    bins : (c,) int64. Index of each score in `rounded`.
    counts : (u,) int64. Number of candidates with each rounded score.
    """
    rounded, bins, counts = np.unique(
        np.rint(z * _BINS) / _BINS, return_inverse=True, return_counts=True
    )
    return rounded, bins, counts


def fit_prior(z: Floats, counts: Integers, *, smoothing: float = 0.0) -> Prior:
    """Fit the weights of the mixture by maximum likelihood.

    The likelihood is largest at a few point masses, however smooth the shares are. Sums of shares
    do not suffer from the gaps between these masses, but quantiles of single shares jump. A
    smoothed prior has no gaps, but contains too many small shares, so its sums are too large.

    Parameters
    ----------
    z : (u,) float64. Scores.
    counts : (u,) int64. Number of candidates with each score.
    smoothing : number of candidates that are added to each part. 0 is for sums, `SMOOTH` for
        quantiles of single shares.
    """
    centers, widths = _place_parts(z)
    n_parts = len(centers)
    weights = np.full(n_parts, 1 / n_parts)
    # The first fit is on the grid, the second after the centers have moved to the scores.
    for is_last in (False, True):
        log_densities = _compute_log_densities(z, centers, widths)
        numbers = counts
        if smoothing:
            # The part of an added candidate is certain: its density is 1 under one part and 0 under
            # all other parts.
            added = np.where(np.eye(n_parts, dtype=bool), 0.0, -np.inf)
            log_densities = np.vstack([log_densities, added])
            numbers = np.append(counts, np.full(n_parts, smoothing))
        weights, _ = _maximize_likelihood(log_densities, numbers, weights)
        if not is_last:
            centers = _move_centers(z, counts, log_densities[: len(z)], weights, centers)
    return Prior(centers=centers, widths=widths, weights=weights)


def _move_centers(
    z: Floats, counts: Integers, log_densities: Floats, weights: Floats, centers: Floats
) -> Floats:
    """Move each part except absence to the mean score of its candidates.

    A center stays between the middles to its neighbours. The move is one step of expectation and
    maximisation, so the likelihood increases. Without it, the share of a single string far from all
    other strings is rounded to the grid, by up to an eighth of its standard error.

    Parameters
    ----------
    z, counts : (u,). Scores and their numbers of candidates.
    log_densities : (u, t) float64, as `_compute_log_densities` returns them.
    weights, centers : (t,) float64.

    Returns
    -------
    (t,) float64. The next centers.
    """
    # Expected number of candidates of each score in each part, (u, t).
    members = np.exp(log_densities - log_densities.max(axis=1, keepdims=True)) * weights
    members *= (counts / members.sum(axis=1))[:, None]
    n_members = members.sum(axis=0)
    has_members = n_members > 0
    means = np.where(has_members, z @ members / np.where(has_members, n_members, 1.0), centers)
    middles = (centers[1:] + centers[:-1]) / 2
    next_centers = np.clip(means[1:], middles, np.append(middles[1:], np.inf))
    return np.append(0.0, next_centers)


def _place_parts(z: Floats) -> tuple[Floats, Floats]:
    """Compute the centers and the widths of the parts, (t,) float64 each, absence first.

    The distance of two centers is `_SPACING` up to `_EXACT` standard errors, and grows beyond.
    """
    centers = [_SPACING]
    while centers[-1] < z.max() + _SPACING:
        distance_beyond = centers[-1] - _EXACT
        centers.append(centers[-1] + max(_SPACING, distance_beyond / _OVERLAP))
    grid = np.array(centers)
    widths = np.maximum(grid - _EXACT, 0.0) / _WIDENING
    ordered = np.sort(z)
    reach = _REACH * np.hypot(1.0, widths)
    # A part is kept if a score lies in its reach. All other parts would get the weight 0, and cost
    # time.
    first = np.searchsorted(ordered, grid - reach, side="left")
    is_reached = first < np.searchsorted(ordered, grid + reach, side="right")
    return np.append(0.0, grid[is_reached]), np.append(0.0, widths[is_reached])


def _compute_log_densities(z: Floats, centers: Floats, widths: Floats) -> Floats:
    """Compute the logarithm of the density of each score under each part, (u, t) float64.

    Under a part with center c and width s, a score is normal with mean c and variance 1 + s^2.
    """
    variance = 1 + widths**2
    deviations = (z[:, None] - centers) ** 2 / variance
    return np.asarray(-(deviations + np.log(2 * np.pi * variance)) / 2)


def _maximize_likelihood(
    log_densities: Floats, counts: Integers | Floats, initial_weights: Floats
) -> tuple[Floats, float]:
    """Maximise the likelihood of the scores over the weights of the parts.

    With L the likelihoods, (u, t), and c_i the share of the candidates at score i, the function
    minimises the loss

        sum of w - sum over i of c_i log (L w)_i,    w >= 0

    The minimum has weights of sum 1. Each step of Newton's method is a non-negative least-squares
    problem. The loss is convex in the weights, so a step that increases it is halved ([KCS20],
    mix-SQP).

    Parameters
    ----------
    log_densities : (u, t) float64. Logarithms of the densities.
    counts : (u,) int64 or float64. Number of candidates at each score.
    initial_weights : (t,) float64, positive. Weights before the first step.

    Returns
    -------
    The weights, (t,) float64, and the logarithm of the likelihood of all candidates.
    """
    largest = log_densities.max(axis=1)
    # Each row is scaled so that its largest entry is one: only ratios matter to the weights.
    likelihood = np.exp(log_densities - largest[:, None])
    n_candidates = float(counts.sum())
    score_shares = counts / n_candidates

    def compute_loss(weights: Floats) -> float:
        return float(weights.sum() - score_shares @ np.log(likelihood @ weights))

    weights = initial_weights
    for _ in range(_STEPS):
        newton_weights = _compute_newton_step(likelihood, score_shares, weights)
        next_weights = (1 - _KEPT) * newton_weights + _KEPT * weights
        while (gain := compute_loss(weights) - compute_loss(next_weights)) < 0:
            next_weights = (weights + next_weights) / 2
        weights = next_weights / next_weights.sum()
        if gain * n_candidates < _SETTLED:
            break
    return weights, float(counts @ largest + n_candidates * (1 - compute_loss(weights)))


def _compute_newton_step(likelihood: Floats, score_shares: Floats, weights: Floats) -> Floats:
    """Compute the weights, (t,), that minimise the second-order expansion of the loss.

    Parameters
    ----------
    likelihood : (u, t) float64. L.
    score_shares : (u,) float64. Share of the candidates at each score.
    weights : (t,) float64. Weights around which the loss is expanded.
    """
    ratios = likelihood / (likelihood @ weights)[:, None]
    curvature = (ratios * score_shares[:, None]).T @ ratios
    curvature[np.diag_indices_from(curvature)] += _RIDGE * (1 + curvature.diagonal())
    root = linalg.cholesky(curvature)
    # The slope is 1 - ratios' score_shares, and ratios' score_shares is the curvature times the
    # weights.
    right_side = 2 * curvature @ weights - 1
    try:
        step, _ = optimize.nnls(root, linalg.solve_triangular(root, right_side, trans="T"))
    except RuntimeError:
        # Rounding can make the search for the step cycle. Use one step of expectation and
        # maximisation instead, which always decreases the loss.
        step = weights * (ratios.T @ score_shares)
    return np.asarray(step)


class Posterior:
    """Distribution of the share of a candidate given its score, for each of u scores.

    Under a part with center c and width s, a share has a normal distribution with the variance v =
    s^2 / (1 + s^2) and the mean c + v (z - c). A point mass has s = 0, so the share is c.

    Attributes
    ----------
    mean : (u,) float64. Posterior means, in standard errors.
    variance : (u,) float64. Posterior variances, in squared standard errors.
    """

    def __init__(self, prior: Prior, z: Floats) -> None:
        """Compute the probability of each part and the mean of a share in it, (u, t) both.

        Parameters
        ----------
        prior : the fitted prior.
        z : (u,) float64. Scores.
        """
        self._prior, self._z = prior, z
        self._logs = _compute_log_densities(z, prior.centers, prior.widths)
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
        # A point mass has a step instead of a normal distribution function.
        below = np.where(
            has_width, special.ndtr(distance / np.where(has_width, spread, 1.0)), distance >= 0
        )
        return np.asarray((self._parts * below).sum(axis=1))

    def sum(self, coefficients: Floats, counts: Integers) -> SumMoments:
        """Compute the moments of a weighted sum of shares, with the error of the fitted prior.

        The variance is the second difference (K(h) - 2 K(0) + K(-h)) / h^2, with the step h = one
        divided by the standard error of the sum of the scores.

        Parameters
        ----------
        coefficients : (u,) float64. a: coefficient of each candidate with this score.
        counts : (u,) int64. Number of candidates with each score. The prior must have been fitted
            to these candidates.
        """
        mean = float(counts * coefficients @ self.mean)
        step = 1 / np.sqrt(max(float(counts @ coefficients**2), np.finfo(float).tiny))
        n_parts = len(self._prior.weights)
        initial_weights = (1 - _RESTARTED) * self._prior.weights + _RESTARTED / n_parts
        # All three maxima start from the same weights. Their small errors of convergence then
        # cancel in the difference.
        _, untilted = _maximize_likelihood(self._logs, counts, initial_weights)
        second_difference, tilted_means = 0.0, []
        for sign in (1, -1):
            tilt = (sign * step * coefficients)[:, None]
            logs = self._logs + tilt * self._means + tilt**2 * self._variances / 2
            weights, likelihood = _maximize_likelihood(logs, counts, initial_weights)
            second_difference += likelihood - untilted
            tilted = self._weigh_parts(logs, weights) * (self._means + tilt * self._variances)
            tilted_means.append(tilted.sum(axis=1))
        # The slope of log f(z) is E[theta | z] - z, with f the density of a score. The slope of
        # dK / dt by z is therefore this difference.
        influence = (tilted_means[0] - tilted_means[1]) / (2 * step)
        return SumMoments(mean, max(second_difference / step**2, 0.0), influence)
