"""Fit the selected candidates by weighted least squares, and score all other candidates.

Theory of operation
-------------------
The row of bit i in cohort j is y = sum_s beta_s x_s + background + noise. The noise has three
sources, and each source has its own treatment:

- Coins: the variance v is known exactly (`Target.noise`).
- Collisions with strings that are too rare to select: their bits are spread over all rows, so they
  add one common variance tau^2 to every row. The fit estimates tau^2 from the residuals by the
  method of moments.
- Collisions with frequent strings that are not candidates: they lift few rows by a large amount. A
  collision only adds to a row. A one-sided redescending weight (Hampel's three-part psi without its
  flat part) therefore sets such rows aside. The correction kappa = E psi' / E w is applied to
  estimates and variances (Huber, Robust Statistics, 1981, equation 6.4 of chapter 3 for the
  one-step estimate).

The background of each collection is a free coefficient. Proportions sum to one, so the background
is the density times the share of the strings outside the fit, reduced by the rows that were set
aside.

A candidate outside the selection gets the coefficient that it would have if it were added to the
fit. With z_s its column minus the projection on the selected columns, the coefficient is beta_s =
z_s'W(y - fit) / z_s'W x_s, the form of the de-sparsified lasso [ZZ14, equation 5].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import linalg, sparse
from scipy.sparse.linalg import LinearOperator, cg

from rappor.counts.arrays import Floats, Integers
from rappor.estimator.debias import Target
from rappor.estimator.sparse_products import quadratic_forms, weighted_products

TAPER: Final = (3.5, 7.0)
"""Limits of the taper, in standard deviations above the fit: the weight of a row begins to fall at
the first limit and reaches 0 at the second. Noise alone exceeds the first limit in one row of
4,300. README.md, "Constants", measures other limits."""

_REWEIGHTINGS: Final = 3
"""Number of fits, each with the weights and the noise of the previous fit. With 2 or 20 the number
of detected strings changes by less than .3 %."""

_NEWTON_STEPS: Final = 3
"""Number of steps of Newton's method for tau^2. The method starts at the previous tau^2. Ten steps
change no estimate by more than 1e-11 of its standard error."""

RIDGE: Final = 1e-9
"""Ridge, relative to the diagonal of the normal equations. The ridge makes the equations solvable
when columns repeat. Its effect is small compared with any statistical error."""

_DEPENDENT: Final = 1e-6
"""Information of a column after projection, relative to its information before, below which the
column counts as a combination of other columns. The limit lies between rounding errors (about
1e-12) and one row of a thousand, which is information."""

_MOST_LEVERAGE: Final = 1 - 1e-6
"""Leverage above which the fit explains a row completely. The residual of such a row is only
rounding error, so the row contributes nothing to the estimate of the noise."""

_MOST_SEARCHED: Final = 0.5
"""Largest share of the residual degrees of freedom that the search may use. The formula of the
search assumes a sparse selection and is not valid beyond the limit."""

_LEAST_KAPPA: Final = 0.1
"""Lower bound on kappa, so that no estimate is multiplied by more than ten. Kappa reaches the bound
only if most rows are lifted."""

_MANY: Final = 400
"""Number of coefficients above which conjugate gradients solve the equations without an inverse. At
this number both methods take 10 ms."""

_ITERATIONS: Final = 100
"""Largest number of iterations of conjugate gradients. About 30 are usual if an eighth of the
entries of the design matrix is 1."""

_SETTLED: Final = 1e-10
"""Residual of the equations, relative to their right side, at which conjugate gradients stop."""

_ROUNDING: Final = 1e-13
"""Largest relative difference between weights that are equal except for rounding."""

_LEVERAGE_STEPS: Final = 12
"""Number of steps of Newton's method for the common factor of the leverages. Six to ten steps are
usual."""

_MAD: Final = 1.4826
"""Ratio of the standard deviation to the median absolute deviation of normal noise: 1 /
Phi^-1(3/4)."""

LEAST_NOISE: Final = 1e-18
"""Variance that replaces a variance of 0, so that no weight is infinite. A variance is 0 where p* =
0 and no device sends the bit. The number is the squared share of one report of 10^9."""

_TINY: Final = 1e-300
"""Number that replaces a divisor of 0. Newton's quotient stays finite where every row is set aside.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """A weighted least-squares fit of the background and the selected columns.

    Attributes
    ----------
    residual : (n,) float64. Proportions minus fitted values.
    fitted : (n,) float64.
    coin_variance : (n,) float64. Variance v of the coins at the fitted values.
    tau2 : variance of the collisions, common to all rows.
    taper_weight : (n,) float64 in [0, 1]. Factor of the taper on the weight of each row.
    weight : (n,) float64. robust / (noise + tau2).
    kappa : mean slope of the tapered residual relative to its mean weight. It is 1 if no row is
        tapered.
    basis : (n, g + s) sparse, by rows. One background column per collection, then the selected
        columns.
    equations : the normal equations of basis and weight.
    coefficients : (g + s,) float64. Background levels, then proportions of the selected candidates.
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
        """Inverse of basis' W basis, (g + s, g + s)."""
        return self.equations.inverse

    @property
    def degrees_of_freedom(self) -> float:
        """Number of rows with a positive weight, minus the number of coefficients, at least 1."""
        return max(float((self.weight > 0).sum() - len(self.coefficients)), 1.0)

    def scores(self, columns: sparse.csc_array) -> tuple[Floats, Floats]:
        """Compute score and information of candidates outside the selection.

        Parameters
        ----------
        columns : (n, c) sparse. Entries are 1, or -1 in the columns of falling shares.

        Returns
        -------
        score : (c,) float64. z_s' W residual.
        information : (c,) float64. z_s' W x_s. It is 0 for a combination of selected columns.
        """
        score = columns.T @ (self.weight * self.residual)
        cross = weighted_products(columns, self.weight, self.basis)
        unprojected_information = abs(columns).T @ self.weight
        information = unprojected_information - self.equations.compute_inverse_forms(cross)
        return score, np.where(information > _DEPENDENT * unprojected_information, information, 0.0)

    def compute_selected_estimates(self) -> tuple[Floats, Floats]:
        """Compute the estimates of the selected candidates and their standard errors, (s,) each.

        A candidate has the estimate 0 and an infinite standard error in two cases:

        - all its rows are set aside;
        - its column is a combination of other columns.
        """
        columns = slice(len(self.coefficients) - self.n_selected, None)
        information = (abs(self.basis).T @ self.weight)[columns]
        variance = self.inverse.diagonal()[columns]
        # The product of information and variance is 1 / (1 - R^2) of the regression of the column
        # on all other columns. It grows without bound when the column is a combination of others.
        is_identified = (information > 0) & (information * variance * _DEPENDENT < 1)
        error = np.sqrt(np.maximum(variance, 0.0)) / self.kappa
        return np.where(is_identified, self.coefficients[columns], 0.0), np.where(
            is_identified, error, np.inf
        )

    def compute_row_influence(self, columns: sparse.csc_array, basis_index: Integers) -> Floats:
        """Compute the derivative of each candidate's estimate by the proportion of each row.

        Parameters
        ----------
        columns : (n, c) sparse.
        basis_index : (c,) int64. Indices of the candidates' columns in the basis, -1 outside the
            selection.

        Returns
        -------
        (c, n) float64.
        """
        inside = basis_index >= 0
        influence = np.empty(columns.shape[::-1])
        influence[inside] = (self.basis @ self.inverse[:, basis_index[inside]]).T
        # The one-step estimate of a candidate outside the selection is linear in the proportions,
        # too.
        if not inside.all():
            outside = columns[:, ~inside]
            cross = weighted_products(outside, self.weight, self.basis) @ self.inverse
            projected = outside.toarray() - self.basis @ cross.T
            information = np.asarray(
                outside.multiply(self.weight[:, None] * projected).sum(axis=0)
            ).ravel()
            influence[~inside] = (projected / (np.maximum(information, _TINY) * self.kappa)).T
        influence *= self.weight
        return influence

    def covariance(self, columns: sparse.csc_array | None = None) -> Floats:
        """Compute the covariance of the coefficients of the selected candidates, (s, s).

        Parameters
        ----------
        columns : (n, s) sparse, without the backgrounds. If it is passed, the covariance of a fit
            of these columns with the same weights is computed instead.
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
    target : n rows.
    selected : (n, s) sparse columns.
    start : previous fit, from which noise, collisions and weights are taken. Without it they are
        computed from the proportions as if there were no selected columns.
    initial_coefficients : (g + s,) float64. Coefficients at which conjugate gradients start.
    allow_zero_weights : False uses Huber's weights, which stay positive. A string that is not
        selected yet then keeps its own rows.
    search_degrees : degrees of freedom that the search for the selection used in addition to the
        number of columns (Tibshirani, Statistica Sinica 2015, section 5).
    """
    basis = sparse.hstack([sparse.csc_array(background_columns(target)), selected], format="csr")
    noise = start.coin_variance if start else target.compute_noise_variance(target.density)
    tau2 = _estimate_initial_tau2(target, noise, start.residual if start else target.proportions)
    robust = start.taper_weight if start and allow_zero_weights else np.ones(len(target))
    slope = np.ones(len(target))
    psi = compute_redescending_weights if allow_zero_weights else compute_huber_weights
    equations = start.equations if start else None
    coefficients = (
        np.zeros(basis.shape[1]) if initial_coefficients is None else initial_coefficients
    )
    n_free = max(len(target) - len(coefficients), 2)
    search_factor = n_free / max(n_free - search_degrees, n_free * _MOST_SEARCHED)
    for _ in range(_REWEIGHTINGS):
        equations = NormalEquations(basis, robust / (noise + tau2)).reuse_if_equal(equations)
        coefficients = equations.solve(target.proportions, coefficients)
        fitted = basis @ coefficients
        residual = target.proportions - fitted
        noise = target.compute_noise_variance(fitted)
        robust, slope = psi(target.compute_excess(fitted, noise + tau2))
        # The fit follows the rows, so squared residuals are smaller than the noise. The leverage
        # corrects for the fitted coefficients, and the search factor for the choice of the columns.
        leverage = equations.compute_leverages(robust / (noise + tau2))
        tau2 = _estimate_tau2(
            robust**2 * residual**2 * search_factor, robust, noise, tau2, leverage
        )
    # The last fit uses the final weights. Coefficients and weights of the result belong together.
    weight = robust / (noise + tau2)
    equations = NormalEquations(basis, weight).reuse_if_equal(equations)
    coefficients = equations.solve(target.proportions, coefficients)
    fitted = basis @ coefficients
    return Fit(
        residual=target.proportions - fitted,
        fitted=fitted,
        coin_variance=noise,
        tau2=tau2,
        taper_weight=robust,
        weight=weight,
        kappa=max(float(np.sum(slope / (noise + tau2)) / np.sum(weight)), _LEAST_KAPPA),
        basis=basis,
        equations=equations,
        coefficients=coefficients,
        n_selected=selected.shape[1],
    )


