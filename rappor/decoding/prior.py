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
| w | weights of the parts of the prior: portion of the candidates in each part | (t,), sum 1 |
| phi | density of the standard normal distribution | |
| a_i | coefficient of theta_i in a sum of shares S = sum a_i theta_i | |
| x | tilt: the argument of K | |
| K(x) | logarithm of the likelihood of the scores, times exp(x S) | |

Model: z_i = theta_i + a standard normal error, and theta_i is drawn from the prior. Scores are
rounded to bins, so arrays have one element for each of u distinct scores.

*Example.* Of 1,000 candidates, 980 have scores near 0 and 20 have scores near 10. The fitted prior
has the weight .98 at theta = 0 and the weight .02 near theta = 10. Under this prior, the posterior
mean of a candidate with z = 1 is almost 0, because nearly all such candidates are absent. The
posterior mean of a candidate with z = 12 is near 10: all present candidates have shares near 10, so
the 2 are the error of the score.

The prior of theta is learnt from the scores of all candidates (empirical Bayes, [JS04]). It has no
assumed shape: it is a mixture of point masses, of which the first is at zero (the candidate is
absent) and the others lie on a grid. The weights are fitted by maximum likelihood, which is a
concave problem (Kiefer and Wolfowitz, Annals of Mathematical Statistics 1956; [KCS20]). The masses
are then moved once, to the scores near them. A prior with an assumed shape biases every sum: a
mixture of exponential distributions, which decreases everywhere, shrank 30 equal strings towards
zero, and the unallocated share was wrong by two standard errors.

Beyond `_FARTHEST_MASS` standard errors the parts of the mixture become normal distributions, whose
standard deviation grows with the distance. Two shares so far from zero need not be distinguished,
and a grid of point masses would need thousands of them.

Quantiles of single shares need a prior without gaps. `fit_quantile_prior` therefore fits a second
mixture, whose parts are wide at every distance: the standard deviation of a part is a fixed portion
of its center. Few parts suffice for shares that differ smoothly, such as Zipf's law, and their
weights are estimated with less error than the weights of many point masses. Equal shares need point
masses. Akaike's criterion decides which of the two mixtures is used.

The fitted prior is itself uncertain. `Posterior.sum` therefore computes the moments of a sum of
shares S = sum a_i theta_i from a profile likelihood:

    K(x) = max over w of  sum_i log E_w[exp(x a_i theta_i) phi(z_i - theta_i)]

