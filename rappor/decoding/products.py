"""Weighted products of sparse columns, as dense results."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse


def weighted_products(
    left: sparse.csc_array, weight: NDArray[np.float64], right: sparse.csr_array
) -> NDArray[np.float64]:
    """Return left' diag(weight) right.

    Parameters
    ----------
    left, right : (n, a) and (n, b) sparse.
    weight : (n,) float64.

    Returns
    -------
    (a, b) float64.
    """
    scaled = left.data * weight[left.indices]
    rows = sparse.csr_array((scaled, left.indices, left.indptr), shape=left.shape[::-1])
    return np.asarray((rows @ right).toarray())
