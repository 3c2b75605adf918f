"""Select the candidates that enter the regression.

Theory of operation
-------------------
A list has thousands of candidates, and the counts have too few rows to fit them all. But few
candidates have many reports. A frequent candidate outside the fit biases the estimates of all
candidates that share bits with it. The selection therefore contains every candidate with a
significant share, and the remaining candidates get one-step estimates from the same fit.

The search repeats three steps until no further candidate is significant:

1. Screening: compute a score for every candidate from the residuals of the current fit. The
   candidates are processed in blocks, so memory is bounded.
2. Start: in the first round, a non-negative lasso on the screened candidates selects the candidates
   that are beyond doubt.
3. Refinement: refit, compute a de-biased estimate of every screened candidate, add the significant
   candidates and remove the candidates that are no longer significant.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from scipy import sparse

from rappor.base.progress import Progress
from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.estimator.debias import Target
from rappor.estimator.detection_thresholds import Thresholds
from rappor.estimator.error_control import ErrorControl
from rappor.estimator.fit import Fit, fit_rows
from rappor.estimator.p_values import PValues
from rappor.estimator.score_tests import compute_null_tail
from rappor.estimator.screening import (
    CandidatePool,
    Scores,
    ScreeningTask,
    approximate_information,
    estimate_one_step,
)
from rappor.estimator.sparse_products import weighted_products

SCREENED: Final = 5000
"""Number of screened candidates per round, in addition to the selected candidates. Their columns
take 8 MB at 128 cohorts. With 1,000 candidates, 1.4 % fewer strings are detected. A larger number
costs memory and time."""

LASSO_SCREENED: Final = 2000
"""Largest number of candidates in the lasso. The lasso selects the same candidates with 500."""

LASSO_PENALTY: Final = 4.0
"""Penalty of the lasso, in standard errors. Only candidates beyond doubt start the selection, and
refinement adds the others. A penalty of 3 or 8 changes the number of detected strings by less than
.2 %."""

ENTER: Final = 0.05
"""False discovery rate [BH95] at which a candidate enters the selection. The rate is the default
level of the decoder, so every candidate that the decoder detects also has a column in the fit."""

STAY: Final = 0.10
"""False discovery rate at which a selected candidate stays in the selection. The rate is above
`ENTER`. With equal rates, candidates near the threshold would enter and leave in turns. With .05 a
decode takes a third longer."""

_SCREENINGS: Final = 8
"""Largest number of screenings. Three screenings are enough for the populations of the benchmarks.
"""

_REFINEMENTS: Final = 12
"""Largest number of refinements in one round. With 24 the estimates do not change. With 6 some
selections have not converged."""

_MOST_SELECTED: Final = 2
"""Smallest number of rows per selected candidate. With fewer rows, the fit could not estimate the
variance of its noise."""

_MOST_ENTERING: Final = 16
"""Smallest number of rows per candidate that enters in one step. With 4 or 64 the number of
detected strings changes by .1 %."""

_NEAR: Final = 0.75
"""Approximate z score above which the exact leverage of a candidate is computed during refinement.
Lower scores cannot change the selection: candidates that enter, and candidates that are counted
near the threshold, have scores above 1.1."""

_MOST_USUAL: Final = 0.25
"""Largest number of selected candidates, as a share of the rows, at which the information of a
candidate is approximated by 1 - leverage of its rows. The approximation is used only in a fit of
many columns."""

_EDGE: Final = 0.5
"""Half width, in standard errors, of the window around the entry threshold in which scores are
counted. Half of the width works equally well. With a width of 1 the window includes strong strings
beyond the threshold. A collection of hundreds of equally frequent strings then loses most of them.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection(Scores):
    """The selected candidates, their fit, and an estimate of every candidate in memory.

    Attributes
    ----------
    selected : (s,) int64, increasing. Indices of the selected candidates among the candidates in
        memory.
    fit : the fit with the selected candidates as columns.
    """

    selected: Integers
    fit: Fit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Screened:
    """The candidates of one round of the selection.

    Attributes
    ----------
    target : n rows.
    columns : (n, s) sparse. Column j contains the rows of candidate j.
    rows : (n, s) sparse. Absolute values of `columns`.
    n_candidates : number of all candidates, including the candidates that were not screened.
    progress : function that reports the progress.
    """

    target: Target
    columns: sparse.csc_array
    rows: sparse.csc_array
    n_candidates: int
    progress: Progress


