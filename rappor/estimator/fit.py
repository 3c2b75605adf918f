"""Weighted least-squares fit of the selected candidates, and scores of all other candidates.

`rappor.estimator.selection` calls `fit_rows` again and again while it changes the selection. The
input is the regression's rows (`debias.Target`) and the columns of the selected candidates. The
output is a `Fit`, from which the decoder takes estimates, standard errors and p-values. README.md
of this package has an example with two cohorts of four bits.

Theory of operation
-------------------
Each row is one bit of one cohort. Its de-biased proportion is

    y_r = sum over selected s of beta_s x_rs + b_g + noise_r

| symbol | meaning | shape and unit |
|---|---|---|
| r | a row: bit i of cohort j of collection g | n rows |
| y | de-biased proportions | (n,), shares |
| x_s | column of candidate s: 1 in the rows that s sets, else 0 (for sets a derivative) | (n,) |
| beta_s | share of candidate s | share of the reports |
| b_g | background of collection g | share |
| v | variance of the randomized responses, known exactly (`Target.compute_noise_variance`) | (n,) |
| tau^2 | variance of collisions, the same in every row | number |
| t | taper weights: below 1 in rows far above the fit | (n,), in [0, 1] |
| W | diagonal matrix of the weights w = t / (v + tau^2) | (n, n) |
| kappa | correction for the taper, 1 without tapered rows | number |

The noise has three sources, and each source has its own treatment:

- Coins: the randomized responses have the variance v.
- Collisions with strings that are too rare to select: their bits are spread over all rows, so they
  add one common variance tau^2 to every row. The fit estimates tau^2 from the residuals by the
  method of moments.
- Collisions with frequent strings that are not candidates: they lift few rows by a large amount,
  and never lower a row. The taper therefore reduces the weight of rows far above the fit. It is a
  one-sided redescending psi function, Hampel's three-part psi without its flat part. A row beyond
  the second limit of `TAPER` is *set aside*: its weight is 0.

The background b_g is a free coefficient of each collection. Proportions sum to one, so b_g is the
density (the share of the rows that a random string sets) times the share of the strings outside
the fit, reduced by the rows that were set aside. Without this column, the mass of all other strings
would lie on the candidates, and 95 % intervals would cover .32 to .46.

A candidate outside the selection gets the coefficient that it would have if it were added to the
fit. With z_s = x_s minus its projection on the background and the selected columns, and e = y minus
the fitted values,

    score_s       = z_s' W e
    information_s = z_s' W x_s
    beta_s        = score_s / information_s / kappa
    standard error = 1 / sqrt(information_s) / kappa

This is the one-step estimate of the de-sparsified lasso ([ZZ14] Zhang and Zhang, JRSS-B 76, 2014,
equation 5). Its estimates and errors do not depend on the selection. Dividing by kappa is
the one-step correction of an M-estimator: the tapered residual of a row, psi(u) = u w(u), changes
with slope psi' and not with slope w (Huber, Robust Statistics, 1981, equation 6.4 of chapter 3).
kappa is the mean of psi' divided by the mean of w.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import sparse

from rappor.counts.arrays import Floats, Integers
from rappor.estimator.debias import Target
from rappor.estimator.normal_equations import NormalEquations
from rappor.estimator.sparse_products import weighted_products

TAPER: Final = (3.5, 7.0)
"""Limits of the taper, in standard deviations above the fit: the weight of a row begins to fall at
the first limit and reaches 0 at the second. Noise alone exceeds the first limit in one row of
4,300. rappor/decoding/VALIDATION.md, "Constants", measures other limits: without a taper, 9 % fewer
strings are detected."""

_REWEIGHTINGS: Final = 3
"""Number of fits, each with the weights and the noise of the previous fit. With 2 or 20 the number
of detected strings changes by less than .3 % (measured)."""

_NEWTON_STEPS: Final = 3
"""Number of steps of Newton's method for tau^2. The method starts at the previous tau^2. Ten steps
change no estimate by more than 1e-11 of its standard error (measured)."""

_LEAST_INFORMATION: Final = 1e-6
"""Share of the information of a column that must remain after projection on the other columns. A
column with less counts as a combination of the other columns, and has no estimate. The limit lies
between rounding errors (about 1e-12) and one row of a thousand, which is information."""

_MOST_LEVERAGE: Final = 1 - 1e-6
"""Leverage above which the fit explains a row completely. The residual of such a row is only
rounding error, so the row contributes nothing to the estimate of tau^2."""

_MOST_SEARCH_SHARE: Final = 0.5
"""Largest share of the residual degrees of freedom that the search for the selection may use. The
formula of the search assumes a sparse selection and is not valid beyond the limit."""

_LEAST_KAPPA: Final = 0.1
"""Lower bound on kappa, so that no estimate is multiplied by more than ten. Kappa reaches the bound
only if frequent strings that are not candidates lift most rows."""

_DEVIATION_PER_MAD: Final = 1.4826
"""Ratio of the standard deviation to the median absolute deviation of normal noise: 1 divided by
the 3/4 quantile of the standard normal distribution. The ratio turns the median absolute deviation
of the residuals into a standard deviation that a few outliers hardly change."""

LEAST_NOISE: Final = 1e-18
"""Variance of a row that replaces a variance of 0, so that no weight is infinite. A variance is 0
where p* = 0 and no device sends the bit. The number is the squared share of one report of 10^9, so
it is smaller than the variance of any row with noise."""

_TINY: Final = 1e-300
"""Number that replaces a divisor of 0. Newton's quotient stays finite where every row is set aside.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """A weighted least-squares fit of the background and the selected columns.

    There are n rows, g collections and s selected candidates.

    Attributes
    ----------
    residual : (n,) float64. Proportions minus fitted values, as shares.
    fitted : (n,) float64. Background plus the shares of the selected candidates in each row.
    coin_variance : (n,) float64. v at the fitted values: variance of the randomized responses.
        Infinite in cohorts without reports.
    tau2 : tau^2, variance of the collisions, common to all rows.
    taper_weight : (n,) float64 in [0, 1]. t: below 1 in rows far above the fit.
    weight : (n,) float64. w = t / (v + tau^2).
    kappa : mean slope of the tapered residual, divided by the mean weight. It is 1 if no row is
        tapered.
    basis : (n, g + s) sparse, by rows. One background column per collection, then the selected
        columns.
    equations : the normal equations of `basis` and `weight`.
    coefficients : (g + s,) float64. Background levels, then shares of the selected candidates.
    n_selected : s.
    """

    residual: Floats
    fitted: Floats
    coin_variance: Floats
    tau2: float
    taper_weight: Floats
    weight: Floats
    kappa: float
    basis: sparse.csr_array
    equations: NormalEquations
    coefficients: Floats
    n_selected: int

    @property
    def inverse(self) -> Floats:
        """(g + s, g + s) float64. Inverse of basis' W basis."""
        return self.equations.inverse

    @property
    def degrees_of_freedom(self) -> float:
        """Number of rows with a positive weight, minus the number of coefficients, at least 1."""
        return max(float((self.weight > 0).sum() - len(self.coefficients)), 1.0)

    def scores(self, columns: sparse.csc_array) -> tuple[Floats, Floats]:
        """Compute score and information of candidates outside the selection.

        Parameters
        ----------
        columns : (n, c) sparse. Entries are 1, for sets the derivatives of the rows. In a
            comparison of samples, a candidate has a second column with entries -1, which stands for
            a share that falls.

        Returns
        -------
        score : (c,) float64. z_s' W residual.
        information : (c,) float64. z_s' W x_s. It is 0 for a combination of selected columns.
        """
        # The residual is orthogonal to the selected columns, so x_s and z_s have the same score.
        score = columns.T @ (self.weight * self.residual)
        cross = weighted_products(columns, self.weight, self.basis)
        unprojected_information = columns.power(2).T @ self.weight
        information = unprojected_information - self.equations.compute_inverse_forms(cross)
        is_identified = information > _LEAST_INFORMATION * unprojected_information
        return score, np.where(is_identified, information, 0.0)

    def compute_selected_estimates(self) -> tuple[Floats, Floats]:
        """Compute the estimates of the selected candidates and their standard errors.

        A candidate has the estimate 0 and an infinite standard error in two cases:

        - all its rows are set aside, or belong to cohorts without reports;
        - its column is a combination of other columns.

        Returns
        -------
        estimate, std_error : (s,) float64 each, as shares.
        """
        columns = slice(len(self.coefficients) - self.n_selected, None)
        information = (self.basis.power(2).T @ self.weight)[columns]
        variance = self.inverse.diagonal()[columns]
        # The product of information and variance is 1 / (1 - R^2) of the regression of the column
        # on all other columns. It grows without bound when the column is a combination of others.
        is_identified = (information > 0) & (information * variance * _LEAST_INFORMATION < 1)
        error = np.sqrt(np.maximum(variance, 0.0)) / self.kappa
        return np.where(is_identified, self.coefficients[columns], 0.0), np.where(
            is_identified, error, np.inf
        )

    def compute_row_influence(self, columns: sparse.csc_array, basis_index: Integers) -> Floats:
        """Compute the derivative of each candidate's estimate by the proportion of each row.

        Weights are held fixed, so estimates are linear in the proportions. For a selected candidate
        the derivatives are a row of (basis' W basis)^-1 basis' W. For another candidate they are
        W z_s / (z_s' W x_s) / kappa.

        Parameters
        ----------
        columns : (n, c) sparse. Columns of the candidates.
        basis_index : (c,) int64. Index of each candidate's column in `basis`, -1 for candidates
            outside the selection.

        Returns
        -------
        (c, n) float64, in shares per unit of a proportion.
        """
        is_selected = basis_index >= 0
        influence = np.empty(columns.shape[::-1])
        influence[is_selected] = (self.basis @ self.inverse[:, basis_index[is_selected]]).T
        # This branch computes z_s as a dense column, which costs memory.
        if not is_selected.all():
            outside = columns[:, ~is_selected]
            cross = weighted_products(outside, self.weight, self.basis) @ self.inverse
            projected = outside.toarray() - self.basis @ cross.T
            information = np.asarray(
                outside.multiply(self.weight[:, None] * projected).sum(axis=0)
            ).ravel()
            influence[~is_selected] = (projected / (np.maximum(information, _TINY) * self.kappa)).T
        influence *= self.weight
        return influence

    def covariance(self, columns: sparse.csc_array | None = None) -> Floats:
        """Compute the covariance of the coefficients of the selected candidates.

        Parameters
        ----------
        columns : (n, s) sparse, without the backgrounds. If it is passed, the covariance of a fit
            of these columns with the same weights is computed instead.

        Returns
        -------
        (s, s) float64. The (basis' W basis)^-1 of the candidates, divided by kappa^2.
        """
        n_backgrounds = len(self.coefficients) - self.n_selected
        inverse = self.inverse
        if columns is not None:
            basis = sparse.hstack([self.basis[:, :n_backgrounds], columns], format="csr")
            inverse = NormalEquations(basis, self.weight).inverse
        return np.asarray(inverse[n_backgrounds:, n_backgrounds:] / self.kappa**2)


