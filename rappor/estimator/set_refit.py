"""Refit of sets: Gauss-Newton steps for frequent items that share a bucket of a cohort.

The linear regression of `rappor.estimator.fit` adds the shares of all items of a bucket. Sets need
more, because a device with two items of one bucket owns the bucket once. The error is large for
frequent items: with 1e7 devices and 32 cohorts, the five most frequent of 2,000 items missed their
shares by 4.3 standard errors (root mean square) without the refit.

The input is a linear selection. The output is a selection of the same items, with estimates of all
candidates that take shared buckets into account.

Theory of operation
-------------------
A device owns exactly n of the k buckets of its cohort, after padding or cutting. Let pi_s be the
share of the devices whose set contains item s. In a cohort,

| symbol | meaning, for bucket r of the cohort |
|---|---|
| Q_r | probability that a device has no fitted item of bucket r: the product of their (1 - pi_s) |
| A_r | expected number of the other buckets that a device owns by fitted items: the sum of 1 - Q |
| u_r | probability that one of the remaining n - A_r own buckets is r: (n - A_r) / (k - A_r) |
| theta_r | probability that a device owns bucket r: 1 - Q_r + Q_r u_r |
| y_r | proportion in the regression: (p* + (q* - p*) theta_r - p') / (q' - p') |

p* and q* are the probabilities that a report names a bucket that is not owned, or owned. p' and q'
are the probabilities of the regression (`Response.regression_probabilities`).

Assumption: the items of a device are independent, and its other buckets are spread evenly.

A Gauss-Newton step evaluates y at the shares of the step before, and fits the shares by the
derivatives of y. The derivative by pi_s is, up to a constant of the cohort, which the background
contains,

    at the bucket of s     Q_r / (1 - pi_s) (k - 1) / (k - A_r) (1 + 1 / (k - A_r))
    at other buckets       0

Two terms of the exact derivative are left out: at the other buckets of fitted items, and the
difference of the constant between cohorts. Both are smaller than the terms above by a factor of
about k, and they change only the steps: the residual is computed from the exact y.

Items of one device may be correlated, which the reports cannot show. The proportion of devices with
both items s and t lies between max(0, pi_s + pi_t - 1) and min(pi_s, pi_t), and is assumed to be
pi_s pi_t. The square of the largest possible difference is added to the variance of the row, for
each pair of items of a bucket.

Example: two items of 60 % share a bucket of a cohort. The linear regression expects the bucket at
1.2 devices per device. With independent items, theta = 1 - .4 * .4 = .84 plus the padding, and the
proportion of devices with both may differ from .36 by .24.
"""

from __future__ import annotations

import dataclasses
from itertools import combinations
from typing import Final

import numpy as np
from scipy import sparse

from rappor.counts.arrays import Floats, Integers
from rappor.estimator.debias import Target
from rappor.estimator.design_matrix import Columns
from rappor.estimator.fit import Fit, fit_rows
from rappor.estimator.screening import estimate_one_step
from rappor.estimator.selection import Selection
from rappor.protocol.encodings import get_encoding

_STEPS: Final = 3
"""Number of Gauss-Newton steps. The linear fit starts near the solution: with two steps the
estimates of 1e7 devices differ by less than a hundredth of a standard error."""

_LARGEST_SHARE: Final = 0.999
"""Upper bound on a share during the steps. An estimate of 1 or more, which noise can cause, would
divide by zero."""

