"""Fixtures of reporting: estimates for pages and charts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rappor import Estimates, Params, Population, decode, simulate_counts

CANDIDATES = [f"site {number}.example" for number in range(150)]
"""Strings of the decode. The first 100 exist in the population, the other 50 do not."""


@pytest.fixture(scope="session")
def estimates() -> Estimates:
    """Return estimates of 150 candidates, some of them detected, from 70 cohorts of 96 bits.

    A page shows at most 64 rows and columns of residuals, so pairs of cohorts share a cell, and
    pairs of bits do. The shares follow Zipf's law over 110 strings, ten of which are no candidates.
    """
    params = dataclasses.replace(Params.profile("low-noise"), k=96, m=70)
    weights = [1 / (rank + 1) for rank in range(110)]
    population = Population([*CANDIDATES[:100], *(f"other {i}" for i in range(10))], weights)
    counts = simulate_counts(population, params, n_reports=200_000, seed=5, metric="home page")
    return decode(counts, CANDIDATES)


@pytest.fixture(scope="session")
def many(estimates: Estimates) -> Estimates:
    """Return estimates of 100,000 candidates, of which the first 1,000 are detected.

    The numbers are made up, because a decode of as many candidates would take minutes. They fall
    from the first candidate to the last. The page must stay small for such a record.
    """
    n = 100_000
    detected = np.arange(n) < 1000
    column = np.linspace(0.01, -0.001, n)
    forged_reports = np.where(detected, 100.0, np.nan)
    return dataclasses.replace(
        estimates,
        candidates=tuple(f"https://www.example.com/a/path/of/some/length/{i}" for i in range(n)),
        share=column,
        std_error=np.full(n, 0.001),
        ci_low=column - 0.002,
        ci_high=column + 0.002,
        p_value=np.linspace(0.0, 1.0, n),
        detected=detected,
        ci_low_adjusted=np.where(detected, column - 0.003, np.nan),
        ci_high_adjusted=np.where(detected, column + 0.003, np.nan),
        forged_to_make=forged_reports,
        forged_to_hide=forged_reports,
        group=np.zeros(n, np.int64),
        n_candidates=n,
        covariance=dataclasses.replace(
            estimates.covariance, entry=np.arange(n) % len(estimates.covariance.estimate)
        ),
    )