def background_columns(target: Target) -> Floats:
    """Build one column of ones for each collection, (n, g)."""
    return np.asarray(
        target.collection_index[:, None] == np.arange(len(target.counts)), dtype=float
    )


class NormalEquations:
    """Normal equations of a basis, (n, p), and weights, (n,): basis' W basis beta = basis' W y.

    Candidates hash at random, so the equations are well conditioned. With many coefficients,
    conjugate gradients solve them faster than a Cholesky factor. The factor is computed when
    standard errors need it.
    """

    def __init__(
        self, basis: sparse.csr_array, weight: Floats, inverse: Floats | None = None
    ) -> None:
        """Store the equations, and their inverse if the caller has computed it."""
        self.basis, self.weight, self._inverse = basis, weight, inverse
        self._factor: tuple[Floats, Floats] | None = None

    @property
    def is_large(self) -> bool:
        """True if an inverse takes longer than a solution by iteration."""
        return self.basis.shape[1] > _MANY

    @property
    def inverse(self) -> Floats:
        """Inverse of basis' W basis, (p, p)."""
        if self._inverse is None:
            self._inverse = _invert_factor(*self.factor)
        return self._inverse

    @property
    def factor(self) -> tuple[Floats, Floats]:
        """Lower Cholesky factor of basis' W basis, scaled to ones, (p, p), and the scale, (p,)."""
        if self._factor is None:
            self._factor = _factorize(
                weighted_products(self.basis.tocsc(), self.weight, self.basis)
            )
        return self._factor

    def compute_inverse_forms(self, rows: Floats) -> Floats:
        """Compute x' (basis' W basis)^-1 x for each row x of (r, p). Returns (r,)."""
        if self._inverse is not None and self._factor is None:
            return np.asarray(np.einsum("ij,ij->i", rows @ self._inverse, rows))
        lower, scale = self.factor
        half = linalg.solve_triangular(
            lower, (rows * scale).T, lower=True, overwrite_b=True, check_finite=False
        )
        return np.asarray(np.einsum("ij,ij->j", half, half))

    def reuse_if_equal(self, previous: NormalEquations | None) -> NormalEquations:
        """Return the previous equations if they equal these equations.

        Their factor is then reused.
        """
        is_equal = (
            previous is not None
            and previous.basis.shape == self.basis.shape
            and np.array_equal(previous.basis.indices, self.basis.indices)
            and np.array_equal(previous.basis.indptr, self.basis.indptr)
            and np.array_equal(previous.basis.data, self.basis.data)
            and np.allclose(self.weight, previous.weight, rtol=_ROUNDING, atol=0)
        )
        return previous if previous is not None and is_equal else self

    def solve(self, proportions: Floats, near: Floats) -> Floats:
        """Solve the equations. Returns the coefficients, (p,).

        Parameters
        ----------
        proportions : (n,) float64. y.
        near : (p,) float64. Coefficients at which conjugate gradients start, from similar weights.
        """
        if self.is_large and self._factor is None:
            coefficients = self._iterate(proportions, near)
            if coefficients is not None:
                return coefficients
        # Conjugate gradients do not converge if columns nearly repeat. The factor, with its ridge,
        # does.
        lower, scale = self.factor
        right = scale * (self.basis.T @ (self.weight * proportions))
        return np.asarray(scale * linalg.cho_solve((lower, True), right, check_finite=False))

    def _iterate(self, proportions: Floats, near: Floats) -> Floats | None:
        """Solve the equations by conjugate gradients.

        Returns None if the iterations do not converge.
        """
        information = abs(self.basis).T @ self.weight
        scale, root = 1 / np.sqrt(np.where(information > 0, information, 1.0)), np.sqrt(self.weight)
        basis = self.basis
        values = basis.data * scale[basis.indices] * np.repeat(root, np.diff(basis.indptr))
        scaled_basis = sparse.csr_array((values, basis.indices, basis.indptr), shape=basis.shape)
        gram = LinearOperator(
            (len(scale), len(scale)),
            matvec=lambda beta: scaled_basis.T @ (scaled_basis @ beta) + RIDGE * beta,
            dtype=np.float64,
        )
        right_side = scaled_basis.T @ (root * (proportions - basis @ near)) - RIDGE * near / scale
        tolerance = _SETTLED * float(np.linalg.norm(scaled_basis.T @ (root * proportions)))
        correction, failure = cg(gram, right_side, rtol=0.0, atol=tolerance, maxiter=_ITERATIONS)
        return None if failure else near + correction * scale

    def compute_leverages(self, weight: Floats) -> Floats:
        """Compute the leverage of each row: the share of its variance that its own fit explains.

        The leverage is q / (1 + q), where q is the weighted variance of the row's value in a fit of
        all other rows. With many coefficients, the approximation is q = c sum w / information over
        the columns of the row, with one factor c for all rows. The factor is chosen so that the
        leverages sum to the number of coefficients. This is the leading term for random columns.

        Parameters
        ----------
        weight : (n,) float64.

        Returns
        -------
        (n,) float64 in [0, 1].
        """
        if not self.is_large:
            return np.asarray(np.minimum(weight * quadratic_forms(self.basis, self.inverse), 1.0))
        information = abs(self.basis).T @ weight
        unscaled = weight * (abs(self.basis) @ (1 / np.where(information > 0, information, np.inf)))
        factor, n_coefficients = 1.0, float((information > 0).sum())
        for _ in range(_LEVERAGE_STEPS):
            # The sum of the leverages is concave in the factor and lies below its tangent at 0.
            # Newton's method starts at a factor below the solution and cannot overshoot.
            denominator = 1 + factor * unscaled
            gap = n_coefficients - float((factor * unscaled / denominator).sum())
            factor += gap / float((unscaled / denominator**2).sum())
        return np.asarray(factor * unscaled / (1 + factor * unscaled))


