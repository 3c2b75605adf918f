"""The shrunken fit: as many candidates as rows, no selection, and intervals that cover."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
from decodings import FALSE_ALARM, covered, truth_of
from numpy.typing import NDArray
from scipy import stats

from rappor.candidates.candidates import Candidates
from rappor.decoding.decoder import decode
from rappor.decoding.estimates import Estimates
from rappor.estimator.debias import Target, debias
from rappor.estimator.design_matrix import Design
from rappor.estimator.device_assumptions import add_collections
from rappor.estimator.fit import fit_rows
from rappor.estimator.shrinkage import ShrunkenFit, fit_shrunken
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

FEW_BITS = Params(k=32, m=8, f=0.035972, p=0.008993, q=0.508993)
"""256 rows, for 150 strings that are equally frequent and 50 absent ones."""

TWO_COHORTS = Params(k=128, m=2, f=0.238406, p=0.059601, q=0.559601)
"""256 rows, for 100 strings of shares in proportion to exp(-.05 i) and 100 absent ones."""

WEIGHTS = {FEW_BITS: np.ones(150), TWO_COHORTS: np.exp(-0.05 * np.arange(100))}


def asked(params: Params, seed: int) -> tuple[Population, list[str]]:
    """Return the population of present strings, and the candidates."""
    weights = WEIGHTS[params]
    population = Population([f"{seed}/{i}" for i in range(len(weights))], weights)
    absent = [f"{seed}/absent/{i}" for i in range(200 - len(weights))]
    return population, [*population.values, *absent]


def decoded(params: Params, seed: int) -> tuple[Estimates, NDArray[np.float64]]:
    """Return estimates of one collection, and the true shares of their rows."""
    population, candidates = asked(params, seed)
    counts = simulate_counts(population, params, n_reports=10**7, seed=seed)
    estimates = decode(counts, candidates)
    return estimates, truth_of(estimates, population)


@pytest.mark.slow
def test_strong_strings_among_weak_ones_leave_intervals_that_hold() -> None:
    """Intervals cover if strong and weak strings fill the rows, without a warning.

    350 strings of two sizes and 150 absent ones on 512 rows. The coverage of one collection has a
    standard deviation of .02. With strong strings from eight standard errors on it was .68.
    """
    params, inside = replace(Params.profile("low-noise"), k=64, m=8), []
    weights = np.repeat([10.0, 1.0, 0.0], [50, 300, 150])
    for seed in range(3):
        names = [f"{seed}/{i}" for i in range(500)]
        population = Population(names[:350], weights[:350])
        counts = simulate_counts(population, params, n_reports=10**8, seed=seed)
        estimates = decode(counts, names)
        assert estimates.diagnostics["capacity"]["fitted"] == "shrunken"
        assert "overfull" not in {warning.code for warning in estimates.warnings}
        inside.append(covered(estimates, truth_of(estimates, population)).mean())
    assert np.mean(inside) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("params", "unsure"), [(FEW_BITS, False), (TWO_COHORTS, True)])
def test_intervals_hold_and_few_absent_ones_are_detected(params: Params, unsure: bool) -> None:
    """1,600 intervals cover. With two cohorts the table warns of `overfull`."""
    inside, false = [], []
    for seed in range(8):
        estimates, truth = decoded(params, seed)
        assert estimates.diagnostics["capacity"]["fitted"] == "shrunken"
        assert estimates.diagnostics["capacity"]["overfull"] is unsure
        inside.append(covered(estimates, truth).mean())
        false.append(
            float((estimates.detected & (truth == 0)).sum() / max(estimates.detected.sum(), 1))
        )
    # Intervals of one collection depend on each other: taken for a quarter as many.
    assert np.mean(inside) >= stats.binom.ppf(FALSE_ALARM, 400, 0.94) / 400
    assert np.mean(false) <= 0.15


@functools.cache
def fitted(
    seed: int, *, has_fixed_effects: bool
) -> tuple[Target, NDArray[np.float64], ShrunkenFit]:
    """Return a collection's rows, the columns of all candidates, and their shrunken fit."""
    population, candidates = asked(TWO_COHORTS, seed)
    counts = simulate_counts(population, TWO_COHORTS, n_reports=10**6, seed=seed)
    target = debias(*add_collections([counts]))
    columns = Design(Candidates.from_list(candidates), [TWO_COHORTS]).columns(np.arange(200))
    start = fit_rows(target, columns[:, :0])
    return (
        target,
        columns.toarray(),
        fit_shrunken(target, columns, start, has_fixed_effects=has_fixed_effects),
    )


@pytest.mark.slow
@pytest.mark.parametrize("has_fixed_effects", [False, True])
def test_estimates_are_generalised_least_squares_of_one_candidate(has_fixed_effects: bool) -> None:
    """Each estimate is generalised least squares with all other candidates random."""
    target, columns, fit = fitted(1, has_fixed_effects=has_fixed_effects)
    strong = ~fit.random_columns.any(axis=0)
    assert strong.any() == has_fixed_effects
    candidate = int(np.flatnonzero(~strong)[0])
    column = columns[:, candidate]
    others = fit.row_covariance - fit.s2 * np.outer(column, column)
    fixed = np.column_stack([np.ones(len(target)), columns[:, strong], column])
    precision = np.linalg.inv(others)
    covariance = np.linalg.inv(fixed.T @ precision @ fixed)
    share = (covariance @ fixed.T @ precision @ target.proportions)[-1]
    assert fit.estimate[candidate] == pytest.approx(share, rel=1e-4)
    assert fit.std_error[candidate] == pytest.approx(covariance[-1, -1] ** 0.5, rel=1e-4)


@pytest.mark.slow
def test_the_variances_are_of_largest_restricted_likelihood() -> None:
    """No change of s2 by a tenth increases the restricted likelihood."""
    target, columns, fit = fitted(1, has_fixed_effects=False)
    rows = fit.row_covariance - fit.s2 * columns @ columns.T
    background = np.ones((len(target), 1))

    def log_likelihood(s2: float) -> float:
        total = rows + s2 * columns @ columns.T
        precision = np.linalg.inv(total)
        gram = background.T @ precision @ background
        projection = (
            precision - precision @ background @ np.linalg.inv(gram) @ background.T @ precision
        )
        y = target.proportions
        return -float(np.linalg.slogdet(total)[1] + np.linalg.slogdet(gram)[1] + y @ projection @ y)

    assert log_likelihood(fit.s2) > max(log_likelihood(fit.s2 * 1.1), log_likelihood(fit.s2 / 1.1))


@pytest.mark.slow
def test_a_sum_of_one_has_its_own_error() -> None:
    """The covariance has squared errors as diagonal, and colliding candidates are correlated."""
    _, _, fit = fitted(1, has_fixed_effects=True)
    every = np.flatnonzero(np.isfinite(fit.std_error))[:50]
    covariance = fit.covariance_of(every)
    assert np.sqrt(covariance.diagonal()) == pytest.approx(fit.std_error[every], rel=1e-3)
    assert covariance.sum() != pytest.approx(np.trace(covariance), rel=1e-3)


def test_influences_are_those_of_the_estimates() -> None:
    """Row influences times proportions give the estimates."""
    target, columns, fit = fitted(1, has_fixed_effects=True)
    places = np.array([0, 7, 150])
    moved = fit.compute_row_influence(fit.basis[:, :0].tocsc(), places)
    assert moved @ target.proportions == pytest.approx(fit.estimate[places])
    assert np.einsum("ij,ji->i", moved, columns[:, places]) == pytest.approx(np.ones(3), abs=1e-4)
