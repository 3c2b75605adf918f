"""Cramer's V: its value without noise, its derivatives, and its interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import approx_fprime

from rappor.association import cramers_v
from rappor.association.cramers_v import estimate_cramers_v
from rappor.association.joint_table import JointTable
from rappor.counts.arrays import Floats, Integers

TABLES = (
    np.array([[40, 10], [20, 30]]),
    np.array([[30, 10, 5], [5, 10, 40]]),
    np.array([[90, 5, 5], [3, 60, 2], [1, 1, 30], [5, 5, 5]]),
    np.diag([20, 30, 50]),
    np.outer([2, 3, 5], [4, 6]),
)


@pytest.mark.parametrize("counts", TABLES)
def test_value_without_noise_is_that_of_scipy(counts: Integers) -> None:
    """With almost no errors the estimate and both ends are Cramer's V, also below a sum of 1."""
    size = counts.size
    share = 0.7 * counts / counts.sum()
    table = JointTable(share=share, covariance=1e-16 * np.eye(size), devices=1e12)
    result = estimate_cramers_v(table, 0.95)
    expected = stats.contingency.association(counts, method="cramer")
    for value in (result.estimate, result.ci_low, result.ci_high):
        assert value == pytest.approx(expected, abs=1e-5)


def test_derivatives_are_the_slopes_of_the_formulas() -> None:
    """Differences from independence and phi2 change by their derivatives."""
    share = 0.7 * TABLES[2] / TABLES[2].sum()

    def compute_differences(cells: Floats) -> Floats:
        return cramers_v._compute_differences(cells.reshape(share.shape))[0]

    def compute_phi2(cells: Floats) -> float:
        table = cells.reshape(share.shape)
        return float((table**2 / np.outer(table.sum(axis=1), table.sum(axis=0))).sum() - 1)

    jacobian = approx_fprime(share.ravel(), compute_differences, 1e-8)
    np.testing.assert_allclose(
        cramers_v._compute_differences(share)[1], jacobian, rtol=1e-4, atol=1e-6
    )
    gradient = cramers_v._compute_gradient(share, share.sum(axis=1), share.sum(axis=0))
    np.testing.assert_allclose(
        gradient, approx_fprime(share.ravel(), compute_phi2, 1e-8), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("degrees_of_freedom", [1.0, 4.0, 76.3])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_ends_of_the_interval_are_quantiles(degrees_of_freedom: float, confidence: float) -> None:
    """At each end, the statistic is a quantile of the non-central distribution."""
    statistic = degrees_of_freedom + 60.0
    low, high = cramers_v._invert_quadratic_form(
        statistic, degrees_of_freedom, degrees_of_freedom, confidence
    )
    tail = (1 - confidence) / 2
    below = [stats.ncx2.cdf(statistic, degrees_of_freedom, end) for end in (low, high)]
    assert below == pytest.approx([1 - tail, tail], abs=1e-6)


def test_interval_of_a_small_statistic_begins_at_zero() -> None:
    """A statistic below the quantiles of independence has the interval from 0 to 0."""
    assert cramers_v._invert_quadratic_form(0.01, 4.0, 4.0, 0.95) == (0.0, 0.0)
    low, high = cramers_v._invert_quadratic_form(4.0, 4.0, 4.0, 0.95)
    assert low == 0.0
    assert high > 0.0


@pytest.mark.slow
def test_margin_of_zero_only_adds_noise() -> None:
    """A value that nobody has changes the estimate by the noise of its cells, not by infinities."""
    rng = np.random.default_rng(1)
    share = np.vstack([0.7 * TABLES[0] / TABLES[0].sum(), np.zeros(2)])
    sigma = 1e-3
    estimates = [
        estimate_cramers_v(
            JointTable(
                share=share + rng.normal(0, sigma, share.shape),
                covariance=sigma**2 * np.eye(6),
                devices=1e6,
            ),
            0.95,
        ).estimate
        for _ in range(200)
    ]
    expected = stats.contingency.association(TABLES[0], method="cramer")
    # 200 means of errors of about .01: six standard errors of the mean, and the first-order bias.
    assert np.mean(estimates) == pytest.approx(expected, abs=0.01)


def test_table_within_its_noise_has_no_value() -> None:
    """If the listed cells together are within their error of 0, V may be anything."""
    table = JointTable(share=np.full((2, 2), 1e-5), covariance=1e-6 * np.eye(4), devices=1e3)
    result = estimate_cramers_v(table, 0.95)
    assert math.isnan(result.estimate)
    assert (result.ci_low, result.ci_high) == (0.0, 1.0)
