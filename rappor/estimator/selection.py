"""Selection: the candidates that the fit must hold to be honest about the others.

Screen all candidates by their score on the residual, in blocks, in bounded memory. Start
from a non-negative lasso on the screened ones. Refine: refit, de-bias every screened
candidate, add those that are significant and drop those that no longer are. Screen again on
the new residual, until no further candidate is significant.
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
from rappor.estimator.score_tests import null_tail
from rappor.estimator.screening import Pool, Scores, Task, debiased, usual_information
from rappor.estimator.sparse_products import weighted_products

SCREENED: Final = 5000
"""Candidates that selection looks at between two screenings, beside the selected ones: 8 MB of
columns at 128 cohorts. With 1,000 of them 1.4 % fewer strings are found."""

LASSO_SCREENED: Final = 2000
"""Candidates that the lasso looks at; 500 select the same."""

LASSO_PENALTY: Final = 4.0
"""The lasso's penalty in standard errors: only what is beyond doubt starts the selection.
Refinement adds the rest, so that 3 or 8 change what is found by less than .2 %."""

ENTER: Final = 0.05
"""False discovery rate [BH95] at which a candidate enters the selection: the decoder's default
level, so that what is detected is explained."""

STAY: Final = 0.10
"""False discovery rate at which a selected candidate stays. It is above ENTER, or candidates at the
edge enter and leave in turns: with .05 a decode takes a third longer."""

_SCREENINGS: Final = 8
"""Screenings at most: 3 are enough for the populations of the benchmarks."""

_REFINEMENTS: Final = 12
"""Refinements at most: 24 change nothing, 6 end where some sets have not settled."""

_MOST_SELECTED: Final = 2
"""Rows for each selected candidate at least: beyond, the fit has nothing left to estimate its
noise from."""

_MOST_ENTERING: Final = 16
"""Rows for each candidate that enters in one step at least: 4 or 64 change what is found by
.1 %."""

_NEAR: Final = 0.75
"""Z score, with the mean leverage, from which on a candidate's own is computed while the selection
is refined. Lower ones do not matter: those that enter, or are counted near the edge, exceed 1.1."""

_MOST_USUAL: Final = 0.25
"""Part of the rows up to which, of many columns, the leverage of a candidate's rows tells what is
left of its information."""

_EDGE: Final = 0.5
"""Half width, in standard errors, of the window in which scores near the edge are counted. Half of
it does as well; with 1 the window takes in strong strings beyond the edge, and where hundreds of
strings are equally frequent most of them are lost."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection(Scores):
    """The selected candidates, their fit, and an estimate for every candidate that is held.

    Attributes
    ----------
    chosen : (s,) int64, increasing. Places of the selected ones among those that are held.
    fit : the fit on them.
    """

    chosen: Integers
    fit: Fit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Screened:
    """The candidates that one round looks at.

    Attributes
    ----------
    target : n rows.
    columns : (n, s) sparse, the rows that each of s candidates sets.
    rows : their absolute values.
    n_candidates : number of all candidates, screened or not.
    """

    target: Target
    columns: sparse.csc_array
    rows: sparse.csc_array
    n_candidates: int
    progress: Progress


class _Refined(NamedTuple):
    """What a refinement ends with.

    Attributes
    ----------
    fit : the fit on the selected candidates.
    inside : (s,) bool. The selected ones of the screened candidates.
    enter : the p-value at which one more would enter.
    """

    fit: Fit
    inside: Booleans
    enter: float