class _Refined(NamedTuple):
    """The result of a refinement.

    Attributes
    ----------
    fit : the fit with the selected candidates as columns.
    inside : (s,) bool. True for the screened candidates in the selection.
    enter : p-value below which a further candidate would enter the selection.
    """

    fit: Fit
    inside: Booleans
    enter: float


def select_candidates(target: Target, pool: CandidatePool, progress: Progress) -> Selection:
    """Select candidates, and compute a de-biased estimate of every candidate in memory.

    The selection is deterministic.

    Parameters
    ----------
    target : the rows of the regression, from all collections.
    pool : the candidates, in memory or read from a stream.
    progress : function that reports the progress.

    Returns
    -------
    The selected candidates with their fit, and the estimates of all candidates in memory.
    """
    chosen = np.array([], dtype=np.int64)
    fit = fit_rows(target, pool.columns(chosen), allow_zero_weights=False)
    screening = pool.screen(ScreeningTask(target, fit, pool.n_terms), chosen, progress)
    for round_number in range(_SCREENINGS):
        z = screening.estimate / screening.std_error
        z[np.isin(screening.index, chosen)] = np.inf
        best = np.sort(np.argsort(-z, kind="stable")[: SCREENED + len(chosen)])
        screened_index = screening.index[best]
        columns = pool.columns(screened_index)
        screened = _Screened(
            target=target,
            columns=columns,
            rows=abs(columns),
            n_candidates=pool.n_candidates,
            progress=progress,
        )
        inside = np.isin(screened_index, chosen)
        # In the first round no row is tapered. A frequent string that the lasso missed lifts its
        # own rows far above the fit. The taper would set these rows aside, and the string could
        # never enter.
        if round_number == 0:
            # No row is set aside yet: a string that the lasso missed would lose its own rows.
            start_refinement = _refine_selection(
                screened, fit, select_by_lasso(columns, fit, z[best]), allow_zero_weights=False
            )
            fit, inside = start_refinement.fit, start_refinement.inside
        refined = _refine_selection(screened, fit, inside)
        fit, chosen = refined.fit, screened_index[refined.inside]
        # All candidates were in the refinement, so no candidate can be missing.
        if len(screened_index) == pool.n_candidates:
            break
        # The candidates outside the refinement were scored on the previous fit, in which selected
        # strings could hide them. Score these candidates again on the final fit. Otherwise a string
        # with a low score in the previous fit would be lost.
        screening = pool.screen(ScreeningTask(target, fit, pool.n_terms), screened_index, progress)
        missed = ~np.isin(screening.index, screened_index)
        z = (screening.estimate / screening.std_error)[missed]
        p_values = compute_null_tail(target, fit, most_values=0).p_values(z)
        if not np.any(p_values <= refined.enter):
            break
    position = np.searchsorted(screening.index, screened_index)
    # The screening used the mean leverage. The candidates of the last round get exact estimates.
    screening.estimate[position], screening.std_error[position] = _estimate_all(
        screened.columns, fit, refined.inside
    )
    return Selection(
        selected=np.searchsorted(screening.index, chosen),
        fit=fit,
        estimate=screening.estimate,
        std_error=screening.std_error,
        other_counts=screening.other_counts,
        least_other=screening.least_other,
    )


