"""Screening and selection: which candidates the fit must hold to be honest about the others.

Screen all candidates by their score on the residual, in blocks, in bounded memory. Start
from a non-negative lasso on the screened ones. Refine: refit, de-bias every screened
candidate, let in what is significant and let go what no longer is. Screen again on the
residual, until nothing new passes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from rappor.decoding.debias import Target
from rappor.decoding.design import Design, Progress, sum_rows
from rappor.decoding.fit import Fit, fit_rows
from rappor.decoding.significance import null_tail, threshold
from rappor.decoding.sparse_products import weighted_products

SCREENED = 5000
"""Candidates that selection looks at between two screenings, the selected ones apart."""

LASSO_SCREENED = 2000
LASSO_PENALTY = 4.0
"""The lasso's penalty in standard errors: only what is beyond doubt starts the selection."""

ENTER, STAY = 0.05, 0.10
"""False discovery rates [BH95] at which a candidate enters and stays in the selection."""

_SCREENINGS = 8
_REFINEMENTS = 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """The selected candidates, their fit, and a score for every candidate.

    Attributes
    ----------
    chosen : (s,) int64, increasing. Selected candidates.
    fit : the fit on them.
    estimate, std_error : (c,) float64. De-biased proportion of every candidate and its
        standard error, noise and collisions included.
    """

    chosen: NDArray[np.int64]
    fit: Fit
    estimate: NDArray[np.float64]
    std_error: NDArray[np.float64]


def select(target: Target, design: Design, progress: Progress) -> Selection:
    """Select candidates and de-bias all of them.

    Returns
    -------
    Selection, the same for the same input: nothing here is random.
    """
    n = design.n_candidates
    fit = fit_rows(target, design.columns(np.array([], dtype=np.int64)), taper=False)
    chosen = np.array([], dtype=np.int64)
    for round_ in range(_SCREENINGS):
        estimate, std_error = _screen(design, fit, progress, n_backgrounds=len(target.counts))
        standing = estimate / std_error
        standing[chosen] = np.inf
        looked_at = np.sort(np.argsort(-standing, kind="stable")[: SCREENED + len(chosen)])
        columns = design.columns(looked_at)
        inside = np.isin(looked_at, chosen)
        if round_ == 0:
            inside = lasso(columns, fit, standing[looked_at])
            # Before any row is set aside: a string that the lasso missed would lose its own.
            fit, inside, *_ = _refine(
                target, columns, fit, inside, n_asked=n, progress=progress, taper=False
            )
        fit, inside, estimates, errors, cut = _refine(
            target, columns, fit, inside, n_asked=n, progress=progress
        )
        chosen = looked_at[inside]
        missed = np.setdiff1d(np.flatnonzero(standing > 0), looked_at)
        if len(missed):
            estimate, std_error = _screen(design, fit, progress, n_backgrounds=len(target.counts))
        estimate[looked_at], std_error[looked_at] = estimates, errors
        tail = null_tail(target, fit)
        if not len(missed) or not np.any(tail.p_values((estimate / std_error)[missed]) <= cut):
            break
    return Selection(chosen=chosen, fit=fit, estimate=estimate, std_error=std_error)