def _factorize(gram: Floats) -> tuple[Floats, Floats]:
    """Compute the Cholesky factor of the normal equations, scaled to a unit diagonal plus a ridge.

    The argument is overwritten. A column without weight gets the scale 0, so its coefficient and
    its variance are 0.
    """
    diagonal = gram.diagonal()
    scale = np.where(diagonal > 0, 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0)), 0.0)
    gram *= scale
    gram *= scale[:, None]
    gram[np.diag_indices_from(gram)] = 1 + RIDGE
    return linalg.cholesky(gram.T, lower=True, overwrite_a=True, check_finite=False), scale


def _invert_factor(factor: Floats, scale: Floats) -> Floats:
    """Compute the inverse of the normal equations from their scaled Cholesky factor."""
    lower, _ = linalg.lapack.dpotri(factor, lower=True)
    inverse = np.tril(lower)
    inverse += np.tril(lower, -1).T
    inverse *= scale
    inverse *= scale[:, None]
    return np.asarray(inverse)


def compute_redescending_weights(excess: Floats) -> tuple[Floats, Floats]:
    """Compute weight and slope of the one-sided redescending psi at each standardised excess.

    A row far above the fit gets the weight 0.
    """
    low, high = TAPER
    falling = (excess > low) & (excess < high)
    weight = np.where(excess < high, 1.0, 0.0)
    slope = weight.copy()
    weight[falling] = low * (high - excess[falling]) / ((high - low) * excess[falling])
    slope[falling] = -low / (high - low)
    return weight, slope


