"""Test of independence: the distance of a table of shares from the nearest table of rank 1.

A table of independent fields is the outer product of its margins, so its rank is 1. The distance is
r' C^-1 r, where r is the residual of the table and C the covariance of its cells.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats

from rappor.association import independence
from rappor.association.independence import (
    compute_independence_test,
    fit_rank_one,
    has_fixed_sum,
)
from rappor.association.joint_table import JointTable
from rappor.counts.arrays import Floats

MANY_DEVICES = 1e12
"""Number of devices. It is so large that the sampling of devices adds nothing to the covariances of
these tests."""


def make_table(seed: int, shape: tuple[int, int], *, noise: float = 1e-3) -> JointTable:
    """Return a table of independent fields with noise, whose covariance has random correlations."""
    rng = np.random.default_rng(seed)
    row, column = rng.dirichlet(np.ones(shape[0])), rng.dirichlet(np.ones(shape[1]))
    factors = rng.normal(size=(row.size * column.size, 2 * row.size * column.size))
    covariance = noise**2 * factors @ factors.T / factors.shape[1]
    errors = rng.multivariate_normal(np.zeros(len(covariance)), covariance)
    share = 0.7 * np.outer(row, column) + errors.reshape(shape)
    return JointTable(share=share, covariance=covariance, devices=MANY_DEVICES)


def test_distance_with_equal_errors_follows_from_singular_values() -> None:
    """With equal errors, the distance is the sum of all squared singular values but the largest.

    The nearest table of rank 1 consists of the first singular vectors (theorem of Eckart and
    Young). The variance of the cells is 0.25.
    """
    share = np.random.default_rng(1).normal(size=(4, 6))
    fitted, distance = fit_rank_one(share, 0.25 * np.eye(24))
    singular = np.linalg.svd(share)[1]
    assert distance == pytest.approx((singular[1:] ** 2).sum() / 0.25, rel=1e-6)
    assert np.linalg.matrix_rank(fitted, tol=1e-9) == 1


@pytest.mark.parametrize("seed", range(5))
def test_distance_is_the_minimum_of_a_general_minimiser(seed: int) -> None:
    """Scipy's least squares over both vectors, from five starts, has the same minimum."""
    table = make_table(seed, (3, 4))
    _, distance = fit_rank_one(table.share, table.covariance)
    whitening = np.linalg.inv(np.linalg.cholesky(table.covariance))
    rng = np.random.default_rng(seed)

    def compute_residuals(vectors: Floats) -> Floats:
        residual = (table.share - np.outer(vectors[:3], vectors[3:])).ravel()
        return np.asarray(whitening @ residual)

    starts = [
        np.concatenate([table.share.sum(axis=1), table.share.sum(axis=0) / table.share.sum()])
        * rng.uniform(0.5, 2, 7)
        for _ in range(5)
    ]
    nearest = min(2 * optimize.least_squares(compute_residuals, start).cost for start in starts)
    assert distance == pytest.approx(nearest, rel=1e-5)


def test_independent_table_without_errors_has_distance_zero() -> None:
    """A product of two vectors is a table of rank 1 for every covariance."""
    table = make_table(3, (5, 2))
    product = np.outer([0.1, 0.2, 0.3, 0.05, 0.05], [0.4, 0.6])
    exact = JointTable(share=product, covariance=table.covariance, devices=MANY_DEVICES)
    assert compute_independence_test(exact).p_value == pytest.approx(1.0)


def test_order_of_rows_and_columns_does_not_change_the_test() -> None:
    """A transposed table and a table with reordered rows have the same statistic."""
    table = make_table(4, (3, 5))
    result = compute_independence_test(table)
    assert result.degrees_of_freedom == 8  # (3 - 1) * (5 - 1)
    order = np.arange(15).reshape(3, 5)[[2, 0, 1]].ravel()
    reordered = JointTable(
        share=table.share[[2, 0, 1]],
        covariance=table.covariance[np.ix_(order, order)],
        devices=table.devices,
    )
    for same_table in (table.transpose(), reordered):
        assert compute_independence_test(same_table).statistic == pytest.approx(
            result.statistic, 1e-6
        )


