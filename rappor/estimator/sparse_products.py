"""Weighted products of sparse columns, with dense results."""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy import sparse

from rappor.counts.arrays import Floats

_COMPILED_FROM: Final = 1 << 21
"""Number of multiplications from which compiled loops are used. scipy takes 60 ms for this number.
For fewer multiplications, loading the loops would take longer than the product."""


def compute_weighted_products(
    left: sparse.csc_array, weight: Floats, right: sparse.csr_array
) -> Floats:
    """Compute left' diag(weight) right, the weighted products of the columns of two matrices.

    Parameters
    ----------
    left, right : (n, a) and (n, b) sparse.
    weight : (n,) float64.

    Returns
    -------
    (a, b) float64.
    """
    scaled = left.data * weight[left.indices]
    if np.diff(right.indptr)[left.indices].sum() < _COMPILED_FROM:
        rows = sparse.csr_array((scaled, left.indices, left.indptr), shape=left.shape[::-1])
        return np.asarray((rows @ right).toarray())
    from rappor.estimator.compiled_products import add_products  # noqa: PLC0415  # see above

    products = np.zeros((left.shape[1], right.shape[1]))
    add_products(
        (left.indptr, left.indices, scaled), (right.indptr, right.indices, right.data), products
    )
    return products


def compute_quadratic_forms(rows: sparse.csr_array, matrix: Floats) -> Floats:
    """Compute x' matrix x for each row x, (n,).

    Parameters
    ----------
    rows : (n, p) sparse.
    matrix : (p, p) float64, symmetric.
    """
    if rows.nnz * rows.shape[1] < _COMPILED_FROM:
        return np.asarray(rows.multiply(rows @ matrix).sum(axis=1)).ravel()
    from rappor.estimator.compiled_products import add_forms  # noqa: PLC0415  # see above

    forms = np.zeros(rows.shape[0])
    add_forms((rows.indptr, rows.indices, rows.data), matrix, forms)
    return forms