def compute_huber_weights(excess: Floats) -> tuple[Floats, Floats]:
    """Compute weight and slope of Huber's psi at each standardised excess, one-sided.

    A row above the fit gets a smaller weight, but never 0.
    """
    low = TAPER[0]
    return np.minimum(1.0, low / np.maximum(excess, low)), (excess < low).astype(float)


def _estimate_initial_tau2(target: Target, noise: Floats, residual: Floats) -> float:
    """Estimate the variance of collisions from the median absolute deviation of the rows.

    Frequent strings that are not candidates lift few rows by a large amount. A variance that is
    computed from all squares includes them, and the fit would then accept these rows. The median
    ignores them, so the taper sets the rows aside.
    """
    variances = [0.0]
    for group in range(len(target.counts)):
        rows = (target.reports > 0) & (target.collection_index == group)
        # Rows with little noise show the collisions. In uneven cohorts these rows are few, so the
        # median is weighted by precision.
        precision = 1 / np.maximum(noise[rows], LEAST_NOISE) ** 2
        deviation = np.abs(residual[rows] - _weighted_median(residual[rows], precision))
        coin_variance = float(np.average(noise[rows], weights=precision))
        variances.append((_MAD * _weighted_median(deviation, precision)) ** 2 - coin_variance)
    return max(variances)


