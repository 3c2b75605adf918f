"""Fit all candidates at once, with shares from one distribution, for lists near capacity.

`rappor.estimator.near_capacity` decides when this fit is used, and calls `fit_shrunken`. The input
is the rows, the columns of all candidates and the fit of the selection. The output is a
`ShrunkenFit` with the estimate and the standard error of every candidate.

Theory of operation
-------------------
The method is for lists with nearly as many candidates as rows (bits of cohorts), or more. A
least-squares fit of all candidates then has errors without bound. A selection would contain the
candidates that noise and collisions happened to lift. This module selects nothing. The shares are
random effects with one variance s2: they are treated as random numbers with mean 0 and variance s2.

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
| F | fixed columns: the backgrounds, and the strong candidates (below) | (n, p) |
| S | inverse of Sigma | (n, n) |
| P | S after projecting out F: S - S F (F' S F)^-1 F' S | (n, n) |
| b_j | x_j' P x_j, the information about candidate j | number |

The entry of X X' at two rows is the number of candidates that set both rows. So Sigma contains the
collisions of the candidates as noise that two rows have in common.

s2 and tau2 maximise the restricted likelihood (Patterson and Thompson, Biometrika 1971), by
Fisher's scoring. The share of candidate j is then estimated as if this candidate were a fixed
effect, while all other candidates are random. Generalised least squares gives

    beta_j = x_j' P y / b_j,    variance 1 / b_j - s2

Sigma contains s2 x_j x_j' of the candidate itself, which does not change the estimate but adds s2
to 1 / b_j, so s2 is subtracted. The estimate is unbiased for every share of the candidate
(Robinson, Statistical Science 1991). The errors of two candidates i and j have the covariance
x_i' P x_j (1 / (b_i b_j) - s2 / b_i - s2 / b_j).

One variance fits shares of similar size. *Strong* candidates, which exceed `STRONG_Z` standard
errors, are therefore fixed effects: each has its own column, like the background. s2 is the
variance of the shares that are not strong. The computation alternates:

1. Fit without strong candidates.
2. Make the candidates above `STRONG_Z` standard errors fixed effects, and fit again, until no
   strong candidate is added (`_ROUNDS` limits the number of fits).
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

STRONG_Z: Final = 16.0
"""Number of standard errors above which a candidate is a fixed effect. A smaller number detects
more strings, but also takes collisions for strong candidates. With 50 frequent and 300 rare strings
on 512 rows, 68 % of the 95 % intervals contain the true share with 8, and 96 % with 12 or 16. With
300 strings whose shares follow Zipf's law, 94 % do with 12 and 95 % with 16, and 12 detects a tenth
more strings."""

_ROUNDS: Final = 4
"""Largest number of fits. After each fit but the last, strong candidates become fixed effects. More
fits cost time."""

_MOST_STRONG: Final = 0.5
"""Number of strong candidates, as a share of the rows, from which no more candidates become strong.
With more, too few rows would remain for the estimates of s2 and tau2."""

_SCORING_STEPS: Final = 12
"""Largest number of steps of Fisher's scoring. Four to eight steps are usual."""

_VARIANCE_TOLERANCE: Final = 1e-3
"""Change of both variances, relative to their sum, below which Fisher's scoring has converged. Such
a change moves standard errors by less than a thousandth."""

_SIGMA_RIDGE: Final = 1e-13
"""Ridge of Sigma, relative to its diagonal, so that its inverse exists. It is smaller than `RIDGE`,
because the noise of a row may be a billionth of the variance of collisions, and a larger ridge
would replace the noise."""

_LEAST_INFORMATION: Final = 1e-6
"""Share of the information of a candidate, compared with a fit of this candidate alone, that must
remain. A candidate with less is a combination of other columns and has no estimate."""

_LEAST_TAPER_WEIGHT: Final = 1e-3
"""Lower bound on the taper weight of a row, so that Sigma is finite. A row that is set aside has a
thousand times its noise."""

