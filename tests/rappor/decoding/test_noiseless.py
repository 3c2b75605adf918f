"""Collections without false ones (f = 0, p = 0): present strings are found without warnings."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from decodings import FALSE_ALARM, covered, truth_of
from scipy import stats

from rappor.decoding.decoder import decode
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

ABSENT = [f"absent {i}" for i in range(50)]
THREE = Population(["a", "b", "c"], [60, 30, 10])


def plain(*, k: int, m: int, q: float, p: float = 0.0) -> Params:
    return Params(k=k, m=m, f=0.0, p=p, q=q, insecure=True)


@pytest.mark.parametrize("q", [1.0, 0.75, 0.5])
@pytest.mark.parametrize("n", [1000, 100_000])
def test_strings_that_show_in_every_cohort_are_found(q: float, n: int) -> None:
    """Strings of 60, 30 and 10 % are found without a warning, also in 8 cohorts."""
    false = 0
    for k, m in ((128, 128), (128, 16), (64, 8)):
        counts = simulate_counts(THREE, plain(k=k, m=m, q=q), n_reports=n, seed=1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            estimates = decode(counts, [*THREE.values, *ABSENT], distribution=True)
        detected = set(estimates.detected_candidates)
        assert detected >= {"a", "b", "c"}
        false += len(detected) - 3
        assert np.isfinite(estimates.std_error).all()
        assert (estimates.std_error > 0).all()
    # 50 absent ones, each detected with a probability of .05 * 4 / 53 at most, as p-values are.
    assert false <= stats.binom.isf(FALSE_ALARM, 150, 0.05 * 5 / 53)


def test_a_hundred_strings_are_found_among_two_hundred_candidates() -> None:
    """100 strings of weights exp(-i / 20) are found, and 95 % intervals cover."""
    population = Population([f"s{i}" for i in range(100)], np.exp(-0.05 * np.arange(100)))
    counts = simulate_counts(population, plain(k=128, m=16, q=0.5), n_reports=1e6, seed=1)
    absent = [f"x{i}" for i in range(100)]
    estimates = decode(counts, [*population.values, *absent])
    truth = truth_of(estimates, population)
    assert estimates.detected[truth > 0].all()
    assert estimates.detected[truth == 0].sum() <= stats.binom.isf(FALSE_ALARM, 100, 0.05)
    assert covered(estimates, truth).sum() >= stats.binom.ppf(FALSE_ALARM, 200, 0.93)


@pytest.mark.parametrize("n", [1, 4, 100, 1_000_000])
@pytest.mark.parametrize(
    "params",
    [
        plain(k=128, m=16, q=1.0, p=0.1),
        plain(k=128, m=16, q=1.0),
        plain(k=128, m=1, q=0.5),
        Params.profile("low-noise"),
    ],
)
def test_nothing_of_any_size_reaches_a_console(params: Params, n: int) -> None:
    """From one report to a million, no library prints a warning."""
    counts = simulate_counts(Population(["a"], [1]), params, n_reports=n, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimates = decode(counts, ["a", *ABSENT], distribution=True)
        text = str(estimates) + estimates.to_json()
    assert "nan" not in text
    assert estimates.diagnostics["goodness_of_fit"]["p_value"] <= 1