def fit_rows(
    target: Target,
    selected: sparse.csc_array,
    *,
    start: Fit | None = None,
    initial_coefficients: Floats | None = None,
    allow_zero_weights: bool = True,
    search_degrees: float = 0.0,
) -> Fit:
    """Fit the background and the selected columns by iterated weighted least squares.

    Parameters
    ----------
    target : n rows of g collections.
    selected : (n, s) sparse. Columns of the selected candidates.
    start : previous fit, from which noise, collisions and taper weights are taken. Without it they
        are computed from the proportions as if there were no selected columns.
    initial_coefficients : (g + s,) float64. Coefficients at which conjugate gradients start. They
        change the time, not the result.
    allow_zero_weights : True tapers rows by the redescending psi, which sets rows aside. False uses
        Huber's psi, whose weights stay positive. A string that is not selected yet then keeps its
        own rows, although it lifts them far above the fit.
    search_degrees : degrees of freedom that the search for the selection used in addition to the
        number of columns (Tibshirani, Statistica Sinica 2015, section 5).
    """
    basis = sparse.hstack([sparse.csc_array(background_columns(target)), selected], format="csr")
    # Without a previous fit, v is evaluated at the background of a collection without candidates.
    coin_variance = start.coin_variance if start else target.compute_noise_variance(target.density)
    tau2 = _estimate_initial_tau2(
        target, coin_variance, start.residual if start else target.proportions
    )
    taper_weight = start.taper_weight if start and allow_zero_weights else np.ones(len(target))
    psi_slope = np.ones(len(target))
    compute_psi = compute_redescending_weights if allow_zero_weights else compute_huber_weights
    equations = start.equations if start else None
    coefficients = np.zeros(basis.shape[1])
    if initial_coefficients is not None:
        coefficients = initial_coefficients
    # The search for the selection chose columns that follow the noise. The residuals are too small
    # by the degrees of freedom of the search, as they are by those of the coefficients.
    n_free = max(len(target) - len(coefficients), 2)
    n_free_after_search = max(n_free - search_degrees, n_free * _MOST_SEARCH_SHARE)
    for _ in range(_REWEIGHTINGS):
        equations = NormalEquations(basis, taper_weight / (coin_variance + tau2)).reuse_if_equal(
            equations
        )
        coefficients = equations.solve(target.proportions - target.offset, coefficients)
        fitted = basis @ coefficients + target.offset
        residual = target.proportions - fitted
        coin_variance = target.compute_noise_variance(fitted)
        taper_weight, psi_slope = compute_psi(target.compute_excess(fitted, coin_variance + tau2))
        # The fit follows the rows, so squared residuals are smaller than the noise. The leverage
        # corrects for the fitted coefficients, and the ratio of the degrees of freedom for the
        # choice of the columns.
        leverage = equations.compute_leverages(taper_weight / (coin_variance + tau2))
        squares = taper_weight**2 * residual**2 * (n_free / n_free_after_search)
        tau2 = _estimate_tau2(squares, taper_weight, coin_variance, tau2, leverage)
    # The last fit uses the final weights. Coefficients and weights of the result belong together.
    weight = taper_weight / (coin_variance + tau2)
    equations = NormalEquations(basis, weight).reuse_if_equal(equations)
    coefficients = equations.solve(target.proportions - target.offset, coefficients)
    fitted = basis @ coefficients + target.offset
    kappa = float(np.sum(psi_slope / (coin_variance + tau2)) / np.sum(weight))
    return Fit(
        residual=target.proportions - fitted,
        fitted=fitted,
        coin_variance=coin_variance,
        tau2=tau2,
        taper_weight=taper_weight,
        weight=weight,
        kappa=max(kappa, _LEAST_KAPPA),
        basis=basis,
        equations=equations,
        coefficients=coefficients,
        n_selected=selected.shape[1],
    )