_BLOCK: Final = 4096
"""Number of candidates whose estimates are computed at a time. Their columns take 8 MB at 128
cohorts."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SetDesign:
    """The derivatives of the rows by the share of each candidate, at the fitted shares.

    Attributes
    ----------
    design : the matrix of zeros and ones.
    row_derivative : (n,) float64. Derivative of each row by the share of an item of its bucket that
        is not fitted.
    selected : (s,) int64, increasing. Indices of the fitted items.
    shares : (s,) float64. Their shares.
    """

    design: Columns
    row_derivative: Floats
    selected: Integers
    shares: Floats

    @property
    def n_candidates(self) -> int:
        """Number of candidates."""
        return self.design.n_candidates

    def columns(self, chosen: Integers) -> sparse.csc_array:
        """Return the derivatives by the shares of some candidates, (n, len(chosen))."""
        columns = self.design.columns(chosen).tocsc()
        # Q_r contains the factor 1 - pi_s of a fitted item itself, by which its own derivative does
        # not shrink.
        own = np.ones(len(chosen))
        position = np.minimum(np.searchsorted(self.selected, chosen), len(self.selected) - 1)
        if len(self.selected):
            is_fitted = self.selected[position] == chosen
            own[is_fitted] = 1 / (1 - self.shares[position[is_fitted]])
        entries = columns.data * self.row_derivative[columns.indices]
        entries *= np.repeat(own, np.diff(columns.indptr))
        return sparse.csc_array((entries, columns.indices, columns.indptr), shape=columns.shape)


def has_sets(target: Target) -> bool:
    """Return whether the reports are of sets, whose hashed items do not exclude each other."""
    encoding = get_encoding(target.counts[0].params)
    return encoding.is_hashed and not encoding.is_exclusive


def refit_sets(
    target: Target, design: Columns, selection: Selection
) -> tuple[Target, SetDesign, Selection]:
    """Fit the selected items again, with the buckets that they share.

    Parameters
    ----------
    target : n rows of counts of sets.
    design : the matrix of zeros and ones of all candidates in memory.
    selection : the linear fit, with s selected items.

    Returns
    -------
    target : the rows, with the expected proportions at the fitted shares as `offset`.
    design : the derivatives of the rows.
    selection : the same items, the new fit, and estimates of all candidates in memory.
    """
    selected_columns = design.columns(selection.selected)
    shares, fit = selection.estimate[selection.selected], selection.fit
    shares = np.where(np.isfinite(selection.std_error[selection.selected]), shares, 0.0)
    for _ in range(_STEPS):
        shares = np.clip(shares, 0.0, _LARGEST_SHARE)
        expected, row_derivative = _compute_rows(target, selected_columns, shares)
        derivatives = SetDesign(
            design=design,
            row_derivative=row_derivative,
            selected=selection.selected,
            shares=shares,
        )
        columns = derivatives.columns(selection.selected)
        step_target = dataclasses.replace(
            target,
            offset=expected - columns @ shares,
            extra_variance=_compute_correlation_variance(selected_columns, shares),
        )
        fit = fit_rows(step_target, columns, start=fit)
        shares = fit.coefficients[len(target.counts) :]
    estimate, std_error = _estimate_all(derivatives, fit, len(selection.estimate))
    new = dataclasses.replace(selection, fit=fit, estimate=estimate, std_error=std_error)
    return step_target, derivatives, new


def _compute_rows(
    target: Target, columns: sparse.csc_array, shares: Floats
) -> tuple[Floats, Floats]:
    """Compute the expected proportion y of each row, and its derivative by an item of its bucket.

    Parameters
    ----------
    target : n rows.
    columns : (n, s) sparse. 1 in the rows of each fitted item.
    shares : (s,) float64. pi, in [0, 1).

    Returns
    -------
    y, derivative : (n,) float64 each. The derivative is for an item that is not fitted.
    """
    without = np.exp(columns @ np.log1p(-shares))  # Q
    theta, derivative = np.empty_like(without), np.empty_like(without)
    first = 0
    for counts in target.counts:
        params, rows = counts.params, slice(first, first + counts.params.m * counts.params.k)
        first = rows.stop
        n, k = params.items, params.k
        in_cohort = without[rows].reshape(params.m, k)
        owned = (1 - in_cohort).sum(axis=1, keepdims=True)
        # Estimates are noisy, so the fitted items may fill more than the n buckets of a device.
        others = np.minimum(owned - (1 - in_cohort), n)  # A
        padded = (n - others) / (k - others)  # u
        theta[rows] = (1 - in_cohort + in_cohort * padded).ravel()
        derivative[rows] = (in_cohort * (k - 1) / (k - others) * (1 + 1 / (k - others))).ravel()
    star = np.array([[c.params.p_star, c.params.q_star] for c in target.counts])
    p_star, q_star = star[target.collection_index].T
    named = p_star + (q_star - p_star) * theta
    return (named - target.p_star) / (target.q_star - target.p_star), derivative


def _compute_correlation_variance(columns: sparse.csc_array, shares: Floats) -> Floats:
    """Compute the variance that unknown correlations of items add to each row, (n,)."""
    variance = np.zeros(columns.shape[0])
    by_row = columns.tocsr()
    for row in np.flatnonzero(np.diff(by_row.indptr) > 1):
        items = by_row.indices[by_row.indptr[row] : by_row.indptr[row + 1]]
        for first, second in combinations(shares[items], 2):
            both = first * second
            most, least = min(first, second), max(0.0, first + second - 1)
            variance[row] += max(most - both, both - least) ** 2
    return variance


def _estimate_all(design: SetDesign, fit: Fit, n_candidates: int) -> tuple[Floats, Floats]:
    """Compute the estimate and the standard error of every candidate in memory, (c,) each.

    A selected item has its coefficient of the fit. Every other candidate has the one-step estimate
    of [ZZ14].
    """
    estimate, std_error = np.empty((2, n_candidates))
    others = np.setdiff1d(np.arange(n_candidates), design.selected)
    score, information = np.empty((2, len(others)))
    for start in range(0, len(others), _BLOCK):
        block = slice(start, start + _BLOCK)
        score[block], information[block] = fit.scores(design.columns(others[block]))
    usual = float(np.max(information, initial=0.0))
    estimate[others], std_error[others] = estimate_one_step(score, information, fit, usual)
    estimate[design.selected], std_error[design.selected] = fit.compute_selected_estimates()
    return estimate, std_error
