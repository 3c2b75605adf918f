"""Refit of sets: Gauss-Newton steps for frequent items that share a bucket of a cohort.

The value of a device is a set of items, such as the installed plugins. Devices with the same hash
functions form a cohort. In a cohort, a hash function maps each item to one of k *buckets*, and
a device *owns* the buckets of its items. A report names one bucket: mostly an own bucket, sometimes
a random one. Each bucket of each cohort is a row of the regression.

The linear regression of `rappor.estimator.fit` adds the shares of all items of a bucket. This is
wrong for sets, because a device with two items of one bucket owns the bucket once. The error is
large where frequent items share buckets. For twelve items of 10 to 90 % in 48 buckets, 16 cohorts
and 1e6 reports, estimates miss the shares by 11 standard errors without the refit (root mean
square), and by 1.0 with the refit. For items of at most 29 % in 464 buckets, 32 cohorts and 1e7
reports, both are equal.

*Example.* Two items, each on 60 % of the devices, share a bucket of a cohort. The linear regression
expects that 120 % of the devices own the bucket. If the items are independent, .4 * .4 = 16 % of
the devices have neither item, so 84 % own the bucket through these items.

The decoder calls `refit_sets` after the selection. The input is a linear selection. The output is a
selection of the same items, with estimates of all candidates that take shared buckets into account.

Theory of operation
-------------------
A device owns exactly n of the k buckets of its cohort. A device with fewer own buckets adds random
buckets (padding), and a device with more own buckets drops some of them (cutting). A *fitted item*
is a selected item. Let pi_s be the share of the devices whose set contains item s.

*Expected proportion of a row.* In a cohort,

| symbol | meaning, for bucket r of the cohort |
|---|---|
| Q_r | probability that a device has no fitted item of bucket r: product of their 1 - pi_s |
| A_r | expected number of other buckets that fitted items fill: sum of their 1 - Q |
| u_r | probability that a device without a fitted item of bucket r owns r: (n - A_r) / (k - A_r) |
| theta_r | probability that a device owns bucket r: 1 - Q_r + Q_r u_r |
| y_r | expected proportion in the regression: (p* + (q* - p*) theta_r - p') / (q' - p') |

Assumptions: the items of a device are independent of each other, and the own buckets that are not
filled by fitted items are spread evenly. So u_r is a ratio of two numbers of buckets. Fitted items
fill A_r of the n own buckets and leave n - A_r. These lie anywhere among the k - A_r buckets that
are not filled, and r is one of those.

p* is the probability that a report names a given bucket that the device does not own, and q* the
probability that it names a given own bucket. The linear regression uses p' and q' in place of p*
and q*. A device without item s may still own the bucket of s through another item or padding. So
the item raises the probability that the bucket is named, relative to all other buckets, by less
than q* - p*. A device with item s owns the bucket of s and n - 1 of the other k - 1 buckets. So its
report names the bucket of s with probability q*, and another bucket with the mean probability
p* + (q* - p*) (n - 1) / (k - 1). The difference is

    q' - p' = (q* - p*) (1 - (n - 1) / (k - 1)) = (q* - p*) (k - n) / (k - 1)

(`Response.regression_probabilities`). In the example, Q = .16 and theta = .84 + .16 u.

*Steps.* A Gauss-Newton step computes y and its derivatives at the previous shares. It then fits new
shares to the rows by a regression whose design matrix contains these derivatives. Let r be the
bucket of item s in a cohort. If pi_s grows, Q_r falls at the rate Q_r / (1 - pi_s). So y grows in
bucket r. More devices fill bucket r, so A grows and u falls in all other buckets of the cohort:
u = (n - A) / (k - A) has the derivative -(k - n) / (k - A)^2 by A. In bucket r, theta is
1 - Q (1 - u) with 1 - u = (k - n) / (k - A), so it grows at the rate (1 - u) Q / (1 - pi_s). A
change of theta changes y by (q* - p*) / (q' - p') = (k - 1) / (k - n) times as much. So the
derivative of y by pi_s is about

    at bucket r            Q_r / (1 - pi_s) (k - 1) / (k - A_r)
    at other buckets       - Q_r / (1 - pi_s) (k - 1) / (k - A_r)^2

The regression has a background, which is one free constant in all rows of a collection. A constant
that is subtracted from all rows of a column changes the background and no share. So the second line
may be subtracted from both lines. Nearly all entries of the matrix are then 0 (a sparse matrix):

    at bucket r            Q_r / (1 - pi_s) (k - 1) / (k - A_r) (1 + 1 / (k - A_r))
    at other buckets       0

This derivative is approximate in two ways. First, u counts in y with the factor Q, which is below 1
in other buckets with fitted items, but the second line takes Q as 1 there. Second, the second line
differs between cohorts, but all cohorts of a collection have one background. Both errors are
smaller than the derivative by a factor of about k. They do not bias the result, because each step
computes the residual from the exact y.

*Correlated items.* Items of one device may be correlated, which the reports cannot show. The
proportion of devices with both items s and t lies between max(0, pi_s + pi_t - 1) and min(pi_s,
pi_t). The model assumes the product of pi_s and pi_t. For each pair of fitted items of a bucket,
the square of the largest possible difference is added to the variance of the row. (A difference in
theta would change y by (k - 1) / (k - A_r) times as much. This factor, near 1, is left out.) In the
example, the model assumes that 36 % of the devices have both items. The true proportion is at least
.2 and at most .6, so the largest possible difference is .24.

This variance is too small in one respect. Items that exclude each other, or occur together, have
differences of one sign in all cohorts in which they share a bucket, so the differences do not
average out. A second effect has no variance. Let B be the number of buckets that the other fitted
items of a device fill. The model takes A_r for the mean of B among devices without item s. If s and
B are correlated, that mean is A_r - Cov(1[s], B) / (1 - pi_s), and the estimate of s is too large
by about

    Cov(1[s], B) / (k - A_r)

in every cohort. B is at most n, so the covariance is at least -min(pi_s A_r, (1 - pi_s) (n - A_r))
and at most min(pi_s (n - 1 - A_r), (1 - pi_s) A_r). The reports do not determine the covariance,
except where items share a bucket. So `describe_correlation` tests the residuals of such rows, and
compares the bounds with the standard errors. The result warns if both are large.

Example: four bundles of 32 items, on 60, 20, 10 and 3 % of the devices, no device with two bundles,
n = 32 and k = 1840. The covariance of an item of the first bundle with the other 31 items of its
bundle is 31 * .24 = 7.4, and with the other bundles -32 * .6 * .33 = -6.3. So its estimate is too
large by 1.1 / 1811 = .0006. Shared buckets add .0004. With ten million devices, 128 cohorts and
4 nats, both are .46 standard errors, as measured in seven collections (.13 to .66).
"""