def select_by_lasso(columns: sparse.csc_array, fit: Fit, z: Floats) -> Booleans:
    """Select columns with a non-negative lasso.

    Rows are weighted by the inverse variance of their noise, columns are scaled to unit
    information, and the background is projected out. The penalty therefore counts standard errors.

    Few columns are in the solution. The function solves the lasso on the columns whose score
    exceeds the penalty, computes the scores of all other columns on the remaining residual, and
    adds the columns whose score exceeds the penalty. When no column is added, the solution
    satisfies the optimality conditions of the lasso on all columns.

    Parameters
    ----------
    columns : (n, s) sparse. The rows of each screened candidate.
    fit : the current fit. Its weights and its background are used.
    z : (s,) float64. Scores in standard errors. The `LASSO_SCREENED` largest scores take part.

    Returns
    -------
    (s,) bool, True for the columns with a coefficient above 0.
    """
    best = np.sort(np.argsort(-z, kind="stable")[:LASSO_SCREENED])
    score, information = fit.scores(columns[:, best])
    # A column without information is a combination of the columns of the fit. Its scale would be
    # zero.
    best = best[information > 0]
    score, information = score[information > 0], information[information > 0]
    best_columns, scale = columns[:, best], np.sqrt(information)
    cross = weighted_products(best_columns, fit.weight, fit.basis)
    remaining_score = score / scale
    active = np.zeros(len(best), dtype=bool)
    coefficients = np.zeros(len(best))
    while np.any(entering := ~active & (remaining_score > LASSO_PENALTY)):
        active |= entering
        active_columns = best_columns[:, active]
        gram = weighted_products(active_columns, fit.weight, active_columns.tocsr())
        gram -= cross[active] @ fit.inverse @ cross[active].T
        gram /= np.outer(scale[active], scale[active])
        coefficients[active] = _solve_lasso(gram, score[active] / scale[active])
        weighted_fit = fit.weight * (best_columns @ (coefficients / scale))
        explained_score = best_columns.T @ weighted_fit - cross @ (
            fit.inverse @ (fit.basis.T @ weighted_fit)
        )
        remaining_score = (score - explained_score) / scale
    chosen = np.zeros(columns.shape[1], dtype=bool)
    chosen[best] = coefficients > 0
    return chosen


def _solve_lasso(gram: Floats, score: Floats) -> Floats:
    """Compute the coefficients of the non-negative lasso by least-angle regression.

    Parameters
    ----------
    gram : (s, s) float64. Products of the scaled columns.
    score : (s,) float64. Products of the scaled columns and the residual.
    """
    # Import scikit-learn only here. The import takes a second or more, and closed forms do not use
    # it.
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415
    from sklearn.linear_model import lars_path_gram  # noqa: PLC0415

    with warnings.catch_warnings():
        # With few reports some scores are equal, and the algorithm stops before the penalty is
        # reached. That is no error: the refinement adds the remaining candidates.
        warnings.simplefilter("ignore", ConvergenceWarning)
        _, _, coefficients = lars_path_gram(
            Xy=score,
            Gram=gram,
            n_samples=1,
            alpha_min=LASSO_PENALTY,
            method="lasso",
            positive=True,
            max_iter=10 * len(score) + 100,  # each column joins and leaves a few times at most
            return_path=False,
        )
    return np.asarray(coefficients)


