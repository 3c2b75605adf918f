"""Cramer's V, a measure of association from 0 (independent) to 1: value, derivatives, interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmark_modules import import_benchmark
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import approx_fprime

from rappor.association import cramers_v
from rappor.association.cramers_v import estimate_cramers_v
from rappor.association.independence import _compute_sampling
from rappor.association.joint_table import JointTable
from rappor.counts.arrays import Floats, Integers

TABLES = (
    np.array([[40, 10], [20, 30]]),
    np.array([[30, 10, 5], [5, 10, 40]]),
    np.array([[90, 5, 5], [3, 60, 2], [1, 1, 30], [5, 5, 5]]),
    np.diag([20, 30, 50]),
    np.outer([2, 3, 5], [4, 6]),
)
"""Numbers of devices. The fourth table has V = 1, the last one V = 0."""


@pytest.mark.parametrize("counts", TABLES)
def test_value_without_noise_is_that_of_scipy(counts: Integers) -> None:
    """Nearly without errors, the estimate and both ends of the interval are scipy's Cramer's V.

    The shares sum to 0.7, because 30 % of the devices are not listed. This does not change V.
    """
    size = counts.size
    share = 0.7 * counts / counts.sum()
    table = JointTable(share=share, covariance=1e-16 * np.eye(size), devices=1e12)
    result = estimate_cramers_v(table, 0.95)
    expected = stats.contingency.association(counts, method="cramer")
    for value in (result.estimate, result.ci_low, result.ci_high):
        assert value == pytest.approx(expected, abs=1e-5)


def test_derivatives_equal_finite_differences() -> None:
    """The derivatives of the differences from independence and of phi2 equal finite differences.

    phi2 is the sum of share^2 / (row margin * column margin), less 1.
    """
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
    """At each end, the statistic is a quantile of the noncentral chi-squared distribution.

    The end is the noncentrality. At the lower end, the statistic is the upper quantile.
    """
    statistic = degrees_of_freedom + 60.0
    low, high = cramers_v._invert_quadratic_form(
        statistic, degrees_of_freedom, degrees_of_freedom, confidence
    )
    tail = (1 - confidence) / 2
    below = [stats.ncx2.cdf(statistic, degrees_of_freedom, end) for end in (low, high)]
    assert below == pytest.approx([1 - tail, tail], abs=1e-6)


@pytest.mark.parametrize("strength", [0.05, 0.4, 1.0])
def test_interval_is_that_of_the_definition(strength: float) -> None:
    """The interval is that of the quadratic form, stretched if the fields depend on each other.

    All formulas are those of the module, with slopes in place of the derivatives. At strength .05
    the estimate of phi2 is negative. Then the interval is not stretched.
    """
    share = np.outer([0.3, 0.3, 0.2], [0.6, 0.4]) + strength * 0.1 * np.array(
        [[1, -1], [-1, 1], [0, 0]]
    )
    covariance = 1e-4 * (np.eye(6) + 0.2)
    result = estimate_cramers_v(JointTable(share=share, covariance=covariance, devices=1e5), 0.9)

    def compute_differences(cells: Floats) -> Floats:
        table = cells.reshape(share.shape)
        product = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
        return np.asarray((table - product).ravel())

    def compute_phi2(cells: Floats) -> float:
        table = cells.reshape(share.shape)
        return float((table**2 / np.outer(table.sum(axis=1), table.sum(axis=0))).sum() - 1)

    slopes = approx_fprime(share.ravel(), compute_differences, 1e-7)
    differences = compute_differences(share.ravel())
    weights = np.diag(1 / (share.ravel() - differences) / share.sum())
    noise = weights @ slopes @ covariance @ slopes.T
    t1, t2 = np.trace(noise), np.trace(noise @ noise)
    quadratic = differences @ weights @ differences
    phi2 = quadratic - t1
    ends = np.array(
        [
            _find_noncentrality_by_search(quadratic * t1 / t2, t1**2 / t2, probability)
            for probability in (0.95, 0.05)
        ]
    )
    ends *= t2 / t1
    assert (phi2 > 0) == (strength > 0.1)
    assert ends[1] > 0
    if phi2 > 0:
        scaled = share.ravel() - differences * (1 - math.sqrt(phi2 / quadratic))
        gradient = approx_fprime(scaled, compute_phi2, 1e-7)
        kappa = max(1.0, gradient @ covariance @ gradient / (4 * t2 / t1 * phi2))
        stretched = phi2 + math.sqrt(kappa) * (ends - phi2)
        ends = np.array([min(ends[0], stretched[0]), max(ends[1], stretched[1])])
    expected = np.sqrt(np.clip([phi2, *ends], 0, 1))
    np.testing.assert_allclose(
        [result.estimate, result.ci_low, result.ci_high], expected, rtol=1e-3, atol=1e-4
    )
    assert (result.rare_rows, result.rare_columns) == (0, 0)


def _find_noncentrality_by_search(statistic: float, degrees: float, probability: float) -> float:
    """Return the non-centrality at which P(chi-squared <= statistic) is a probability, or 0."""
    low, high = 0.0, 1e6
    for _ in range(80):
        middle = (low + high) / 2
        is_above = stats.ncx2.cdf(statistic, degrees, middle) > probability
        low, high = (middle, high) if is_above else (low, middle)
    return low


def test_interval_of_a_small_statistic_begins_at_zero() -> None:
    """A statistic that is usual under independence has the lower end 0.

    A statistic below both quantiles of the central distribution also has the upper end 0.
    """
    assert cramers_v._invert_quadratic_form(0.01, 4.0, 4.0, 0.95) == (0.0, 0.0)
    low, high = cramers_v._invert_quadratic_form(4.0, 4.0, 4.0, 0.95)
    assert low == 0.0
    assert high > 0.0


@pytest.mark.slow
def test_margin_of_zero_only_adds_noise() -> None:
    """A row of a value without devices adds the noise of its cells and no infinite term."""
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
    # The mean of 200 estimates with errors of about .01 has a standard error of .0007. The bound
    # allows six standard errors (.004) and a bias.
    assert np.mean(estimates) == pytest.approx(expected, abs=0.01)


def test_table_within_its_noise_has_no_estimate() -> None:
    """If the sum of all cells is within its error of 0, V is NaN with the interval 0 to 1."""
    table = JointTable(share=np.full((2, 2), 1e-5), covariance=1e-6 * np.eye(4), devices=1e3)
    result = estimate_cramers_v(table, 0.95)
    assert math.isnan(result.estimate)
    assert (result.ci_low, result.ci_high) == (0.0, 1.0)


def make_rare_table(rng: np.random.Generator) -> JointTable:
    """Return a noisy table of 20 x 5 cells with a true Cramer's V of .1, in which most are rare."""
    truth = import_benchmark("association").make_dependent_table(
        (20, 5), 0.1, has_equal_frequencies=False
    )
    size, sigma = truth.size, 0.0025
    covariance = sigma**2 * np.eye(size) + _compute_sampling(truth) / 1e5
    share = rng.multivariate_normal(truth.ravel(), covariance, method="cholesky")
    return JointTable(share=share.reshape(truth.shape), covariance=covariance, devices=1e5)


