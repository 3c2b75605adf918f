"""Weighted products and quadratic forms of sparse matrices."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from rappor.estimator.sparse_products import compute_quadratic_forms, compute_weighted_products


@pytest.mark.slow
@pytest.mark.parametrize("density", [0.5, 0.02])
@pytest.mark.parametrize(
    ("rows", "n_left", "n_right"), [(30, 5, 7), (1, 1, 1), (8, 0, 3), (9, 3, 0), (9000, 50, 40)]
)
def test_products_are_those_of_dense_matrices(
    rows: int, n_left: int, n_right: int, density: float
) -> None:
    """Sparse products A' W B and quadratic forms b' S b equal those of dense matrices.

    Some weights are 0, and A or B may have no columns. The matrix of 9,000 rows is large enough for
    the compiled loops.
    """
    rng = np.random.default_rng(rows)
    first = rng.normal(size=(rows, n_left)) * (rng.random((rows, n_left)) < 0.5)
    second = rng.normal(size=(rows, n_right)) * (rng.random((rows, n_right)) < density)
    weight = np.where(rng.random(rows) < 0.2, 0.0, rng.random(rows))
    products = compute_weighted_products(sparse.csc_array(first), weight, sparse.csr_array(second))
    assert products.shape == (n_left, n_right)
    assert products == pytest.approx(first.T @ (weight[:, None] * second), abs=1e-12)
    square = rng.normal(size=(n_right, n_right))
    square += square.T
    forms = compute_quadratic_forms(sparse.csr_array(second), square)
    assert forms == pytest.approx(np.einsum("ij,jk,ik->i", second, square, second), abs=1e-12)