def _refine_selection(
    screened: _Screened, fit: Fit, inside: Booleans, *, allow_zero_weights: bool = True
) -> _Refined:
    """Add and remove candidates until the selection no longer changes.

    Parameters
    ----------
    screened : the candidates of this round.
    fit : the fit to start from.
    inside : (s,) bool. The selection to start from.
    allow_zero_weights : as in `fit_rows`. False keeps a positive weight on every row.
    """
    search_degrees, n_backgrounds = 0.0, len(screened.target.counts)
    coefficients = np.zeros(len(inside))
    for step in range(_REFINEMENTS):
        screened.progress("selecting candidates", step, _REFINEMENTS)
        fit = fit_rows(
            screened.target,
            screened.columns[:, inside],
            start=fit,
            initial_coefficients=np.concatenate(
                [fit.coefficients[:n_backgrounds], coefficients[inside]]
            ),
            allow_zero_weights=allow_zero_weights,
            search_degrees=search_degrees,
        )
        coefficients[inside] = fit.coefficients[n_backgrounds:]
        z = _compute_z_scores(screened, fit, inside)
        p_values = compute_null_tail(screened.target, fit, most_values=0).p_values(z)
        all_p_values = PValues(in_memory=p_values, n_further=screened.n_candidates - len(p_values))
        enter, stay = (
            Thresholds(ErrorControl(alpha=rate), all_p_values).largest for rate in (ENTER, STAY)
        )
        n_rows = int((fit.weight > 0).sum())
        staying = _keep_strongest(inside & (p_values <= stay), z, n_rows // _MOST_SELECTED)
        # Few candidates enter at a time. Two strings that share bits may both be significant
        # because of the same reports. After one of them has entered, the other is no longer
        # significant.
        entering = _keep_strongest(
            ~inside & (p_values <= enter), z, max(n_rows // _MOST_ENTERING, 1)
        )
        next_inside = staying | entering
        search_degrees = _compute_search_degrees(z, p_values <= enter)
        # The first step only fits the selection that was passed. Its degrees of freedom of the
        # search were not known yet, so an unchanged selection is not a reason to stop.
        if step > 0 and np.array_equal(next_inside, inside):
            break
        # After the last step the selection must match the columns of the returned fit.
        if step < _REFINEMENTS - 1:
            inside = next_inside
    return _Refined(fit, inside, enter)


def _compute_z_scores(screened: _Screened, fit: Fit, inside: Booleans) -> Floats:
    """Compute the z score of every screened candidate, with the accuracy that the selection needs.

    The information of a candidate is approximate in two cases:

    - in a fit of many columns, for all candidates, because exact leverages would need an inverse;
    - in other fits, for candidates outside the selection with a score below `_NEAR`.

    Returns
    -------
    (s,) float64.
    """
    columns, row_weight = screened.columns, screened.rows.T @ fit.weight
    score = columns.T @ (fit.weight * fit.residual)
    is_approximate = fit.equations.is_large and fit.n_selected < _MOST_USUAL * len(fit.residual)
    if is_approximate:
        information_left = screened.rows.T @ (
            fit.weight * (1 - fit.equations.compute_leverages(fit.weight))
        )
        # The leverage of a row includes the contribution of the selected candidates in it. Add the
        # contribution of the candidate itself, which its own column does not remove.
        own_leverage = (
            screened.rows.T @ fit.weight**2 / np.where(row_weight > 0, row_weight, np.inf)
        )
        information_left += np.where(inside, own_leverage, 0.0)
        information = information_left * (1 - information_left / fit.weight.sum())
    else:
        information = approximate_information(row_weight, fit)
    # A candidate without weighted rows has no information. Its score becomes 0.
    safe = np.where(information > 0, information, np.inf)
    z = score / np.sqrt(safe)
    if is_approximate:
        z[inside] = fit.coefficients[-fit.n_selected :] * np.sqrt(safe[inside]) * fit.kappa
        return np.asarray(z)
    estimate, std_error = fit.compute_selected_estimates()
    z[inside] = estimate / std_error
    # Compute exact scores only where they can change the selection. This saves most of the time.
    outside = np.flatnonzero(~inside & (z > _NEAR))
    score, information = fit.scores(columns[:, outside])
    largest_information = float(np.max(information, initial=0.0))
    estimate, std_error = estimate_one_step(score, information, fit, largest_information)
    z[outside] = estimate / std_error
    return np.asarray(z)


def _estimate_all(columns: sparse.csc_array, fit: Fit, inside: Booleans) -> tuple[Floats, Floats]:
    """Compute the coefficient and the standard error of every screened candidate.

    The coefficient of a selected candidate is its fitted coefficient. The coefficient of another
    candidate is the one-step estimate of [ZZ14].
    """
    estimate, std_error = np.empty((2, len(inside)))
    score, information = fit.scores(columns[:, ~inside])
    largest_information = float(np.max(information, initial=0.0))
    estimate[~inside], std_error[~inside] = estimate_one_step(
        score, information, fit, largest_information
    )
    estimate[inside], std_error[inside] = fit.compute_selected_estimates()
    return estimate, std_error


def _keep_strongest(candidates: Booleans, z: Floats, most: int) -> Booleans:
    """Reduce a set of candidates to the `most` candidates with the largest z score."""
    if candidates.sum() <= most:
        return candidates
    kept = np.zeros_like(candidates)
    kept[np.argsort(np.where(candidates, -z, np.inf), kind="stable")[:most]] = True
    return kept


def _compute_search_degrees(z: Floats, entered: Booleans) -> float:
    """Compute the degrees of freedom that the choice of the candidates used.

    The degrees of freedom are t times the density of the scores at t, where t is the smallest score
    that entered. Tibshirani (Statistica Sinica 2015, section 5) derives the formula for the
    selection of the best subset in an orthogonal design. Random hashing makes the design nearly
    orthogonal.
    """
    if not entered.any():
        return 0.0
    threshold = float(z[entered].min())
    return threshold * float(np.sum(np.abs(z - threshold) < _EDGE))