def select(target: Target, pool: Pool, progress: Progress) -> Selection:
    """Select candidates and de-bias all of them; nothing here is random."""
    chosen = np.array([], dtype=np.int64)
    fit = fit_rows(target, pool.columns(chosen), taper=False)
    screening = pool.screen(Task(target, fit, pool.n_terms), chosen, progress)
    for round_ in range(_SCREENINGS):
        z = screening.estimate / screening.std_error
        z[np.isin(screening.index, chosen)] = np.inf
        best = np.sort(np.argsort(-z, kind="stable")[: SCREENED + len(chosen)])
        looked_at = screening.index[best]
        columns = pool.columns(looked_at)
        screened = _Screened(
            target=target,
            columns=columns,
            rows=abs(columns),
            n_candidates=pool.n_candidates,
            progress=progress,
        )
        inside = np.isin(looked_at, chosen)
        if round_ == 0:
            # No row is set aside yet: a string that the lasso missed would lose its own rows.
            found = _refine(screened, fit, lasso(columns, fit, z[best]), taper=False)
            fit, inside = found.fit, found.inside
        refined = _refine(screened, fit, inside)
        fit, chosen = refined.fit, looked_at[refined.inside]
        if len(looked_at) == pool.n_candidates:
            break
        # Those not looked at had low scores on the fit before: of these errors they are cured only
        # by the last one.
        screening = pool.screen(Task(target, fit, pool.n_terms), looked_at, progress)
        missed = ~np.isin(screening.index, looked_at)
        z = (screening.estimate / screening.std_error)[missed]
        p_values = null_tail(target, fit, most_values=0).p_values(z)
        if not np.any(p_values <= refined.enter):
            break
    place = np.searchsorted(screening.index, looked_at)
    screening.estimate[place], screening.std_error[place] = _all_estimates(
        screened.columns, fit, refined.inside
    )
    return Selection(
        chosen=np.searchsorted(screening.index, chosen),
        fit=fit,
        estimate=screening.estimate,
        std_error=screening.std_error,
        others=screening.others,
        least=screening.least,
    )


def lasso(columns: sparse.csc_array, fit: Fit, z: Floats) -> Booleans:
    """Run a non-negative lasso on the columns with the largest z.

    Rows are weighted by inverse noise variance, columns scaled to unit information and the
    background projected out, so that the penalty counts standard errors.

    Few columns are in the solution, so it is sought among those whose score exceeds the
    penalty at first, and then compared with all others: those whose score on the remaining
    residual exceeds the penalty join, until there are none. Then it solves the lasso over all.

    Returns
    -------
    (s,) bool, the columns with a coefficient above 0.
    """
    best = np.sort(np.argsort(-z, kind="stable")[:LASSO_SCREENED])
    score, information = fit.scores(columns[:, best])
    best = best[information > 0]
    score, information = score[information > 0], information[information > 0]
    some, scale = columns[:, best], np.sqrt(information)
    cross = weighted_products(some, fit.weight, fit.basis)
    left = score / scale
    tried = np.zeros(len(best), dtype=bool)
    coefficients = np.zeros(len(best))
    while np.any(joining := ~tried & (left > LASSO_PENALTY)):
        tried |= joining
        few = some[:, tried]
        gram = weighted_products(few, fit.weight, few.tocsr())
        gram -= cross[tried] @ fit.inverse @ cross[tried].T
        gram /= np.outer(scale[tried], scale[tried])
        coefficients[tried] = _least_angles(gram, score[tried] / scale[tried])
        explained = fit.weight * (some @ (coefficients / scale))
        taken = some.T @ explained - cross @ (fit.inverse @ (fit.basis.T @ explained))
        left = (score - taken) / scale
    chosen = np.zeros(columns.shape[1], dtype=bool)
    chosen[best] = coefficients > 0
    return chosen


def _least_angles(gram: Floats, score: Floats) -> Floats:
    """Solve the non-negative lasso of a Gram matrix by least angles."""
    # Imported here: it takes a second or more, and closed forms do without.
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415
    from sklearn.linear_model import lars_path_gram  # noqa: PLC0415

    with warnings.catch_warnings():
        # It stops early where scores are equal, with few reports; refinement adds the rest.
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


