"""Cramer's V of two fields, less the noise of its cells, with a confidence interval.

Theory of operation
-------------------
Symbols as in `independence.py`: pi is the true table (A, B), p its estimate, S the covariance of
the estimates, T the sum of the table. The expected table of independent fields is

    e_ab = (sum over b of pi_ab) (sum over a of pi_ab) / T

The differences d = pi - e are 0 if the fields are independent. Cramer's V is

    phi2 = sum over cells of d_ab^2 / (e_ab T)            V = sqrt(phi2 / (min(A, B) - 1))

V is 0 for independent fields, and 1 if one field determines the other field.

**Noise.** The same formula with estimates is too large, because squares of noise add up. Let D be
the diagonal matrix of the weights 1 / (e_ab T), and S_d = J S J' the covariance of the estimated
differences, with J the derivatives of d by pi. The expected value of the plain sum Q is phi2 + t1
with t1 = trace(D S_d), so the estimate of phi2 is Q - t1.

**Interval.** Q is a quadratic form of normal differences. Its distribution is approximated by a
scaled non-central chi-squared distribution with the same mean, and without association with the
same variance 2 t2, t2 = trace(D S_d D S_d) (Satterthwaite):

    Q / g ~ chi-squared with h degrees of freedom and non-centrality phi2 / g
    g = t2 / t1,  h = t1^2 / t2

The interval of phi2 contains the values under which Q lies between the two quantiles of this
distribution.

This distribution takes the weights D as fixed. Under a strong association the errors of the margins
matter, too, because they change the weights. With G the derivatives of phi2 by all shares, the
variance of Q is G' S G to first order. The interval is stretched around the estimate by the root of

    kappa = max(1, G' S G / (4 g phi2))

The denominator is the variance if the weights were fixed and the noise had the same size in all
directions. G is computed from differences that are scaled down to the estimate of phi2, because
noise enlarges G. Without this factor, 95 % intervals of V = .8 contained the true value in 81 to
90 % of 20 x 5 tables; with it, in 95 to 100 %.

**Rare values.** A margin that noise makes 0 or negative would give infinite weights. Each margin is
therefore at least its own standard error. A value that no device has adds only noise to Q, and t1
subtracts the expectation of this noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import optimize, special, stats

from rappor.association.joint_table import JointTable
from rappor.counts.arrays import Floats

_LARGE: Final = 1e6
"""Statistic above which the normal approximation replaces the non-central chi-squared distribution.
The relative error of the root is below 1e-6 there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CramersV:
    """Strength of the association of two fields within the listed cells.

    Attributes
    ----------
    estimate : Cramer's V, in [0, 1]: 0 if the fields are independent, 1 if one field determines the
        other field. The noise of the cells is subtracted. NaN if no margin is known.
    ci_low, ci_high : two-sided interval at the confidence of the estimates.
    """

    estimate: float
    ci_low: float
    ci_high: float


def estimate_cramers_v(table: JointTable, confidence: float) -> CramersV:
    """Estimate Cramer's V with an interval.

    Parameters
    ----------
    table : estimates of A x B cells, A and B at least 2.
    confidence : probability that the interval contains the true value, such as .95.
    """
    n_rows, n_columns = table.share.shape
    row, column = _bound_margins(table)
    total = float(table.share.sum())
    # The sum of the listed shares is within its error of 0, so nothing is known about the cells.
    if total <= math.sqrt(max(float(table.covariance.sum()), 0.0)):
        return CramersV(estimate=math.nan, ci_low=0.0, ci_high=1.0)
    expected = np.outer(row, column) / total
    weight = (1 / (expected * total)).ravel()
    difference, jacobian = _compute_differences(table.share)
    noise = jacobian @ table.covariance @ jacobian.T
    root = np.sqrt(weight)
    scaled_noise = root[:, None] * noise * root
    quadratic = float(weight @ difference**2)
    mean_noise = float(scaled_noise.trace())
    squared_noise = float((scaled_noise**2).sum())
    largest = min(n_rows, n_columns) - 1
    low, high = _invert_quadratic_form(quadratic, mean_noise, squared_noise, confidence)
    phi2 = quadratic - mean_noise
    stretch = 1.0
    if phi2 > 0:
        # The noise of the cells would also enlarge the derivatives. The differences are therefore
        # scaled down, so that their phi2 is the estimate.
        scaled = math.sqrt(phi2 / quadratic) * difference.reshape(table.share.shape)
        gradient = _compute_gradient(np.outer(row, column) / total + scaled, row, column)
        total_variance = float(gradient @ table.covariance @ gradient)
        fixed_variance = 4 * squared_noise / mean_noise * phi2
        stretch = math.sqrt(max(1.0, total_variance / fixed_variance))
    # An end that is already 0 stays there: the estimate of phi2 may be negative, and a stretched
    # lower end would rise.
    ends = min(low, phi2 + stretch * (low - phi2)), max(high, phi2 + stretch * (high - phi2))
    values = (math.sqrt(min(max(value / largest, 0.0), 1.0)) for value in (phi2, *ends))
    estimate, ci_low, ci_high = values
    return CramersV(estimate=estimate, ci_low=ci_low, ci_high=ci_high)


