"""Collections without noise in true zeros (f = 0 and p = 0), and collections of any size.

A true 0 is never reported as 1. A row that no string sets therefore has the variance 0, and a
decode weighs rows by 1 / variance. No division by 0 may reach a result or a console.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from decodings import FALSE_ALARM, compute_true_shares, is_covered
from scipy import stats

from rappor.decoding.decoder import decode
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

ABSENT = [f"absent {i}" for i in range(50)]
THREE = Population(["a", "b", "c"], [60, 30, 10])
"""These strings have 60, 30 and 10 % of the reports."""


def make_params(*, k: int, m: int, q: float, p: float = 0.0) -> Params:
    """Return parameters without permanent noise. With p = 0, no true 0 is reported as 1."""
    return Params(k=k, m=m, f=0.0, p=p, q=q, insecure=True)


@pytest.mark.parametrize("q", [1.0, 0.75, 0.5])
@pytest.mark.parametrize("n", [1000, 100_000])
def test_present_strings_are_detected_without_noise_in_zeros(q: float, n: int) -> None:
    """All present strings are detected, with finite positive errors, and no library warns.

    The tests cover 8 to 128 cohorts. Absent strings are detected at the nominal rate at most.
    """
    n_false = 0
    for k, m in ((128, 128), (128, 16), (64, 8)):
        counts = simulate_counts(THREE, make_params(k=k, m=m, q=q), n_reports=n, seed=1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            estimates = decode(counts, [*THREE.values, *ABSENT], distribution=True)
        detected = set(estimates.detected_candidates)
        assert detected >= {"a", "b", "c"}
        n_false += len(detected) - 3
        assert np.isfinite(estimates.std_error).all()
        assert (estimates.std_error > 0).all()
    # Benjamini-Hochberg detects R of 53 candidates with p-values of at most .05 R / 53. With the
    # three present strings and up to two absent ones, R is at most 5. Three collections have 150
    # absent strings.
    assert n_false <= stats.binom.isf(FALSE_ALARM, 150, 0.05 * 5 / 53)


def test_a_hundred_strings_are_found_among_two_hundred_candidates() -> None:
    """All of 100 strings with weights exp(-i / 20) are detected, and intervals have their coverage.

    The bounds belong to binomial numbers at the false-alarm rate: 5 % of the absent strings may
    be detected, and 93 % of the intervals contain the true share.
    """
    population = Population([f"s{i}" for i in range(100)], np.exp(-0.05 * np.arange(100)))
    counts = simulate_counts(population, make_params(k=128, m=16, q=0.5), n_reports=1e6, seed=1)
    absent = [f"x{i}" for i in range(100)]
    estimates = decode(counts, [*population.values, *absent])
    truth = compute_true_shares(estimates, population)
    assert estimates.detected[truth > 0].all()
    assert estimates.detected[truth == 0].sum() <= stats.binom.isf(FALSE_ALARM, 100, 0.05)
    assert is_covered(estimates, truth).sum() >= stats.binom.ppf(FALSE_ALARM, 200, 0.93)


@pytest.mark.parametrize("n", [1, 4, 100, 1_000_000])
@pytest.mark.parametrize(
    "params",
    [
        make_params(k=128, m=16, q=1.0, p=0.1),
        make_params(k=128, m=16, q=1.0),
        make_params(k=128, m=1, q=0.5),
        Params.profile("low-noise"),
    ],
)
def test_no_collection_causes_a_warning_of_a_library(params: Params, n: int) -> None:
    """From one report to a million, numpy and scipy warn of nothing, and no output contains NaN."""
    counts = simulate_counts(Population(["a"], [1]), params, n_reports=n, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimates = decode(counts, ["a", *ABSENT], distribution=True)
        text = str(estimates) + estimates.to_json()
    assert "nan" not in text
    assert estimates.diagnostics["goodness_of_fit"]["p_value"] <= 1
