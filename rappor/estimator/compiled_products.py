"""The compiled loops of `sparse_products`. A sparse matrix is its ends, its places and its data."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rappor.base.jit import compiled
from rappor.counts.arrays import Floats

Sparse = tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]], Floats]


@compiled
def add_products(left: Sparse, right: Sparse, products: Floats) -> None:
    """Add left' right to the products, (a, b), of a left side by columns and a right by rows."""
    ends, rows, values = left
    right_ends, places, right_values = right
    for a in range(len(ends) - 1):
        own = products[a]
        for i in range(ends[a], ends[a + 1]):
            row = rows[i]
            for j in range(right_ends[row], right_ends[row + 1]):
                own[places[j]] += values[i] * right_values[j]


@compiled
def add_forms(rows: Sparse, matrix: Floats, forms: Floats) -> None:
    """Add x' matrix x to the forms, (n,), for each row x; of the matrix the lower half is read."""
    ends, places, values = rows
    for row in range(len(ends) - 1):
        for i in range(ends[row], ends[row + 1]):
            own = matrix[places[i]]
            beside = 0.0
            for j in range(ends[row], i):
                beside += values[j] * own[places[j]]
            forms[row] += values[i] * (2 * beside + values[i] * own[places[i]])