def background_columns(target: Target) -> Floats:
    """Build the background columns: 1 in the rows of the column's collection, otherwise 0.

    Returns
    -------
    (n, g) float64.
    """
    collections = np.arange(len(target.counts))
    return np.asarray(target.collection_index[:, None] == collections, dtype=float)


def compute_redescending_weights(excess: Floats) -> tuple[Floats, Floats]:
    """Compute weights and slopes of the one-sided redescending psi.

    With u the excess of a row, and a and b the limits of `TAPER`,

        psi(u) = u                    for u <= a
        psi(u) = a (b - u) / (b - a)  for a < u < b
        psi(u) = 0                    for u >= b: the row is set aside

    Parameters
    ----------
    excess : (n,) float64. Distance of each row above the fit, in standard deviations.

    Returns
    -------
    weight, slope : (n,) float64 each. psi(u) / u and psi'(u).
    """
    first_limit, last_limit = TAPER
    is_falling = (excess > first_limit) & (excess < last_limit)
    weight = np.where(excess < last_limit, 1.0, 0.0)
    slope = weight.copy()
    falling_excess = excess[is_falling]
    weight[is_falling] = (
        first_limit * (last_limit - falling_excess) / ((last_limit - first_limit) * falling_excess)
    )
    slope[is_falling] = -first_limit / (last_limit - first_limit)
    return weight, slope