def test_rare_values_are_one_value_for_the_lower_end() -> None:
    """Values with a margin below 5 standard errors are summed; the others stay as they are.

    The errors are .001 for a cell, .0014 for a row and .002 for a column. If the rare values
    together are still rare, they are part of the smallest value that is not.
    """
    common = np.array([[0.2, 0.1], [0.1, 0.3]])
    rare = np.array([[0.004, 0.002], [0.002, 0.004], [0.003, 0.003]])
    for n_rare, pooled in ((3, [rare.sum(axis=0)]), (1, [])):
        share = np.vstack([rare[:n_rare], common])
        table = JointTable(share=share, covariance=1e-6 * np.eye(share.size), devices=1e6)
        result = cramers_v._pool_rare_values(table)
        expected = np.vstack([common, *pooled])
        if not pooled:
            expected[0] += rare[0]
        np.testing.assert_allclose(result.share, expected)
        # The variance of a sum of cells with independent errors.
        n_summed = [1, 1, 3] if pooled else [2, 1]
        np.testing.assert_allclose(
            result.covariance, 1e-6 * np.diag(np.repeat(n_summed, 2)), atol=1e-20
        )
        assert result.devices == table.devices
        estimated = estimate_cramers_v(table, 0.95)
        assert (estimated.rare_rows, estimated.rare_columns) == (n_rare, 0)
        mirrored = estimate_cramers_v(table.transpose(), 0.95)
        assert (mirrored.rare_rows, mirrored.rare_columns) == (0, n_rare)
        assert mirrored.ci_low == pytest.approx(estimated.ci_low, abs=1e-9)


