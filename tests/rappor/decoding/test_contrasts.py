"""What detected rows hold together: sums that selection does not lift, and their errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from benchmark_modules import benchmark
from scipy import stats

from rappor.decoding.contrasts import Joint, add_sampling
from rappor.decoding.p_values import PValues

if TYPE_CHECKING:
    from benchmarks import sums
else:
    sums = benchmark("sums")

FALSE_ALARM = 1e-9
MANY = 200


def test_sums_of_what_noise_lifted_are_right_in_ordinary_collections() -> None:
    """Squared errors of six collections; those of plain sums are 15 each, and would fail."""
    runs = [sums.measure(seed, "150 falling, 150 absent") for seed in range(6)]
    most = stats.chi2.isf(FALSE_ALARM, len(runs))

    def squares(errors: list[tuple[float, float]]) -> float:
        return sum((error / said) ** 2 for error, said in errors)

    assert squares([run.unallocated for run in runs]) < most
    assert squares([run.rest for run in runs if run.rest is not None]) < most
    assert squares([run.plain for run in runs]) > most


@pytest.mark.acceptance
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", sums.CELLS)
def test_what_is_unallocated_is_held(name: str) -> None:
    """The truth is within 1.96 standard errors in 90 to 99 of 100 collections."""
    runs = [sums.measure(seed, name) for seed in range(MANY)]
    assert 0.90 <= sums.held([run.unallocated for run in runs]) <= 0.99


def test_a_sum_has_the_mean_and_the_error_of_its_posterior() -> None:
    """Drawn from a prior and estimated over and over: rows above 3 add up to what they are."""
    rng = np.random.default_rng(1)
    errors = []
    for _ in range(400):
        share = np.where(rng.random(300) < 0.4, rng.exponential(4.0, 300), 0.0)
        estimate = share + rng.normal(size=300)
        p_values = PValues(rows=stats.norm.sf(estimate))
        found = np.flatnonzero(estimate > 3)
        joint = Joint.of(found, estimate, np.ones(300), p_values, lambda rows: np.eye(len(rows)))
        total, said = joint.sum_of(found)
        errors.append((total - share[found].sum()) / said)
    # Of 400 normal errors, at the rate of false alarms, the mean is within .31.
    assert abs(np.mean(errors)) < 0.31 + 0.1
    assert stats.chi2.isf(1 - FALSE_ALARM, 400) < np.square(errors).sum() * 1.1
    assert np.square(errors).sum() < stats.chi2.isf(FALSE_ALARM, 400) * 1.1


def test_values_that_exclude_each_other_have_errors_that_do() -> None:
    """Without noise the covariance is that of a multinomial sample, and all together is certain."""
    share, devices = np.array([0.5, 0.3, 0.2]), 1000
    own = np.diag(share * (1 - share) / devices)
    covariance = add_sampling(own, share, np.array(1 / devices))
    expected = (np.diag(share) - np.outer(share, share)) / devices
    assert covariance == pytest.approx(expected)
    assert covariance.sum() == pytest.approx(0, abs=1e-18)