from __future__ import annotations

import dataclasses
from itertools import combinations
from typing import Final, TypeVar

import numpy as np
from scipy import sparse, special

from rappor.counts.arrays import Floats, Integers
from rappor.estimator.debias import Target
from rappor.estimator.design_matrix import Columns
from rappor.estimator.fit import Fit, fit_rows
from rappor.estimator.screening import estimate_one_step
from rappor.estimator.selection import Selection
from rappor.protocol.encodings import get_encoding

_Target = TypeVar("_Target", bound=Target)
"""`refit_set_changes` returns the same class of target as it gets: the rows of a contrast."""

_STEPS: Final = 3
"""Number of Gauss-Newton steps. The linear fit starts near the solution. For 2,000 items and 1e7
reports, the largest difference of an estimate from ten steps is .22 standard errors after one step,
.05 after two and .014 after three."""

_LARGEST_SHARE: Final = 0.999
"""Upper bound on a share pi_s at which rows and derivatives are computed. The derivative divides by
1 - pi_s, and noise can raise an estimate to 1 or more. The final estimates are not bounded."""

_BLOCK: Final = 4096
"""Number of candidates whose estimates are computed at a time. Their columns take 8 MB at 128
cohorts."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SetDesign:
    """The derivatives of the n rows by the share of each candidate, at the fitted shares.

    It replaces the design matrix, so that the fit of the rows is a Gauss-Newton step. The entry of
    candidate s in the row of its bucket is `row_derivative` / (1 - pi_s). All other entries are 0.

    Attributes
    ----------
    design : the design matrix of zeros and ones. An entry is 1 if the row is the bucket of the
        candidate.
    row_derivative : (n,) float64. Derivative of each row by the share of an item of its bucket that
        is not fitted (pi_s = 0): Q_r (k - 1) / (k - A_r) (1 + 1 / (k - A_r)).
    selected : (s,) int64, increasing. Indices of the fitted items.
    shares : (s,) float64, in [0, 1). Shares pi_s of the fitted items.
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
        # Q_r in `row_derivative` is a product over all fitted items of the bucket. The derivative
        # by pi_s lacks the factor 1 - pi_s of the item itself, so this factor is divided out. An
        # item that is not fitted has no factor in the product.
        own_factor = np.ones(len(chosen))
        # `searchsorted` returns the length of the array for numbers above all selected ones. The
        # minimum is a valid index, and the comparison below then says that the item is not fitted.
        position = np.minimum(np.searchsorted(self.selected, chosen), len(self.selected) - 1)
        if len(self.selected):
            is_fitted = self.selected[position] == chosen
            own_factor[is_fitted] = 1 / (1 - self.shares[position[is_fitted]])
        entries = columns.data * self.row_derivative[columns.indices]
        entries *= np.repeat(own_factor, np.diff(columns.indptr))
        return sparse.csc_array((entries, columns.indices, columns.indptr), shape=columns.shape)