def _screen(
    design: Design, fit: Fit, progress: Progress, *, n_backgrounds: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """De-bias every candidate as if it were outside the selection, with the mean leverage.

    Returns
    -------
    estimate, std_error : (c,) float64.
    """
    # Score and weight in one go, as the parts of a complex number.
    both = fit.weight * fit.residual + 1j * fit.weight
    sums = np.empty(design.n_candidates, dtype=complex)
    for start, cells in design.blocks():
        sums[start : start + len(cells)] = sum_rows(cells, both)
        progress("screening candidates", start + len(cells), design.n_candidates)
    score, own = sums.real, sums.imag
    # The background takes own^2 / sum of weights, the selected their number in rows.
    n_selected = len(fit.coefficients) - n_backgrounds
    share_left = max(1 - n_selected / len(fit.residual), 0.05)
    return _debiased(score, own * (1 - own / fit.weight.sum()) * share_left, fit)


def _debiased(
    score: NDArray[np.float64], information: NDArray[np.float64], fit: Fit
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Turn scores into one-step estimates [ZZ14, equation 5] and standard errors.

    A candidate that is a combination of selected ones has no information of its own: its
    estimate is 0 and its standard error infinite.
    """
    known = information > 1e-6 * np.max(information, initial=0.0)
    safe = np.where(known, information, 1.0)
    estimate = np.where(known, score / safe / fit.kappa, 0.0)
    return estimate, np.where(known, 1 / np.sqrt(safe) / fit.kappa, np.inf)


def lasso(columns: sparse.csc_array, fit: Fit, standing: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Run a non-negative lasso on the best columns.

    Rows are weighted by inverse noise variance, columns scaled to unit information and the
    background projected out, so that the penalty counts standard errors.

    Few columns are in the solution, so it is sought among those whose score exceeds the
    penalty at first, and then held against all others: those whose score on what is left
    exceeds the penalty join, until none does. That is when it is the solution over all.
    """
    best = np.sort(np.argsort(-standing, kind="stable")[:LASSO_SCREENED])
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


def _least_angles(gram: NDArray[np.float64], score: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solve the non-negative lasso of a Gram matrix by least angles."""
    # Imported here: it takes seconds, and closed forms never come this way.
    from sklearn.linear_model import lars_path_gram  # noqa: PLC0415

    _, _, coefficients = lars_path_gram(
        Xy=score,
        Gram=gram,
        n_samples=1,
        alpha_min=LASSO_PENALTY,
        method="lasso",
        positive=True,
        max_iter=10 * len(score) + 100,
        return_path=False,
    )
    return np.asarray(coefficients)


def _refine(
    target: Target,
    columns: sparse.csc_array,
    fit: Fit,
    inside: NDArray[np.bool_],
    *,
    n_asked: int,
    progress: Progress,
    taper: bool = True,
) -> tuple[Fit, NDArray[np.bool_], NDArray[np.float64], NDArray[np.float64], float]:
    """Let candidates in and out of the selection until it stands.

    Returns the fit, who is inside, estimates and standard errors of the looked-at
    candidates, and the p-value at which one enters.
    """
    search_freedom = 0.0
    for step in range(_REFINEMENTS):
        progress("selecting candidates", step, _REFINEMENTS)
        fit = fit_rows(
            target, columns[:, inside], start=fit, taper=taper, search_freedom=search_freedom
        )
        estimate, std_error = _all_estimates(columns, fit, inside)
        standing = estimate / std_error
        p_values = null_tail(target, fit).p_values(standing)
        enter = threshold(p_values, level=ENTER, n_asked=n_asked, correction="bh")
        stay = threshold(p_values, level=STAY, n_asked=n_asked, correction="bh")
        n_rows = int((fit.weight > 0).sum())
        staying = _strongest(inside & (p_values <= stay), standing, n_rows // 2)
        # Few at a time: what enters may explain away what would have entered beside it.
        entering = _strongest(~inside & (p_values <= enter), standing, max(n_rows // 16, 1))
        wanted = staying | entering
        search_freedom = _search_freedom(standing, p_values <= enter)
        if step > 0 and np.array_equal(wanted, inside):
            break
        if step < _REFINEMENTS - 1:
            inside = wanted
    return fit, inside, estimate, std_error, enter


def _all_estimates(
    columns: sparse.csc_array, fit: Fit, inside: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the coefficient of every candidate: fitted inside, one-step outside."""
    estimate, std_error = _debiased(*fit.scores(columns), fit)
    n_selected = int(inside.sum())
    if n_selected:
        estimate[inside] = fit.coefficients[-n_selected:]
        std_error[inside] = np.sqrt(fit.inverse.diagonal()[-n_selected:]) / fit.kappa
    return estimate, std_error


def _strongest(
    wanted: NDArray[np.bool_], standing: NDArray[np.float64], most: int
) -> NDArray[np.bool_]:
    """Keep the wanted candidates with the largest scores, at most so many."""
    if wanted.sum() <= most:
        return wanted
    kept = np.zeros_like(wanted)
    kept[np.argsort(np.where(wanted, -standing, np.inf), kind="stable")[:most]] = True
    return kept


def _search_freedom(standing: NDArray[np.float64], entered: NDArray[np.bool_]) -> float:
    """Return the degrees of freedom spent on choosing: t times the density of scores at t.

    Tibshirani (Statistica Sinica 2015, section 5) derives it for best-subset selection in
    an orthogonal design, which random hashing nearly is.
    """
    if not entered.any():
        return 0.0
    edge = float(standing[entered].min())
    return edge * float(np.sum(np.abs(standing - edge) < 0.5))