E_w is the expectation over theta_i under the prior with the weights w. K is the logarithm of the
joint likelihood of the scores and of exp(x S), at the prior that makes it largest. If the maximum
is interior and x small, expanding in w gives Laplace's approximation,

    K(x) - K(0) = x E[S] + x^2 / 2 (posterior variance of S + d' I^-1 d)

with d the gradient of E[S] by w, and I the information about w. This is the delta method: the
second derivative of K at 0 is the variance of S. Its first term comes from the shares under the
prior, and its second term from the error of the fitted prior.

The code does not use this formula. Most weights are zero, so the maximum is on the boundary of the
weights, and I^-1 does not exist there. K exists, because each of its values is a maximum over all
weights that are not negative. The code computes K at 0 and at one step to both sides, and takes the
second difference. The step is one divided by the standard error of the sum of the scores. A half or
a quarter of the step changes the variance by 1 % to 4 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from scipy import linalg, optimize, special

from rappor.counts.arrays import Floats, Integers

NO_NOISE: Final = 1e-12
"""Standard error that replaces an error of 0, so that scores stay finite."""

_BINS_PER_ERROR: Final = 16
"""Number of bins per standard error. The prior is fitted to rounded scores, so a million candidates
cost as much as a few hundred. The largest rounding error is 1/32 of a standard error."""

_MASS_SPACING: Final = 0.25
"""Distance of two point masses of a smoothed prior, in standard errors. The errors of scores blur
closer shares. With .5 the total variation between the true and the estimated distribution of shares
is 3 % larger."""

_SUM_SPACING: Final = 0.125
"""Distance of two point masses of the prior of sums. A string between two masses counts partly as
the larger one, and more so in the largest scores, which are summed. Example: 2,000 equal strings of
1.4 standard errors each, of which 250 are detected. Their sum is 1.6 % too large on average of 16
collections, and 2.1 % with .25. In most collections the number changes little."""

_FARTHEST_MASS: Final = 16.0
"""Standard errors up to which parts of the prior are point masses. If it grows, equal shares are
recognised farther from zero, and the fit takes longer."""

_DISTANCE_PER_WIDTH: Final = 8.0
"""Distance of a part from `_FARTHEST_MASS`, divided by the standard deviation of the part. A part
at `_FARTHEST_MASS` + 8 has the standard deviation 1. If the number grows, parts are narrower."""

SMOOTHING: Final = 0.1
"""Number of candidates that are added to each part of a smoothed prior. With .5 the total variation
between the true and the estimated distribution of shares is .7 % smaller, but lists of 10,000
absent candidates get a share of .03 % instead of none. With 0 the total variation is 3 % larger."""

_DISTANCE_PER_SPACING: Final = 16.0
"""Distance of a part from `_FARTHEST_MASS`, divided by its distance to the next part. The number is
twice `_DISTANCE_PER_WIDTH`, so two neighbours are half a standard deviation apart, and the mixture
has no gaps."""

_WIDE_PORTION: Final = 0.4
"""Standard deviation of a wide part divided by its center. If the number grows, the prior is
smoother, and lies farther from point masses. With .2 the total variation between the true and the
estimated distribution is .7 % larger for 150 falling shares (measured)."""

_WIDE_SPACING: Final = 1 + _WIDE_PORTION / 2
"""Center of a wide part divided by the center of the part before. Neighbours are half a standard
deviation apart, so the mixture has no gaps."""

_PARAMETERS_PER_PART: Final = 2
"""Parameters of the prior for each part with a positive weight: its center and its weight. Akaike's
criterion subtracts the number of parameters from the log-likelihood."""

_LEAST_WEIGHT: Final = 1e-6
"""Weight from which a part counts as positive. Newton's method leaves smaller weights where the
likelihood is largest at 0."""

_KEPT_DISTANCE: Final = 4.0
"""Standard deviations around a score within which parts are kept. A part that is farther from every
score has no weight."""

_NEWTON_STEPS: Final = 60
"""Largest number of steps of Newton's method for the weights. Ten to twenty are usual."""

_LIKELIHOOD_TOLERANCE: Final = 1e-6
"""Increase of the log-likelihood in a step below which the weights have converged. Two priors whose
log-likelihoods differ by less than about 1 fit the scores equally well."""

_KEPT_WEIGHT: Final = 0.01
"""Share of each weight that a step keeps. The step of a weight to 0 divides it by 100 instead, so
the weight can grow again in a later step. A weight of 0 could not."""

_EQUAL_SHARE: Final = 0.1
"""Share of equal weights in the mean of equal weights and fitted weights at which the fits of
`Posterior.sum` start. Parts whose weight is nearly 0 in the fitted prior can then grow."""

_RIDGE: Final = 1e-9
"""Ridge on the diagonal of the matrix of second derivatives, absolute and relative. Neighbouring
parts of the mixture have nearly equal densities, and some parts explain no score, so the matrix
would be singular."""

_HALVINGS: Final = 40
"""Number of bisections in the search for a quantile. The searched interval becomes 2^-40 of its
length, which is far below a standard error."""

_QUANTILE_REACH: Final = 8.0
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
    influence : (u,) float64. Derivative of `mean` by the score of one candidate of each bin. It
        includes the effect of the score on the fitted prior.
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
        np.rint(z * _BINS_PER_ERROR) / _BINS_PER_ERROR, return_inverse=True, return_counts=True
    )
    return rounded, bins, counts


def fit_prior(z: Floats, counts: Integers, *, smoothing: float = 0.0) -> Prior:
    """Fit the weights of the mixture by maximum likelihood.

    The prior of largest likelihood consists of a few point masses, even if the true shares are
    smoothly distributed. The gaps between these masses do not harm sums of shares, but quantiles of
    single shares jump over them. A smoothed prior has no gaps, but contains too many small shares,
    so its sums are too large.

    Parameters
    ----------
    z : (u,) float64. Scores.
    counts : (u,) int64. Number of candidates with each score.
    smoothing : number of candidates that are added to each part. 0 is for sums, `SMOOTHING` for
        quantiles of single shares.
    """
    centers, widths = _place_parts(z, _MASS_SPACING if smoothing else _SUM_SPACING)
    n_parts = len(centers)
    weights = np.full(n_parts, 1 / n_parts)
    # The first fit is on the grid. Then the centers move to the scores, and the second fit follows.
    for is_last in (False, True):
        log_densities = _compute_log_densities(z, centers, widths)
        weights = _fit_weights(log_densities, counts, weights, smoothing)
        if not is_last:
            centers = _move_centers(z, counts, log_densities, weights, centers)
    return Prior(centers=centers, widths=widths, weights=weights)


