"""Selection of the candidates that enter the regression, by screening, lasso and refits.

The decoder calls `select_candidates`. The input is a `Target` (the rows of the regression) and a
`CandidatePool` (the columns of all candidates). The output is a `Selection`: the selected
candidates, their fit, and an estimate with a standard error for every candidate in memory. Which
candidates are *detected* is decided later, by `rappor.decoding.decoder`, over all candidates.

Theory of operation
-------------------
A list has thousands of candidates, and the counts have too few rows to fit them all. But few
candidates have many reports. A frequent candidate outside the fit biases the estimates of all
candidates that share bits with it. The selection therefore contains every candidate with a
significant share, and the remaining candidates get one-step estimates from the same fit
(`rappor.estimator.fit`).

The search repeats three steps until no further candidate is significant:

1. Screening: compute a score for every candidate from the residuals of the current fit. The
   candidates are processed in blocks, so memory is bounded. The `SCREENED` best are kept.
2. Start: in the first round, a lasso with coefficients of at least 0 on the screened candidates
   selects the candidates that are beyond doubt.
3. Refinement: refit, compute a de-biased estimate of every screened candidate, add the significant
   candidates and remove the candidates that are no longer significant.

A z score is an estimate divided by its standard error. A candidate is significant if its p-value
passes Benjamini-Hochberg among all candidates: at rate `ENTRY_RATE` to enter, at rate `STAY_RATE`
to stay.

*For illustration:* 40 of 10,000 candidates are common. Screening keeps the 5,000 best. The lasso
starts with 25 candidates. The first refit adds 10 candidates, and the second adds 6. The third
removes one of them, because two later candidates explain its bits. The fourth changes nothing. The
second screening finds no further candidate: 40 are selected.

Arrays have these axes: n rows of the regression, c screened candidates, s selected candidates.
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
from rappor.estimator.sparse_products import compute_weighted_products

SCREENED: Final = 5000
"""Number of screened candidates per round, in addition to the selected candidates. Their columns
take 8 MB at 128 cohorts. With 1,000 candidates, 1.4 % fewer strings are detected (measured). A
larger number costs memory and time."""

LASSO_SCREENED: Final = 2000
"""Largest number of candidates in the lasso. The lasso selects the same candidates with 500
(measured). A larger number costs time."""

LASSO_PENALTY: Final = 4.0
"""Penalty of the lasso, in standard errors. Only candidates beyond doubt start the selection, and
refinement adds the others. A penalty of 3 or 8 changes the number of detected strings by less than
.2 % (measured)."""

ENTRY_RATE: Final = 0.05
"""False discovery rate (Benjamini and Hochberg 1995) at which a candidate enters the selection. The
rate is the default level of the decoder, so every candidate that the decoder detects also has a
column in the fit."""

STAY_RATE: Final = 0.10
"""False discovery rate at which a selected candidate stays in the selection. The rate is above
`ENTRY_RATE`. With equal rates, candidates near the threshold would enter and leave in turns. With
.05 a decode takes a third longer (measured)."""

_SCREENINGS: Final = 8
"""Largest number of screenings, which limits the time. Three screenings are enough for the
populations of the benchmarks."""

_REFINEMENTS: Final = 12
"""Largest number of refits in one refinement. With 24 the estimates do not change. With 6 some
selections still change in the last refit (measured)."""

_ROWS_PER_SELECTED: Final = 2
"""Smallest number of rows per selected candidate. With fewer rows, the fit could not estimate the
variance of its noise."""

_ROWS_PER_ENTERING: Final = 16
"""Smallest number of rows per candidate that enters in one refit. If the number grows, fewer
candidates enter at a time, and more refits are needed. With 4 or 64 the number of detected strings
changes by .1 % (measured)."""

_EXACT_SCORE_FROM: Final = 0.75
"""Approximate z score above which the exact score of a candidate is computed during refinement.
Lower scores cannot change the selection: candidates that enter, and candidates that are counted
near the threshold, have scores above 1.1."""

_MOST_APPROXIMATE: Final = 0.25
"""Largest number of selected candidates, as a share of the rows, at which the information about
candidates is approximated by the leverages of their rows (`_compute_z_scores`). The approximation
saves time in a fit of many columns. It is too rough if the selected candidates fill more of the
rows."""

_WINDOW: Final = 0.5
"""Half width, in standard errors, of the window around the entry threshold in which
`_compute_search_degrees` counts scores. Half of this number works equally well. With 1 the window
includes strong strings beyond the threshold, and a collection of hundreds of equally frequent
strings loses most of them."""


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
class _ScreenedCandidates:
    """The candidates of one round of the selection.

    Attributes
    ----------
    target : n rows.
    columns : (n, c) sparse. A column contains the rows of a candidate. Entries are 1, or -1 in a
        column that stands for a falling share (`rappor.comparison.change_regression`).
    absolute_columns : (n, c) sparse. Absolute values of `columns`.
    n_candidates : number of all candidates, including the candidates that were not screened.
    progress : function that reports the progress.
    """

    target: Target
    columns: sparse.csc_array
    absolute_columns: sparse.csc_array
    n_candidates: int
    progress: Progress


class _Refinement(NamedTuple):
    """The result of a refinement.

    Attributes
    ----------
    fit : the fit with the selected candidates as columns.
    is_selected : (c,) bool. True for the screened candidates in the selection.
    entry_p_value : threshold of the next rank: the largest p-value with which a candidate outside
        this round would be significant, too.
    """

    fit: Fit
    is_selected: Booleans
    entry_p_value: float


def select_candidates(target: Target, pool: CandidatePool, progress: Progress) -> Selection:
    """Select candidates, and compute a de-biased estimate of every candidate in memory.

    The selection is deterministic. Candidates are numbered in three ways:

    - By their number in the pool, which is the list or the stream: in `screening.index`,
      `screened_index` and `selected`.
    - By their row among the candidates in memory: in `screening.estimate`, `best` and
      `Selection.selected`.
    - By their position among the screened candidates of the present round: in `is_selected`.

    For example, a stream has the candidates 7, 9 and 30 in memory, and the round screens 9 and 30.
    Candidate 30 has the number 30, the row 2 and the position 1.

    Parameters
    ----------
    target : the rows of the regression, from all collections.
    pool : the candidates, in memory or read from a stream.
    progress : function that reports the progress.
    """
    selected = np.array([], dtype=np.int64)
    # The first fit contains the background only. Its residuals show the frequent strings.
    fit = fit_rows(target, pool.columns(selected), allow_zero_weights=False)
    screening = pool.screen(ScreeningTask(target, fit, pool.n_terms), selected, progress)
    for round_number in range(_SCREENINGS):
        z = screening.estimate / screening.std_error
        # Selected candidates are always screened again. Their one-step score is about 0, because
        # the fit explains their rows.
        z[np.isin(screening.index, selected)] = np.inf
        best = np.sort(np.argsort(-z, kind="stable")[: SCREENED + len(selected)])
        screened_index = screening.index[best]
        columns = pool.columns(screened_index)
        screened = _ScreenedCandidates(
            target=target,
            columns=columns,
            absolute_columns=abs(columns),
            n_candidates=pool.n_candidates,
            progress=progress,
        )
        is_selected = np.isin(screened_index, selected)
        # In the first round no row is set aside. A frequent string that the lasso missed lifts its
        # own rows far above the fit. The taper would set these rows aside, and the string could
        # never enter.
        if round_number == 0:
            first_refinement = _refine_selection(
                screened, fit, select_by_lasso(columns, fit, z[best]), allow_zero_weights=False
            )
            fit, is_selected = first_refinement.fit, first_refinement.is_selected
        refinement = _refine_selection(screened, fit, is_selected)
        fit, selected = refinement.fit, screened_index[refinement.is_selected]
        # All candidates took part in the refinement, so no further candidate can be significant.
        if len(screened_index) == pool.n_candidates:
            break
        # The candidates outside the refinement were scored on the previous fit, in which selected
        # strings could hide them. Score these candidates again on the final fit. Otherwise a string
        # with a low score in the previous fit would be lost.
        screening = pool.screen(ScreeningTask(target, fit, pool.n_terms), screened_index, progress)
        is_new = ~np.isin(screening.index, screened_index)
        z = (screening.estimate / screening.std_error)[is_new]
        p_values = compute_null_tail(target, fit, most_values=0).p_values(z)
        if not np.any(p_values <= refinement.entry_p_value):
            break
    # The screening used the mean leverage. The candidates of the last round get exact estimates.
    refined_index = np.searchsorted(screening.index, screened_index)
    screening.estimate[refined_index], screening.std_error[refined_index] = _estimate_all(
        screened.columns, fit, refinement.is_selected
    )
    return Selection(
        selected=np.searchsorted(screening.index, selected),
        fit=fit,
        estimate=screening.estimate,
        std_error=screening.std_error,
        other_counts=screening.other_counts,
        least_other=screening.least_other,
        other_ratios=screening.other_ratios,
    )


def select_by_lasso(columns: sparse.csc_array, fit: Fit, z: Floats) -> Booleans:
    """Select columns with a non-negative lasso.

    With X the columns, P the projection that removes the columns of the fit, D the square root of
    the information of each column and e the residual, the lasso minimises

        |W^(1/2) P (e - X D^-1 a)|^2 / 2 + LASSO_PENALTY * sum of a,    a >= 0

    W contains the weights of the fit. Columns have unit information after the scaling by D. So a
    coefficient a is a z score, reduced by the penalty: a single column with a score of 7 standard
    errors gets a = 7 - `LASSO_PENALTY` = 3.

    Few columns are in the solution. At the minimum, a column with a = 0 has a score of at most the
    penalty on the remaining residual. Otherwise a larger a would reduce the squares by more than it
    adds to the penalty. The function solves the lasso on the columns whose score exceeds the
    penalty (the active columns), computes the scores of all other columns on the remaining
    residual, and adds the columns whose score exceeds the penalty. When no column is added, the
    solution is therefore the minimum over all columns.

    Parameters
    ----------
    columns : (n, c) sparse. The rows of each screened candidate.
    fit : the current fit. Its weights, its residual and its columns are used.
    z : (c,) float64. Scores in standard errors. The `LASSO_SCREENED` largest scores take part.

    Returns
    -------
    (c,) bool, True for the columns with a coefficient above 0.
    """
    best = np.sort(np.argsort(-z, kind="stable")[:LASSO_SCREENED])
    score, information = fit.compute_scores(columns[:, best])
    # A column without information is a combination of the columns of the fit. Its scale would be
    # zero.
    best = best[information > 0]
    score, information = score[information > 0], information[information > 0]
    best_columns, scale = columns[:, best], np.sqrt(information)
    cross = compute_weighted_products(best_columns, fit.weight, fit.basis)
    remaining_score = score / scale
    is_active = np.zeros(len(best), dtype=bool)
    coefficients = np.zeros(len(best))
    while np.any(is_entering := ~is_active & (remaining_score > LASSO_PENALTY)):
        is_active |= is_entering
        active_columns = best_columns[:, is_active]
        # X' P' W P X = X' W X - (X' W B) (B' W B)^-1 (B' W X), with B the columns of the fit.
        gram = compute_weighted_products(active_columns, fit.weight, active_columns.tocsr())
        gram -= cross[is_active] @ fit.inverse @ cross[is_active].T
        gram /= np.outer(scale[is_active], scale[is_active])
        coefficients[is_active] = _solve_lasso(gram, score[is_active] / scale[is_active])
        # X' P' W P X D^-1 a: the part of the scores of all columns that the solution explains.
        weighted_fit = fit.weight * (best_columns @ (coefficients / scale))
        explained_score = best_columns.T @ weighted_fit - cross @ (
            fit.inverse @ (fit.basis.T @ weighted_fit)
        )
        remaining_score = (score - explained_score) / scale
    is_in_lasso = np.zeros(columns.shape[1], dtype=bool)
    is_in_lasso[best] = coefficients > 0
    return is_in_lasso


def _solve_lasso(gram: Floats, score: Floats) -> Floats:
    """Compute the coefficients of the non-negative lasso by least-angle regression.

    Parameters
    ----------
    gram : (a, a) float64. Products of the scaled active columns. The diagonal is 1.
    score : (a,) float64. Products of the scaled active columns and the residual.

    Returns
    -------
    (a,) float64, in standard errors.
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
    screened: _ScreenedCandidates,
    fit: Fit,
    is_selected: Booleans,
    *,
    allow_zero_weights: bool = True,
) -> _Refinement:
    """Refit, add candidates and remove candidates until the selection no longer changes.

    Parameters
    ----------
    screened : the candidates of this round.
    fit : the fit to start from.
    is_selected : (c,) bool. The selection to start from.
    allow_zero_weights : as in `fit_rows`. False keeps a positive weight on every row.
    """
    search_degrees, n_backgrounds = 0.0, len(screened.target.counts)
    coefficients = np.zeros(len(is_selected))
    for step in range(_REFINEMENTS):
        screened.progress("selecting candidates", step, _REFINEMENTS)
        fit = fit_rows(
            screened.target,
            screened.columns[:, is_selected],
            start=fit,
            initial_coefficients=np.concatenate(
                [fit.coefficients[:n_backgrounds], coefficients[is_selected]]
            ),
            allow_zero_weights=allow_zero_weights,
            search_degrees=search_degrees,
        )
        coefficients[is_selected] = fit.coefficients[n_backgrounds:]
        z = _compute_z_scores(screened, fit, is_selected)
        # `most_values=0` uses the saddlepoint formula, which saves the convolution of the complete
        # distribution in every refit. The decoder computes the final p-values by both.
        p_values = compute_null_tail(screened.target, fit, most_values=0).p_values(z)
        # Candidates that were not screened count as large p-values: the list is as long as before.
        all_p_values = PValues(in_memory=p_values, n_further=screened.n_candidates - len(p_values))
        entry, stay = (
            Thresholds(ErrorControl(alpha=rate), all_p_values) for rate in (ENTRY_RATE, STAY_RATE)
        )
        n_rows = int((fit.weight > 0).sum())
        is_staying = _keep_strongest(is_selected & stay.detected, z, n_rows // _ROWS_PER_SELECTED)
        # Few candidates enter at a time. Two strings that share bits may both be significant
        # because of the same reports. After one of them has entered, the other is no longer
        # significant.
        is_entering = _keep_strongest(
            ~is_selected & entry.detected, z, max(n_rows // _ROWS_PER_ENTERING, 1)
        )
        next_selected = is_staying | is_entering
        search_degrees = _compute_search_degrees(z, entry.detected)
        # The first step only fits the selection that was passed. Its degrees of freedom of the
        # search were not known yet, so an unchanged selection is not a reason to stop.
        if step > 0 and np.array_equal(next_selected, is_selected):
            break
        # After the last step the selection must match the columns of the returned fit.
        if step < _REFINEMENTS - 1:
            is_selected = next_selected
    return _Refinement(fit, is_selected, entry.next_threshold)


def _compute_z_scores(screened: _ScreenedCandidates, fit: Fit, is_selected: Booleans) -> Floats:
    """Compute the z score of every screened candidate, with the accuracy that the selection needs.

    A z score is score / sqrt(information). The information of a candidate is approximate in two
    cases:

    - In a fit of many columns, for all candidates, because exact information would need an inverse
      of all columns. The approximation is the sum of w (1 - leverage) over the rows of the
      candidate.
    - In other fits, for candidates outside the selection with a score below `_EXACT_SCORE_FROM`.
      The approximation is that of the screening (`approximate_information`).

    Parameters
    ----------
    screened : c candidates.
    fit : the fit of the selected candidates.
    is_selected : (c,) bool.

    Returns
    -------
    (c,) float64.
    """
    columns, row_weight = screened.columns, screened.absolute_columns.T @ fit.weight
    score = columns.T @ (fit.weight * fit.residual)
    is_approximate = fit.equations.is_large and fit.n_selected < _MOST_APPROXIMATE * len(
        fit.residual
    )
    if is_approximate:
        remaining_weight = fit.weight * (1 - fit.equations.compute_leverages(fit.weight))
        remaining_information = screened.absolute_columns.T @ remaining_weight
        # The leverage of a row is the part that the selected candidates explain. For a selected
        # candidate it includes the part that the candidate itself explains, which is information
        # about the candidate. A column of ones alone has the leverage w / (sum of w over its rows)
        # in each of its rows, so the part is (sum of w^2) / (sum of w), and is added again.
        candidate_leverage = (
            screened.absolute_columns.T
            @ fit.weight**2
            / np.where(row_weight > 0, row_weight, np.inf)
        )
        remaining_information += np.where(is_selected, candidate_leverage, 0.0)
        # The projection of a column on a constant background removes (x' W 1)^2 / (1' W 1) of the
        # information x' W x, and both products are the sum of the weights over the rows of x.
        information = remaining_information * (1 - remaining_information / fit.weight.sum())
    else:
        information = approximate_information(row_weight, fit)
    # A candidate without weighted rows has no information. Its score becomes 0.
    safe_information = np.where(information > 0, information, np.inf)
    z = score / np.sqrt(safe_information)
    if is_approximate:
        # The residual is orthogonal to selected columns, so `score` is 0 for them. Their z score is
        # the coefficient divided by its standard error.
        z[is_selected] = (
            fit.coefficients[-fit.n_selected :] * np.sqrt(safe_information[is_selected]) * fit.kappa
        )
        return np.asarray(z)
    estimate, std_error = fit.compute_selected_estimates()
    z[is_selected] = estimate / std_error
    # Compute exact scores only where they can change the selection. This saves most of the time.
    is_exact = np.flatnonzero(~is_selected & (z > _EXACT_SCORE_FROM))
    score, information = fit.compute_scores(columns[:, is_exact])
    largest_information = float(np.max(information, initial=0.0))
    estimate, std_error = estimate_one_step(score, information, fit, largest_information)
    z[is_exact] = estimate / std_error
    return np.asarray(z)


def _estimate_all(
    columns: sparse.csc_array, fit: Fit, is_selected: Booleans
) -> tuple[Floats, Floats]:
    """Compute the estimate and the standard error of every screened candidate, without shortcuts.

    The estimate of a selected candidate is its fitted coefficient. The estimate of another
    candidate is the one-step estimate (`estimate_one_step`).

    Returns
    -------
    estimate, std_error : (c,) float64 each, as shares.
    """
    estimate, std_error = np.empty((2, len(is_selected)))
    score, information = fit.compute_scores(columns[:, ~is_selected])
    largest_information = float(np.max(information, initial=0.0))
    estimate[~is_selected], std_error[~is_selected] = estimate_one_step(
        score, information, fit, largest_information
    )
    estimate[is_selected], std_error[is_selected] = fit.compute_selected_estimates()
    return estimate, std_error


def _keep_strongest(is_member: Booleans, z: Floats, most: int) -> Booleans:
    """Reduce a set of candidates, (c,) bool, to the `most` members with the largest z scores."""
    if is_member.sum() <= most:
        return is_member
    is_kept = np.zeros_like(is_member)
    is_kept[np.argsort(np.where(is_member, -z, np.inf), kind="stable")[:most]] = True
    return is_kept


def _compute_search_degrees(z: Floats, is_significant: Booleans) -> float:
    """Compute the degrees of freedom that the choice of the candidates used.

    The degrees of freedom are t times the density of the scores at t, where t is the smallest score
    that may enter. The density is the number of scores per standard error. It is the number of
    scores within `_WINDOW` of t, because this window is one standard error wide.

    *Derivation.* The selection estimates a score z by z if z > t, and by 0 otherwise. The degrees
    of freedom of an estimate are the mean of its derivative by z (Stein's formula). The derivative
    is 1 above t: one degree for each coefficient, which the fit counts. At t the estimate jumps
    from 0 to t, which adds t times the density. Tibshirani (Statistica Sinica 2015, section 5)
    derives this for the selection of the best subset in an orthogonal design. Random hashing makes
    the design nearly orthogonal.

    *Example.* The smallest score that may enter is t = 4, and six candidates have scores between
    3.5 and 4.5. The search used 4 * 6 = 24 degrees of freedom.

    t is known only to lie between two neighbouring scores. If they are farther apart than the
    window is wide, no score is near t: the selection is certain and used no degrees of freedom.
    Otherwise two strings whose scores are 300 would count as 600 degrees.

    Parameters
    ----------
    z : (c,) float64. Scores of the screened candidates.
    is_significant : (c,) bool. True for candidates that may enter.
    """
    if not is_significant.any():
        return 0.0
    threshold = float(z[is_significant].min())
    below = z[z < threshold]
    if not len(below) or threshold - float(below.max()) > 2 * _WINDOW:
        return 0.0
    return threshold * float(np.sum(np.abs(z - threshold) < _WINDOW))
