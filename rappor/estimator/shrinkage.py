"""Fit all candidates at once, with shares from one distribution, for lists near capacity.

`rappor.estimator.near_capacity` decides when this fit is used, and calls `fit_shrunken`. The input
is the rows, the columns of all candidates and the fit of the selection. The output is a
`ShrunkenFit` with the estimate and the standard error of every candidate.

The idea
--------
A row is one bit of one cohort. The method is for lists with nearly as many candidates as rows, or
more. A least-squares fit of all candidates then has errors without bound, because many sets of
shares explain the rows equally well. A selection would contain the candidates that noise and
collisions happened to lift.

This module selects nothing. It looks at one candidate at a time. All other candidates set rows of
this candidate by chance, so they count as noise. The size of their noise is known if the size of
the shares is known, and one number describes it: the variance s2 of the shares. Statistics calls
the candidates *random effects*: their shares are treated as random numbers with mean 0 and
variance s2.

*Example.* 1,000 candidates have shares near .001, in 16 cohorts of 32 bits with one hash function.
There are 512 rows, and 1,000 / 32 = 31 candidates set a row on average. s2 is about 1e-6, so the
collisions add the variance 31e-6 to a row, a standard deviation of .0056. Let the randomized
responses add a standard deviation of .010. Then a row has the error sqrt(.010^2 + .0056^2) = .0115.
The estimate of a candidate is the mean of its 16 rows, nearly, and has the error .0115 / 4 = .0029.
A candidate with the share .02 has a score of 7 standard errors.

The steps of `fit_shrunken`:

1. Take the noise and the weights of the rows from the fit of the selection.
2. Estimate s2, and the variance tau2 of collisions with strings that are no candidates. They are
   the variances under which the observed rows are most probable. A search finds them step by step
   (Fisher's scoring).
3. Estimate every candidate, with all other candidates as noise.
4. One variance fits shares of similar size. *Strong* candidates, which exceed `STRONG_Z` standard
   errors, do not fit. They become *fixed effects*: each has its own column, as in a least-squares
   fit, and its share is an unknown number and not a random one. Continue with step 2 until no
   candidate becomes strong (`_ROUNDS` limits the number of fits).

Theory of operation
-------------------
The rows y are the background, the shares of the candidates that set them, and noise. The shares
beta have mean 0 and variance s2, and the noise has mean 0 and variance v + tau2:

    y = background + X beta + noise
    Sigma = s2 X X' + diag(v + tau2)        the covariance of y

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
| P | S - S F (F' S F)^-1 F' S | (n, n) |
| b_j | x_j' P x_j, the information about candidate j | number |

The entry of X X' at two rows is the number of candidates that set both rows. So Sigma contains the
collisions of the candidates as noise that two rows have in common.

P removes the fixed columns from the rows. A generalised least-squares fit of F alone has the
coefficients (F' S F)^-1 F' S y. So P y is S times the residual y - F (coefficients), and P F is 0.

Shares are not negative, so their mean is not 0. This does no harm: every row has about the same
number of candidates, so the mean of the shares adds about the same amount to every row, and the
background contains this amount.

s2 and tau2 maximise the restricted likelihood (Patterson and Thompson, Biometrika 1971). The fixed
columns F have unknown coefficients. The restricted likelihood is the likelihood of the differences
between rows that do not depend on these coefficients, such as the difference of two rows with the
same background. The full likelihood would give variances that are too small, as a sample variance
with the divisor n does in place of n - 1. `_estimate_variances` finds the maximum by Fisher's
scoring: a step of Newton's method with the expected second derivatives.

The share of candidate j is then estimated as if this candidate were a fixed effect, while all other
candidates are random. Generalised least squares gives

    beta_j = x_j' P y / b_j,    variance 1 / b_j - s2

*Derivation.* Sigma contains s2 x_j x_j' of candidate j itself, although j should be a fixed effect.
Let Q be P without this term, and q = x_j' Q x_j. A fixed effect j has the estimate x_j' Q y / q
with the variance 1 / q. By the formula of Sherman and Morrison,

    P x_j = Q x_j / (1 + s2 q),    b_j = q / (1 + s2 q),    so 1 / b_j = 1 / q + s2

The factor 1 + s2 q cancels in the estimate, and the variance 1 / q is 1 / b_j - s2. The estimate is
unbiased for every share of the candidate (Robinson, Statistical Science 1991). The errors of two
candidates i and j have the covariance x_i' P x_j (1 / (b_i b_j) - s2 / b_i - s2 / b_j), which
`ShrunkenFit.compute_covariance_of` derives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import sparse

from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.estimator.debias import Target
from rappor.estimator.fit import LEAST_NOISE, Fit, build_background_columns
from rappor.estimator.normal_equations import RIDGE, NormalEquations

STRONG_Z: Final = 16.0
"""Number of standard errors above which a candidate is a fixed effect. A smaller number detects
more strings, but also takes collisions for strong candidates. Coverage of the 95 % intervals, on
512 rows:

