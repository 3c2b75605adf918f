"""Fit all candidates at once, with shares from one distribution, for lists near capacity.

`rappor.estimator.near_capacity` decides when this fit is used.

Theory of operation
-------------------
The method is for lists with nearly as many candidates as rows, or more. A least-squares fit of all
candidates then has errors without bound. A selection would contain the candidates that noise and
collisions happened to lift. This module selects nothing. The shares are random effects with one
variance s2:

    y = background + X beta + noise,    beta ~ (0, s2),    noise ~ (0, v + tau2)
    Sigma = s2 X X' + diag(v + tau2)

| symbol | meaning | shape |
|---|---|---|
| y | de-biased proportions | (n,), shares |
| X | columns x_j of the candidates: 1 in the rows that candidate j sets | (n, c) |
| beta | shares of the candidates | (c,) |
| s2 | variance of the shares, the same for all candidates that are not strong | number |
| v | variance of the randomized responses | (n,) |
| tau2 | variance of collisions with strings that are no candidates | number |
| Sigma | covariance of the rows | (n, n) |
| P | inverse of Sigma after projecting out the fixed columns, such as the background | (n, n) |
| b_j | x_j' P x_j, the information about candidate j if all other candidates are random | number |

The entry of X X' at two rows is the number of candidates that set both rows.

s2 and tau2 maximise the restricted likelihood (Patterson and Thompson, Biometrika 1971), by
Fisher's scoring. For a candidate that is tested alone, with all other candidates random,
generalised least squares gives

    beta_j = x_j' P y / b_j,    variance 1 / b_j - s2

The estimate is unbiased for every share of the candidate (Robinson, Statistical Science 1991). The
errors of two candidates i and j have the covariance x_i' P x_j (1 / b_i b_j - s2 / b_i - s2 / b_j).

One variance fits shares of similar size. Candidates that exceed `STRONG` standard errors are
therefore fixed effects: each has its own column, like the background. s2 is the variance of the
remaining shares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import sparse

from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.estimator.debias import Target
from rappor.estimator.fit import LEAST_NOISE, Fit, background_columns
from rappor.estimator.normal_equations import RIDGE, NormalEquations

STRONG: Final = 16.0
"""Standard errors above which a candidate is a fixed effect. With 8 the search fits collisions: of
50 strong and 300 weak strings on 512 rows 68 % of the intervals contain the true share, with 12 and
16 96 %. With 12 the intervals of 300 Zipf strings contain the true share in 94 % instead of 95 %,
and a tenth more strings are detected."""

_ROUNDS: Final = 4
"""Largest number of fits. After each fit, strong candidates become fixed effects. More fits cost
time."""

_MOST_STRONG: Final = 0.5
"""Largest number of strong candidates, as a share of the rows. With more, too few rows would remain
for the estimates of s2 and tau2."""

_STEPS: Final = 12
"""Largest number of steps of Fisher's scoring. Four to eight steps are usual."""

_SETTLED: Final = 1e-3
"""Relative change of both variances below which Fisher's scoring has converged. It changes standard
errors by less than a thousandth."""

_ROUNDING: Final = 1e-13
"""Ridge of Sigma, relative to its diagonal. It is smaller than `RIDGE`, because the noise of a row
may be a billionth of the variance of collisions."""

_KNOWN: Final = 1e-6
"""Share of the information of a candidate that must remain after projection. A candidate with less
has no estimate."""

_SET_ASIDE: Final = 1e-3
"""Lower bound on the taper weight of a row, so that Sigma is finite. A row that is set aside has a
thousand times its noise."""