def has_sets(target: Target) -> bool:
    """Return whether the reports are of sets: a device may have several hashed items at once."""
    encoding = get_encoding(target.counts[0].params)
    return encoding.is_hashed and not encoding.is_exclusive


def refit_sets(
    target: Target, design: Columns, selection: Selection
) -> tuple[Target, SetDesign, Selection]:
    """Fit the selected items again, so that a device with two items of a bucket owns it once.

    Parameters
    ----------
    target : n rows of counts of sets.
    design : the matrix of zeros and ones of all candidates in memory.
    selection : the linear fit, with s selected items.

    Returns
    -------
    target : the rows of the last step. Its `offset` and `extra_variance` are those at the shares
        before the step.
    design : the derivatives of the rows at the same shares.
    selection : the same items, the new fit, and estimates of all candidates in memory.
    """
    selected_columns = design.columns(selection.selected)
    shares, fit = selection.estimate[selection.selected], selection.fit
    # An item with an infinite standard error has no estimate, because the counts contain no
    # information about it. It starts as absent.
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
        # First-order model of a row: y(new) = expected + columns (new - previous shares). The fit
        # subtracts the offset from the rows. With the offset `expected - columns @ shares`, the
        # coefficients are the new shares themselves, not their differences from the previous ones.
        step_target = dataclasses.replace(
            target,
            offset=expected - columns @ shares,
            extra_variance=_compute_correlation_variance(selected_columns, shares),
        )
        fit = fit_rows(step_target, columns, start=fit)
        # The first coefficients are the backgrounds, one for each collection.
        shares = fit.coefficients[len(target.counts) :]
    new = _estimate_all(derivatives, fit, selection)
    return step_target, derivatives, new


def refit_set_changes(
    target: _Target, design: Columns, selection: Selection, shares: Floats
) -> tuple[_Target, Selection]:
    """Fit the changes of the selected items again, by Gauss-Newton steps.

    A comparison subtracts the rows of samples, and its linear fit adds the changes of all items of
    a bucket. But if item a shares a bucket with an item b of 60 %, only two fifths of the devices
    own the bucket through a alone, so a change of a changes the row by about .4 of it. Without this
    refit, changes of 15 points were wrong by up to 3.6 standard errors (12 items of 10 to 80 % in
    48 buckets, 16 cohorts, two samples of 1e6 reports).

    By the module docstring, the expected proportion of a row is a constant minus
    Q_r (k - 1) / (k - A_r). The constant is the same in all rows, also if samples differ in n, and
    belongs to the background. The contrast delta of the shares is the sum of w_t pi_t, with weights
    w_t whose sum is 0. With m the mean shares, the contrast of the rows is modelled as the
    difference of the rows at m + delta / 2 and at m - delta / 2. For two samples these are the rows
    of the two samples. For more samples the model is exact to first order in delta.

    Parameters
    ----------
    target : n rows of a contrast.
    design : the matrix of zeros and ones of all e candidates.
    selection : the linear fit of the contrast, with signed coefficients.
    shares : (e,) float64. Mean share m of each candidate over the samples. 0 for candidates that no
        sample detects.

    Returns
    -------
    target : the rows of the last step, with its `offset`.
    selection : the same items, the new fit, and estimates of all candidates.
    """
    fitted = np.union1d(np.flatnonzero(shares > 0), selection.selected)
    fitted_columns = design.columns(fitted)
    is_selected = np.isin(fitted, selection.selected)
    mean = np.minimum(shares[fitted], _LARGEST_SHARE)
    _, row_derivative = _compute_rows(target, fitted_columns, mean)
    derivatives = SetDesign(
        design=design, row_derivative=row_derivative, selected=fitted, shares=mean
    )
    columns = derivatives.columns(selection.selected)
    fit = selection.fit
    for _ in range(_STEPS):
        change = np.zeros(len(fitted))
        change[is_selected] = fit.coefficients[len(target.counts) :]
        # An estimate may lie outside the possible shares. The clipped change is then used in both
        # terms of the offset, so that the offset contains only what the columns do not explain.
        before, after = (np.clip(mean + sign * change / 2, 0.0, _LARGEST_SHARE) for sign in (-1, 1))
        difference = _compute_unfilled(target, fitted_columns, before) - _compute_unfilled(
            target, fitted_columns, after
        )
        offset = difference - columns @ (after - before)[is_selected]
        target = dataclasses.replace(target, offset=offset)
        fit = fit_rows(target, columns, start=fit)
    return target, _estimate_all(derivatives, fit, selection)


