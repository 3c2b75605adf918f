"""Compiled loops of `sparse_products`.

A sparse matrix is a tuple: row or column ends, indices, values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rappor.base.jit import compile_kernel
from rappor.counts.arrays import Floats

Sparse = tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]], Floats]
"""Compressed sparse matrix: `indptr`, `indices` and `data` of scipy."""


@compile_kernel
def add_products(left: Sparse, right: Sparse, products: Floats) -> None:
    """Add left' right to `products`, (a, b). `left` is compressed by columns, `right` by rows."""
    ends, rows, values = left
    right_ends, columns, right_values = right
    for a in range(len(ends) - 1):
        products_row = products[a]
        for i in range(ends[a], ends[a + 1]):
            row = rows[i]
            for j in range(right_ends[row], right_ends[row + 1]):
                products_row[columns[j]] += values[i] * right_values[j]


@compile_kernel
def add_forms(rows: Sparse, matrix: Floats, forms: Floats) -> None:
    """Add x' matrix x to `forms`, (n,), for each row x.

    Only the lower half of the matrix is read.
    """
    ends, columns, values = rows
    for row in range(len(ends) - 1):
        for i in range(ends[row], ends[row + 1]):
            matrix_row = matrix[columns[i]]
            off_diagonal = 0.0
            for j in range(ends[row], i):
                off_diagonal += values[j] * matrix_row[columns[j]]
            forms[row] += values[i] * (2 * off_diagonal + values[i] * matrix_row[columns[i]])
