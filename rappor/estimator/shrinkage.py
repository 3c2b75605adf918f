"""Fit all candidates at once, with shares from one distribution, for lists near capacity.

Theory of operation
-------------------
The method is for lists with nearly as many candidates as rows, or more. A least-squares fit of all
candidates then has errors without bound. A selection would contain the candidates that noise and
collisions happened to lift. This module selects nothing. The shares are random effects with one
variance s2:

    y = background + X beta + noise,    beta ~ (0, s2),    noise ~ (0, v + tau2)
    Sigma = s2 X X' + diag(v + tau2)

s2 and tau2 maximise the restricted likelihood (Patterson and Thompson, Biometrika 1971), by
Fisher's scoring. Let P be the inverse of Sigma after projecting out the background. For a candidate
that is tested alone, with all other candidates random, generalised least squares gives

    beta_j = x_j' P y / x_j' P x_j,    variance 1 / x_j' P x_j - s2

The estimate is unbiased for every share of the candidate (Robinson, Statistical Science 1991). The
errors of two candidates have the covariance x_i' P x_j (1 / b_i b_j - s2 / b_i - s2 / b_j), with
b_j = x_j' P x_j.

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
"""Largest number of fits. After each fit, strong candidates become fixed effects."""

_MOST_STRONG: Final = 0.5
"""Largest number of strong candidates, as a share of the rows."""

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
"""Lower bound on the weight of a row. A row that is set aside has a thousand times its noise."""

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
    influence_of_rows : (n, c) float64. Derivative of each estimate by the proportion of each row.
    random : (n, c) float64. Columns of the candidates, zero for strong candidates.
    total : (n, n) float64. Sigma.
    s2 : variance of the shares of the candidates that are not strong.
    free : degrees of freedom of the residual.
    """

    estimate: Floats
    std_error: Floats
    influence_of_rows: Floats
    random: Floats
    total: Floats
    s2: float
    free: float

    @property
    def degrees_of_freedom(self) -> float:
        """Degrees of freedom of the residual, at least 1."""
        return max(self.free, 1.0)

    @property
    def collisions(self) -> float:
        """Variance of a row that the collisions among the candidates cause."""
        return self.s2 * float((self.random**2).sum(axis=1).mean())

    def compute_row_influence(
        self,
        columns: sparse.csc_array,  # noqa: ARG002  # of the interface; they are those of the basis_index
        basis_index: Integers,
    ) -> Floats:
        """Return the derivative of the candidates' estimates by each proportion, (c, n)."""
        return np.ascontiguousarray(self.influence_of_rows[:, basis_index].T)

    def covariance_of(self, candidates: Integers) -> Floats:
        """Compute the covariance of the estimates of some candidates, (s, s)."""
        influence_of_rows, random = (
            self.influence_of_rows[:, candidates],
            self.random[:, candidates],
        )
        # The share of a random effect is part of Sigma, but it is no error of the candidate's own
        # estimate. The subtraction removes it.
        prediction = self.s2 * influence_of_rows.T @ random
        errors = influence_of_rows.T @ self.total @ influence_of_rows - prediction - prediction.T
        return np.asarray(errors + np.diag(self.s2 * random.any(axis=0)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Projected:
    """Matrices of the generalised least-squares fit.

    Attributes
    ----------
    total : (n, n) float64. Sigma.
    projection : (n, n) float64. P, the inverse of Sigma after projecting out the fixed columns.
    fixed : (n, p) float64. Inverse of Sigma times the fixed columns.
    inverse : (p, p) float64. Covariance of the coefficients of the fixed columns.
    """

    total: Floats
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
    fit = _fit_once(target, dense, strong, start)
    for _ in range(_ROUNDS - 1 if has_fixed_effects else 0):
        next_strong = strong | (fit.estimate > STRONG * fit.std_error)
        # Stop if the set is stable. Stop also if fixed effects would fill the rows: no rows would
        # remain for the variances.
        if next_strong.sum() == strong.sum() or next_strong.sum() >= _MOST_STRONG * len(target):
            break
        strong = next_strong
        fit = _fit_once(target, dense, strong, fit)
    return fit


def _fit_once(target: Target, dense: Floats, strong: Booleans, start: Fit) -> ShrunkenFit:
    """Fit with a fixed set of strong candidates.

    The noise is evaluated at the values of the previous fit.
    """
    noise = target.compute_noise_variance(start.fitted)
    # An empty cohort has infinite noise, which would make Sigma singular. The rows that the taper
    # set aside get a large noise for the same reason.
    row_noise = np.where(np.isfinite(noise), noise, _UNKNOWN) / np.maximum(
        start.taper_weight, _SET_ASIDE
    )
    fixed = np.hstack([background_columns(target), dense[:, strong]])
    random = np.where(strong, 0.0, dense)
    kinship = random @ random.T
    initial_tau2 = max(start.tau2, LEAST_NOISE)
    initial_s2 = start.s2 if isinstance(start, ShrunkenFit) else _initial_s2(kinship, initial_tau2)
    s2, tau2 = _estimate_variances(
        target.proportions, kinship, row_noise, fixed, start=(initial_s2, initial_tau2 / 10)
    )
    projected = _project(kinship, row_noise, fixed, s2, tau2)
    y, projection = target.proportions, projected.projection
    scored = projection @ random
    information = np.einsum("ij,ij->j", random, scored)
    # A candidate whose rows others fill completely keeps an infinite standard error.
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
        random=random,
        total=projected.total,
        s2=s2,
        free=float(((row_noise + tau2) * projection.diagonal()).sum()),
    )


def _project(kinship: Floats, rows: Floats, fixed: Floats, s2: float, tau2: float) -> _Projected:
    """Compute Sigma and P for these variances.

    `kinship` is X X', `rows` the noise of the rows, (n,).
    """
    total = s2 * kinship
    total[np.diag_indices_from(total)] += rows + tau2
    precision = _invert(total, _ROUNDING)
    weighted = precision @ fixed
    inverse = _invert(fixed.T @ weighted, RIDGE)
    return _Projected(
        total=total,
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
    y: Floats, kinship: Floats, rows: Floats, fixed: Floats, *, start: tuple[float, float]
) -> tuple[float, float]:
    """Compute s2 and tau2 of largest restricted likelihood, by Fisher's scoring.

    Parameters
    ----------
    y : (n,) float64. Proportions.
    kinship : (n, n) float64. X X'.
    rows : (n,) float64. Noise of the rows.
    fixed : (n, p) float64. Fixed columns.
    start : s2 and tau2 at which the scoring starts.
    """
    # Scale s2 so that equal values of both variances add equally to a row. Otherwise the
    # information matrix has entries of very different size.
    unit = _initial_s2(kinship, 1.0) ** -1
    variances = np.array(start) * [unit, 1.0]
    for _ in range(_STEPS):
        projection = _project(kinship / unit, rows, fixed, *variances).projection
        scored = projection @ y
        projected_kinship = projection @ (kinship / unit)
        slope = np.array(
            [
                scored @ (kinship @ scored) / unit - np.trace(projected_kinship),
                scored @ scored - np.trace(projection),
            ]
        )
        cross_information = float(np.einsum("ij,ij->", projected_kinship, projection))
        kinship_information = float(np.einsum("ij,ji->", projected_kinship, projected_kinship))
        information = np.array(
            [
                [kinship_information, cross_information],
                [cross_information, float((projection**2).sum())],
            ]
        )
        next_variances = _step(variances, slope, information)
        has_converged = np.all(np.abs(next_variances - variances) <= _SETTLED * variances.sum())
        variances = next_variances
        if has_converged:
            break
    return float(variances[0]) / unit, float(variances[1])


def _initial_s2(kinship: Floats, variance: float) -> float:
    """Compute the variance of the shares that would give a row this variance."""
    return variance / max(float(kinship.diagonal().mean()), np.finfo(float).tiny)


def _step(variances: Floats, slope: Floats, information: Floats) -> Floats:
    """Compute the next variances.

    A variance that would be negative becomes 0, and the other is updated alone.
    """
    next_variances = variances + _invert(information, RIDGE) @ slope
    for index in range(2):
        if next_variances[index] < 0:
            next_variances = variances + slope / information.diagonal()
            next_variances[index] = 0.0
    return np.maximum(next_variances, 0.0)
