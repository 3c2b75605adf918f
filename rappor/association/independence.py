"""Test of independence of two fields, from the estimated shares of a table and their covariance.

Theory of operation
-------------------
| symbol | meaning | shape |
|---|---|---|
| A, B | numbers of listed values of the row field and of the column field | |
| pi | true shares of the cells: pi_ab is the share of the reports with values a and b | (A, B) |
| p | estimates of pi | (A, B) |
| S | covariance of the estimates, cells in the order of the rows of the table | (AB, AB) |
| T | sum of all cells, the share of the reports in listed cells | share |

The hypothesis is independence *within the listed cells*:

    pi_ab T = (sum over b of pi_ab) (sum over a of pi_ab)

T is below 1 if devices have values outside the lists. Without the factor T, a table with 30 % of
unlisted values would never be independent.

The hypothesis is true exactly if the table has rank 1, pi = r c' for two vectors r (A,) and c (B,).
The statistic is the distance of the estimates from the nearest table of rank 1:

    X2 = minimum over r and c of (p - r c')' S^-1 (p - r c')

Tables of rank 1 have A + B - 1 free numbers, so X2 has a chi-squared distribution with
AB - (A + B - 1) = (A - 1)(B - 1) degrees of freedom if the hypothesis is true.

A Wald test of the AB differences pi_ab T - pi_a pi_b was too rarely significant: its size was .015
instead of .05. Products of noisy margins are not normal, and the Wald test takes them for normal.
The distance from rank 1 uses the estimates themselves, which are normal.

Two departures from the formula:

- S contains the sampling of devices, which depends on pi. The statistic uses S at the fitted table
  of rank 1, as Pearson's test does, instead of S at the estimates. Case: without noise, a cell that
  no device reported would have no variance, and every table would be significant.
- Categories that contain every possible value have estimates that add up to 1 (`has_fixed_sum`).
  Then the sum of the cells has the variance 0, and S has no inverse. A multiple of m m' is added to
  S, where m is the vector of the products of the margins, one for each cell. It gives the sum of
  the cells a variance. The sum of the table is free in a fit of rank 1, so X2 does not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import linalg, special

from rappor.association.joint_table import JointTable
from rappor.counts.arrays import Floats

_MOST_STEPS: Final = 500
"""Largest number of alternating steps of a fit of rank 1. Tables of 20 x 5 cells need about 10
steps. A table of nothing but noise, whose margins are near 0, needs the most steps."""

_CONVERGED: Final = 1e-9
"""Decrease of the statistic in one step, relative to 1 + statistic, at which a fit has converged.
A p-value changes by less than this number."""

_UNCORRELATED: Final = 1e-6
"""Each variance is multiplied by 1 plus this number, which adds an error that no two cells share.
The statistic becomes smaller by at most this share of its value. With a much smaller number, the
covariance of a billion devices without noise would have no inverse within the rounding errors."""

_FIXED_SUM: Final = 1e-9
"""Variance of the sum of a table, relative to the sum of the variances of its cells, below which
the sum is known in advance. Rounding errors are smaller than this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndependenceTest:
    """Test of the hypothesis that two fields are independent within the listed cells.

    Attributes
    ----------
    statistic : weighted squared distance of the estimates from the nearest independent table.
    degrees_of_freedom : (A - 1)(B - 1).
    p_value : probability that independent fields are at least as far from independence, by the
        chi-squared distribution.
    """

    statistic: float
    degrees_of_freedom: int
    p_value: float


def compute_independence_test(table: JointTable) -> IndependenceTest:
    """Test whether two fields are independent within the listed cells.

    Parameters
    ----------
    table : estimates of A x B cells, A and B at least 2.
    """
    covariance = table.covariance
    if has_fixed_sum(covariance):
        covariance = _release_sum(table)
    independent, _ = fit_rank_one(table.share, _bound_variances(covariance, table.devices))
    null_covariance = covariance + _change_sampling(table, independent)
    _, statistic = fit_rank_one(table.share, _bound_variances(null_covariance, table.devices))
    n_rows, n_columns = table.share.shape
    degrees_of_freedom = (n_rows - 1) * (n_columns - 1)
    return IndependenceTest(
        statistic=statistic,
        degrees_of_freedom=degrees_of_freedom,
        p_value=float(special.chdtrc(degrees_of_freedom, statistic)),
    )


