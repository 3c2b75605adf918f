"""P-values of selected candidates: each is tested as if it were absent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from decodings import FALSE_ALARM
from scipy import stats

from rappor.decoding.decoder import decode
from rappor.estimator.debias import debias
from rappor.estimator.device_assumptions import add_collections
from rappor.estimator.score_tests import ResidualDraws
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

LOW_NOISE: dict[str, Any] = {"f": 0.0, "p": 0.225, "q": 0.775}


@pytest.mark.parametrize(("m", "h"), [(1, 1), (1, 2), (2, 1)])
def test_no_p_value_is_below_that_of_hitting_the_same_bits(m: int, h: int) -> None:
    """With one cohort of k bits, no p-value is below 1/k."""
    params = Params(k=64, h=h, m=m, **LOW_NOISE)
    names = [f"s{i}" for i in range(4)]
    counts = simulate_counts(Population(names, [8, 4, 2, 1]), params, n_reports=10**7, seed=2)
    estimates = decode(counts, [*names, *(f"absent{i}" for i in range(30))])
    assert estimates.p_value.min() >= (1 / 64) ** (m * h)


@pytest.mark.slow
@pytest.mark.parametrize(("m", "h"), [(2, 1), (1, 2)])
def test_two_draws_and_all_fitted_detect_no_absent_candidate_often(m: int, h: int) -> None:
    """With two draws per candidate, a fit of all candidates keeps the false discovery rate.

    50 present and 100 absent strings on 256 rows, 12 collections. At a rate of 5 % one in twenty
    detections is false on average. More are allowed at the rate of false alarms.
    """
    params = replace(Params.profile("balanced"), k=256 // m, h=h, m=m)
    false = n_detected = 0
    for seed in range(12):
        names = [f"{seed}/{i}" for i in range(50)]
        population = Population(names, np.arange(3.0, 53.0) ** -1.1)
        counts = simulate_counts(population, params, n_reports=10**7, seed=seed)
        estimates = decode(counts, [*names, *(f"{seed}/absent/{i}" for i in range(100))])
        assert estimates.diagnostics["capacity"]["fitted"] == "all"
        detected = np.array(estimates.candidates)[estimates.detected]
        n_detected += len(detected)
        false += int((~np.isin(detected, names)).sum())
    assert n_detected > 12 * 20
    assert false <= stats.binom.isf(FALSE_ALARM, n_detected, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("lift", [0.5, 2.0, 20.0, 1000.0])
def test_the_tail_with_lifted_rows_is_that_of_drawing_from_them(lift: float) -> None:
    """The tail with lifted rows is near that of all 512 sums of 3 cohorts of 8 bits.

    The formula lies between the probabilities of reaching a step and of exceeding it.
    """
    params = Params(k=8, h=1, m=3, **LOW_NOISE)
    population = Population(["a", "b"], [1, 2])
    target = debias(
        *add_collections([simulate_counts(population, params, n_reports=10**4, seed=1)])
    )
    draws = ResidualDraws(target, np.random.default_rng(1).normal(size=24))
    rows, lifts = np.array([1, 10, 20]), np.full(3, lift)
    values = draws.values.copy()
    values[rows] += lifts
    pools = values.reshape(3, 8)
    sums = (pools[0][:, None, None] + pools[1][:, None] + pools[2]).ravel() - pools.mean(1).sum()
    score = np.quantile(sums, [0.9, 0.99])
    with np.errstate(all="raise", under="ignore"):
        p_values = draws.compute_tail_with_lifts(rows, lifts).p_values(score)
    exact = np.array([np.mean(sums >= at) for at in score])
    assert (np.abs(np.log(p_values / exact)) < 1.0).all()
