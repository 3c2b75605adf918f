"""Cramer's V of two fields, corrected for the noise of the estimates, with a confidence interval.

Cramer's V is the strength of the association of two fields: 0 for independent fields, and 1 if one
field determines the other field.

Theory of operation
-------------------
Symbols as in `independence.py`: pi is the true table (A, B), p its estimate, S the covariance of
the estimates, T the sum of the table. The expected table of independent fields is

    e_ab = (sum over b of pi_ab) (sum over a of pi_ab) / T

The differences d = pi - e are 0 if the fields are independent. Cramer's V is

    phi2 = sum over cells of d_ab^2 / (e_ab T)            V = sqrt(phi2 / (min(A, B) - 1))

**Noise.** Let Q be phi2 computed from the estimates p in place of pi. Q is too large on average,
because the squares of the noise of all cells add up. Let D be the diagonal matrix of the weights
1 / (e_ab T), and S_d = J S J' the covariance of the estimated differences, with J the derivatives
of d by pi. The expected value of Q is phi2 + t1 with t1 = trace(D S_d), so the estimate of phi2 is
Q - t1.

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

**Lower end.** The weights of rare values are large, so their noise may hide an association that the
test of independence shows without doubt. In a *pooled* table, all values of a field whose margin is
below 5 of its standard errors are one value. phi2 is the chi-squared divergence of the table from
the table of independent fields. Summing rows or columns never enlarges a divergence (the inequality
of data processing), so

    phi2 of the pooled table <= phi2

and a lower end for the pooled table is a lower end for the table. The larger of the two lower ends
is used. Which values are pooled depends on the margins alone, and not on the differences. The upper
end has no such bound: two rare values may determine each other, and V is then large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import optimize, special

from rappor.association.joint_table import JointTable
from rappor.counts.arrays import Booleans, Floats

_RARE: Final = 5.0
"""A value is rare if its margin is below this number of its standard errors. A larger number pools
more values, which hides the association among them. A smaller number leaves their noise. Of 3, 5
and 10, the number 5 had the highest lower ends in tables of 20 x 5 cells."""

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
    rare_rows, rare_columns : numbers of values of the row field and of the column field whose
        margin is below 5 of its standard errors. Such values make the interval wide.
    """

    estimate: float
    ci_low: float
    ci_high: float
    rare_rows: int = 0
    rare_columns: int = 0


def estimate_cramers_v(table: JointTable, confidence: float) -> CramersV:
    """Estimate Cramer's V with an interval.

    Parameters
    ----------
    table : estimates of A x B cells, A and B at least 2.
    confidence : probability that the interval contains the true value, such as .95.
    """
    result = _estimate_with_all_values(table, confidence)
    rows, columns = _find_rare_rows(table), _find_rare_rows(table.transpose())
    if not (rows.any() or columns.any()):
        return result
    pooled = _pool_rare_values(table)
    low = 0.0
    if min(pooled.share.shape) > 1:
        # The ends of both tables belong to phi2 / (min(A, B) - 1), each with its own A and B.
        scale = (min(pooled.share.shape) - 1) / (min(table.share.shape) - 1)
        low = math.sqrt(scale) * _estimate_with_all_values(pooled, confidence).ci_low
    return CramersV(
        # Case: the noise of rare values makes the estimate smaller than the lower end.
        estimate=max(result.estimate, low),
        ci_low=max(result.ci_low, low),
        ci_high=max(result.ci_high, low),
        rare_rows=int(rows.sum()),
        rare_columns=int(columns.sum()),
    )


def _estimate_with_all_values(table: JointTable, confidence: float) -> CramersV:
    """Estimate Cramer's V with the interval of the quadratic form, without pooling."""
    n_rows, n_columns = table.share.shape
    row, column = _bound_margins(table)
    total = float(table.share.sum())
    # Bad case: the sum of the listed shares is less than one standard error above 0, so nothing is
    # known about the cells.
    if total <= math.sqrt(max(float(table.covariance.sum()), 0.0)):
        return CramersV(estimate=math.nan, ci_low=0.0, ci_high=1.0)
    expected = np.outer(row, column) / total
    weight = (1 / (expected * total)).ravel()
    difference, jacobian = _compute_differences(table.share)
    noise = jacobian @ table.covariance @ jacobian.T
    root = np.sqrt(weight)
    scaled_noise = root[:, None] * noise * root
    # Q, t1 and t2 of the module docstring, and the largest possible phi2.
    quadratic = float(weight @ difference**2)
    mean_noise = float(scaled_noise.trace())
    squared_noise = float((scaled_noise**2).sum())
    max_phi2 = min(n_rows, n_columns) - 1
    low, high = _invert_quadratic_form(quadratic, mean_noise, squared_noise, confidence)
    phi2 = quadratic - mean_noise
    width_ratio = 1.0
    if phi2 > 0:
        # The noise of the cells would also enlarge the derivatives. The differences are therefore
        # scaled down, so that their phi2 is the estimate.
        scaled = math.sqrt(phi2 / quadratic) * difference.reshape(table.share.shape)
        gradient = _compute_gradient(np.outer(row, column) / total + scaled, row, column)
        total_variance = float(gradient @ table.covariance @ gradient)
        fixed_variance = 4 * squared_noise / mean_noise * phi2
        width_ratio = math.sqrt(max(1.0, total_variance / fixed_variance))
    # An end that is already 0 stays there: the estimate of phi2 may be negative, and a stretched
    # lower end would rise.
    ends = (
        min(low, phi2 + width_ratio * (low - phi2)),
        max(high, phi2 + width_ratio * (high - phi2)),
    )
    values = (math.sqrt(min(max(value / max_phi2, 0.0), 1.0)) for value in (phi2, *ends))
    estimate, ci_low, ci_high = values
    return CramersV(estimate=estimate, ci_low=ci_low, ci_high=ci_high)


