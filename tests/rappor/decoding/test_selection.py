"""The selection of candidates: its lasso, its threads, and the estimates of all other candidates.

A decode selects the candidates that enter the regression. It starts with a non-negative lasso over
the screened candidates (`rappor.estimator.selection`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import lars_path_gram
from threadpoolctl import threadpool_info, threadpool_limits

from rappor import Candidates, Params, Population, simulate_counts
from rappor.decoding import prior
from rappor.decoding.decoder import decode
from rappor.estimator import selection
from rappor.estimator.blas_threads import limit_to_one_thread
from rappor.estimator.debias import debias
from rappor.estimator.design_matrix import Design
from rappor.estimator.device_assumptions import add_collections
from rappor.estimator.fit import Fit, fit_rows
from rappor.estimator.normal_equations import NormalEquations
from rappor.estimator.screening import estimate_one_step
from rappor.estimator.selection import LASSO_PENALTY, SCREENED, select_by_lasso
from rappor.estimator.sparse_products import compute_weighted_products

PARAMS = Params(k=16, h=2, m=8, f=0.2, p=0.3, q=0.7)
"""Few bits, so that two strings often share bits, and a frequent string hides a rare string."""


def fit_background(seed: int, weight_factor: float) -> tuple[Design, Fit]:
    """Return the columns of 150 candidates, and a fit of the background alone.

    One string has 60 % of the reports and 40 strings have 1 % each. All weights of the fit are
    multiplied by a factor, as if there were more reports. More columns then exceed the penalty of
    the lasso.
    """
    names = [f"{seed}/{i}" for i in range(150)]
    population = Population(names[:41], [0.6, *[0.01] * 40])
    counts = simulate_counts(population, PARAMS, n_reports=10_000_000, seed=seed)
    design = Design(Candidates.from_list(names), [PARAMS])
    no_columns = design.columns(np.array([], dtype=np.int64))
    fit = fit_rows(debias(*add_collections([counts])), no_columns, allow_zero_weights=False)
    weight = fit.weight * weight_factor
    return design, replace(fit, weight=weight, equations=NormalEquations(fit.basis, weight))


def select_by_one_lasso(design: Design, fit: Fit) -> NDArray[np.bool_]:
    """Return the candidates that a lasso over all columns at once selects."""
    columns = design.columns(np.arange(design.n_candidates))
    score, information = fit.compute_scores(columns)
    cross = compute_weighted_products(columns, fit.weight, fit.basis)
    gram = compute_weighted_products(columns, fit.weight, columns.tocsr())
    gram -= cross @ fit.inverse @ cross.T
    scale = np.sqrt(information)
    _, _, coefficients = lars_path_gram(
        Xy=score / scale,
        Gram=gram / np.outer(scale, scale),
        n_samples=1,
        alpha_min=LASSO_PENALTY,
        method="lasso",
        positive=True,
        max_iter=2000,
        return_path=False,
    )
    return np.asarray(coefficients > 0)


@pytest.mark.parametrize(
    ("weight_factor", "least_selected", "least_late"), [(1, 1, 0), (1e2, 1, 0), (1e4, 40, 10)]
)
@pytest.mark.parametrize("seed", range(5))
def test_lasso_over_few_columns_is_the_lasso_over_all(
    seed: int, weight_factor: float, least_selected: int, least_late: int
) -> None:
    """The lasso over active columns selects the same columns as the lasso over all columns.

    A lasso over all screened candidates would need too much memory. So it runs over the columns
    whose score exceeds the penalty (active columns), and again with the columns that become active
    on the residual. A frequent string lowers the scores of other strings. In the last case, at
    least 10 selected columns (`least_late`) become active only after the lasso has explained it.
    """
    design, fit = fit_background(seed, weight_factor)
    columns = design.columns(np.arange(design.n_candidates))
    expected = select_by_one_lasso(design, fit)
    assert np.array_equal(select_by_lasso(columns, fit, np.zeros(design.n_candidates)), expected)
    score, information = fit.compute_scores(columns)
    assert expected.sum() >= least_selected
    # A column becomes active late if its score on the first residual is below the penalty.
    is_late = expected & (score <= LASSO_PENALTY * np.sqrt(information))
    assert is_late.sum() >= least_late


def count_threads() -> set[int]:
    """Return the numbers of threads of the matrix libraries."""
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_decoding_limits_the_matrix_library_to_one_thread() -> None:
    """A decode limits the matrix library to one thread, and restores the number at its end.

    The matrices are small, so several threads would mostly wait for each other, and their sums
    would have other last digits on each machine. If two decodes run at the same time in a process,
    the last one to end restores the former number.
    """
    numbers_during_decode: list[set[int]] = []
    population = Population(["a", "b"], [1, 1])
    counts = simulate_counts(population, PARAMS, n_reports=1000, seed=1)
    with threadpool_limits(limits=2, user_api="blas"):
        first, second = limit_to_one_thread(), limit_to_one_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert count_threads() == {1}
        second.__exit__(None, None, None)
        assert count_threads() == {2}
        decode(
            counts, ["a", "b"], progress=lambda *_: numbers_during_decode.append(count_threads())
        )
        assert numbers_during_decode
        assert all(numbers == {1} for numbers in numbers_during_decode)
        assert count_threads() == {2}


def test_sums_of_categories_are_fitted_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decode of categories, and a sum of its detected rows, limit the matrix library.

    Without the limit, a decode of 100 categories took 40 times its CPU time on a busy machine with
    two cores, because the threads waited for each other.
    """
    numbers_during_fits: list[set[int]] = []
    compute_newton_step = prior._compute_newton_step

    def record_threads(*arguments: NDArray[np.float64]) -> NDArray[np.float64]:
        numbers_during_fits.append(count_threads())
        return compute_newton_step(*arguments)

    monkeypatch.setattr(prior, "_compute_newton_step", record_threads)
    categories = ("light", "dark", "auto")
    params = Params.profile("once", encoding="onehot", categories=categories)
    counts = simulate_counts(Population(categories, [3, 2, 1]), params, n_reports=1e5, seed=1)
    with threadpool_limits(limits=2, user_api="blas"):
        estimates = decode(counts)
        n_during_decode = len(numbers_during_fits)
        assert n_during_decode
        estimates.contrast({"dark": 1, "auto": 1}, detected=True)
        assert len(numbers_during_fits) > n_during_decode
        assert all(numbers == {1} for numbers in numbers_during_fits)
        assert count_threads() == {2}


