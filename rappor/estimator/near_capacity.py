"""Near capacity: where present strings are a large part of the rows, all candidates are fitted.

Selection leaves out what it cannot detect. That pays where the candidates that are left
out are mostly absent. Where hundreds of strings share hundreds of rows it does not: those left
out collide with all others, and the search for the selection uses up what the rows know. A fit of
all candidates has no search and no collisions among them, and each candidate costs it one row.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rappor.estimator.debias import Target
from rappor.estimator.design_matrix import Design
from rappor.estimator.fit import LEAST_NOISE, Fit, fit_rows
from rappor.estimator.selection import Selection
from rappor.estimator.shrinkage import ShrunkenFit, shrink

_FULL: Final = 0.75
"""Part of the rows that candidates may fill for all to be fitted: beyond, the errors double."""

_MOST_FITTED: Final = 6000
"""Candidates up to which all are fitted: the inverse takes 300 MB and some ten seconds."""

FILLED: Final = 1 / 6
"""Part of the rows that selected strings fill at least. At a seventh intervals still cover 94.4 %,
at a third 92 %."""

_COLLIDING: Final = 0.5
"""Part of a row's noise that collisions make from which on they may be of candidates that were not
selected: the shrunken fit tells."""

_MOST_ROWS: Final = 1024
"""Rows up to which the shrunken fit is made: it inverts a matrix of them some thirty times."""

_MOST_CANDIDATES: Final = 4
"""Candidates for each row up to which it is made."""

_LEAST_DRAWS: Final = 2
"""Rows of a candidate that it needs: with one, its share and a collision are the same."""

_FEWEST_COLLIDING: Final = 6.0
"""Rows of a candidate, below which its collisions with strings that are not fitted do not average
out: with 4 adjusted intervals of low noise hold 86 to 91 %, with 8 they hold 94 %."""

_OTHERS: Final = 0.5
"""Collisions of strings that are no candidates, as a part of those of candidates, from which on the
errors of a shrunken fit may not hold: it is .75 or more without the heaviest of 300 Zipf strings on
512 rows, where intervals cover 91 to 94 %, and .001 at most with complete lists."""

_FEWEST_SHRUNKEN: Final = 3.0
"""Rows of a candidate below which the shrunken fit takes none for strong: with 2 cohorts intervals
of the 20 most frequent hold 92 % if it does, and 96 % if not."""

_FILLED_FEW: Final = 1 / 8
"""The same as `FILLED` where a candidate has fewer rows than that: with two, one string in 16 has
others on both."""

_MANY: Final = 0.5
"""Candidates for each row from which on their collisions may be what the selection missed."""


def fit_all(target: Target, design: Design, selection: Selection) -> Selection:
    """Return a fit of all candidates where present strings fill the rows, else the selection.

    It is of least squares where candidates are few enough for that, else shrunken.
    """
    if (every := fit_every(target, design, selection)) is not None:
        return every
    n_rows, draws = count_rows(selection.fit), count_draws(target, selection.fit)
    n_candidates, filled = design.n_candidates, _is_filled(target, selection)
    many = n_candidates >= _MANY * n_rows and collision_share(selection.fit) > _COLLIDING
    if not (filled or many) or target.certain.any() or round(draws) < _LEAST_DRAWS:
        return selection
    if len(target) > _MOST_ROWS or n_candidates > _MOST_CANDIDATES * len(target):
        return selection
    columns = design.columns(np.arange(n_candidates))
    shrunken = shrink(target, columns, selection.fit, strong_apart=draws >= _FEWEST_SHRUNKEN)
    if shrunken.collisions < shrunken.tau2:
        return selection  # others than the candidates collide
    return Selection(
        chosen=selection.chosen,
        fit=shrunken,
        estimate=shrunken.estimate,
        std_error=shrunken.std_error,
    )


def fit_every(target: Target, design: Design, selection: Selection) -> Selection | None:
    """Return the least-squares fit of all candidates; None where it is not called for."""
    n = design.n_candidates
    if not _is_filled(target, selection):
        return None
    if n > min(_FULL * count_rows(selection.fit), _MOST_FITTED):
        return None
    fit = fit_rows(target, design.columns(np.arange(n)), start=selection.fit)
    estimate, std_error = fit.selected()
    return Selection(chosen=np.arange(n), fit=fit, estimate=estimate, std_error=std_error)


def _is_filled(target: Target, selection: Selection) -> bool:
    """Return whether selected strings fill the rows."""
    few = count_draws(target, selection.fit) < _FEWEST_SHRUNKEN
    part = _FILLED_FEW if few else FILLED
    return len(selection.chosen) >= part * count_rows(selection.fit)


def collision_share(fit: Fit) -> float:
    """Return the part of a row's noise that collisions make."""
    noise = fit.noise[np.isfinite(fit.noise)]
    return float(fit.tau2 / (fit.tau2 + noise.mean()))


def count_draws(target: Target, fit: Fit) -> float:
    """Return how many rows a candidate has, counted by what they know as `count_rows` does."""
    information = 1 / np.maximum(fit.noise + fit.tau2, LEAST_NOISE)
    m = [counts.params.m for counts in target.counts]
    n_bits = np.repeat([counts.params.k for counts in target.counts], m)
    n_draws = np.repeat([counts.params.h for counts in target.counts], m)
    cohort = np.repeat(np.arange(len(n_bits)), n_bits)
    each = np.bincount(cohort, information) / n_bits
    return float((n_draws * each).sum() ** 2 / (n_draws * each**2).sum())


def count_rows(fit: Fit) -> float:
    """Return the effective number of rows; one large cohort counts for most."""
    information = 1 / np.maximum(fit.noise + fit.tau2, LEAST_NOISE)
    return float(information.sum() ** 2 / (information**2).sum())


def describe_capacity(target: Target, selection: Selection, *, misfit: bool) -> dict[str, Any]:
    """Return the rows that there are, what is fitted, and whether the strings are too many.

    They are where neither all nor a selection can be fitted: where too much is selected, or a
    candidate has so few rows that collisions with strings that are not fitted do not average out,
    or where a shrunken fit finds that strings which are no candidates make many of them.
    Such strings show in the variance of the rows, or in a bad fit (`misfit`). Intervals may cover
    less than they say then.
    """
    n_rows, draws = count_rows(selection.fit), count_draws(target, selection.fit)
    everyone = len(selection.chosen) == len(selection.estimate)
    if isinstance(selection.fit, ShrunkenFit):
        others = selection.fit.tau2 > _OTHERS * selection.fit.collisions
        fitted, unknown = "shrunken", draws < _FEWEST_COLLIDING or others
    elif everyone and len(selection.chosen) >= FILLED * n_rows:
        fitted, unknown = "all", False
    else:
        colliding = misfit or collision_share(selection.fit) > _COLLIDING
        fitted = "selected"
        unknown = _is_filled(target, selection) or (colliding and draws < _FEWEST_COLLIDING)
    return {
        "rows": round(n_rows),
        "rows_per_candidate": round(draws, 1),
        "fitted": fitted,
        "overfull": bool(unknown),
    }