def describe_correlation(
    target: Target, design: SetDesign, selection: Selection
) -> dict[str, float]:
    """Describe how far correlated items may shift the estimates.

    Parameters
    ----------
    target, design, selection : the result of `refit_sets`.

    Returns
    -------
    dict of float
        "p_value": probability of residuals as large in the rows with two or more fitted items, if
        all items are independent. 1 without such rows. "shift_errors": largest possible shift of
        the estimate of a fitted item by correlation with the number of other items, in standard
        errors.
    """
    fit = selection.fit
    # The variance of a row if items are independent: without the variance of correlated items.
    independent_variance = fit.coin_variance + fit.tau2 - target.extra_variance
    has_pair = (np.asarray(target.extra_variance) > 0) & np.isfinite(independent_variance)
    squares = fit.residual[has_pair] ** 2 / independent_variance[has_pair]
    p_value = float(special.chdtrc(len(squares), squares.sum())) if len(squares) else 1.0
    none_fitted = np.exp(design.design.columns(design.selected) @ np.log1p(-design.shares))
    shift_errors, first = 0.0, 0
    std_error = selection.std_error[design.selected]
    for counts in target.counts:
        params, rows = counts.params, slice(first, first + counts.params.m * counts.params.k)
        first = rows.stop
        n, k, pi = params.items, params.k, design.shares
        # The mean number of buckets that the other fitted items of a device fill, at most n.
        n_filled = float((1 - none_fitted[rows]).sum()) / params.m
        n_others = np.minimum(np.maximum(n_filled - pi, 0.0), n)
        lower = np.minimum(pi * n_others, (1 - pi) * (n - n_others))
        upper = np.minimum(pi * np.maximum(n - 1 - n_others, 0.0), (1 - pi) * n_others)
        shifts = np.maximum(lower, upper) / (k - n_others)
        shift_errors = max(shift_errors, float(np.max(shifts / std_error, initial=0.0)))
    return {"p_value": p_value, "shift_errors": shift_errors}


def _compute_rows(
    target: Target, columns: sparse.csc_array, shares: Floats
) -> tuple[Floats, Floats]:
    """Compute the expected proportion y of each row, and its derivative by the share of an item.

    The rows of a collection are its m cohorts of k buckets, in this order.

    Parameters
    ----------
    target : n rows. Its `p_star` and `q_star` are p' and q' of the module docstring.
    columns : (n, s) sparse. 1 in the rows of each fitted item.
    shares : (s,) float64. pi, in [0, 1).

    Returns
    -------
    y : (n,) float64.
    derivative : (n,) float64. `SetDesign.row_derivative`.
    """
    q, n_others, k = _compute_fills(target, columns, shares)
    n = np.array([counts.params.items for counts in target.counts])[target.collection_index]
    padded = (n - n_others) / (k - n_others)  # u
    theta = 1 - q + q * padded
    derivative = q * (k - 1) / (k - n_others) * (1 + 1 / (k - n_others))
    # p* and q* of the response, for each row. `target.p_star` and `target.q_star` are p' and q'.
    star = np.array([[c.params.p_star, c.params.q_star] for c in target.counts])
    p_star, q_star = star[target.collection_index].T
    named_probability = p_star + (q_star - p_star) * theta
    y = (named_probability - target.p_star) / (target.q_star - target.p_star)
    return y, derivative