def compute_huber_weights(excess: Floats) -> tuple[Floats, Floats]:
    """Compute weights and slopes of Huber's psi, one-sided: psi(u) = min(u, a), a = `TAPER[0]`.

    A row above the fit gets a smaller weight, but never 0.

    Parameters
    ----------
    excess : (n,) float64. Distance of each row above the fit, in standard deviations.

    Returns
    -------
    weight, slope : (n,) float64 each. psi(u) / u and psi'(u).
    """
    limit = TAPER[0]
    return np.minimum(1.0, limit / np.maximum(excess, limit)), (excess < limit).astype(float)


def _estimate_initial_tau2(target: Target, coin_variance: Floats, residual: Floats) -> float:
    """Estimate tau^2 from the median absolute deviation of the rows.

    Frequent strings that are not candidates lift few rows by a large amount. A variance that is
    computed from all squares includes them: tau^2 would be so large that the fit accepts these
    rows. The median ignores them, so the taper sets the rows aside. The result is the largest
    estimate of all collections, at least 0.

    Assumption: for most rows, the residual is normal with variance v + tau^2.

    Parameters
    ----------
    target : n rows.
    coin_variance : (n,) float64. v.
    residual : (n,) float64. Proportions minus fitted values.
    """
    tau2_by_collection = [0.0]
    for collection in range(len(target.counts)):
        rows = (target.reports > 0) & (target.collection_index == collection)
        # Rows with little noise show the collisions. In uneven cohorts these rows are few, so the
        # median is weighted by squared precision.
        precision = 1 / np.maximum(coin_variance[rows], LEAST_NOISE) ** 2
        deviation = np.abs(residual[rows] - _compute_weighted_median(residual[rows], precision))
        mean_coin_variance = float(np.average(coin_variance[rows], weights=precision))
        spread = _DEVIATION_PER_MAD * _compute_weighted_median(deviation, precision)
        tau2_by_collection.append(spread**2 - mean_coin_variance)
    return max(tau2_by_collection)


