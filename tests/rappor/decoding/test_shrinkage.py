"""The shrunken fit, which decodes about as many candidates as rows without selecting candidates.

The shares of candidates are random effects with the variance s2. Strong candidates may be fixed
effects. The tests compare coverage with true shares, and estimates with the formulas of generalised
least squares and restricted likelihood.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
from decodings import FALSE_ALARM, compute_true_shares, is_covered
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
"""Parameters with 256 rows, for 150 equally frequent strings and 50 absent ones."""

TWO_COHORTS = Params(k=128, m=2, f=0.238406, p=0.059601, q=0.559601)
"""Parameters with 256 rows, for 100 strings with weights exp(-.05 i) and 100 absent ones."""

WEIGHTS = {FEW_BITS: np.ones(150), TWO_COHORTS: np.exp(-0.05 * np.arange(100))}
"""Relative frequencies of the present strings that belong to the parameters."""


def make_population_and_candidates(params: Params, seed: int) -> tuple[Population, list[str]]:
    """Return the population of present strings, and the candidates."""
    weights = WEIGHTS[params]
    population = Population([f"{seed}/{i}" for i in range(len(weights))], weights)
    absent = [f"{seed}/absent/{i}" for i in range(200 - len(weights))]
    return population, [*population.values, *absent]


def decode_collection(params: Params, seed: int) -> tuple[Estimates, NDArray[np.float64]]:
    """Return estimates of one collection, and the true shares of their rows."""
    population, candidates = make_population_and_candidates(params, seed)
    counts = simulate_counts(population, params, n_reports=10**7, seed=seed)
    estimates = decode(counts, candidates)
    return estimates, compute_true_shares(estimates, population)


@pytest.mark.slow
def test_intervals_cover_strong_and_weak_strings() -> None:
    """Intervals contain more than 90 % of the true shares if few strings are much more frequent.

    500 candidates are decoded on 512 rows. 50 strings are ten times as frequent as 300 others, and
    150 are absent. A single variance of all shares would shrink the frequent strings too much, so
    strong candidates are fixed effects. With a limit of eight standard errors for them, the
    coverage was .68. The coverage of one collection has a standard deviation of .02.
    """
    params, coverages = replace(Params.profile("low-noise"), k=64, m=8), []
    weights = np.repeat([10.0, 1.0, 0.0], [50, 300, 150])
    for seed in range(3):
        names = [f"{seed}/{i}" for i in range(500)]
        population = Population(names[:350], weights[:350])
        counts = simulate_counts(population, params, n_reports=10**8, seed=seed)
        estimates = decode(counts, names)
        assert estimates.diagnostics["capacity"]["fitted"] == "shrunken"
        assert "overfull" not in {warning.code for warning in estimates.warnings}
        coverages.append(is_covered(estimates, compute_true_shares(estimates, population)).mean())
    assert np.mean(coverages) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("params", "overfull"), [(FEW_BITS, False), (TWO_COHORTS, True)])
def test_intervals_cover_and_few_absent_strings_are_detected(
    params: Params, overfull: bool
) -> None:
    """1,600 intervals of the shrunken fit have a coverage of 94 %, and few detections are false.

    At most 15 % of the detections are false in the mean of 8 collections. With two cohorts the
    estimate of a string depends on two rows only, and the result warns (`overfull`).
    """
    coverages, false_rates = [], []
    for seed in range(8):
        estimates, truth = decode_collection(params, seed)
        assert estimates.diagnostics["capacity"]["fitted"] == "shrunken"
        assert estimates.diagnostics["capacity"]["overfull"] is overfull
        coverages.append(is_covered(estimates, truth).mean())
        false_rates.append(
            float((estimates.detected & (truth == 0)).sum() / max(estimates.detected.sum(), 1))
        )
    # Intervals of one collection are correlated. The bound treats the 1,600 as 400 independent
    # ones.
    assert np.mean(coverages) >= stats.binom.ppf(FALSE_ALARM, 400, 0.94) / 400
    assert np.mean(false_rates) <= 0.15


@functools.cache
def fit_collection(
    seed: int, *, has_fixed_effects: bool
) -> tuple[Target, NDArray[np.float64], ShrunkenFit]:
    """Return the rows of a collection, the columns of all candidates, and the shrunken fit."""
    population, candidates = make_population_and_candidates(TWO_COHORTS, seed)
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
    """The estimate of a candidate is generalised least squares with this candidate as fixed effect.

    All other candidates are random effects with variance s2, except strong candidates if the fit
    has fixed effects. So the estimate of a candidate is not shrunken itself, and its interval is
    valid. The test inverts the covariance matrix without the candidate.
    """
    target, columns, fit = fit_collection(1, has_fixed_effects=has_fixed_effects)
    strong = ~fit.random_columns.any(axis=0)
    assert strong.any() == has_fixed_effects
    candidate = int(np.flatnonzero(~strong)[0])
    column = columns[:, candidate]
    covariance_of_others = fit.row_covariance - fit.s2 * np.outer(column, column)
    fixed = np.column_stack([np.ones(len(target)), columns[:, strong], column])
    precision = np.linalg.inv(covariance_of_others)
    covariance = np.linalg.inv(fixed.T @ precision @ fixed)
    share = (covariance @ fixed.T @ precision @ target.proportions)[-1]
    assert fit.estimate[candidate] == pytest.approx(share, rel=1e-4)
    assert fit.std_error[candidate] == pytest.approx(covariance[-1, -1] ** 0.5, rel=1e-4)


@pytest.mark.slow
def test_the_variance_s2_maximises_the_restricted_likelihood() -> None:
    """s2 maximises the restricted likelihood (REML): a tenth more or less has a smaller one.

    The restricted likelihood is that of the residuals of the background, so that s2 is unbiased.
    """
    target, columns, fit = fit_collection(1, has_fixed_effects=False)
    rows = fit.row_covariance - fit.s2 * columns @ columns.T
    background = np.ones((len(target), 1))

    def compute_log_likelihood(s2: float) -> float:
        """Return twice the restricted log-likelihood, without its constant."""
        total = rows + s2 * columns @ columns.T
        precision = np.linalg.inv(total)
        gram = background.T @ precision @ background
        projection = (
            precision - precision @ background @ np.linalg.inv(gram) @ background.T @ precision
        )
        y = target.proportions
        return -float(np.linalg.slogdet(total)[1] + np.linalg.slogdet(gram)[1] + y @ projection @ y)

    at_other_values = [compute_log_likelihood(fit.s2 * factor) for factor in (1.1, 1 / 1.1)]
    assert compute_log_likelihood(fit.s2) > max(at_other_values)


@pytest.mark.slow
def test_the_covariance_has_the_squared_errors_as_diagonal() -> None:
    """The diagonal of the joint covariance has the squared standard errors of the estimates.

    Candidates that share bits are correlated, so the matrix has other entries too. Sums of
    candidates need both.
    """
    _, _, fit = fit_collection(1, has_fixed_effects=True)
    measured_candidates = np.flatnonzero(np.isfinite(fit.std_error))[:50]
    covariance = fit.compute_covariance_of(measured_candidates)
    assert np.sqrt(covariance.diagonal()) == pytest.approx(
        fit.std_error[measured_candidates], rel=1e-3
    )
    assert covariance.sum() != pytest.approx(np.trace(covariance), rel=1e-3)


def test_estimates_are_row_influences_times_proportions() -> None:
    """An estimate is linear in the proportions of the rows, with the influences as coefficients.

    The influences times the column of the candidate are 1: the estimate follows its true share
    without shrinkage.
    """
    target, columns, fit = fit_collection(1, has_fixed_effects=True)
    chosen = np.array([0, 7, 150])
    influence = fit.compute_row_influence(fit.basis[:, :0].tocsc(), chosen)
    assert influence @ target.proportions == pytest.approx(fit.estimate[chosen])
    assert np.einsum("ij,ji->i", influence, columns[:, chosen]) == pytest.approx(
        np.ones(3), abs=1e-4
    )