def _refine(screened: _Screened, fit: Fit, inside: Booleans, *, taper: bool = True) -> _Refined:
    """Add and drop candidates until the selected set no longer changes.

    `taper` as in `fit_rows`: False keeps every row at full weight.
    """
    search_degrees, n_backgrounds = 0.0, len(screened.target.counts)
    shares = np.zeros(len(inside))
    for step in range(_REFINEMENTS):
        screened.progress("selecting candidates", step, _REFINEMENTS)
        fit = fit_rows(
            screened.target,
            screened.columns[:, inside],
            start=fit,
            near=np.concatenate([fit.coefficients[:n_backgrounds], shares[inside]]),
            taper=taper,
            search_degrees=search_degrees,
        )
        shares[inside] = fit.coefficients[n_backgrounds:]
        z = _z_scores(screened, fit, inside)
        p_values = null_tail(screened.target, fit, most_values=0).p_values(z)
        every = PValues(rows=p_values, more=screened.n_candidates - len(p_values))
        enter, stay = (
            Thresholds(ErrorControl(alpha=each), every).largest for each in (ENTER, STAY)
        )
        n_rows = int((fit.weight > 0).sum())
        staying = _strongest(inside & (p_values <= stay), z, n_rows // _MOST_SELECTED)
        # Few at a time: one that enters may explain what others would have entered for.
        entering = _strongest(~inside & (p_values <= enter), z, max(n_rows // _MOST_ENTERING, 1))
        wanted = staying | entering
        search_degrees = _search_degrees(z, p_values <= enter)
        if step > 0 and np.array_equal(wanted, inside):
            break
        if step < _REFINEMENTS - 1:
            inside = wanted
    return _Refined(fit, inside, enter)


def _z_scores(screened: _Screened, fit: Fit, inside: Booleans) -> Floats:
    """Return the z score of every candidate, (s,), as far as it may decide who is selected.

    Where coefficients are many no information is exact, and where they are few that of low scores
    outside the selection is not.
    """
    columns, own = screened.columns, screened.rows.T @ fit.weight
    score = columns.T @ (fit.weight * fit.residual)
    many = fit.equations.many and fit.n_selected < _MOST_USUAL * len(fit.residual)
    if many:
        left = screened.rows.T @ (fit.weight * (1 - fit.equations.leverage(fit.weight)))
        # Those inside are part of that leverage themselves.
        itself = screened.rows.T @ fit.weight**2 / np.where(own > 0, own, np.inf)
        left += np.where(inside, itself, 0.0)
        information = left * (1 - left / fit.weight.sum())
    else:
        information = usual_information(own, fit)
    safe = np.where(information > 0, information, np.inf)
    z = score / np.sqrt(safe)
    if many:
        z[inside] = fit.coefficients[-fit.n_selected :] * np.sqrt(safe[inside]) * fit.kappa
        return np.asarray(z)
    estimate, std_error = fit.selected()
    z[inside] = estimate / std_error
    outside = np.flatnonzero(~inside & (z > _NEAR))
    score, information = fit.scores(columns[:, outside])
    usual = float(np.max(information, initial=0.0))
    estimate, std_error = debiased(score, information, fit, usual)
    z[outside] = estimate / std_error
    return np.asarray(z)


def _all_estimates(columns: sparse.csc_array, fit: Fit, inside: Booleans) -> tuple[Floats, Floats]:
    """Return the coefficient of every candidate: fitted inside, one-step outside."""
    estimate, std_error = np.empty((2, len(inside)))
    score, information = fit.scores(columns[:, ~inside])
    usual = float(np.max(information, initial=0.0))
    estimate[~inside], std_error[~inside] = debiased(score, information, fit, usual)
    estimate[inside], std_error[inside] = fit.selected()
    return estimate, std_error


def _strongest(wanted: Booleans, z: Floats, most: int) -> Booleans:
    """Keep the `most` wanted candidates with the largest z."""
    if wanted.sum() <= most:
        return wanted
    kept = np.zeros_like(wanted)
    kept[np.argsort(np.where(wanted, -z, np.inf), kind="stable")[:most]] = True
    return kept


def _search_degrees(z: Floats, entered: Booleans) -> float:
    """Return the degrees of freedom spent on choosing: t times the density of scores at t.

    Tibshirani (Statistica Sinica 2015, section 5) derives it for best-subset selection in
    an orthogonal design, which random hashing nearly is. t is the smallest score that entered.
    """
    if not entered.any():
        return 0.0
    edge = float(z[entered].min())
    return edge * float(np.sum(np.abs(z - edge) < _EDGE))