| strings | 8 | 12 | 16 |
|---|---|---|---|
| 50 frequent and 300 rare strings | 68 % | 96 % | 96 % |
| 300 strings whose shares follow Zipf's law | | 94 % | 95 % |

16 is the smallest of these numbers with a coverage of 95 % in both cases. 12 detects a tenth more
strings in the second case."""

_ROUNDS: Final = 4
"""Largest number of fits. After each fit but the last, strong candidates become fixed effects. More
fits cost time."""

_MOST_STRONG: Final = 0.5
"""Limit on the number of strong candidates, as a share of the rows. The fits end if a further fit
would reach the limit. With more strong candidates, too few rows would remain for the estimates of
s2 and tau2."""

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
"""Smallest information about a candidate, relative to the information in a fit of this candidate
alone. A candidate with less information has no estimate: the fixed columns and the other candidates
explain its rows completely, so no row shows its own share."""

_LEAST_TAPER_WEIGHT: Final = 1e-3
"""Lower bound on the taper weight of a row, so that Sigma is finite. The taper
(`rappor.estimator.fit`) reduces the weight of rows far above the fit, which strings that are no
candidates have lifted. A row of weight 0 gets a thousand times its noise here."""

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
        columns: sparse.csc_array,  # noqa: ARG002 - a parameter of `Fit.compute_row_influence`
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

    def compute_covariance_of(self, candidates: Integers) -> Floats:
        """Compute the covariance of the estimates of some candidates, (s,) indices, as (s, s)."""
        influence_of_rows, random = (
            self.influence_of_rows[:, candidates],
            self.random_columns[:, candidates],
        )
        # With the influences a_i = P x_i / b_i, the error of estimate i is a_i' y - beta_i. The
        # rows y have the covariance Sigma, y and beta_j have s2 x_j, and beta_i and beta_j have 0,
        # or s2 if i = j. The covariance of two errors is therefore
        #     a_i' Sigma a_j - s2 a_i' x_j - s2 a_j' x_i + s2 (if i = j)
        # The shares of strong candidates are not random, so their terms with s2 are absent: their
        # columns in `random_columns` are 0. For two other candidates, P Sigma P = P turns this into
        # the formula of the module docstring.
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
    fixed = np.hstack([build_background_columns(target), dense[:, strong]])
    random = np.where(strong, 0.0, dense)
    # X X': for each pair of rows, the number of candidates that set both rows.
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
    # The prediction of the random shares is s2 X' P y. So the fitted values are F coefficients +
    # s2 X X' P y. By Sigma P y = y - F coefficients, the residual is (Sigma - s2 X X') P y, which
    # is (v + tau2) P y in every row.
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
        # kappa corrects for taper weights that depend on the residuals of the same fit. This fit
        # keeps the taper weights of the starting fit.
        kappa=1.0,
        basis=basis,
        # The inverse is the covariance of the fixed columns under Sigma, which contains the
        # collisions. The inverse of basis' W basis would not contain them.
        equations=NormalEquations(basis, weight, projected.inverse),
        coefficients=projected.inverse @ (projected.weighted_fixed.T @ y),
        n_selected=int(strong.sum()),
        estimate=influence.T @ y,
        std_error=std_error,
        influence_of_rows=influence,
        random_columns=random,
        row_covariance=projected.row_covariance,
        s2=s2,
        # The residuals have the covariance D P D, with D the diagonal matrix of v + tau2. So the
        # sum of their squares, each divided by v + tau2, has the expectation trace(D P).
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
    # Without other columns, the information about a candidate would be the sum of 1 / variance over
    # its rows.
    is_identified = information > _LEAST_INFORMATION * (random.T @ (1 / row_variance))
    safe = np.where(is_identified, information, 1.0)
    std_error = np.full(random.shape[1], np.inf)
    std_error[is_identified] = np.sqrt(np.maximum(1 / safe[is_identified] - s2, LEAST_NOISE))
    return np.where(is_identified, scored / safe, 0.0), std_error


def _project(
    shared_candidates: Floats, row_noise: Floats, fixed: Floats, s2: float, tau2: float
) -> _Projected:
    """Compute Sigma, P and the covariance of the fixed columns for given variances.

    Parameters
    ----------
    shared_candidates : (n, n) float64. X X' of the candidates that are not strong.
    row_noise : (n,) float64. v: noise of the rows.
    fixed : (n, p) float64. Columns of the backgrounds and the strong candidates.
    s2, tau2 : the variances.
    """
    row_covariance = s2 * shared_candidates
    row_covariance[np.diag_indices_from(row_covariance)] += row_noise + tau2
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
    y: Floats,
    shared_candidates: Floats,
    row_noise: Floats,
    fixed: Floats,
    *,
    start: tuple[float, float],
) -> tuple[float, float]:
    """Compute s2 and tau2 of largest restricted likelihood, by Fisher's scoring.

    Except for a constant, -2 times the logarithm of the restricted likelihood is

        log det Sigma + log det(F' Sigma^-1 F) + y' P y

    A variance multiplies a matrix V in Sigma: X X' for s2, the identity for tau2. By this variance,
    the sum of the first two terms has the derivative trace(P V), and P has the derivative -P V P.
    So the expression has the derivative trace(P V) - y' P V P y. The logarithm of the likelihood is
    -1/2 times the expression, so twice its slope is y' P V P y - trace(P V). Twice the information
    of two variances with the matrices V and U is trace(P V P U). A step adds information^-1 times
    slope.

    Parameters
    ----------
    y : (n,) float64. Proportions.
    shared_candidates : (n, n) float64. X X' of the candidates that are not strong.
    row_noise : (n,) float64. v: noise of the rows.
    fixed : (n, p) float64. Columns of the backgrounds and the strong candidates.
    start : s2 and tau2 at which the scoring starts.

    Returns
    -------
    s2 and tau2.
    """
    # The scoring works with s2 * unit and X X' / unit, so that equal values of both variances add
    # equally to a row. Otherwise the information matrix would have entries of very different size.
    # `unit` is the mean number of candidates that set a row. `_compute_initial_s2` returns the s2
    # that adds the variance 1 to a row, which is 1 / unit.
    unit = 1 / _compute_initial_s2(shared_candidates, 1.0)
    variances = np.array(start) * [unit, 1.0]
    for _ in range(_SCORING_STEPS):
        projection = _project(shared_candidates / unit, row_noise, fixed, *variances).projection
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
    """Compute the s2 whose collisions would give a row this variance.

    It is the variance divided by the mean number of candidates that set a row, which is the mean of
    the diagonal of X X'.
    """
    return variance / max(float(shared_candidates.diagonal().mean()), np.finfo(float).tiny)


def _compute_next_variances(variances: Floats, slope: Floats, information: Floats) -> Floats:
    """Compute s2 and tau2 after one step of Fisher's scoring.

    A variance that would be negative becomes 0. The step of the other variance was computed for a
    change of both, so it is computed again for a change of this variance alone: slope divided by
    information, both for one variable.

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
    # The step of the other variance alone may lead below 0, too. Then both variances are 0.
    return np.maximum(next_variances, 0.0)
