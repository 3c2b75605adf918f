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
| x_s | column of candidate s: 1 in the rows that s sets, else 0 (for sets: `set_refit`) | (n,) |
| beta_s | share of candidate s | share of the reports |
| b_g | background of collection g | share |
| v | variance of the randomized responses, known exactly (`Target.compute_noise_variance`) | (n,) |
| tau^2 | variance of collisions, the same in every row | number |
| t | taper weights: below 1 in rows far above the fit | (n,), in [0, 1] |
| W | diagonal matrix of the weights w = t / (v + tau^2) | (n, n) |
| kappa | correction for the taper, 1 without tapered rows | number |
| rho | correction for the search of the selection, 1 if every selection was certain | number |

The noise has three sources, and each source has its own treatment. Two strings *collide* in a row
that both set.

- Coins: the randomized responses have the variance v.
- Collisions with strings that are too rare to select: their bits are spread over all rows, so they
  add one common variance tau^2 to every row. The fit estimates tau^2 from the residuals by the
  method of moments.
- Collisions with frequent strings that are not candidates: they lift few rows by a large amount,
  and never lower a row. The taper therefore reduces the weight of rows far above the fit. It is a
  one-sided redescending psi function, Hampel's three-part psi without its flat part. A row beyond
  the second limit of `TAPER` is *set aside*: its weight is 0.

The background b_g is a free coefficient of each collection. A device whose string is outside the
fit sets a row with the probability d, the density (`Target.density`). So the strings outside the
fit add d (1 - sum of beta_s) to the expected proportion of every row. b_g estimates this product,
without the strings whose rows were set aside. For example, with 128 bits, one hash function and
selected shares of .6 together, b_g is .4 / 128 = .0031. Without this column, the mass of all other
strings would lie on the candidates, and only 32 to 46 % of the 95 % intervals would contain the
true share.

A candidate outside the selection gets the coefficient that it would have if it were added to the
fit. Let B be the matrix of the background and the selected columns, z_s = x_s - B (B' W B)^-1 B' W
x_s the part of x_s that B does not explain, and e = y minus the fitted values. Then

    score_s       = z_s' W e
    information_s = z_s' W x_s
    beta_s        = score_s / information_s / kappa / rho
    standard error = 1 / sqrt(information_s) / kappa / sqrt(rho)

*Derivation without tapered rows and without a search (t = 1, kappa = rho = 1).* z_s is orthogonal
to B, so B contributes nothing to z_s' W y = z_s' W e. A share beta_s adds beta_s x_s to y, and
therefore beta_s z_s' W x_s to the score: the ratio of score and information estimates beta_s. The
noise has the covariance W^-1, so the score has the variance z_s' W W^-1 W z_s = z_s' W x_s, and the
ratio has the variance 1 / information.

*With tapered rows.* Write u for a residual in standard deviations. The score contains the tapered
residual psi(u) = u t(u). A share beta_s lifts the residuals of its rows, and psi(u) changes with
slope psi'(u), not with slope t(u). So the score grows by about kappa beta_s information_s, with
kappa the mean of psi' divided by the mean of t, both weighted by 1 / (v + tau^2) (Huber, Robust
Statistics, 1981, equation 6.4 of chapter 3). Dividing by kappa corrects for the difference.

*With a search.* A selected candidate is selected because its score is high. Let candidate s have a
share of beta_s but stay outside the selection. Its share lifts the score of every candidate t that
shares rows with it. Some of these candidates pass the threshold only because of that, and then
their columns explain a part of the share of s. So the score of s grows by less than beta_s
information_s, and beta_s would be too small. Scale all columns to unit information, and let c_st be
the product of two columns. The fit of t has the coefficient z_t if its score z_t exceeds the
threshold, and otherwise 0. A share of s raises z_t by c_st beta_s, and the mean coefficient of t by
c_st beta_s times the derivative of this mean. The columns of the selected candidates are projected
out, so only the jump at the threshold remains. Summed over all t, the jumps are the degrees of
freedom of the search (`selection._compute_search_degrees`, with the derivation). Columns of random
hashes have the mean square product c_st^2 = 1 / (number of residual degrees of freedom). Hence the
score grows by rho beta_s information_s, with

    rho = 1 - degrees of freedom of the search / residual degrees of freedom before the search

