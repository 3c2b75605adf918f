"""Near capacity: where present strings are a large part of the rows, all candidates are fitted.

Selection leaves out what it cannot tell from nothing. That pays where the candidates that are left
out are mostly absent. Where hundreds of strings share hundreds of rows it does not: those left
out collide with all others, and the search for the selection uses up what the rows know. A fit of
all candidates has no search and no collisions among them, and each candidate costs it one row.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize

from rappor.decoding.debias import Target
from rappor.decoding.design import Design
from rappor.decoding.fit import LEAST_NOISE, Fit, fit_rows
from rappor.decoding.selection import Selection

_FULL: Final = 0.75
"""Part of the rows that candidates may fill for all to be fitted: beyond, the errors double."""

_FILLED: Final = 1 / 6
"""Part of the rows that selected strings fill at least. At a seventh intervals still cover 94.4 %,
at a third 92 %."""

_SUM: Final = 1e4
"""Weight of the equation that shares sum to one, in the largest weight of the fit."""


def fit_all(target: Target, design: Design, selection: Selection) -> Selection:
    """Return a fit of all candidates where selected strings fill the rows, else the selection."""
    n_rows = count_rows(selection.fit)
    n_candidates = design.n_candidates
    if n_candidates > _FULL * n_rows or len(selection.chosen) < _FILLED * n_rows:
        return selection
    every = np.arange(n_candidates)
    fit = fit_rows(target, design.columns(every), start=selection.fit)
    return Selection(
        chosen=every,
        fit=fit,
        estimate=fit.coefficients[-n_candidates:],
        std_error=np.sqrt(fit.inverse.diagonal()[-n_candidates:]) / fit.kappa,
    )


def count_rows(fit: Fit) -> float:
    """Return how many equally certain rows know as much; one large cohort counts for most."""
    information = 1 / np.maximum(fit.noise + fit.tau2, LEAST_NOISE)
    return float(information.sum() ** 2 / (information**2).sum())


def is_full(selection: Selection) -> bool:
    """Tell whether all candidates are fitted because they fill the rows."""
    everyone = len(selection.chosen) == len(selection.estimate)
    return everyone and len(selection.chosen) >= _FILLED * count_rows(selection.fit)


def describe_capacity(selection: Selection) -> dict[str, Any]:
    """Return the rows that there are, what is fitted, and whether that is too much.

    Where it does, and candidates are too many to fit all of them, intervals cover less than they
    say.
    """
    n_rows = count_rows(selection.fit)
    full = is_full(selection)
    return {
        "rows": round(n_rows),
        "fitted": "all" if full else "selected",
        "overfull": bool(not full and len(selection.chosen) >= _FILLED * n_rows),
    }


def simplex_fit(fit: Fit, n_candidates: int) -> NDArray[np.float64]:
    """Return the shares, (n_candidates,), that fit best of those >= 0 that sum to at most one.

    The squared distance from the coefficients is that of their covariance: candidates that
    collide have errors in common.
    """
    estimate = fit.coefficients[-n_candidates:]
    covariance = fit.inverse[-n_candidates:, -n_candidates:]
    root = linalg.cholesky(linalg.inv(covariance))
    shares, _ = optimize.nnls(root, root @ estimate)
    if shares.sum() > 1:
        heavy = _SUM * np.abs(root).max()
        table = np.vstack([root, np.full(n_candidates, heavy)])
        shares, _ = optimize.nnls(table, np.append(root @ estimate, heavy))
        shares /= max(shares.sum(), 1.0)
    return np.asarray(shares)