@pytest.mark.parametrize("n_common", [2, 3])
@pytest.mark.parametrize("sigma", [1e-6, 0.003])
def test_values_without_devices_do_not_hide_an_association(n_common: int, sigma: float) -> None:
    """Four values of each field that no device has do not hide the association of the others.

    V divides phi2 by the number of values of a field less 1, so the four values make it smaller.
    With much noise, the estimate and the upper end without pooling would be below the lower end.
    """
    common = np.diag(np.full(n_common, 0.9 / n_common)) + 0.1 / n_common**2
    share = np.pad(common, (0, 4))
    table = JointTable(share=share, covariance=sigma**2 * np.eye(share.size), devices=1e6)
    result = estimate_cramers_v(table, 0.95)
    scale = math.sqrt((n_common - 1) / (n_common + 3))
    of_pooled = estimate_cramers_v(cramers_v._pool_rare_values(table), 0.95)
    truth = scale * stats.contingency.association(np.round(900 * common).astype(int))
    assert (of_pooled.rare_rows, result.rare_rows) == (0, 4)
    assert result.ci_low == pytest.approx(scale * of_pooled.ci_low, abs=1e-3)
    assert result.ci_low <= result.estimate <= result.ci_high
    assert 0.9 * truth < result.ci_low < truth + 1e-3


def test_an_association_of_rare_values_has_its_own_lower_end() -> None:
    """The lower end of the whole table counts if pooling hides the association.

    Each of the two rare rows is in another column, so their sum has nearly the columns of the first
    row.
    """
    share = np.array([[0.6, 0.3], [0.0, 0.0066], [0.0066, 0.0]])
    table = JointTable(share=share, covariance=1e-6 * np.eye(6), devices=1e6)
    result = estimate_cramers_v(table, 0.95)
    assert result.rare_rows == 2
    assert estimate_cramers_v(cramers_v._pool_rare_values(table), 0.95).ci_low == 0.0
    assert result.ci_low > 0.08


def test_a_table_of_rare_values_has_no_lower_end() -> None:
    """If fewer than two values of a field are not rare, the pooled table shows no association."""
    share = np.array([[0.6, 0.3], [0.0, 0.001], [0.001, 0.0]])
    table = JointTable(share=share, covariance=1e-6 * np.eye(6), devices=1e6)
    result = estimate_cramers_v(table, 0.95)
    assert (result.rare_rows, result.ci_low) == (2, 0.0)


@given(
    st.lists(st.floats(0.01, 1), min_size=12, max_size=12),
    st.lists(st.integers(0, 2), min_size=4, max_size=4),
)
def test_summing_values_never_enlarges_the_association(
    cells: list[float], groups: list[int]
) -> None:
    """The lower end of a pooled table holds for the table: phi2 is a divergence."""
    share = np.array(cells).reshape(4, 3)
    pooled = np.array([share[np.array(groups) == group].sum(axis=0) for group in set(groups)])

    def compute_phi2(table: Floats) -> float:
        expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
        return float(((table - expected) ** 2 / expected).sum() / table.sum())

    assert compute_phi2(pooled) <= compute_phi2(share) + 1e-12


@pytest.mark.slow
def test_interval_of_a_table_with_rare_values_holds_and_excludes_zero() -> None:
    """The 95 % interval misses at most as often as it may, and its lower end shows dependence.

    The test of independence rejects all of these tables. Without pooling, the lower end was 0 in
    four of five of them. The bound of the misses is the quantile of a binomial distribution that is
    exceeded once in 1e9 runs.
    """
    rng = np.random.default_rng(3)
    results = [estimate_cramers_v(make_rare_table(rng), 0.95) for _ in range(200)]
    misses = sum(not result.ci_low <= 0.1 <= result.ci_high for result in results)
    assert misses <= stats.binom.isf(1e-9, len(results), 0.05)
    assert all(result.ci_low <= result.estimate <= result.ci_high for result in results)
    assert np.mean([result.ci_low > 0 for result in results]) > 0.75
    assert np.mean([result.rare_rows for result in results]) > 5
