"""The distribution answer: the whole list with the smallest total error.

A question of its own, apart from detection: shares that are not negative and, with the
unasked "other", sum to one. Maximum likelihood of binomial rows under that constraint by
Fisher scoring, each step a quadratic program that an active-set method solves exactly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize, sparse

from rappor.decoding.fit import Fit
from rappor.decoding.target import Target

_STEPS = 4
"""Fisher scoring steps; the weights hardly move after the second."""

_SUM_WEIGHT = 1e4
"""How many times harder the sum is held to one than the data hold the shares."""


def fit_distribution(target: Target, columns: sparse.csc_array, fit: Fit) -> NDArray[np.float64]:
    """Fit shares of the given candidates on the simplex with an explicit other.

    Parameters
    ----------
    target : n rows.
    columns : (n, c) sparse, the candidates that may have a share.
    fit : the fit of the selection, for collision variance and tapered rows.

    Returns
    -------
    (c,) float64, not negative, summing to at most one; the rest is the other's.
    """
    shares = np.zeros(columns.shape[1])
    if columns.shape[1] == 0:
        return shares
    # An unasked string sets each row with chance d, so d is subtracted from every column
    # and from the target: what is left is free of the other's share.
    density = sparse.csc_array(target.density[:, None])
    proportions = target.proportions - target.density
    fitted = fit.fitted
    for _ in range(_STEPS):
        weight = fit.robust / (target.noise(fitted) + fit.tau2)
        shares = _quadratic_program(columns, target.density, proportions, weight)
        other = 1 - shares.sum()
        fitted = columns @ shares + other * density.toarray().ravel()
    return shares


def _quadratic_program(
    columns: sparse.csc_array,
    density: NDArray[np.float64],
    proportions: NDArray[np.float64],
    weight: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Minimise the weighted squares over shares >= 0 with sum <= 1."""
    weighted = columns.T @ sparse.diags_array(weight)
    across = weighted @ density
    gram = np.asarray((weighted @ columns).todense())
    gram -= across[:, None] + across[None, :] - np.sum(weight * density**2)
    score = columns.T @ (weight * proportions) - np.sum(weight * density * proportions)
    shares = _nonnegative(gram, score)
    if shares.sum() <= 1:
        return shares
    pull = _SUM_WEIGHT * float(gram.diagonal().mean())
    return _nonnegative(gram + pull, score + pull)


def _nonnegative(gram: NDArray[np.float64], score: NDArray[np.float64]) -> NDArray[np.float64]:
    """Minimise x'Gx/2 - s'x over x >= 0 by the active-set method of Lawson and Hanson."""
    gram = gram + np.diag(1e-9 * gram.diagonal() + np.finfo(float).tiny)
    root = linalg.cholesky(gram, lower=False, check_finite=False)
    goal = linalg.solve_triangular(root, score, trans="T", check_finite=False)
    shares, _ = optimize.nnls(root, goal)
    return np.asarray(shares)
