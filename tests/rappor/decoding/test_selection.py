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
from rappor.decoding.decoder import decode
from rappor.estimator.blas_threads import limit_to_one_thread
from rappor.estimator.debias import debias
from rappor.estimator.design_matrix import Design
from rappor.estimator.device_assumptions import add_collections
from rappor.estimator.fit import Fit, fit_rows
from rappor.estimator.normal_equations import NormalEquations
from rappor.estimator.selection import LASSO_PENALTY, SCREENED, select_by_lasso
from rappor.estimator.sparse_products import weighted_products

PARAMS = Params(k=16, h=2, m=8, f=0.2, p=0.3, q=0.7)
"""Few bits, so that two strings often share bits, and a frequent string hides a rare string."""


def fit_background(seed: int, weight_factor: float) -> tuple[Design, Fit]:
    """Return the columns of 150 candidates, and a fit without any candidate.

    One string has 60 % of the reports and 40 strings have 1 % each. All weights of the fit are
    multiplied by a factor. With larger weights, more columns exceed the penalty of the lasso.
    """
    names = [f"{seed}/{i}" for i in range(150)]
    population = Population(names[:41], [0.6, *[0.01] * 40])
    counts = simulate_counts(population, PARAMS, n_reports=10_000_000, seed=seed)
    design = Design(Candidates.from_list(names), [PARAMS])
    none = design.columns(np.array([], dtype=np.int64))
    fit = fit_rows(debias(*add_collections([counts])), none, allow_zero_weights=False)
    weight = fit.weight * weight_factor
    return design, replace(fit, weight=weight, equations=NormalEquations(fit.basis, weight))


def select_by_one_lasso(design: Design, fit: Fit) -> NDArray[np.bool_]:
    """Return the candidates of the lasso over all columns at once, without active columns."""
    columns = design.columns(np.arange(design.n_candidates))
    score, information = fit.scores(columns)
    cross = weighted_products(columns, fit.weight, fit.basis)
    gram = weighted_products(columns, fit.weight, columns.tocsr())
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
    """The lasso over active columns selects the columns of the lasso over all columns.

    The active columns are those whose score exceeds the penalty. A frequent string lowers the
    scores of other strings. In the last case at least 10 selected columns (`least_late`) become
    active only after the lasso has explained the frequent string.
    """
    design, fit = fit_background(seed, weight_factor)
    columns = design.columns(np.arange(design.n_candidates))
    expected = select_by_one_lasso(design, fit)
    assert np.array_equal(select_by_lasso(columns, fit, np.zeros(design.n_candidates)), expected)
    score, information = fit.scores(columns)
    assert expected.sum() >= least_selected
    # A column becomes active late if its score on the first residual is below the penalty.
    is_late = expected & (score <= LASSO_PENALTY * np.sqrt(information))
    assert is_late.sum() >= least_late


def count_threads() -> set[int]:
    """Return the numbers of threads of the matrix libraries."""
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_decoding_limits_the_matrix_library_to_one_thread() -> None:
    """Decodes limit the matrix library to one thread.

    If several decodes run at the same time, the last one to end restores the former number.
    """
    during: list[set[int]] = []
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
        decode(counts, ["a", "b"], progress=lambda *_: during.append(count_threads()))
        assert during
        assert all(number == {1} for number in during)
        assert count_threads() == {2}


def test_candidates_that_were_not_screened_are_estimated_on_the_last_fit() -> None:
    """Candidates that were never screened have about the same errors as screened candidates.

    Case: the estimates of candidates that were not screened come from the first fit. That fit has
    no candidates, so the present strings count as collisions, and the errors are too large.
    """
    params = Params(k=64, m=32, f=0.0, p=0.225, q=0.775)
    population = Population([f"true {i}" for i in range(5)], [5, 4, 3, 2, 1])
    counts = simulate_counts(population, params, n_reports=10**6, seed=1)
    absent = [f"absent {i}" for i in range(SCREENED + 500)]
    estimates = decode(counts, [*population.values, *absent])
    errors = estimates.std_error[~estimates.detected]
    assert errors.max() < 1.5 * np.median(errors)