def fit_rank_one(share: Floats, covariance: Floats) -> tuple[Floats, float]:
    """Fit the nearest table of rank 1 by generalised least squares.

    Each step solves for the vector of one side while the vector of the other side is fixed, which
    is a linear problem. The distance never rises. The steps begin at two tables, because the
    distance may have several minima: the first singular pair, and the products of the margins.

    Parameters
    ----------
    share : (A, B) float64.
    covariance : (AB, AB) float64, with an inverse.

    Returns
    -------
    The fitted table, (A, B) float64, and its squared distance from `share`.
    """
    precision = linalg.inv(covariance, check_finite=False).reshape(2 * share.shape)
    column_starts = (np.linalg.svd(share)[2][0], share.sum(axis=0))
    fits = [
        _alternate(share, precision, start)
        for start in column_starts
        # The margin is a vector of zeros if nothing was reported. It determines no direction.
        if np.linalg.norm(start) > 0
    ]
    return min(fits, key=lambda fit: fit[1])


def _alternate(share: Floats, precision: Floats, column: Floats) -> tuple[Floats, float]:
    """Alternate between the vectors of rows and of columns until the distance stops falling.

    Parameters
    ----------
    share : (A, B) float64.
    precision : (A, B, A, B) float64. Inverse of the covariance.
    column : (B,) float64, not 0. First vector of the columns.
    """
    weighted_share = np.einsum("abcd,cd->ab", precision, share)
    distance = np.inf
    for _ in range(_MOST_STEPS):
        # The scale is divided between the two vectors arbitrarily. A unit vector avoids an overflow
        # after many steps.
        column = column / np.linalg.norm(column)
        half = np.einsum("abcd,d->abc", precision, column)
        row = np.linalg.solve(np.einsum("abc,b->ac", half, column), weighted_share @ column)
        fitted = np.outer(row, column)
        residual = share - fitted
        previous, distance = (
            distance,
            float(np.einsum("ab,abcd,cd->", residual, precision, residual, optimize=True)),
        )
        if previous - distance <= _CONVERGED * (1 + distance) or not row.any():
            break
        row = row / np.linalg.norm(row)
        half = np.einsum("abcd,c->abd", precision, row)
        column = np.linalg.solve(np.einsum("abd,a->bd", half, row), row @ weighted_share)
    return fitted, distance


def has_fixed_sum(covariance: Floats) -> bool:
    """Return whether the sum of all cells is known in advance, so that it has no variance."""
    return bool(covariance.sum() <= _FIXED_SUM * covariance.trace())


def _release_sum(table: JointTable) -> Floats:
    """Add a multiple of m m' to the covariance, with m the products of the margins.

    The factor of m m' is chosen such that the added variances sum to the mean variance of a cell.
    The added numbers then have the size of the others, so that rounding errors do not spoil the
    inverse.
    """
    product = np.outer(table.share.sum(axis=1), table.share.sum(axis=0)).ravel()
    product /= np.linalg.norm(product)
    return np.asarray(
        table.covariance + table.covariance.trace() / product.size * np.outer(product, product)
    )


def _change_sampling(table: JointTable, independent: Floats) -> Floats:
    """Compute the change of the covariance if the fitted table replaces the estimates, (AB, AB).

    Only the covariance from the sampling of devices depends on the table here.
    """
    at_fit, at_estimate = map(_compute_sampling, (independent, table.share))
    return np.asarray((at_fit - at_estimate) / table.devices)


def _compute_sampling(share: Floats) -> Floats:
    """Compute the covariance of one device of a multinomial sample, diag(pi) - pi pi', (AB, AB).

    Noise makes some shares negative, and their sum may exceed 1. Such shares would have no
    covariance, so they are clipped and scaled.
    """
    cells = np.maximum(share, 0.0).ravel()
    cells = cells / max(1.0, float(cells.sum()))
    return np.asarray(np.diag(cells) - np.outer(cells, cells))


def _bound_variances(covariance: Floats, devices: float) -> Floats:
    """Raise the variances of the cells, so that the covariance has an inverse.

    Two cases without noise have no inverse:

    - A cell that no device reported has the variance 0. The variance becomes that of a cell with a
      single device of the D devices, about 1 / D^2.
    - If all devices are in two cells, the estimates of these cells have the correlation -1. All
      variances are therefore raised by `_UNCORRELATED`.
    """
    bounded = covariance.copy()
    variances = np.maximum(covariance.diagonal(), devices**-2.0)
    np.fill_diagonal(bounded, variances * (1 + _UNCORRELATED))
    return bounded