def _find_rare_rows(table: JointTable) -> Booleans:
    """Return whether the margin of each row is below 5 of its standard errors, (A,) bool."""
    variance, _ = table.compute_margin_variances()
    return np.asarray(table.share.sum(axis=1) < _RARE * np.sqrt(variance))


def _pool_rare_values(table: JointTable) -> JointTable:
    """Sum the rare rows to one row and the rare columns to one column."""
    rows, columns = _group_rows(table), _group_rows(table.transpose())
    sums = np.kron(rows, columns)
    return JointTable(
        share=rows @ table.share @ columns.T,
        covariance=sums @ table.covariance @ sums.T,
        devices=table.devices,
    )


def _group_rows(table: JointTable) -> Floats:
    """Return the groups of a table's rows: 1 for each row of a group and 0 for others, (G, A).

    A row that is not rare is a group of its own. The rare rows are one group. If this group is
    rare, too, it joins the smallest other group.
    """
    covariance = np.einsum("abcd->ac", table.covariance.reshape(2 * table.share.shape))
    margin = table.share.sum(axis=1)
    is_rare = _find_rare_rows(table)
    groups = np.eye(len(margin))[~is_rare]
    rare = is_rare.astype(np.float64)
    if not is_rare.any():
        return groups
    if rare @ margin >= _RARE * math.sqrt(max(float(rare @ covariance @ rare), 0.0)):
        return np.vstack([groups, rare])
    # If all rows are rare, and their sum is rare too, the result has no group. The caller then
    # computes no lower end from the pooled table.
    if len(groups):
        groups[np.argmin(groups @ margin)] += rare
    return groups


def _bound_margins(table: JointTable) -> tuple[Floats, Floats]:
    """Compute the margins of rows, (A,), and of columns, (B,), each at least its standard error.

    Without noise, the margin of a value that nobody reported has no error. A margin is therefore at
    least the share of one device, too.
    """
    row_variance, column_variance = table.compute_margin_variances()
    one_device = 1 / table.devices
    return (
        np.maximum(table.share.sum(axis=1), np.maximum(np.sqrt(row_variance), one_device)),
        np.maximum(table.share.sum(axis=0), np.maximum(np.sqrt(column_variance), one_device)),
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
    # The lower end is the phi2 under which Q would be larger only with probability `tail`. The
    # upper end is the phi2 under which Q would be smaller only with probability `tail`.
    low, high = (
        _find_noncentrality(quadratic / scale, degrees_of_freedom, probability)
        for probability in (1 - tail, tail)
    )
    return low * scale, high * scale


def _find_noncentrality(statistic: float, degrees_of_freedom: float, probability: float) -> float:
    """Find the non-centrality at which P(chi-squared <= statistic) equals `probability`.

    P falls with the non-centrality. If P is smaller than `probability` already at the
    non-centrality 0, no non-centrality solves the equation, and the result is 0.
    """

    def compute_excess(noncentrality: float) -> float:
        """Return P(chi-squared <= statistic) - probability."""
        if noncentrality == 0:
            return float(special.chdtr(degrees_of_freedom, statistic)) - probability
        return float(special.chndtr(statistic, degrees_of_freedom, noncentrality)) - probability

    if compute_excess(0.0) <= 0:
        return 0.0
    # Case: almost no noise, where scipy's distribution is NaN. The root of a large statistic is
    # normal with mean sqrt(noncentrality + degrees of freedom - 1) and variance 1.
    if statistic > _LARGE:
        root = math.sqrt(statistic) - float(special.ndtri(probability))
        return root**2 - (degrees_of_freedom - 1)
    # By the same approximation, ten standard deviations are more than any confidence needs.
    largest = (math.sqrt(statistic) + 10.0) ** 2
    return float(optimize.brentq(compute_excess, 0.0, largest))