_UNKNOWN: Final = 1e6
"""Variance of the rows of empty cohorts. Shares are at most 1, so such rows have no influence."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShrunkenFit(Fit):
    """A fit in which candidates are random effects, and strong candidates are fixed effects.

    `residual` is what remains after the background, the strong candidates and the predicted shares
    of all other candidates. The columns of `basis` are the backgrounds and the strong candidates.

    Attributes
    ----------
    estimate, std_error : (c,) float64, of every candidate.
    influence_of_rows : (n, c) float64. Derivative of each estimate by the proportion of each row:
        P x_j / b_j.
    random_columns : (n, c) float64. Columns of the candidates, zero for strong candidates.
    row_covariance : (n, n) float64. Sigma.
    s2 : variance of the shares of the candidates that are not strong.
    residual_degrees : degrees of freedom of the residual.
    """

    estimate: Floats
    std_error: Floats
    influence_of_rows: Floats
    random_columns: Floats
    row_covariance: Floats
    s2: float
    residual_degrees: float

    @property
    def degrees_of_freedom(self) -> float:
        """Degrees of freedom of the residual, at least 1."""
        return max(self.residual_degrees, 1.0)

    @property
    def collisions(self) -> float:
        """Mean variance of a row that the collisions among the candidates cause."""
        return self.s2 * float((self.random_columns**2).sum(axis=1).mean())

    def compute_row_influence(
        self,
        columns: sparse.csc_array,  # noqa: ARG002  # of the interface; they are those of the basis_index
        basis_index: Integers,
    ) -> Floats:
        """Return the derivative of each candidate's estimate by the proportion of each row.

        Parameters
        ----------
        columns : not used.
        basis_index : (c,) int64. Indices of the candidates, because all candidates are fitted.

        Returns
        -------
        (c, n) float64.
        """
        return np.ascontiguousarray(self.influence_of_rows[:, basis_index].T)

    def covariance_of(self, candidates: Integers) -> Floats:
        """Compute the covariance of the estimates of some candidates, (s,) indices, as (s, s)."""
        influence_of_rows, random = (
            self.influence_of_rows[:, candidates],
            self.random_columns[:, candidates],
        )
        # The share of a random effect is part of Sigma, but it is no error of the candidate's own
        # estimate. The subtraction removes it.
        prediction = self.s2 * influence_of_rows.T @ random
        errors = (
            influence_of_rows.T @ self.row_covariance @ influence_of_rows
            - prediction
            - prediction.T
        )
        return np.asarray(errors + np.diag(self.s2 * random.any(axis=0)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Projected:
    """Matrices of the generalised least-squares fit, with p fixed columns.

    Attributes
    ----------
    row_covariance : (n, n) float64. Sigma.
    projection : (n, n) float64. P, the inverse of Sigma after projecting out the fixed columns.
    fixed : (n, p) float64. Inverse of Sigma times the fixed columns.
    inverse : (p, p) float64. Covariance of the coefficients of the fixed columns.
    """

    row_covariance: Floats
    projection: Floats
    fixed: Floats
    inverse: Floats


def fit_shrunken(
    target: Target, columns: sparse.csc_array, start: Fit, *, has_fixed_effects: bool
) -> ShrunkenFit:
    """Fit all candidates, (n, c), with the noise and the weights of a starting fit.

    Parameters
    ----------
    target : n rows.
    columns : (n, c) sparse. The rows of every candidate.
    start : the fit that supplies noise and weights.
    has_fixed_effects : True makes strong candidates fixed effects. False makes all candidates
        random. The errors are then larger, but they are valid for candidates with too few rows to
        identify the strong ones.
    """
    dense = columns.toarray()
    strong = np.zeros(dense.shape[1], dtype=bool)
    fit = _fit_with_fixed_effects(target, dense, strong, start)
    for _ in range(_ROUNDS - 1 if has_fixed_effects else 0):
        next_strong = strong | (fit.estimate > STRONG * fit.std_error)
        # Stop if the set is stable. Stop also if fixed effects would fill the rows: no rows would
        # remain for the variances.
        if next_strong.sum() == strong.sum() or next_strong.sum() >= _MOST_STRONG * len(target):
            break
        strong = next_strong
        fit = _fit_with_fixed_effects(target, dense, strong, fit)
    return fit


def _fit_with_fixed_effects(
    target: Target, dense: Floats, strong: Booleans, start: Fit
) -> ShrunkenFit:
    """Fit with a given set of strong candidates.

    The noise is evaluated at the fitted values of the previous fit.

    Parameters
    ----------
    target : n rows.
    dense : (n, c) float64. X.
    strong : (c,) bool. Candidates that are fixed effects.
    start : the previous fit.
    """
    noise = target.compute_noise_variance(start.fitted)
    # An empty cohort has infinite noise, which would make Sigma singular. The rows that the taper
    # set aside get a large noise for the same reason.
    row_noise = np.where(np.isfinite(noise), noise, _UNKNOWN) / np.maximum(
        start.taper_weight, _SET_ASIDE
    )
    fixed = np.hstack([background_columns(target), dense[:, strong]])
    random = np.where(strong, 0.0, dense)
    shared_candidates = random @ random.T
    initial_tau2 = max(start.tau2, LEAST_NOISE)
    initial_s2 = (
        start.s2
        if isinstance(start, ShrunkenFit)
        else _compute_initial_s2(shared_candidates, initial_tau2)
    )
    s2, tau2 = _estimate_variances(
        target.proportions,
        shared_candidates,
        row_noise,
        fixed,
        start=(initial_s2, initial_tau2 / 10),
    )
    projected = _project(shared_candidates, row_noise, fixed, s2, tau2)
    y, projection = target.proportions, projected.projection
    scored = projection @ random
    information = np.einsum("ij,ij->j", random, scored)
    # A candidate whose rows are completely explained by other candidates keeps an infinite standard
    # error.
    is_identified = information > _KNOWN * (random.T @ (1 / (row_noise + tau2)))
    safe = np.where(is_identified, information, 1.0)
    influence = np.where(is_identified, scored / safe, 0.0)
    influence[:, strong] = (projected.fixed @ projected.inverse)[:, len(target.counts) :]
    std_error = np.full(dense.shape[1], np.inf)
    std_error[is_identified] = np.sqrt(np.maximum(1 / safe[is_identified] - s2, LEAST_NOISE))
    std_error[strong] = np.sqrt(projected.inverse.diagonal()[len(target.counts) :])
    residual = (row_noise + tau2) * (projection @ y)
    weight = np.where(np.isfinite(noise), start.taper_weight / (noise + tau2), 0.0)
    basis = sparse.csr_array(fixed)
    return ShrunkenFit(
        residual=residual,
        fitted=y - residual,
        coin_variance=noise,
        tau2=tau2,
        taper_weight=start.taper_weight,
        weight=weight,
        kappa=1.0,
        basis=basis,
        equations=NormalEquations(basis, weight, projected.inverse),
        coefficients=projected.inverse @ (projected.fixed.T @ y),
        n_selected=int(strong.sum()),
        estimate=influence.T @ y,
        std_error=std_error,
        influence_of_rows=influence,
        random_columns=random,
        row_covariance=projected.row_covariance,
        s2=s2,
        residual_degrees=float(((row_noise + tau2) * projection.diagonal()).sum()),
    )


def _project(
    shared_candidates: Floats, rows: Floats, fixed: Floats, s2: float, tau2: float
) -> _Projected:
    """Compute Sigma and P for these variances.

    Parameters
    ----------
    shared_candidates : (n, n) float64. X X' of the candidates that are not strong.
    rows : (n,) float64. v: noise of the rows.
    fixed : (n, p) float64. Columns of the backgrounds and the strong candidates.
    s2, tau2 : the variances.
    """
    row_covariance = s2 * shared_candidates
    row_covariance[np.diag_indices_from(row_covariance)] += rows + tau2
    precision = _invert(row_covariance, _ROUNDING)
    weighted = precision @ fixed
    inverse = _invert(fixed.T @ weighted, RIDGE)
    return _Projected(
        row_covariance=row_covariance,
        projection=precision - weighted @ inverse @ weighted.T,
        fixed=weighted,
        inverse=inverse,
    )


def _invert(matrix: Floats, ridge: float) -> Floats:
    """Invert a covariance after scaling it to a unit diagonal plus a ridge."""
    scale = np.sqrt(np.maximum(matrix.diagonal(), np.finfo(float).tiny))
    scales = np.outer(scale, scale)
    scaled = matrix / scales
    scaled[np.diag_indices_from(scaled)] += ridge
    return np.asarray(np.linalg.inv(scaled) / scales)


def _estimate_variances(
    y: Floats, shared_candidates: Floats, rows: Floats, fixed: Floats, *, start: tuple[float, float]
) -> tuple[float, float]:
    """Compute s2 and tau2 of largest restricted likelihood, by Fisher's scoring.

    Parameters
    ----------
    y : (n,) float64. Proportions.
    shared_candidates : (n, n) float64. X X' of the candidates that are not strong.
    rows : (n,) float64. v: noise of the rows.
    fixed : (n, p) float64. Columns of the backgrounds and the strong candidates.
    start : s2 and tau2 at which the scoring starts.

    Returns
    -------
    s2 and tau2.
    """
    # Scale s2 so that equal values of both variances add equally to a row. Otherwise the
    # information matrix has entries of very different size.
    unit = _compute_initial_s2(shared_candidates, 1.0) ** -1
    variances = np.array(start) * [unit, 1.0]
    for _ in range(_STEPS):
        projection = _project(shared_candidates / unit, rows, fixed, *variances).projection
        scored = projection @ y
        projected_shared = projection @ (shared_candidates / unit)
        # Slope and information matrix of the restricted likelihood by both variances, (2,), (2, 2).
        slope = np.array(
            [
                scored @ (shared_candidates @ scored) / unit - np.trace(projected_shared),
                scored @ scored - np.trace(projection),
            ]
        )
        cross_information = float(np.einsum("ij,ij->", projected_shared, projection))
        shared_information = float(np.einsum("ij,ji->", projected_shared, projected_shared))
        information = np.array(
            [
                [shared_information, cross_information],
                [cross_information, float((projection**2).sum())],
            ]
        )
        next_variances = _compute_next_variances(variances, slope, information)
        has_converged = np.all(np.abs(next_variances - variances) <= _SETTLED * variances.sum())
        variances = next_variances
        if has_converged:
            break
    return float(variances[0]) / unit, float(variances[1])


def _compute_initial_s2(shared_candidates: Floats, variance: float) -> float:
    """Compute the s2 whose collisions would give a row this variance."""
    return variance / max(float(shared_candidates.diagonal().mean()), np.finfo(float).tiny)


def _compute_next_variances(variances: Floats, slope: Floats, information: Floats) -> Floats:
    """Compute s2 and tau2 after one step of Fisher's scoring.

    A variance that would be negative becomes 0, and the other variance is updated alone.

    Parameters
    ----------
    variances, slope : (2,) float64. s2 and tau2, and the slope of the likelihood.
    information : (2, 2) float64.
    """
    next_variances = variances + _invert(information, RIDGE) @ slope
    for index in range(2):
        if next_variances[index] < 0:
            next_variances = variances + slope / information.diagonal()
            next_variances[index] = 0.0
    return np.maximum(next_variances, 0.0)