def _compute_weighted_median(values: Floats, weights: Floats) -> float:
    """Compute the smallest value at which the sum of the weights reaches half of all weights."""
    order = np.argsort(values, kind="stable")
    cumulative_weight = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(cumulative_weight, cumulative_weight[-1] / 2)])


def _estimate_tau2(
    squares: Floats, taper_weight: Floats, coin_variance: Floats, tau2: float, leverage: Floats
) -> float:
    """Estimate tau^2 >= 0, the variance of collisions, by the method of moments.

    A residual e_r has the variance (1 - l_r) (v_r + tau^2), l_r being the leverage of the row.
    Newton's method solves

        sum_r (t_r e_r)^2 / (v_r + tau^2)^2 = sum_r t_r (1 - l_r) / (v_r + tau^2)

    The coin variance v is known exactly. The estimate counts as 0 unless it exceeds its own
    standard error, sqrt(2 / sum_r t_r (1 - l_r) / (v_r + tau^2)^2) for normal residuals. Without
    this threshold, noise would make tau^2 positive in half of the collections without collisions,
    and widen every interval.

    Parameters
    ----------
    squares : (n,) float64. Squared tapered residuals, (t_r e_r)^2, increased by the search factor.
    taper_weight, coin_variance, leverage : (n,) float64. t, v and l.
    tau2 : tau^2 at which Newton's method starts.
    """
    # The fit explains a row with leverage 1 completely. Its residual of 0 is no evidence of low
    # noise.
    unexplained = np.where(leverage < _MOST_LEVERAGE, 1 - leverage, 0.0)
    squares = np.where(unexplained > 0, squares, 0.0)
    row_share = taper_weight * unexplained
    # Every row is set aside or explained completely, so no row shows the variance of collisions.
    if not row_share.any():
        return 0.0
    for _ in range(_NEWTON_STEPS):
        variance = coin_variance + tau2
        curvature = max(float(np.sum(row_share / variance**2)), _TINY)
        excess = float(np.sum(squares / variance**2) - np.sum(row_share / variance))
        tau2 = max(0.0, tau2 + excess / curvature)
    return tau2 if tau2 > math.sqrt(2 / curvature) else 0.0