def _weighted_median(values: Floats, weights: Floats) -> float:
    """Compute the weighted median."""
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])


def _estimate_tau2(
    squares: Floats, robust: Floats, noise: Floats, tau2: float, leverage: Floats
) -> float:
    """Estimate the variance of collisions, tau2 >= 0, by Newton's method.

    The equation is sum squares / (v + tau2)^2 = sum robust free / (v + tau2), with free = 1 -
    leverage. The variance of the coins is known exactly. The estimate is 0 unless it exceeds its
    own standard error. A threshold of 0 would widen every interval of a collection without
    collisions.
    """
    # The fit explains a row with leverage 1 completely. Its residual of 0 is no evidence of low
    # noise.
    free = np.where(leverage < _MOST_LEVERAGE, 1 - leverage, 0.0)
    squares, robust = np.where(free > 0, squares, 0.0), robust * free
    # Every row is set aside or explained completely, so no row shows the variance of collisions.
    if not robust.any():
        return 0.0
    for _ in range(_NEWTON_STEPS):
        total = noise + tau2
        curvature = max(float(np.sum(robust / total**2)), _TINY)
        gap = np.sum(squares / total**2) - np.sum(robust / total)
        tau2 = max(0.0, tau2 + float(gap) / curvature)
    return tau2 if tau2 > math.sqrt(2 / curvature) else 0.0
