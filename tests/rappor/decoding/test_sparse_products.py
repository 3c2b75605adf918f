"""Weighted products of sparse columns."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from rappor.estimator.sparse_products import quadratic_forms, weighted_products


@pytest.mark.slow
@pytest.mark.parametrize("density", [0.5, 0.02])
@pytest.mark.parametrize(
    ("rows", "left", "right"), [(30, 5, 7), (1, 1, 1), (8, 0, 3), (9, 3, 0), (9000, 50, 40)]
)
def test_products_are_those_of_dense_matrices(
    rows: int, left: int, right: int, density: float
) -> None:
    """Products equal those of dense matrices, with zero weights, empty sides and compiled loops."""
    chance = np.random.default_rng(rows)
    first = chance.normal(size=(rows, left)) * (chance.random((rows, left)) < 0.5)
    second = chance.normal(size=(rows, right)) * (chance.random((rows, right)) < density)
    weight = np.where(chance.random(rows) < 0.2, 0.0, chance.random(rows))
    products = weighted_products(sparse.csc_array(first), weight, sparse.csr_array(second))
    assert products.shape == (left, right)
    assert products == pytest.approx(first.T @ (weight[:, None] * second), abs=1e-12)
    square = chance.normal(size=(right, right))
    square += square.T
    forms = quadratic_forms(sparse.csr_array(second), square)
    assert forms == pytest.approx(np.einsum("ij,jk,ik->i", second, square, second), abs=1e-12)