def test_significant_candidates_enter_although_the_first_round_left_them_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search goes on until no candidate outside the last round is significant.

    Each round takes six further candidates. The three frequent strings have p-values far below the
    threshold. A string outside the round may enter with any p-value up to the threshold, although
    its p-value is larger than the p-values of all selected strings.
    """
    monkeypatch.setattr(selection, "SCREENED", 6)
    params = Params.profile("balanced")
    present = [f"true {i}" for i in range(10)]
    population = Population(present, [30, 25, 20, 3, 2, 2, 2, 1.5, 1.5, 1])
    for seed in range(2, 5):
        counts = simulate_counts(population, params, n_reports=100_000, seed=seed)
        estimates = decode(counts, [*present, *(f"absent {i}" for i in range(400))])
        assert estimates.diagnostics["selected"] >= len(present)


def test_candidates_that_were_not_screened_are_estimated_on_the_last_fit() -> None:
    """Candidates beyond the screening have about the same errors as screened candidates.

    All candidates are estimated on the last fit. The first fit has no candidates, so present
    strings count as collisions there, and errors from it would be too large.
    """
    params = Params(k=64, m=32, f=0.0, p=0.225, q=0.775)
    population = Population([f"true {i}" for i in range(5)], [5, 4, 3, 2, 1])
    counts = simulate_counts(population, params, n_reports=10**6, seed=1)
    absent = [f"absent {i}" for i in range(SCREENED + 500)]
    estimates = decode(counts, [*population.values, *absent])
    errors = estimates.std_error[~estimates.detected]
    assert errors.max() < 1.5 * np.median(errors)


def test_search_of_the_selection_corrects_one_step_estimates() -> None:
    """A search of d degrees of freedom divides estimates by rho = 1 - d / (rows - coefficients).

    Errors are divided by the root of rho. The fit with a search has a larger tau^2, hence other
    weights, so scores and information of the same fit are compared.
    """
    design, background = fit_background(seed=1, weight_factor=1.0)
    counts = simulate_counts(Population(["a"], [1]), PARAMS, n_reports=10_000, seed=1)
    target = debias(*add_collections([counts]))
    fit = fit_rows(target, design.columns(np.array([0])), search_degrees=25.2)
    n_free = PARAMS.k * PARAMS.m - 2  # the background and one column
    assert fit.search_factor == pytest.approx(1 - 25.2 / n_free)
    assert background.search_factor == 1
    columns = design.columns(np.arange(1, 20))
    score, information = fit.compute_scores(columns)
    estimate, std_error = estimate_one_step(score, information, fit, float(information.max()))
    rho, kappa = fit.search_factor, fit.kappa
    assert estimate == pytest.approx(score / information / kappa / rho)
    assert std_error == pytest.approx(1 / np.sqrt(information) / kappa / np.sqrt(rho))
    influence = fit.compute_row_influence(columns, np.full(19, -1))
    assert influence @ target.proportions == pytest.approx(estimate)


@pytest.mark.parametrize(
    ("scores", "degrees"),
    [
        ([300.0, 300.4], 0.0),  # all enter, and none is near the threshold
        ([300.0, 300.4, 2.9], 0.0),
        ([8.0, 4.0, 4.3, 3.6, 3.8, 3.1, -2.0], 16.0),  # 4.0 enters, and four are within .5 of it
        ([2.0, 1.0], 0.0),  # none enters
    ],
)
def test_degrees_of_freedom_of_a_search(scores: list[float], degrees: float) -> None:
    """The search counts the candidates near the threshold: those that noise moves over it."""
    z = np.array(scores)
    assert selection._compute_search_degrees(z, z >= 4) == degrees


def test_sums_contain_the_noise_of_the_search() -> None:
    """The prior of sums gets the standard errors of selected candidates divided by the root of rho.

    Other candidates that jump over the threshold add this noise. The threshold is dense here: each
    of 300 strings has a share of about two standard errors.
    """
    params = Params(k=64, m=32, f=0.0, p=0.1, q=0.9)
    names = [str(i) for i in range(300)]
    counts = simulate_counts(Population(names, [1] * 300), params, n_reports=50_000, seed=1)
    estimates = decode(counts, names)
    joint = estimates.covariance.detected
    assert joint is not None
    row = np.flatnonzero(estimates.detected)
    order = np.argsort(estimates.covariance.entry[row])
    assert len(row) > 20
    ratio = joint.std_error / estimates.std_error[row][order]
    assert ratio == pytest.approx(ratio[0])
    assert 1.005 < ratio[0] < 1.1


@pytest.mark.acceptance
def test_estimates_are_unbiased_where_many_strings_are_near_the_threshold() -> None:
    """The mean estimate of 500 equal strings is within 3 % of the truth; a third is selected.

    Each string has a share of 1.9 standard errors, so hundreds are near the threshold of the
    selection. Without the correction for the search the mean estimate is 5.2 % too small. The mean
    of 40 collections has a standard error of .4 %.
    """
    params = Params(k=64, m=64, f=0.0, p=0.1, q=0.9)
    ratios = []
    for seed in range(40):
        names = [f"{seed}/{i}" for i in range(500)]
        counts = simulate_counts(Population(names, [1] * 500), params, n_reports=200_000, seed=seed)
        estimates = decode(counts, [*names, *(f"absent {i}" for i in range(125))])
        is_present = np.isin(estimates.candidates, names)
        ratios.append(estimates.share[is_present].mean() * len(names))
    assert 0.97 < np.mean(ratios) < 1.02
