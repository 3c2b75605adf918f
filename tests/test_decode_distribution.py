"""The distribution answer is the maximum of the likelihood on the simplex."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from rappor.candidates import Candidates
from rappor.decoding.design import Design
from rappor.decoding.distribution import fit_distribution
from rappor.decoding.fit import Fit, fit_rows
from rappor.decoding.target import Target, debias
from rappor.params import Params
from rappor.population import Population
from rappor.simulate import simulate_counts

PARAMS = Params(k=32, h=2, m=8, f=0.25, p=0.2, q=0.6)

Problem = tuple[Target, "sparse.csc_array", Fit]


def problem(weights: list[float], asked: list[str], *, n: int, seed: int) -> Problem:
    """Set up the fit of all asked strings on a population of strings 0, 1, 2 and so on."""
    population = Population([str(i) for i in range(len(weights))], weights)
    counts = simulate_counts(population, PARAMS, n_reports=n, seed=seed)
    target = debias([counts])
    columns = Design(Candidates.from_list(asked), [PARAMS]).columns(
        np.arange(len(asked), dtype=np.int64)
    )
    return target, columns, fit_rows(target, columns, taper=False)


def slope(
    target: Target, columns: sparse.csc_array, fit: Fit, shares: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the derivative of the log-likelihood by each share, in standard errors.

    Mass that a share gains is lost by the other, so each column has the density taken off.
    """
    other = 1 - shares.sum()
    fitted = columns @ shares + other * target.density
    weight = fit.robust / (target.noise(fitted) + fit.tau2)
    moved = columns.toarray() - target.density[:, None]
    information = np.sqrt((moved**2 * weight[:, None]).sum(axis=0))
    return np.asarray(moved.T @ (weight * (target.proportions - fitted)) / information)


PROBLEMS: dict[str, tuple[list[float], list[str]]] = {
    "all asked": ([5, 3, 1, 1, 0.5, 0.2], ["0", "1", "2", "3", "4", "5"]),
    "some absent": ([5, 3, 1, 1], ["0", "1", "2", "3", *(f"absent {i}" for i in range(20))]),
    "some unasked": ([5, 3, 2, 1, 1], ["1", "2", "3", *(f"absent {i}" for i in range(10))]),
    "one asked": ([1, 1], ["0"]),
    "all absent": ([1, 1], [f"absent {i}" for i in range(5)]),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("n", [2_000, 1_000_000])
def test_the_optimum_meets_its_conditions(name: str, n: int, seed: int) -> None:
    """Karush, Kuhn and Tucker: slopes are equal on the support and not above it elsewhere.

    The common slope is 0 while the other has a share, and not negative when it has none.
    Slopes are in standard errors; .01 of one is what fixed steps and the sum's weight leave.
    """
    weights, asked = PROBLEMS[name]
    target, columns, fit = problem(weights, asked, n=n, seed=seed)
    shares = fit_distribution(target, columns, fit)
    assert (shares >= 0).all()
    assert shares.sum() <= 1 + 1e-3
    slopes = slope(target, columns, fit, shares)
    held = shares > 0
    if shares.sum() < 1 - 1e-3:
        assert np.abs(slopes[held]).max(initial=0.0) < 0.01
        assert slopes[~held].max(initial=-np.inf) < 0.01


@pytest.mark.parametrize("seed", range(4))
def test_where_the_sum_binds_no_exchange_helps(seed: int) -> None:
    """With all mass asked and given out, moving some between two shares gains nothing."""
    asked = [str(i) for i in range(4)] + [f"absent {i}" for i in range(40)]
    target, columns, fit = problem([4.0, 3.0, 2.0, 1.0], asked, n=5_000, seed=seed)
    shares = fit_distribution(target, columns, fit)
    best = log_likelihood(target, columns, fit, shares)
    for giver in np.flatnonzero(shares > 1e-3):
        for taker in range(len(asked)):
            moved = shares.copy()
            moved[giver] -= 1e-3
            moved[taker] += 1e-3
            assert log_likelihood(target, columns, fit, moved) <= best + 1e-6 * abs(best)


def log_likelihood(
    target: Target, columns: sparse.csc_array, fit: Fit, shares: NDArray[np.float64]
) -> float:
    """Return minus half the weighted squares at the weights of the given answer's fit."""
    fitted = columns @ shares + (1 - shares.sum()) * target.density
    weight = fit.robust / (target.noise(fit.fitted) + fit.tau2)
    return float(-np.sum(weight * (target.proportions - fitted) ** 2) / 2)


def test_nothing_asked_is_nothing_shared() -> None:
    """Without columns there is an empty answer."""
    target, _, fit = problem([1.0], ["0"], n=1000, seed=1)
    empty = sparse.csc_array((len(target), 0))
    assert fit_distribution(target, empty, fit).shape == (0,)


def test_shares_approach_the_truth() -> None:
    """With 1e9 reports every share is within .001 of the population's, the other included."""
    asked = ["0", "1", "2", "absent 0", "absent 1"]
    target, columns, fit = problem([5.0, 3.0, 1.0, 1.0], asked, n=1_000_000_000, seed=1)
    whole = fit_distribution(target, columns, fit)
    assert whole[:3].tolist() == pytest.approx([0.5, 0.3, 0.1], abs=0.06)
    target, columns, fit = problem([5.0, 3.0, 1.0], asked, n=1_000_000_000, seed=1)
    whole = fit_distribution(target, columns, fit)
    assert whole.tolist() == pytest.approx([5 / 9, 3 / 9, 1 / 9, 0, 0], abs=0.001)
