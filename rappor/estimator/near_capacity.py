"""Fit all candidates if the present strings fill a large part of the rows.

The input is the `Selection` of `rappor.estimator.selection`. The output is the same selection, or
another one whose fit contains all candidates.

Theory of operation
-------------------
A selection omits the candidates that it cannot detect. This is right if most of these candidates
are absent. It is wrong if hundreds of strings share hundreds of rows: the omitted strings collide
with all selected strings, and the search for the selection uses the degrees of freedom. A fit of
all candidates has no search and no collisions among the candidates, but each candidate costs one
row. A selection is *saturated* if the selected strings fill a sixth of the rows (`SATURATED`).

| case | fit |
|---|---|
| not saturated, few collisions | the selection |
| saturated; the candidates fill at most three quarters of the rows | least squares of all |
| saturated, or half as many candidates as rows and many collisions | shrunken fit of all |
| ... but most collisions come from strings that are no candidates | the selection |

Two numbers measure the size of a collection. With i_r the information of row r (inverse variance),
the *effective number of rows* is (sum of i)^2 / sum of i^2: rows of a large cohort count for most.
The *rows per candidate* is the same number over the rows that one candidate sets: at most m h.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from scipy import sparse

from rappor.estimator.debias import Target
from rappor.estimator.design_matrix import Columns, Design
from rappor.estimator.fit import LEAST_NOISE, Fit, fit_rows
from rappor.estimator.selection import Selection
from rappor.estimator.shrinkage import ShrunkenFit, fit_shrunken

_FULL: Final = 0.75
"""Largest number of candidates, as a share of the rows, for a least-squares fit of all candidates.
At three quarters, standard errors are twice those without other candidates, 1 / sqrt(1 - 3/4)."""

_MOST_FITTED: Final = 6000
"""Largest number of candidates for a least-squares fit of all. The inverse takes 300 MB and about
ten seconds."""

_MOST_TESTED: Final = 4000
"""Largest number of candidates that are fitted to test the goodness of their fit. The fit takes 1.5
seconds of CPU time for 2,500 candidates, and grows with the third power."""

SATURATED: Final = 1 / 6
"""Number of selected strings, as a share of the rows, above which all candidates are fitted. At a
seventh the intervals of a selection still cover 94.4 %, at a third 92 %."""

_COLLIDING: Final = 0.5
"""Share of collisions in the noise of a row above which the collisions may come from candidates
that were not selected. The shrunken fit decides whether they do."""

_MOST_ROWS: Final = 1024
"""Largest number of rows for the shrunken fit, which inverts a matrix of this size about thirty
times."""

_MOST_CANDIDATES: Final = 4
"""Largest number of candidates per row for the shrunken fit. More candidates cost time."""

_LEAST_DRAWS: Final = 2
"""Smallest number of rows per candidate for the shrunken fit. With one row, a share and a collision
cannot be distinguished."""

_FEWEST_COLLIDING: Final = 6.0
"""Number of rows per candidate below which its collisions with strings outside the fit do not
average out. With 4 rows, adjusted intervals of low noise cover 86 to 91 %, with 8 rows 94 %."""

_OTHERS: Final = 0.5
"""Variance of collisions with strings that are not candidates, relative to the variance of
collisions among candidates, above which the errors of a shrunken fit may be too small. The ratio is
.75 or more without the most frequent of 300 Zipf strings on 512 rows, where intervals cover 91 to
94 %. It is at most .001 with complete lists."""

_FEWEST_SHRUNKEN: Final = 3.0
"""Number of rows per candidate below which the shrunken fit treats no candidate as strong. With 2
cohorts the intervals of the 20 most frequent strings cover 92 % with strong candidates, and 96 %
without."""

_SATURATED_FEW_ROWS: Final = 1 / 8
"""Replacement for `SATURATED` if a candidate has fewer than `_FEWEST_SHRUNKEN` rows. With two rows,
one string in 16 collides on both."""

_MOST_OVERLAP: Final = 8.0
"""Excess of shared rows among selected candidates, in standard deviations, above which a fit with a
misfit is overfull. With 16 cohorts of 32 bits, the excess is 17 to 27 for candidates that were
chosen for the bits of a string of 60 %, and at most 3 for other lists."""

_MANY: Final = 0.5
"""Number of candidates per row above which collisions may come from strings that the selection
missed."""


def fit_all_if_saturated(target: Target, design: Design, selection: Selection) -> Selection:
    """Return a fit of all candidates if present strings fill the rows, otherwise the selection.

    The fit is a least-squares fit if the candidates are few enough, otherwise a shrunken fit.

    Parameters
    ----------
    target : n rows.
    design : columns of all candidates.
    selection : the result of `select_candidates`.
    """
    if (complete_fit := fit_all_by_least_squares(target, design, selection)) is not None:
        return complete_fit
    n_rows, draws = (
        count_effective_rows(selection.fit),
        count_effective_rows_per_candidate(target, selection.fit),
    )
    n_candidates, is_filled = design.n_candidates, _is_saturated(target, selection)
    may_collide = (
        n_candidates >= _MANY * n_rows and compute_collision_share(selection.fit) > _COLLIDING
    )
    # The selection is better in three cases: strings fill few rows and cause few collisions; some
    # rows have no noise; or a candidate has only one row.
    if (
        not (is_filled or may_collide)
        or target.has_one_sided_noise.any()
        or round(draws) < _LEAST_DRAWS
    ):
        return selection
    # The shrunken fit inverts a matrix of all rows many times, which is too slow for this size.
    if len(target) > _MOST_ROWS or n_candidates > _MOST_CANDIDATES * len(target):
        return selection
    columns = design.columns(np.arange(n_candidates))
    shrunken = fit_shrunken(
        target, columns, selection.fit, has_fixed_effects=draws >= _FEWEST_SHRUNKEN
    )
    # Strings that are not candidates cause most collisions. Shrinkage of the candidates cannot
    # explain them, and would take a heavy string that is no candidate for noise: for 300 Zipf
    # strings on 512 rows without the heaviest as a candidate, 18 % of the detections were false.
    if shrunken.collisions < shrunken.tau2:
        return selection
    return Selection(
        selected=selection.selected,
        fit=shrunken,
        estimate=shrunken.estimate,
        std_error=shrunken.std_error,
    )


def fit_all_by_least_squares(
    target: Target, design: Design, selection: Selection
) -> Selection | None:
    """Return the least-squares fit of all candidates, or None if it does not apply.

    The fit applies if selected strings fill the rows, and all candidates leave enough rows.
    """
    n = design.n_candidates
    if not _is_saturated(target, selection):
        return None
    if n > min(_FULL * count_effective_rows(selection.fit), _MOST_FITTED):
        return None
    fit = fit_rows(target, design.columns(np.arange(n)), start=selection.fit)
    estimate, std_error = fit.compute_selected_estimates()
    return Selection(selected=np.arange(n), fit=fit, estimate=estimate, std_error=std_error)


def fit_all_for_test(target: Target, design: Columns, selection: Selection) -> Fit | None:
    """Fit all candidates by least squares, only to test the goodness of their fit.

    Candidates that are present but too rare to be selected collide with other strings, so that the
    fit of the selected candidates is bad although the list is complete. The fit of all candidates
    has no such collisions.

    Returns
    -------
    The fit, or None if the candidates are too many, or not all of them are in memory.
    """
    n = design.n_candidates
    most = min(_FULL * count_effective_rows(selection.fit), _MOST_TESTED)
    if selection.other_counts is not None or n > most:
        return None
    return fit_rows(target, design.columns(np.arange(n)), start=selection.fit)


def _is_saturated(target: Target, selection: Selection) -> bool:
    """Return whether selected strings fill the rows: a sixth, or an eighth with few rows each."""
    has_few_rows = count_effective_rows_per_candidate(target, selection.fit) < _FEWEST_SHRUNKEN
    limit = _SATURATED_FEW_ROWS if has_few_rows else SATURATED
    return len(selection.selected) >= limit * count_effective_rows(selection.fit)


def compute_collision_share(fit: Fit) -> float:
    """Compute the share of collisions in the mean variance of a row, in [0, 1]."""
    noise = fit.coin_variance[np.isfinite(fit.coin_variance)]
    return float(fit.tau2 / (fit.tau2 + noise.mean()))


def count_effective_rows_per_candidate(target: Target, fit: Fit) -> float:
    """Compute the effective number of rows that a random candidate sets, at most m h.

    Rows are weighted by information, as in `count_effective_rows`: with one large cohort it is
    about h.
    """
    information = 1 / np.maximum(fit.coin_variance + fit.tau2, LEAST_NOISE)
    m = [counts.params.m for counts in target.counts]
    n_bits = np.repeat([counts.params.k for counts in target.counts], m)
    n_draws = np.repeat([counts.params.h for counts in target.counts], m)
    cohort = np.repeat(np.arange(len(n_bits)), n_bits)
    per_draw = np.bincount(cohort, information) / n_bits
    return float((n_draws * per_draw).sum() ** 2 / (n_draws * per_draw**2).sum())


def count_effective_rows(fit: Fit) -> float:
    """Compute the effective number of rows, (sum of i)^2 / sum of i^2 with i the information.

    If one cohort is much larger than the others, it dominates, and the number is about k.
    """
    information = 1 / np.maximum(fit.coin_variance + fit.tau2, LEAST_NOISE)
    return float(information.sum() ** 2 / (information**2).sum())


def compute_overlap_excess(target: Target, columns: sparse.csc_array) -> float:
    """Compute the excess of shared rows among the selected candidates, in standard deviations.

    Two strings share a bit of a cohort with probability h^2 / k about, because bits are hashes. The
    events of different pairs of strings are uncorrelated. So the number of shared rows, summed over
    all pairs of s selected candidates, has a variance of at most its mean. Candidates that were
    chosen for the bits of one frequent string share many more rows.

    Parameters
    ----------
    target : n rows.
    columns : (n, s) sparse. The rows of the selected candidates.
    """
    # Number a of selected candidates in each row, (n,). They form a (a - 1) / 2 pairs.
    n_candidates = np.asarray(abs(columns).sum(axis=1)).ravel()
    shared = expected = 0.0
    start = 0
    for counts in target.counts:
        params = counts.params
        stop = start + params.m * params.k
        in_cohort = n_candidates[start:stop].reshape(params.m, params.k)
        n_bits = in_cohort.sum(axis=1)
        shared += float((in_cohort * (in_cohort - 1) / 2).sum())
        expected += float((n_bits * (n_bits - params.h) / (2 * params.k)).sum())
        start = stop
    return (shared - expected) / float(np.sqrt(expected)) if expected > 0 else 0.0


def describe_capacity(
    target: Target, selection: Selection, columns: sparse.csc_array, *, misfit: bool
) -> dict[str, Any]:
    """Describe the number of rows, the kind of the fit, and whether it is overfull.

    The strings are too many (`overfull`) in four cases, and intervals may then cover less than
    their confidence level:

    - the selection fills the rows, but not all candidates could be fitted;
    - a candidate has so few rows that collisions with strings outside the fit do not average out.
      Such strings appear in the variance of the rows, or in a misfit (`misfit`);
    - the selected candidates share more rows than strings do by chance, and the fit is bad. This
      happens if candidates were chosen for sharing rows with a frequent string that is no
      candidate: together they explain its rows, and each seems to be present;
    - a shrunken fit finds many collisions with strings that are not candidates.

    Parameters
    ----------
    target : n rows.
    selection : the final fit.
    columns : (n, s) sparse. Columns of the selected candidates.
    misfit : True if the goodness of the fit is bad.
    """
    n_rows, draws = (
        count_effective_rows(selection.fit),
        count_effective_rows_per_candidate(target, selection.fit),
    )
    all_fitted = len(selection.selected) == len(selection.estimate)
    if isinstance(selection.fit, ShrunkenFit):
        has_foreign_collisions = selection.fit.tau2 > _OTHERS * selection.fit.collisions
        fitted, is_overfull = "shrunken", draws < _FEWEST_COLLIDING or has_foreign_collisions
    elif all_fitted and len(selection.selected) >= SATURATED * n_rows:
        fitted, is_overfull = "all", False
    else:
        may_collide = misfit or compute_collision_share(selection.fit) > _COLLIDING
        fitted = "selected"
        is_overfull = _is_saturated(target, selection) or (
            may_collide and draws < _FEWEST_COLLIDING
        )
    is_overfull |= misfit and compute_overlap_excess(target, columns) > _MOST_OVERLAP
    return {
        "rows": round(n_rows),
        "rows_per_candidate": round(draws, 1),
        "fitted": fitted,
        "overfull": bool(is_overfull),
    }
