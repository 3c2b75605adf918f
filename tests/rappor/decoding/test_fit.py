"""The fit: its estimates and errors equal those of dense least squares, and are near the truth."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from decodings import (
    PARAMS,
    POPULATION,
    compute_text_cells,
    map_by_candidate,
)
from numpy.typing import NDArray
from scipy import linalg, sparse, special

from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.estimator.fit import _estimate_initial_tau2
from rappor.estimator.normal_equations import NormalEquations
from rappor.estimator.sparse_products import compute_quadratic_forms
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

OTHER = Params(k=100, h=1, m=16, f=0.1, p=0.2, q=0.7)
"""A second collection has these parameters. They differ from PARAMS in shape and noise."""


@pytest.mark.parametrize("sets", [[PARAMS], [PARAMS, OTHER]], ids=["one", "two"])
def test_estimates_are_those_of_dense_least_squares(sets: list[Params]) -> None:
    """If all candidates are selected, estimates and errors equal those of dense least squares.

    The decoder uses sparse matrices and iterative solutions. The test solves the same weighted
    least squares with dense matrices. The counts deviate from their expectation by half of their
    standard deviation. The estimated variance of collisions, tau^2, is then 0, and only the
    binomial noise of the reports remains.
    """
    texts = list(POPULATION.values)
    collections, rows = zip(*(make_half_noisy_counts(params) for params in sets), strict=True)
    estimates = decode(collections, texts, reports_per_device=1)
    columns = linalg.block_diag(*(np.ones((len(row.design), 1)) for row in rows))
    columns = np.column_stack([columns, np.vstack([row.design for row in rows])])
    expected, errors = solve_dense_least_squares(columns, rows)
    expected, errors = expected[len(sets) :], errors[len(sets) :]
    shares = map_by_candidate(estimates, estimates.share)
    assert estimates.detected.all()
    assert np.abs([shares[text] for text in texts] - expected).max() < 1e-3 * errors.max()
    assert [
        map_by_candidate(estimates, estimates.std_error)[text] for text in texts
    ] == pytest.approx(errors.tolist(), rel=1e-4)
    proportions = np.concatenate([row.proportions for row in rows])
    unweighted = np.linalg.lstsq(columns, proportions)[0][len(sets) :]
    # The test has power: least squares without weights differs by more than the tolerance.
    assert np.abs(unweighted - expected).max() > 0.01 * errors.max()


class Rows(NamedTuple):
    """Rows of the regression that belong to one collection.

    Attributes
    ----------
    params : parameters of the collection
    design : (m k, n) float64, true bits of the n strings
    proportions : (m k,) float64, de-biased proportions of ones
    reports : number of reports of each cohort
    """

    params: Params
    design: NDArray[np.float64]
    proportions: NDArray[np.float64]
    reports: int

    def compute_weights(self, fitted: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the inverse binomial variances of the proportions at fitted proportions."""
        gap = self.params.q_star - self.params.p_star
        mean = self.params.p_star + gap * np.clip(fitted, 0, 1)
        return np.asarray(self.reports * gap**2 / (mean * (1 - mean)))


def make_half_noisy_counts(params: Params) -> tuple[Counts, Rows]:
    """Return counts of `POPULATION` with half of the binomial noise, and their rows."""
    texts = list(POPULATION.values)
    design = np.zeros((params.m * params.k, len(texts)))
    for column, cells in enumerate(compute_text_cells(texts, params)):
        design[cells[cells >= 0], column] = 1
    gap, n = params.q_star - params.p_star, 3_200_000 // params.m
    mean = params.p_star + gap * (design @ POPULATION.weights)
    normal = np.random.default_rng(1).standard_normal(len(mean))
    bit_counts = np.rint(n * mean + 0.5 * normal * np.sqrt(n * mean * (1 - mean)))
    counts = Counts(params, bit_counts.reshape(params.m, params.k), np.full(params.m, n))
    return counts, Rows(params, design, (bit_counts / n - params.p_star) / gap, n)