def test_complete_fields_are_compared_with_tables_of_sum_one() -> None:
    """If the sum of shares is known to be 1, the distance is to tables of rank 1 with this sum."""
    table = make_table(5, (3, 3))
    sums = table.covariance.sum(axis=1)
    # Condition the shares and their covariance on the sum 1, as a decode with complete=True does.
    covariance = table.covariance - np.outer(sums, sums) / sums.sum()
    share = table.share.ravel() - sums * (table.share.sum() - 1) / sums.sum()
    assert has_fixed_sum(covariance)
    assert not has_fixed_sum(table.covariance)
    complete = JointTable(share=share.reshape(3, 3), covariance=covariance, devices=MANY_DEVICES)
    result = compute_independence_test(complete)

    precision = np.linalg.pinv(covariance, rcond=1e-10, hermitian=True)

    def compute_distance(vectors: Floats) -> float:
        product = np.outer(
            np.append(vectors[:2], 1 - vectors[:2].sum()),
            np.append(vectors[2:], 1 - vectors[2:].sum()),
        )
        residual = share - product.ravel()
        return float(residual @ precision @ residual)

    margins = np.concatenate([complete.share.sum(axis=1)[:2], complete.share.sum(axis=0)[:2]])
    nearest = optimize.minimize(
        compute_distance,
        margins,
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-9, "maxiter": 10_000},
    ).fun
    # The statistic frees the sum along the products of the estimated margins, and not along the
    # nearest table, so both distances agree only to first order.
    assert result.statistic == pytest.approx(nearest, rel=0.02)
    assert result.degrees_of_freedom == 4


def test_statistic_without_noise_is_the_one_of_pearson() -> None:
    """Without noise, the statistic is Pearson's within 1 %, also with a value without reports.

    Pearson's statistic is computed from the three rows with reports.
    """
    rng = np.random.default_rng(6)
    cells = np.outer([0.5, 0.3, 0.2, 0.0], [0.6, 0.4])
    counts = rng.multinomial(100_000, cells.ravel()).reshape(4, 2)
    share = counts / counts.sum()
    flat = share.ravel()
    table = JointTable(
        share=share, covariance=(np.diag(flat) - np.outer(flat, flat)) / 1e5, devices=1e5
    )
    result = compute_independence_test(table)
    pearson = stats.chi2_contingency(counts[:3], correction=False)
    assert result.statistic == pytest.approx(pearson.statistic, rel=0.01)
    # The row without reports adds a degree of freedom and nothing to the statistic.
    assert result.p_value > pearson.pvalue


def test_sampling_is_that_of_the_independent_table() -> None:
    """Of dependent fields, too, the statistic is Pearson's, whose variances are those expected.

    With the variances of the estimates, the statistic would be 10 % larger.
    """
    counts = np.array([[600, 400], [300, 700]])
    flat = counts.ravel() / counts.sum()
    covariance = (np.diag(flat) - np.outer(flat, flat)) / counts.sum()
    table = JointTable(share=flat.reshape(2, 2), covariance=covariance, devices=counts.sum())
    pearson = stats.chi2_contingency(counts, correction=False)
    assert compute_independence_test(table).statistic == pytest.approx(pearson.statistic, rel=0.01)


def test_sampling_of_noisy_shares_is_that_of_a_distribution() -> None:
    """Negative shares count as 0, and shares with a sum above 1 are scaled to the sum 1."""
    share = np.array([[0.6, -0.1], [0.4, 0.25]])
    covariance = independence._compute_sampling(share)
    cells = np.array([0.6, 0.0, 0.4, 0.25]) / 1.25
    np.testing.assert_allclose(covariance, np.diag(cells) - np.outer(cells, cells))
    np.testing.assert_allclose(covariance.sum(axis=1), 0, atol=1e-15)


def test_table_of_zeros_has_the_p_value_one() -> None:
    """A table of zeros is the product of two vectors of zeros, so its distance is 0."""
    table = JointTable(share=np.zeros((2, 3)), covariance=1e-6 * np.eye(6), devices=1e3)
    assert compute_independence_test(table).p_value == 1.0