_EMPTY_ROW_VARIANCE: Final = 1e6
"""Variance of the rows of empty cohorts, in squared shares. Shares are at most 1, so such rows have
no influence."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShrunkenFit(Fit):
    """A fit in which candidates are random effects, and strong candidates are fixed effects.

    `fitted` is the sum of the background, the strong candidates and the predicted shares of all
    other candidates, and `residual` is y minus this sum. The columns of `basis` are the backgrounds
    and the strong candidates.

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
        """Mean variance of a row that the collisions among the candidates cause.

        It is the mean of the diagonal of s2 X X'.
        """
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
        # With the influences a_i = P x_i / b_i, the error of estimate i is a_i' y - beta_i. The
        # covariance of two errors is therefore
        #     a_i' Sigma a_j - s2 a_i' x_j - s2 a_j' x_i + s2 (if i = j)
        # where x is 0 and the last term is absent for strong candidates.
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
    weighted_fixed : (n, p) float64. Inverse of Sigma, times F.
    inverse : (p, p) float64. Covariance of the coefficients of the fixed columns: the inverse of F'
        times `weighted_fixed`.
    """

    row_covariance: Floats
    projection: Floats
    weighted_fixed: Floats
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
        next_strong = strong | (fit.estimate > STRONG_Z * fit.std_error)
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
    """Fit with the strong candidates as fixed effects, and all other candidates as random effects.

    The noise is evaluated at the fitted values of the previous fit.

    Parameters
    ----------
    target : n rows.
    dense : (n, c) float64. X.
    strong : (c,) bool. Candidates that are fixed effects.
    start : the previous fit.
    """
    noise = target.compute_noise_variance(start.fitted)
    # Sigma must be finite. So rows of empty cohorts, whose noise is infinite, and rows that the
    # taper set aside, whose weight is 0, get a large noise instead.
    row_noise = np.where(np.isfinite(noise), noise, _EMPTY_ROW_VARIANCE) / np.maximum(
        start.taper_weight, _LEAST_TAPER_WEIGHT
    )
    fixed = np.hstack([background_columns(target), dense[:, strong]])
    random = np.where(strong, 0.0, dense)
    shared_candidates = random @ random.T
    initial_tau2 = max(start.tau2, LEAST_NOISE)
    # The fit of the selection has no s2. Its tau2 contains the collisions with all candidates that
    # were not selected. So the scoring starts with an s2 that explains all of this variance, and
    # with a tenth of the variance as tau2.
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
    influence, std_error = _compute_influence(projected, random, row_noise + tau2, s2)
    # The coefficients of strong candidates are estimates of fixed effects. The first fixed columns
    # are the backgrounds, one for each collection.
    influence[:, strong] = (projected.weighted_fixed @ projected.inverse)[:, len(target.counts) :]
    std_error[strong] = np.sqrt(projected.inverse.diagonal()[len(target.counts) :])
    # P y = (y - fitted) / (v + tau2) in every row.
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
        coefficients=projected.inverse @ (projected.weighted_fixed.T @ y),
        n_selected=int(strong.sum()),
        estimate=influence.T @ y,
        std_error=std_error,
        influence_of_rows=influence,
        random_columns=random,
        row_covariance=projected.row_covariance,
        s2=s2,
        residual_degrees=float(((row_noise + tau2) * projection.diagonal()).sum()),
    )


def _compute_influence(
    projected: _Projected, random: Floats, row_variance: Floats, s2: float
) -> tuple[Floats, Floats]:
    """Compute the influence of the rows on each estimate, and standard errors.

    Parameters
    ----------
    projected : the matrices of the fit.
    random : (n, c) float64. Columns of the candidates, zero for strong candidates.
    row_variance : (n,) float64. v + tau2.
    s2 : variance of the shares.

    Returns
    -------
    influence : (n, c) float64. P x_j / b_j. It is 0 for strong candidates, and for candidates
        without an estimate.
    std_error : (c,) float64. Square root of 1 / b_j - s2. Infinite for the same candidates.
    """
    scored = projected.projection @ random
    information = np.einsum("ij,ij->j", random, scored)
    # Other candidates completely explain the rows of a candidate with less information.
    is_identified = information > _LEAST_INFORMATION * (random.T @ (1 / row_variance))
    safe = np.where(is_identified, information, 1.0)
    std_error = np.full(random.shape[1], np.inf)
    std_error[is_identified] = np.sqrt(np.maximum(1 / safe[is_identified] - s2, LEAST_NOISE))
    return np.where(is_identified, scored / safe, 0.0), std_error


def _project(
    shared_candidates: Floats, rows: Floats, fixed: Floats, s2: float, tau2: float
) -> _Projected:
    """Compute Sigma, P and the covariance of the fixed columns for given variances.

    Parameters
    ----------
    shared_candidates : (n, n) float64. X X' of the candidates that are not strong.
    rows : (n,) float64. v: noise of the rows.
    fixed : (n, p) float64. Columns of the backgrounds and the strong candidates.
    s2, tau2 : the variances.
    """
    row_covariance = s2 * shared_candidates
    row_covariance[np.diag_indices_from(row_covariance)] += rows + tau2
    precision = _invert(row_covariance, _SIGMA_RIDGE)
    weighted_fixed = precision @ fixed
    inverse = _invert(fixed.T @ weighted_fixed, RIDGE)
    return _Projected(
        row_covariance=row_covariance,
        projection=precision - weighted_fixed @ inverse @ weighted_fixed.T,
        weighted_fixed=weighted_fixed,
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

    With V one of the two matrices that the variances multiply, X X' or the identity, twice the
    slope of the likelihood by the variance is y' P V P y - trace(P V). Twice the information of two
    variances with the matrices V and U is trace(P V P U). A step adds information^-1 times slope.

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
    # Multiply s2 by the mean diagonal entry of X X', and divide X X' by it. Equal values of both
    # variances then add equally to a row. Otherwise the information matrix would have entries of
    # very different size.
    unit = _compute_initial_s2(shared_candidates, 1.0) ** -1
    variances = np.array(start) * [unit, 1.0]
    for _ in range(_SCORING_STEPS):
        projection = _project(shared_candidates / unit, rows, fixed, *variances).projection
        scored = projection @ y
        projected_shared = projection @ (shared_candidates / unit)
        # Twice the slope, (2,), and twice the information, (2, 2), by s2 and tau2. The factor of
        # two cancels in the step.
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
        has_converged = np.all(
            np.abs(next_variances - variances) <= _VARIANCE_TOLERANCE * variances.sum()
        )
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