def solve_dense_least_squares(
    columns: NDArray[np.float64], rows: Sequence[Rows]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return coefficients and standard errors of all columns, by weighted least squares.

    The weights are inverse binomial variances at the fitted values, so the fit is iterated.
    """
    proportions = np.concatenate([row.proportions for row in rows])
    ends = np.cumsum([len(row.design) for row in rows])[:-1]
    fitted = np.full(len(columns), 0.01)
    for _ in range(30):
        parts = zip(rows, np.split(fitted, ends), strict=True)
        weight = np.concatenate([row.compute_weights(part) for row, part in parts])
        inverse = np.linalg.inv(columns.T @ (weight[:, None] * columns))
        beta = inverse @ (columns.T @ (weight * proportions))
        fitted = columns @ beta
    return beta, np.sqrt(inverse.diagonal())


def test_conjugate_gradients_solve_the_normal_equations() -> None:
    """The iterative solution has the coefficients and leverages of the inverse matrix.

    With thousands of candidates an inverse would take too long. A second solution that starts from
    the first one is more accurate: 1e-9 instead of 1e-6 standard errors. The leverage of a row is
    its weight times the variance of its fitted value. All leverages sum to the number of columns.
    Leverages are estimated, so .01 is allowed in their root mean square.
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
    exact = inverse @ (basis.T @ (weight * proportions))
    refined = equations.solve(proportions, iterated)
    for coefficients, tolerance in ((iterated, 1e-6), (refined, 1e-9)):
        assert np.abs((coefficients - exact) / np.sqrt(inverse.diagonal())).max() < tolerance
    leverage = equations.compute_leverages(weight)
    assert leverage.sum() == pytest.approx(s + 1)
    assert np.std(leverage - weight * compute_quadratic_forms(basis, inverse)) < 0.01


@pytest.mark.parametrize("m", [2, 8, 32])
@pytest.mark.parametrize(
    "noise", [(0.0, 1e-6, 1 - 1e-6), (0.0, 0.1, 0.9), (0.25, 0.1, 0.6)], ids=str
)
def test_all_strings_are_detected_with_little_noise(
    noise: tuple[float, float, float], m: int
) -> None:
    """With 1e8 reports, all present strings are detected, within six standard errors of the truth.

    The noise ranges from almost none to that of a usual collection, and m from 2 to 32 cohorts.
    """
    f, p, q = noise
    params = Params(k=32, m=m, f=f, p=p, q=q)
    names, weights = [f"s{i}" for i in range(5)], [0.5, 0.25, 0.15, 0.07, 0.03]
    counts = simulate_counts(Population(names, weights), params, n_reports=10**8, seed=1)
    estimates = decode(counts, names + [f"absent{i}" for i in range(50)])
    rows = {row["candidate"]: row for row in estimates.rows()}
    for name, weight in zip(names, weights, strict=True):
        assert rows[name]["detected"]
        # A normal estimate misses by six standard errors with probability 2e-9.
        assert abs(rows[name]["count"] - weight * 1e8) < 6 * rows[name]["std_error"]


def test_leverages_of_many_columns_use_the_squares_of_the_entries() -> None:
    """The leverages of more than 400 columns are right for entries that are no ones.

    The refit of sets has derivatives as entries. No two columns share a row here, so the leverage
    of a row is w B^2 divided by the sum of w B^2 over its column.
    """
    rng = np.random.default_rng(1)
    n_columns, n_rows = 401, 64
    entries, weight = rng.uniform(0.2, 2.0, (2, n_columns * n_rows))
    rows = np.arange(n_columns * n_rows)
    basis = sparse.csr_array((entries, (rows, rows // n_rows)))
    information = weight * entries**2
    column_information = np.repeat(information.reshape(n_columns, n_rows).sum(axis=1), n_rows)
    leverage = NormalEquations(basis, weight).compute_leverages(weight)
    np.testing.assert_allclose(leverage, information / column_information, rtol=0.1)


@pytest.mark.parametrize(
    ("tau2_by_collection", "expected"),
    [((0.0003,), 0.0003), ((0.0003, 0.0), 0.0003), ((0.0001, 0.0007), 0.0007), ((-0.0003,), 0.0)],
)
def test_first_estimate_of_tau2_is_the_spread_beyond_the_noise(
    tau2_by_collection: tuple[float, ...], expected: float
) -> None:
    """The first estimate of tau^2 is the variance of the rows less the variance of their noise.

    The residuals are quantiles of a normal distribution with the variance v + tau^2. Rows without
    reports and one row in a hundred, which a string outside the list lifts, hardly change the
    estimate. The largest estimate of all collections counts, and no estimate is negative.
    """
    v, n = 0.0004, 10_000
    ranks = (np.arange(n) + 0.5) / n
    residuals = [np.sqrt(v + tau2) * special.ndtri(ranks) for tau2 in tau2_by_collection]
    residual = np.concatenate(residuals)
    is_lifted, is_empty = np.arange(len(residual)) % 100 == 50, np.arange(len(residual)) % 100 == 51
    residual[is_lifted | is_empty] = 1.0
    target = SimpleNamespace(
        counts=tau2_by_collection,
        reports=np.where(is_empty, 0, 1000),
        collection_index=np.repeat(np.arange(len(residuals)), n),
    )
    estimate = _estimate_initial_tau2(cast("Any", target), np.full(len(residual), v), residual)
    # One lifted row in a hundred moves the square of the median deviation by some 2 %.
    assert estimate == pytest.approx(expected, abs=0.04 * (v + max(tau2_by_collection)))
