"""Estimates and errors against the truth and against plain least squares."""

from __future__ import annotations

import numpy as np
import pytest
from decodings import (
    CANDIDATES,
    PARAMS,
    POPULATION,
    by_name,
    cells_of,
    counted,
    standardised_errors,
)
from numpy.typing import NDArray
from scipy import sparse

from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.decoding.fit import Equations
from rappor.decoding.sparse_products import quadratic_forms
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population


def test_estimates_are_those_of_dense_least_squares() -> None:
    """Where everything is detected, estimates and errors are the textbook's.

    The counts are the expected ones moved by half a standard deviation, so that residuals
    show no overdispersion and the noise is the coins' alone.
    """
    params, n = PARAMS, 3_200_000
    texts = list(POPULATION.values)
    design = np.zeros((params.m * params.k, len(texts)))
    for column, rows in enumerate(cells_of(texts, params)):
        design[rows, column] = 1
    counts, proportions = half_noisy(design @ POPULATION.weights, params, n)
    estimates = decode(counts, texts)
    expected, errors = dense_least_squares(design, proportions, params, n / params.m)
    found = by_name(estimates, estimates.proportion)
    assert estimates.detected.all()
    assert np.abs([found[text] for text in texts] - expected).max() < 1e-3 * errors.max()
    assert [by_name(estimates, estimates.std_error)[text] for text in texts] == pytest.approx(
        errors.tolist(), rel=1e-4
    )
    plain = np.linalg.lstsq(np.column_stack([np.ones(len(design)), design]), proportions)[0][1:]
    assert np.abs(plain - expected).max() > 0.01 * errors.max()  # the weights matter


def half_noisy(
    theta: NDArray[np.float64], params: Params, n: int
) -> tuple[Counts, NDArray[np.float64]]:
    """Return counts half a standard deviation around the expected, and their proportions."""
    gap = params.q_star - params.p_star
    mean = params.p_star + gap * theta
    per_cohort = n // params.m
    normal = np.random.default_rng(1).standard_normal(len(mean))
    ones = np.rint(per_cohort * mean + 0.5 * normal * np.sqrt(per_cohort * mean * (1 - mean)))
    counts = Counts(params, ones.reshape(params.m, params.k), np.full(params.m, per_cohort))
    return counts, (ones / per_cohort - params.p_star) / gap


def dense_least_squares(
    design: NDArray[np.float64], proportions: NDArray[np.float64], params: Params, n: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit a level and all columns, weighted by the binomial variance of the fit itself."""
    columns = np.column_stack([np.ones(len(design)), design])
    gap = params.q_star - params.p_star
    fitted = np.full(len(design), 1 / params.k)
    for _ in range(30):
        mean = params.p_star + gap * np.clip(fitted, 0, 1)
        weight = n * gap**2 / (mean * (1 - mean))
        inverse = np.linalg.inv(columns.T @ (weight[:, None] * columns))
        beta = inverse @ (columns.T @ (weight * proportions))
        fitted = columns @ beta
    return beta[1:], np.sqrt(inverse.diagonal())[1:]


def test_many_coefficients_are_those_of_the_inverse() -> None:
    """To 1e-6 of their errors, and the leverages of rows to .01 in the root of the mean square."""
    rng = np.random.default_rng(1)
    m, k, s = 64, 32, 500
    rows = (rng.integers(0, k, (s, m)) + np.arange(m) * k).ravel()
    columns = sparse.csc_array((np.ones(s * m), rows, np.arange(s + 1) * m), shape=(m * k, s))
    basis = sparse.csr_array(sparse.hstack([sparse.csc_array(np.ones((m * k, 1))), columns]))
    weight = np.where(rng.random(m * k) < 0.01, 0.0, rng.uniform(1e8, 3e8, m * k))
    proportions = basis @ rng.exponential(1e-3, s + 1) + 1e-4 * rng.standard_normal(m * k)
    equations = Equations(basis, weight)
    iterated = equations.solve(proportions, np.zeros(s + 1))
    inverse = equations.inverse
    inverted = inverse @ (basis.T @ (weight * proportions))
    for found, most in ((iterated, 1e-6), (equations.solve(proportions, iterated), 1e-9)):
        assert np.abs((found - inverted) / np.sqrt(inverse.diagonal())).max() < most
    leverage = equations.leverage(weight)
    assert leverage.sum() == pytest.approx(s + 1)
    assert np.std(leverage - weight * quadratic_forms(basis, inverse)) < 0.01


@pytest.mark.parametrize("h", [1, 2])
def test_errors_are_honest_standard_errors(h: int) -> None:
    """Over 20 collections the mean squared standardised error of 32 estimates is one.

    With 640 of them, nearly independent, the mean of squares has standard deviation
    sqrt(2/640) = .056; the bound is 6.1 of those with as much again for dependence.
    """
    params = Params(k=64, h=h, m=32, f=0.25, p=0.1, q=0.6)
    errors = [
        standardised_errors(decode(counted(params, seed=seed), CANDIDATES), POPULATION)
        for seed in range(20)
    ]
    assert abs(float(np.mean(np.square(errors))) - 1) < 0.5


@pytest.mark.parametrize("m", [2, 8, 32])
@pytest.mark.parametrize(
    "noise", [(0.0, 1e-6, 1 - 1e-6), (0.0, 0.1, 0.9), (0.25, 0.1, 0.6)], ids=str
)
def test_no_heavy_string_is_lost_where_noise_is_small(
    noise: tuple[float, float, float], m: int
) -> None:
    """With 1e8 reports every one of five candidates is detected, within six errors."""
    f, p, q = noise
    params = Params(k=32, m=m, f=f, p=p, q=q)
    names, weights = [f"s{i}" for i in range(5)], [0.5, 0.25, 0.15, 0.07, 0.03]
    counts = simulate_counts(Population(names, weights), params, n_reports=10**8, seed=1)
    found = decode(counts, names + [f"absent{i}" for i in range(50)])
    rows = {row["candidate"]: row for row in found.rows()}
    for name, weight in zip(names, weights, strict=True):
        assert rows[name]["detected"]
        # Six standard errors: missed with probability 2e-9 under the normal distribution.
        assert abs(rows[name]["count"] - weight * 1e8) < 6 * rows[name]["std_error"]
