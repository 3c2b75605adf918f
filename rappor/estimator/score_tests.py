"""P-values of the scores of absent candidates.

The score of a candidate is the weighted sum of the residuals of its rows (a row is one bit of one
cohort). The decoder compares the score with the distribution of the score of an absent candidate,
whose tail `compute_null_tail` returns as a `NullTail`: `NullTail.p_values` turns scores into
p-values, and `NullTail.quantile` turns a p-value into a score. All scores are *standardised*: an
absent candidate has the standard deviation 1.

A candidate inside the fit has explained its own rows, so their residuals are small, and its score
would be compared with the wrong numbers. `rappor.estimator.presence_tests` therefore raises the
residuals of its rows by its share before the comparison. The differences are called *lifts*
(`ResidualDraws.compute_tail_with_lifts`).

*Example.* In one cohort of 4 bits, the weighted residuals are -1, -1, -1 and 3. An absent candidate
with one hash function sets one of the four bits at random. Its score is 3 with probability 1/4. So
a candidate with the score 3 has the p-value 1/4, although 3 is 1.7 standard deviations above 0.

Theory of operation
-------------------
| symbol | meaning | shape |
|---|---|---|
| x | weighted residuals of the rows: w times e, minus the mean of the cohort | (n,) |
| J | number of cohorts of all collections | |
| k_j, h_j | number of bits of cohort j, and number of bits that a candidate sets in it | (J,) |
| S | score of an absent candidate: sum over cohorts of h_j values of x, drawn at random | number |
| t | tilt: argument of the cumulant generating function K | numbers `TILTS` |
| K(t) | log E exp(t S) = sum over j of h_j log(mean over cohort j of exp(t x)) | number |

An absent candidate sets random bits, so its score is a sum of residuals that are drawn at random
from each cohort. The residuals are known, and therefore the distribution of the sum is known. This
holds for every cause of the residuals: noise, rare strings, or frequent strings that are not
candidates. The tail of the sum is computed from its exact cumulant generating function by the
saddlepoint formula of Lugannani and Rice (Advances in Applied Probability 1980). For each tilt t,
it gives one point of the tail: P(S >= K'(t)), with K' the derivative of K. The formula is accurate
for skewed residuals. They are skewed because a few frequent strings that are not candidates leave a
few large residuals. An absent candidate that shares bits with such a string (a *collision*) has a
large score by chance. The tail of the normal distribution gives this chance a far too small
probability, so the absent candidate would be detected.

With few cohorts or few reports the sum has few values, and no smooth formula approximates its
distribution: with one cohort of k bits no valid p-value is below 1/k. The distribution is then
computed completely, by convolution of the cohorts on a fine grid. The grid rounds every sum. So a
p-value counts all sums that could reach the score without the rounding. The standard deviation of
the distribution is the standard deviation of the residuals, and at least the standard deviation
that the fit predicts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from scipy import special

from rappor.counts.arrays import Floats, Integers
from rappor.estimator.debias import Target
from rappor.estimator.fit import Fit
from rappor.protocol.params import Params

TILTS: Final = np.concatenate([np.linspace(-4.0, -0.1, 14), np.linspace(0.1, 8.0, 41)])
"""Tilts at which the tail is computed: negative ones for scores below 0, positive ones for scores
above 0. The logarithm of the tail is interpolated between the scores of two tilts. Three times as
many tilts detect the same strings (measured). No tilt is near 0, where the formula divides zero by
zero."""

MOST_VALUES: Final = 1024
"""Largest number of distinct residuals for the complete distribution, added over all draws (h in
each cohort). 8 cohorts of 128 bits reach it with one hash function, if all residuals are different.
With few reports many residuals are equal, so more cohorts stay below it. The computation takes 10
ms, and grows with the number."""

_GRID_POINTS: Final = 8192
"""Number of points of the grid on which complete distributions are convolved. About 200 points lie
within a standard deviation. More points reduce the margin that p-values need for rounding."""

_LARGEST_NORMAL_SCORE: Final = 38.0
"""Largest normal score of the interpolation. Its probability is near the smallest positive float64.
"""

_MOST_SPREAD: Final = 2.0
"""Ratio of the standard deviations of the score with and without lifts (the numbers that are added
to the values of a candidate's rows). Above this ratio, the values are scaled to the standard
deviation 1, and all moments are computed again. Otherwise the tilts, which are for the standard
deviation 1, would not cover the distribution. A smaller limit would take more time."""

_DECIMALS: Final = 9
"""Number of decimals, in standard deviations of the sum, to which residuals are rounded before they
are counted. Rounding errors of equal residuals are smaller."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NullTail:
    """The upper tail of the standardised score of an absent candidate, at t points.

    Attributes
    ----------
    scores : (t,) float64, increasing. Scores in standard deviations.
    log_tails : (t,) float64, falling. Natural logarithm of P(score >= scores).
    exact : True for the step function of a complete distribution, False for an interpolation.
    steepness : slope of the logarithm beyond the last score, divided by minus the last tilt. The
        slope of the saddlepoint tail at tilt t is about -t, so the quotient is 1. It is 1 / c if
        the scores were multiplied by c after the tail was computed.
    """

    scores: Floats
    log_tails: Floats
    exact: bool = False
    steepness: float = 1.0

    def quantile(self, p_values: Floats | float) -> Floats:
        """Compute the smallest scores whose p-values are at most `p_values`, in their shape."""
        # `np.searchsorted` and `np.interp` need rising numbers, so the falling logarithms are
        # negated.
        log_p = np.log(p_values)
        if self.exact:
            position = np.searchsorted(-self.log_tails, -log_p)
            return np.asarray(self.scores[np.minimum(position, len(self.scores) - 1)])
        beyond = np.maximum(self.log_tails[-1] - log_p, 0.0) / (TILTS[-1] * self.steepness)
        return np.asarray(np.interp(-log_p, -self.log_tails, self.scores) + beyond)

    def p_values(self, scores: Floats) -> Floats:
        """Compute one-sided p-values, (c,).

        Beyond the score of the last tilt t, the p-value falls like exp(-t score).

        Parameters
        ----------
        scores : (c,) float64. Standardised scores.
        """
        if self.exact:
            position = np.searchsorted(self.scores, scores, side="left")
            return np.exp(self.log_tails[np.minimum(position, len(self.scores) - 1)])
        log_p = np.interp(scores, self.scores, self.log_tails, left=0.0)
        # The interpolation ends at the score of the last tilt, and `np.interp` gives every larger
        # score the p-value of this tilt. These p-values are extrapolated instead.
        beyond = scores > self.scores[-1]
        slope = TILTS[-1] * self.steepness
        log_p[beyond] = self.log_tails[-1] - slope * (scores[beyond] - self.scores[-1])
        return np.exp(log_p)


def build_normal_tail() -> NullTail:
    """Build the tail of a standard normal score.

    The decoder uses it for a shrunken fit (`ShrunkenFit`), which contains all candidates. No
    candidates were selected by their scores, so the tail needs no correction for a selection.
    """
    # Eight points in each standard deviation, from -38 to 38.
    scores = np.linspace(
        -_LARGEST_NORMAL_SCORE, _LARGEST_NORMAL_SCORE, 16 * int(_LARGEST_NORMAL_SCORE) + 1
    )
    # The logarithm of the normal tail at a large score z has the slope -z.
    steepness = _LARGEST_NORMAL_SCORE / TILTS[-1]
    return NullTail(scores=scores, log_tails=special.log_ndtr(-scores), steepness=steepness)


class ResidualDraws:
    """The residuals from which the score of an absent candidate is drawn, for all J cohorts.

    Attributes
    ----------
    values : (n,) float64. x: weighted residuals, centred in each cohort. They are scaled so that
        the score of an absent candidate has variance 1.
    cohort : (n,) int64. Cohort of each row, counted over all collections.
    n_bits : (J,) int64. k_j: number of bits of each cohort.
    n_draws : (J,) int64. h_j: number of bits that a candidate sets in each cohort.
    scale : number by which the centred residuals were divided: the standard deviation of the score.
    """

    def __init__(self, target: Target, weighted: Floats) -> None:
        """Centre and scale weighted residuals.

        Parameters
        ----------
        target : n rows.
        weighted : (n,) float64. Weights times residuals of a fit.
        """
        m = [counts.params.m for counts in target.counts]
        self.n_bits = np.repeat([counts.params.k for counts in target.counts], m)
        self.n_draws = np.repeat([counts.params.h for counts in target.counts], m)
        self.cohort = np.repeat(np.arange(len(self.n_bits)), self.n_bits)
        values = self._center(weighted)
        squares = np.bincount(self.cohort, values**2) / self.n_bits
        variance = float((self.n_draws * squares).sum())
        self.scale = np.sqrt(variance) if variance > 0 else 1.0
        self.values = values / self.scale

    @cached_property
    def moments(self) -> Floats:
        """(3, J, number of tilts): sums over each cohort of e^(t x), x e^(t x) and x^2 e^(t x)."""
        return self._compute_moments(self.values)

    def compute_tail(self) -> NullTail:
        """Compute the tail of the sum of all draws."""
        return self._compute_tail(self.moments, 0.0)

    def compute_tail_with_lifts(self, rows: Integers, lifts: Floats) -> NullTail:
        """Compute the tail after the values of some rows are raised.

        Parameters
        ----------
        rows : (r,) int64. Indices of the rows.
        lifts : (r,) float64. Numbers that are added to `values` of these rows.
        """
        cohort = self.cohort[rows]
        # Approximate standard deviation of the score with the lifts. The score had variance 1, and
        # each of h_j draws hits a certain row of cohort j with probability 1 / k_j. The change of
        # the mean, and the covariance of lifts and values, are left out. An approximation is enough
        # here, because `spread` is only the unit in which the tail is computed.
        spread = float(np.sqrt(1 + (self.n_draws / self.n_bits)[cohort] @ lifts**2))
        # Frequent strings lift their rows far beyond the range of the tilts. Scale the values and
        # compute all moments again.
        if spread > _MOST_SPREAD:
            values = self.values.copy()
            values[rows] += lifts
            tail = self._compute_tail(self._compute_moments(self._center(values) / spread), 0.0)
            return replace(tail, scores=tail.scores * spread, steepness=1 / spread)
        # Few rows change by little: replace their terms in the moments instead of computing all
        # moments.
        moments = self.moments.copy()
        for values, sign in ((self.values[rows], -1), (self.values[rows] + lifts, 1)):
            powers = sign * np.exp(np.outer(values, TILTS))
            for order in range(3):
                np.add.at(moments[order], cohort, powers)
                powers = powers * values[:, None]
        # The lifts also raise the mean of each cohort, which was 0. The tail is that of the sum
        # minus its mean.
        mean = np.bincount(cohort, lifts, minlength=len(self.n_bits)) / self.n_bits
        return self._compute_tail(moments, float(self.n_draws @ mean))

    def _center(self, values: Floats) -> Floats:
        """Subtract the mean of each cohort."""
        return np.asarray(values - (np.bincount(self.cohort, values) / self.n_bits)[self.cohort])

    def _compute_moments(self, values: Floats) -> Floats:
        """Compute the moments of each cohort at every tilt, (3, J, number of tilts)."""
        starts = np.concatenate([[0], np.cumsum(self.n_bits)[:-1]])
        moments = np.empty((3, len(starts), len(TILTS)))
        for t, tilt in enumerate(TILTS):
            powers = np.exp(tilt * values)
            moments[0, :, t] = np.add.reduceat(powers, starts)
            for order in (1, 2):
                powers *= values
                moments[order, :, t] = np.add.reduceat(powers, starts)
        return moments

    def _compute_tail(self, moments: Floats, mean_sum: float) -> NullTail:
        """Compute the tail of the sum of all draws minus its mean.

        With M_0, M_1 and M_2 the moments of a cohort at tilt t, one draw from the cohort has
        K = log(M_0 / k_j), K' = M_1 / M_0 and K'' = M_2 / M_0 - (M_1 / M_0)^2. Draws are
        independent, so their K, K' and K'' add.

        Parameters
        ----------
        moments : (3, J, number of tilts) float64.
        mean_sum : mean of the sum of all draws.
        """
        mass, first, second = moments
        means = first / mass
        variances = np.maximum(second / mass - means**2, 0.0)
        cumulants = self.n_draws @ np.log(mass / self.n_bits[:, None]) - mean_sum * TILTS
        return approximate_tail(
            self.n_draws @ means - mean_sum, self.n_draws @ variances, cumulants
        )


def compute_null_tail(target: Target, fit: Fit, *, most_values: int = MOST_VALUES) -> NullTail:
    """Compute the tail of an absent candidate's score from the residuals of a fit.

    Parameters
    ----------
    target : n rows.
    fit : the fit with these residuals.
    most_values : largest number of distinct residuals for the complete distribution. 0 always uses
        the saddlepoint formula.
    """
    draws = ResidualDraws(target, fit.weight * fit.residual)
    if most_values:
        # Distinct residuals of each cohort and their probabilities. A candidate draws h times.
        cohorts = map(_count_distinct, np.split(draws.values, np.cumsum(draws.n_bits)[:-1]))
        all_draws = [
            cohort for cohort, n in zip(cohorts, draws.n_draws, strict=True) for _ in range(n)
        ]
        # All rows of an empty cohort have the residual 0, which adds nothing to a sum.
        random_draws = [values for values in all_draws if len(values[0]) > 1]
        if sum(len(values) for values, _ in random_draws) <= most_values:
            # The tested z scores are weighted residual sums divided by their predicted standard
            # deviation, sqrt(information). The values of the draws were divided by the standard
            # deviation of the residuals, `draws.scale`. Multiplying a sum of them by
            # draws.scale / sqrt(information) therefore gives a z score.
            #
            # Bad case: a fit with nearly as many columns as rows. It leaves residuals that are
            # smaller than the noise, so the factor would be far below 1, and every z score would be
            # significant. The factor is therefore at least 1.
            return _convolve(
                random_draws, max(draws.scale / _compute_information(target, fit) ** 0.5, 1.0)
            )
    return draws.compute_tail()


def approximate_tail(scores: Floats, variances: Floats, cumulants: Floats) -> NullTail:
    """Compute the tail of a sum from its cumulant generating function at the tilts.

    With r = sign(t) sqrt(2 (t K' - K)) and u = t sqrt(K''), the saddlepoint formula is

        P(S >= K') = 1 - Phi(r) + phi(r) (1/u - 1/r)

    where Phi and phi are distribution function and density of the standard normal distribution.

    Parameters
    ----------
    scores, variances, cumulants : (number of tilts,) float64 each. K', K'' and K at the tilts.
    """
    signed = np.sign(TILTS) * np.sqrt(np.maximum(2 * (TILTS * scores - cumulants), 0.0))
    scaled_tilts = TILTS * np.sqrt(variances)
    # Residuals without spread make both terms of the formula infinite. These tilts are dropped
    # below.
    with np.errstate(divide="ignore", invalid="ignore"):
        density = np.exp(-(signed**2) / 2) / np.sqrt(2 * np.pi)
        tails = special.ndtr(-signed) + density * (1 / scaled_tilts - 1 / signed)
    usable = np.isfinite(tails) & (tails > 0)
    scores, log_tails = scores[usable], np.log(np.minimum(tails[usable], 1.0))
    # Near the largest possible sum of the residuals the formula may rise. A tail never rises.
    log_tails = np.minimum.accumulate(log_tails)
    scores = np.maximum.accumulate(scores)
    # The residuals have no spread: no score is evidence of presence, and every p-value is 1.
    if len(scores) < 2:
        return NullTail(scores=np.array([0.0, 1.0]), log_tails=np.zeros(2))
    return NullTail(scores=scores, log_tails=log_tails)


def _compute_information(target: Target, fit: Fit) -> float:
    """Compute the information about an absent candidate: the predicted variance of its score.

    With s the expected sum of the weights of its rows and W the sum of all weights, the information
    is s (1 - s / W). The fit has a *background*, a free coefficient that all rows of a collection
    share. A candidate changes the background too, and the second factor removes this part of its
    information.
    """
    weight_sum = sum(
        counts.params.h
        / counts.params.k
        * float(fit.weight[target.collection_index == group].sum())
        for group, counts in enumerate(target.counts)
    )
    remaining = weight_sum * (1 - weight_sum / max(float(fit.weight.sum()), np.finfo(float).tiny))
    return max(remaining, np.finfo(float).tiny)


def _count_distinct(residuals: Floats) -> tuple[Floats, Floats]:
    """Compute the distinct residuals of a cohort and their probabilities, (d,) float64 each."""
    values, counts = np.unique(np.round(residuals, _DECIMALS), return_counts=True)
    return values, counts / len(residuals)


def _convolve(draws: list[tuple[Floats, Floats]], scale: float) -> NullTail:
    """Compute the distribution of a sum of independent draws by convolution on a grid.

    Parameters
    ----------
    draws : values, (d,) increasing, and probabilities, (d,), of each draw.
    scale : factor from a sum to a score.
    """
    width = sum(float(values[-1] - values[0]) for values, _ in draws)
    # The residuals have no spread: no score is evidence of presence, and every p-value is 1.
    if not width > 0:
        return NullTail(scores=np.array([0.0]), log_tails=np.zeros(1), exact=True)
    step = width / (_GRID_POINTS - len(draws) - 1)
    mass = np.array([1.0])
    for values, probabilities in draws:
        offsets = np.rint((values - values[0]) / step).astype(np.int64)
        next_mass = np.zeros(len(mass) + int(offsets[-1]))
        for offset, probability in zip(offsets.tolist(), probabilities.tolist(), strict=True):
            next_mass[offset : offset + len(mass)] += probability * mass
        mass = next_mass
    lowest = sum(float(values[0]) for values, _ in draws)
    # Rounding to the grid moves a sum of d draws by at most d / 2 steps, and hardly ever by more
    # than 2 sqrt(d) steps, which is four standard deviations if each draw is rounded by half a
    # step. With the margin added to the scores, no p-value is too small.
    margin = step / 2 * min(len(draws), 4 * len(draws) ** 0.5) + 10.0**-_DECIMALS * len(draws)
    tails = np.minimum(np.cumsum(mass[::-1])[::-1], 1.0)
    is_possible = mass > 0
    # Only possible sums are points of the step function.
    scores = (lowest + step * np.flatnonzero(is_possible) + margin) * scale
    return NullTail(scores=scores, log_tails=np.log(tails[is_possible]), exact=True)


def compute_ones_variance(params: Params, devices: float) -> float:
    """Compute the variance of the number of ones that chance gives an absent string.

    The number is counted for one hash function. An absent string then has one bit in each cohort. A
    device belongs to one cohort and sends a 1 at this bit with probability p*, because no string of
    the device sets the bit. The number of ones of all devices is therefore Binomial(devices, p*).

    The number belongs to this module because a small variance makes its tails coarse: with few
    ones, scores and p-values take few values (`ErrorControl.for_ones_variance`).

    Parameters
    ----------
    params : the parameter set.
    devices : effective number of devices of all cohorts.
    """
    return devices * params.p_star * (1 - params.p_star)