def _compute_fills(
    target: Target, columns: sparse.csc_array, shares: Floats
) -> tuple[Floats, Floats, Integers]:
    """Compute how far the fitted items fill the buckets.

    The arguments are those of `_compute_rows`.

    Returns
    -------
    q : (n,) float64. Q_r.
    n_others : (n,) float64. A_r.
    k : (n,) int64. Number of buckets of the row's collection.
    """
    # Q: the product of 1 - pi_s over the fitted items of a row, as a sum of logarithms.
    none_fitted = np.exp(columns @ np.log1p(-shares))
    n_others = np.empty_like(none_fitted)
    first = 0
    for counts in target.counts:
        params, rows = counts.params, slice(first, first + counts.params.m * counts.params.k)
        first = rows.stop
        q = none_fitted[rows].reshape(params.m, params.k)
        n_filled = (1 - q).sum(axis=1, keepdims=True)
        # Estimates are noisy, so the fitted items may fill more than the n buckets of a device.
        n_others[rows] = np.minimum(n_filled - (1 - q), params.items).ravel()
    k = np.array([counts.params.k for counts in target.counts])[target.collection_index]
    return none_fitted, n_others, k


def _compute_unfilled(target: Target, columns: sparse.csc_array, shares: Floats) -> Floats:
    """Compute Q_r (k - 1) / (k - A_r) of each row, (n,): a constant minus the row's expectation.

    The arguments are those of `_compute_rows`.
    """
    q, n_others, k = _compute_fills(target, columns, shares)
    return np.asarray(q * (k - 1) / (k - n_others))


def _compute_correlation_variance(columns: sparse.csc_array, shares: Floats) -> Floats:
    """Compute the variance that unknown correlations of items add to each row, (n,).

    For two items of a bucket with the shares pi_s and pi_t, the proportion of devices with both is
    between max(0, pi_s + pi_t - 1) and min(pi_s, pi_t). The variance of the pair is the square of
    the distance between pi_s pi_t and the farther bound.

    Parameters
    ----------
    columns : (n, s) sparse. 1 in the rows of each fitted item.
    shares : (s,) float64. pi, in [0, 1).
    """
    variance = np.zeros(columns.shape[0])
    by_row = columns.tocsr()
    # Only rows with two or more fitted items have a pair that may be correlated.
    for row in np.flatnonzero(np.diff(by_row.indptr) > 1):
        items = by_row.indices[by_row.indptr[row] : by_row.indptr[row + 1]]
        for first, second in combinations(shares[items], 2):
            if_independent = first * second
            most, least = min(first, second), max(0.0, first + second - 1)
            variance[row] += max(most - if_independent, if_independent - least) ** 2
    return variance


def _estimate_all(design: SetDesign, fit: Fit, selection: Selection) -> Selection:
    """Return a selection of the same candidates, with another fit and new estimates of all.

    The estimate of a selected item is its coefficient of the fit. The estimate of every other
    candidate is the coefficient that it would have if it were added to the fit
    (`estimate_one_step`).
    """
    n_candidates = len(selection.estimate)
    estimate, std_error = np.empty((2, n_candidates))
    unselected = np.setdiff1d(np.arange(n_candidates), selection.selected)
    score, information = np.empty((2, len(unselected)))
    for start in range(0, len(unselected), _BLOCK):
        block = slice(start, start + _BLOCK)
        score[block], information[block] = fit.compute_scores(design.columns(unselected[block]))
    # A candidate whose information is a negligible part of the largest information is a combination
    # of selected columns. `estimate_one_step` gives such a candidate an infinite standard error.
    largest_information = float(np.max(information, initial=0.0))
    estimate[unselected], std_error[unselected] = estimate_one_step(
        score, information, fit, largest_information
    )
    estimate[selection.selected], std_error[selection.selected] = fit.compute_selected_estimates()
    return dataclasses.replace(selection, fit=fit, estimate=estimate, std_error=std_error)
