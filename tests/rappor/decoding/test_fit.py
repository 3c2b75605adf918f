"""Estimates and errors of the fit against the truth and against dense least squares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from decodings import (
    PARAMS,
    POPULATION,
    by_name,
    cells_of,
)
from numpy.typing import NDArray
from scipy import linalg, sparse

from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.estimator.normal_equations import NormalEquations
from rappor.estimator.sparse_products import quadratic_forms
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

OTHER = Params(k=100, h=1, m=16, f=0.1, p=0.2, q=0.7)


@pytest.mark.parametrize("sets", [[PARAMS], [PARAMS, OTHER]], ids=["one", "two"])
def test_estimates_are_those_of_dense_least_squares(sets: list[Params]) -> None:
    """If all candidates are selected, estimates and errors equal those of dense least squares.

    The counts deviate from their expectation by half a standard deviation, so tau^2 is 0 and the
    noise is that of the coins.
    """
    texts = list(POPULATION.values)
    collections, rows = zip(*(half_noisy(params) for params in sets), strict=True)
    estimates = decode(collections, texts, reports_per_device=1)
    columns = linalg.block_diag(*(np.ones((len(row.design), 1)) for row in rows))
    columns = np.column_stack([columns, np.vstack([row.design for row in rows])])
    expected, errors = dense_least_squares(columns, rows)
    expected, errors = expected[len(sets) :], errors[len(sets) :]
    shares = by_name(estimates, estimates.share)
    assert estimates.detected.all()
    assert np.abs([shares[text] for text in texts] - expected).max() < 1e-3 * errors.max()
    assert [by_name(estimates, estimates.std_error)[text] for text in texts] == pytest.approx(
        errors.tolist(), rel=1e-4
    )
    proportions = np.concatenate([row.proportions for row in rows])
    plain = np.linalg.lstsq(columns, proportions)[0][len(sets) :]
    assert np.abs(plain - expected).max() > 0.01 * errors.max()  # the weights matter


class Rows(NamedTuple):
    """The rows of one collection: true bits, proportions, and reports of the row's cohort."""

    params: Params
    design: NDArray[np.float64]
    proportions: NDArray[np.float64]
    reports: int

    def weight(self, fitted: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the inverse binomial variances of the proportions at fitted proportions."""
        gap = self.params.q_star - self.params.p_star
        mean = self.params.p_star + gap * np.clip(fitted, 0, 1)
        return np.asarray(self.reports * gap**2 / (mean * (1 - mean)))


def half_noisy(params: Params) -> tuple[Counts, Rows]:
    """Return counts that deviate by half a standard deviation, and their rows."""
    texts = list(POPULATION.values)
    design = np.zeros((params.m * params.k, len(texts)))
    for column, cells in enumerate(cells_of(texts, params)):
        design[cells[cells >= 0], column] = 1
    gap, n = params.q_star - params.p_star, 3_200_000 // params.m
    mean = params.p_star + gap * (design @ POPULATION.weights)
    normal = np.random.default_rng(1).standard_normal(len(mean))
    ones = np.rint(n * mean + 0.5 * normal * np.sqrt(n * mean * (1 - mean)))
    counts = Counts(params, ones.reshape(params.m, params.k), np.full(params.m, n))
    return counts, Rows(params, design, (ones / n - params.p_star) / gap, n)


def dense_least_squares(
    columns: NDArray[np.float64], rows: Sequence[Rows]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit all columns, weighted by the binomial variance at the fitted values."""
    proportions = np.concatenate([row.proportions for row in rows])
    ends = np.cumsum([len(row.design) for row in rows])[:-1]
    fitted = np.full(len(columns), 0.01)
    for _ in range(30):
        parts = zip(rows, np.split(fitted, ends), strict=True)
        weight = np.concatenate([row.weight(part) for row, part in parts])
        inverse = np.linalg.inv(columns.T @ (weight[:, None] * columns))
        beta = inverse @ (columns.T @ (weight * proportions))
        fitted = columns @ beta
    return beta, np.sqrt(inverse.diagonal())


def test_many_coefficients_are_those_of_the_inverse() -> None:
    """Conjugate gradients give the coefficients and the leverages of the inverse.

    The tolerances are 1e-6 of a standard error, and .01 in the root mean square of the leverages.
    """
    rng = np.random.default_rng(1)
    m, k, s = 64, 32, 500
    rows = (rng.integers(0, k, (s, m)) + np.arange(m) * k).ravel()
    columns = sparse.csc_array((np.ones(s * m), rows, np.arange(s + 1) * m), shape=(m * k, s))
    basis = sparse.csr_array(sparse.hstack([sparse.csc_array(np.ones((m * k, 1))), columns]))
    weight = np.where(rng.random(m * k) < 0.01, 0.0, rng.uniform(1e8, 3e8, m * k))
    proportions = basis @ rng.exponential(1e-3, s + 1) + 1e-4 * rng.standard_normal(m * k)
    equations = NormalEquations(basis, weight)
    iterated = equations.solve(proportions, np.zeros(s + 1))
    inverse = equations.inverse
    inverted = inverse @ (basis.T @ (weight * proportions))
    for coefficients, most in ((iterated, 1e-6), (equations.solve(proportions, iterated), 1e-9)):
        assert np.abs((coefficients - inverted) / np.sqrt(inverse.diagonal())).max() < most
    leverage = equations.compute_leverages(weight)
    assert leverage.sum() == pytest.approx(s + 1)
    assert np.std(leverage - weight * quadratic_forms(basis, inverse)) < 0.01


@pytest.mark.parametrize("m", [2, 8, 32])
@pytest.mark.parametrize(
    "noise", [(0.0, 1e-6, 1 - 1e-6), (0.0, 0.1, 0.9), (0.25, 0.1, 0.6)], ids=str
)
def test_no_heavy_string_is_lost_where_noise_is_small(
    noise: tuple[float, float, float], m: int
) -> None:
    """With 1e8 reports all of five candidates are detected, within six standard errors."""
    f, p, q = noise
    params = Params(k=32, m=m, f=f, p=p, q=q)
    names, weights = [f"s{i}" for i in range(5)], [0.5, 0.25, 0.15, 0.07, 0.03]
    counts = simulate_counts(Population(names, weights), params, n_reports=10**8, seed=1)
    estimates = decode(counts, names + [f"absent{i}" for i in range(50)])
    rows = {row["candidate"]: row for row in estimates.rows()}
    for name, weight in zip(names, weights, strict=True):
        assert rows[name]["detected"]
        # Six standard errors: missed with probability 2e-9 under the normal distribution.
        assert abs(rows[name]["count"] - weight * 1e8) < 6 * rows[name]["std_error"]