def fit_quantile_prior(z: Floats, counts: Integers, likeliest: Prior) -> Prior:
    """Fit the smoothed prior for quantiles of single shares: of point masses, or of wide parts.

    Akaike's criterion chooses. A prior with p positive parts has 2 p parameters, and adding a
    parameter without effect raises the log-likelihood by about 1. Point masses are used if

        log-likelihood of `likeliest` - log-likelihood of wide parts > 2 (p - p of the wide parts)

    *Example.* For 100 equal strings among 400 candidates, four to five point masses have a
    log-likelihood that is 7 larger than that of two to three wide parts, so point masses are used.
    For 150 falling shares, 18 point masses are only 6 better than 12 wide parts, so wide parts are
    used. Eighteen point masses follow the noise of the scores: the shares of two strings with
    similar scores are drawn together, although nothing makes them equal.

    Parameters
    ----------
    z : (u,) float64. Scores.
    counts : (u,) int64. Number of candidates with each score.
    likeliest : result of `fit_prior` without smoothing for the same scores.
    """
    wide = _fit_wide_prior(z, counts, smoothing=0.0)
    gain = _compute_log_likelihood(likeliest, z, counts) - _compute_log_likelihood(wide, z, counts)
    n_further_parts = _count_parts(likeliest) - _count_parts(wide)
    if gain > _PARAMETERS_PER_PART * n_further_parts:
        return fit_prior(z, counts, smoothing=SMOOTHING)
    return _fit_wide_prior(z, counts, smoothing=SMOOTHING)


def _fit_wide_prior(z: Floats, counts: Integers, *, smoothing: float) -> Prior:
    """Fit a mixture of absence and wide parts, whose widths are proportional to their centers.

    The lower tail of a wide part lies below 0: .6 % of its shares. Quantiles replace them by 0.
    """
    # Shares below the first center are hardly distinguishable from absence. With a first center of
    # .5, the many rare strings of a long list got too small a sum.
    centers = [0.0, _MASS_SPACING]
    while centers[-1] < z.max():
        centers.append(centers[-1] * _WIDE_SPACING)
    grid = np.array(centers)
    widths = _WIDE_PORTION * grid
    log_densities = _compute_log_densities(z, grid, widths)
    equal_weights = np.full(len(grid), 1 / len(grid))
    weights = _fit_weights(log_densities, counts, equal_weights, smoothing)
    return Prior(centers=grid, widths=widths, weights=weights)


def _fit_weights(
    log_densities: Floats, counts: Integers, initial_weights: Floats, smoothing: float
) -> Floats:
    """Fit the weights of the parts, (t,), with `smoothing` candidates added to each part.

    Parameters
    ----------
    log_densities : (u, t) float64, as `_compute_log_densities` returns them.
    counts : (u,) int64. Number of candidates with each score.
    initial_weights : (t,) float64, positive.
    smoothing : as in `fit_prior`.
    """
    n_parts = len(initial_weights)
    numbers: Integers | Floats = counts
    if smoothing:
        # Add one score for each part. It certainly belongs to its part: its density is 1 under
        # this part and 0 under all other parts. `smoothing` is its number of candidates.
        added = np.where(np.eye(n_parts, dtype=bool), 0.0, -np.inf)
        log_densities = np.vstack([log_densities, added])
        numbers = np.append(counts, np.full(n_parts, smoothing))
    weights, _ = _maximize_likelihood(log_densities, numbers, initial_weights)
    return weights


def _count_parts(prior: Prior) -> int:
    """Count the parts with a positive weight."""
    return int((prior.weights > _LEAST_WEIGHT).sum())


def _compute_log_likelihood(prior: Prior, z: Floats, counts: Integers) -> float:
    """Compute the logarithm of the likelihood of all scores under a prior."""
    log_densities = _compute_log_densities(z, prior.centers, prior.widths)
    largest = log_densities.max(axis=1)
    likelihood = np.exp(log_densities - largest[:, None]) @ prior.weights
    # A score far from all parts with weight must not give the logarithm of 0.
    return float(counts @ (largest + np.log(np.maximum(likelihood, np.finfo(float).tiny))))