Dividing by rho corrects for this. The coefficients that jump also add noise. Without signals, the
mean square of a coefficient is equal to the mean derivative, so the score has the variance rho
information_s. Divided by rho^2 information_s^2, this is the variance 1 / (rho information_s).
Bellec and Zhang (Bernoulli 28, 2022) derive the factor for the lasso, whose coefficients do not
jump: there, rho is 1 less the number of selected columns per row, which the projection above
already contains. Bad case: 2,000 equal strings and 500 absent candidates, of which 385 were
selected. The estimates of all others were 5.5 % too small. rho is .95 there, and above .99 in most
collections.

This is the one-step estimate of the de-sparsified lasso ([ZZ14] Zhang and Zhang, JRSS-B 76, 2014,
equation 5). Its confidence intervals are valid although the same counts determined the selection.
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
from rappor.estimator.sparse_products import compute_weighted_products

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
column with less counts as a combination of the other columns, and has no estimate. An exact
combination leaves rounding errors of about 1e-12. A column that differs from a combination in one
of a thousand rows leaves about 1e-3, and must keep its estimate."""

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
"""Variance of a row that replaces a smaller variance, so that no weight is infinite. A row of
`Target` has at least the variance that a single report causes, 1 / N^2 for N reports of its cohort,
and the number is this variance for N = 10^9. The rows of a comparison of samples may have a smaller
variance."""

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
    search_factor : rho, which corrects the estimates of candidates outside the selection for the
        search of the selection. It is 1 if `fit_rows` was called without `search_degrees`.
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
    search_factor: float = 1.0

    @property
    def inverse(self) -> Floats:
        """(g + s, g + s) float64. Inverse of basis' W basis."""
        return self.equations.inverse

    @property
    def degrees_of_freedom(self) -> float:
        """Number of rows with a positive weight, minus the number of coefficients, at least 1."""
        return max(float((self.weight > 0).sum() - len(self.coefficients)), 1.0)

    def compute_scores(self, columns: sparse.csc_array) -> tuple[Floats, Floats]:
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
        # z' W x = x' W x - x' W B (B' W B)^-1 B' W x, with B the basis and `cross` = x' W B.
        cross = compute_weighted_products(columns, self.weight, self.basis)
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
        # Let R^2 be the part of the column that all other columns explain. The information that
        # remains is 1 / variance = information (1 - R^2). So the condition on the product below is
        # 1 - R^2 > `_LEAST_INFORMATION`.
        is_identified = (information > 0) & (information * variance * _LEAST_INFORMATION < 1)
        # Only the error is divided by kappa. A one-step estimate needs the factor because it moves
        # once from 0. `fit_rows` reweights the coefficient several times, so it nearly solves the
        # equation of the tapered residuals.
        error = np.sqrt(np.maximum(variance, 0.0)) / self.kappa
        return np.where(is_identified, self.coefficients[columns], 0.0), np.where(
            is_identified, error, np.inf
        )

    def compute_row_influence(self, columns: sparse.csc_array, basis_index: Integers) -> Floats:
        """Compute the derivative of each candidate's estimate by the proportion of each row.

        The weights and the selection are held fixed, so estimates are linear in the proportions.
        For a selected candidate the derivatives are a row of (basis' W basis)^-1 basis' W. For
        another candidate they are W z_s / (z_s' W x_s) / kappa / rho.

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
        # z_s has an entry in every row, so this branch fills (n, c) dense numbers.
        if not is_selected.all():
            outside = columns[:, ~is_selected]
            cross = compute_weighted_products(outside, self.weight, self.basis) @ self.inverse
            projected = outside.toarray() - self.basis @ cross.T
            information = np.asarray(
                outside.multiply(self.weight[:, None] * projected).sum(axis=0)
            ).ravel()
            scale = np.maximum(information, _TINY) * self.kappa * self.search_factor
            influence[~is_selected] = (projected / scale).T
        influence *= self.weight
        return influence

    def compute_covariance(self, columns: sparse.csc_array | None = None) -> Floats:
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
    basis = sparse.hstack(
        [sparse.csc_array(build_background_columns(target)), selected], format="csr"
    )
    # Without a previous fit, v is evaluated as if all strings were outside the fit: every row then
    # has the proportion d, the density.
    coin_variance = start.coin_variance if start else target.compute_noise_variance(target.density)
    tau2 = _estimate_initial_tau2(
        target, coin_variance, start.residual if start else target.proportions
    )
    # Huber's psi starts with equal weights. The zero weights of a previous fit would hide the rows
    # of a string that is not selected yet from the first reweighting.
    taper_weight = start.taper_weight if start and allow_zero_weights else np.ones(len(target))
    psi_slope = np.ones(len(target))
    compute_psi = compute_redescending_weights if allow_zero_weights else compute_huber_weights
    equations = start.equations if start else None
    coefficients = np.zeros(basis.shape[1])
    if initial_coefficients is not None:
        coefficients = initial_coefficients
    # The search for the selection chose columns that follow the noise. The sum of the squared
    # residuals is therefore too small by the factor `n_free_after_search / n_free`. With as many
    # columns as rows no degree of freedom remains. The lower bound of 2 keeps the ratio defined.
    n_free = max(len(target) - len(coefficients), 2)
    n_free_after_search = max(n_free - search_degrees, n_free * _MOST_SEARCH_SHARE)
    for _ in range(_REWEIGHTINGS):
        equations = NormalEquations(basis, taper_weight / (coin_variance + tau2)).reuse_if_equal(
            equations
        )
        # The offset is 0 except in the refit of sets, whose model is not linear in the shares.
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
        search_factor=n_free_after_search / n_free,
    )


def build_background_columns(target: Target) -> Floats:
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
    rows. The median ignores them, so the taper sets the rows aside.

    Assumption: for most rows, the residual is normal with variance v + tau^2. So the square of the
    spread, less v, estimates tau^2. The result is the largest estimate of all collections, at least
    0, because a larger tau^2 sets fewer honest rows aside. `_estimate_tau2` replaces it after the
    first fit.

    Parameters
    ----------
    target : n rows.
    coin_variance : (n,) float64. v.
    residual : (n,) float64. Proportions minus fitted values.
    """
    tau2_by_collection = [0.0]
    for collection in range(len(target.counts)):
        rows = (target.reports > 0) & (target.collection_index == collection)
        # Rows with much noise say little about tau^2: a squared residual with the mean v varies
        # with the variance 2 v^2, so its information is proportional to 1 / v^2. Cohorts of unequal
        # size have rows with unequal v. If most cohorts are small, the unweighted median would be a
        # median of their noise.
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

    A residual e_r has the variance (1 - l_r) (v_r + tau^2), l_r being the leverage of the row: the
    part of the row's noise that the fit follows. Dividing squares and variances by (v_r + tau^2)^2
    and summing gives the equation

        sum_r (t_r e_r)^2 / (v_r + tau^2)^2 = sum_r t_r (1 - l_r) / (v_r + tau^2)

    The factor t_r is 1 in rows that are not tapered, and removes rows that are set aside from both
    sides. The coin variance v is known exactly.

    Let S = sum_r t_r (1 - l_r) / (v_r + tau^2)^2. At the solution, the left side has the slope -2 S
    on average and the right side the slope -S. So their difference has the slope -S, and a step of
    Newton's method adds the difference divided by S.

    The estimate counts as 0 unless it exceeds its own standard error, sqrt(2 / S): for normal
    residuals the left side has a variance of about 2 S, and the step divides it by S. Without this
    threshold, noise would make tau^2 positive in half of the collections without collisions, and
    widen every interval.

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
        curvature = max(float(np.sum(row_share / variance**2)), _TINY)  # S
        excess = float(np.sum(squares / variance**2) - np.sum(row_share / variance))
        tau2 = max(0.0, tau2 + excess / curvature)
    return tau2 if tau2 > math.sqrt(2 / curvature) else 0.0