def _bound_margins(table: JointTable) -> tuple[Floats, Floats]:
    """Compute the margins of rows, (A,), and of columns, (B,), each at least its standard error."""
    row_variance, column_variance = table.compute_margin_variances()
    return (
        np.maximum(table.share.sum(axis=1), np.sqrt(row_variance)),
        np.maximum(table.share.sum(axis=0), np.sqrt(column_variance)),
    )


def _compute_differences(share: Floats) -> tuple[Floats, Floats]:
    """Compute the differences from independence and their derivatives by the shares.

    Parameters
    ----------
    share : (A, B) float64, with a positive sum.

    Returns
    -------
    The differences, (AB,) float64, and the derivatives, (AB, AB) float64: the row is the
    difference, the column the share.
    """
    n_rows, n_columns = share.shape
    total = share.sum()
    row, column = share.sum(axis=1), share.sum(axis=0)
    expected = np.outer(row, column) / total
    # The derivatives of r_a c_b / T by pi_kl are 1(a = k) c_b / T + 1(b = l) r_a / T - e_ab / T.
    by_row = np.einsum("ak,b,l->abkl", np.eye(n_rows), column, np.ones(n_columns))
    by_column = np.einsum("bl,a,k->abkl", np.eye(n_columns), row, np.ones(n_rows))
    change = (by_row + by_column - expected[:, :, None, None]) / total
    jacobian = np.eye(share.size) - change.reshape(share.size, share.size)
    return (share - expected).ravel(), jacobian


def _compute_gradient(share: Floats, row: Floats, column: Floats) -> Floats:
    """Compute the derivatives of phi2 by the shares, (AB,) float64.

    phi2 is also the sum of pi_ab^2 / (r_a c_b) less 1, with r and c the margins.

    Parameters
    ----------
    share : (A, B) float64.
    row, column : (A,) and (B,) float64. Margins, positive.
    """
    ratio = share / np.outer(row, column)
    by_row = (share * ratio).sum(axis=1) / row
    by_column = (share * ratio).sum(axis=0) / column
    return np.asarray((2 * ratio - by_row[:, None] - by_column).ravel())


def _invert_quadratic_form(
    quadratic: float, mean_noise: float, squared_noise: float, confidence: float
) -> tuple[float, float]:
    """Compute the interval of phi2 from a quadratic form of normal differences.

    Parameters
    ----------
    quadratic : Q.
    mean_noise, squared_noise : t1 and t2.
    confidence : confidence of the two-sided interval.
    """
    # Without noise the quadratic form is phi2.
    if squared_noise <= 0:
        return quadratic, quadratic
    scale = squared_noise / mean_noise
    degrees_of_freedom = mean_noise**2 / squared_noise
    tail = (1 - confidence) / 2
    low, high = (
        _find_noncentrality(quadratic / scale, degrees_of_freedom, probability)
        for probability in (1 - tail, tail)
    )
    return low * scale, high * scale


def _find_noncentrality(statistic: float, degrees_of_freedom: float, probability: float) -> float:
    """Find the non-centrality at which P(chi-squared <= statistic) is a probability.

    The probability falls with the non-centrality. The result is 0 if it is too small already at 0.
    """

    def excess(noncentrality: float) -> float:
        if noncentrality == 0:
            return float(stats.chi2.cdf(statistic, degrees_of_freedom)) - probability
        return float(stats.ncx2.cdf(statistic, degrees_of_freedom, noncentrality)) - probability

    if excess(0.0) <= 0:
        return 0.0
    # Case: almost no noise, where scipy's distribution is NaN. The root of a large statistic is
    # normal with mean sqrt(noncentrality + degrees of freedom - 1) and variance 1.
    if statistic > _LARGE:
        root = math.sqrt(statistic) - float(special.ndtri(probability))
        return root**2 - (degrees_of_freedom - 1)
    # By the same approximation, ten standard deviations are more than any confidence needs.
    largest = (math.sqrt(statistic) + 10.0) ** 2
    return float(optimize.brentq(excess, 0.0, largest))