def _move_centers(
    z: Floats, counts: Integers, log_densities: Floats, weights: Floats, centers: Floats
) -> Floats:
    """Move each part except absence to the mean score of its candidates.

    A center stays between the middles to its neighbours. The move is one step of the
    expectation-maximisation algorithm, so the likelihood increases. Without it, the share of a
    single string far from all other strings is rounded to the grid, by up to half of the distance
    of two masses.

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


def _place_parts(z: Floats, spacing: float) -> tuple[Floats, Floats]:
    """Compute the centers and the widths of the parts, (t,) float64 each, absence first.

    The distance of two centers is `spacing`, in standard errors, up to `_FARTHEST_MASS`. Beyond, it
    grows.
    """
    centers = [spacing]
    while centers[-1] < z.max() + spacing:
        distance_beyond = centers[-1] - _FARTHEST_MASS
        centers.append(centers[-1] + max(spacing, distance_beyond / _DISTANCE_PER_SPACING))
    grid = np.array(centers)
    widths = np.maximum(grid - _FARTHEST_MASS, 0.0) / _DISTANCE_PER_WIDTH
    ordered = np.sort(z)
    reach = _KEPT_DISTANCE * np.hypot(1.0, widths)
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

    The first term replaces the constraint that the weights sum to 1: at the minimum, the sum of
    each weight times its derivative is 0, and this sum is (sum of w) - (sum of c_i) = (sum of w) -
    1. Each step of Newton's method is a non-negative least-squares problem. A step may be
    too long and increase the loss. It is then halved until the loss decreases, which happens
    because the loss is convex ([KCS20], mix-SQP).

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
    for _ in range(_NEWTON_STEPS):
        newton_weights = _compute_newton_step(likelihood, score_shares, weights)
        next_weights = (1 - _KEPT_WEIGHT) * newton_weights + _KEPT_WEIGHT * weights
        while (gain := compute_loss(weights) - compute_loss(next_weights)) < 0:
            next_weights = (weights + next_weights) / 2
        weights = next_weights / next_weights.sum()
        if gain * n_candidates < _LIKELIHOOD_TOLERANCE:
            break
    # The weights have the sum 1, so 1 - loss is the mean of the logarithms of L w. Each row of L
    # was divided by its largest entry, whose logarithm is added again.
    return weights, float(counts @ largest + n_candidates * (1 - compute_loss(weights)))


def _compute_newton_step(likelihood: Floats, score_shares: Floats, weights: Floats) -> Floats:
    """Compute the weights, (t,), that minimise the second-order expansion of the loss.

    With C the second derivatives of the loss, (t, t), and g its slope at the current weights w, the
    next weights v >= 0 minimise g' (v - w) + (v - w)' C (v - w) / 2. With R the Cholesky root of
    C = R' R, this is the non-negative least-squares problem of R v and R'^-1 (C w - g).

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
    # The slope g is 1 - ratios' score_shares. The last term equals C w, because ratios times w is 1
    # in every row. So C w - g is 2 C w - 1.
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

    A share is drawn from a part with center c and width s, and the score z adds an error of
    variance 1. Given z, the share has a normal distribution with the variance v = s^2 / (1 + s^2)
    and the mean c + v (z - c). A point mass has s = 0, so the share is c. A wide part has v near 1,
    so the mean is near the score.

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
        self._untilted: tuple[Integers, float] | None = None
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
        low, high = np.zeros(len(self._z)), np.maximum(self._z, 0.0) + _QUANTILE_REACH
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

        The variance is the second difference (K(h) - 2 K(0) + K(-h)) / h^2. The step h is 1 divided
        by the standard error of the sum of the scores. The module docstring defines K.

        Parameters
        ----------
        coefficients : (u,) float64. a: coefficient of each candidate with this score.
        counts : (u,) int64. Number of candidates with each score. The prior must have been fitted
            to these candidates.
        """
        mean = float(counts * coefficients @ self.mean)
        # Scores have independent errors of variance 1, so the sum of a_i z_i has the variance sum
        # of a_i^2.
        step = 1 / np.sqrt(max(float(counts @ coefficients**2), np.finfo(float).tiny))
        n_parts = len(self._prior.weights)
        initial_weights = (1 - _EQUAL_SHARE) * self._prior.weights + _EQUAL_SHARE / n_parts
        # All three maxima start from the same weights. Their small errors of convergence then
        # cancel in the difference.
        #
        # The maximum without a tilt is the same for all sums. It is kept, because a decode computes
        # several sums of the same candidates.
        if self._untilted is None or not np.array_equal(self._untilted[0], counts):
            _, likelihood = _maximize_likelihood(self._logs, counts, initial_weights)
            self._untilted = counts.copy(), likelihood
        untilted = self._untilted[1]
        second_difference, tilted_means = 0.0, []
        for sign in (1, -1):
            tilt = (sign * step * coefficients)[:, None]
            # A share is normal with mean m and variance v in each part, so the mean of
            # exp(tilt theta) is exp(tilt m + tilt^2 v / 2). The tilt moves m by tilt times v.
            logs = self._logs + tilt * self._means + tilt**2 * self._variances / 2
            weights, likelihood = _maximize_likelihood(logs, counts, initial_weights)
            second_difference += likelihood - untilted
            tilted = self._weigh_parts(logs, weights) * (self._means + tilt * self._variances)
            tilted_means.append(tilted.sum(axis=1))
        # With f the density of a score, the derivative of log f(z) by z is E[theta | z] - z
        # (Tweedie's formula). So the derivative of K(x) by a score is the mean of its share under
        # the tilt x, minus z. The mean of S is dK/dx at 0. Its derivative by a score is therefore
        # the difference quotient of the tilted means.
        influence = (tilted_means[0] - tilted_means[1]) / (2 * step)
        return SumMoments(mean, max(second_difference / step**2, 0.0), influence)
