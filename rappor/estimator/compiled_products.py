"""Compiled loops of `sparse_products`, for products of large sparse matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rappor.base.jit import compile_kernel
from rappor.counts.arrays import Floats

Sparse = tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]], Floats]
"""A compressed sparse matrix is passed as its arrays `indptr`, `indices` and `data`, as scipy names
them."""


@compile_kernel
def add_products(left: Sparse, right: Sparse, products: Floats) -> None:
    """Add the product of a transposed matrix and a matrix, left' right, to `products`.

    Parameters
    ----------
    left : (n, a), compressed by columns.
    right : (n, b), compressed by rows.
    products : (a, b) float64. It is changed in place.
    """
    starts, rows, values = left
    right_starts, columns, right_values = right
    for a in range(len(starts) - 1):
        products_row = products[a]
        for i in range(starts[a], starts[a + 1]):
            row = rows[i]
            for j in range(right_starts[row], right_starts[row + 1]):
                products_row[columns[j]] += values[i] * right_values[j]


@compile_kernel
def add_forms(rows: Sparse, matrix: Floats, forms: Floats) -> None:
    """Add the quadratic form x' matrix x of each row x to `forms`.

    The matrix is symmetric, so x' matrix x is the sum of two terms:

    - x_i^2 matrix_ii for each i,
    - 2 x_i x_j matrix_ij for each pair j < i. The equal entry matrix_ji is not read.

    Parameters
    ----------
    rows : (n, p), compressed by rows.
    matrix : (p, p) float64, symmetric.
    forms : (n,) float64. It is changed in place.
    """
    starts, columns, values = rows
    for row in range(len(starts) - 1):
        for i in range(starts[row], starts[row + 1]):
            matrix_row = matrix[columns[i]]
            off_diagonal = 0.0
            for j in range(starts[row], i):
                off_diagonal += values[j] * matrix_row[columns[j]]
            forms[row] += values[i] * (2 * off_diagonal + values[i] * matrix_row[columns[i]])
