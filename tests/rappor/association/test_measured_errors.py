"""Size and power of the test of independence, and coverage of intervals, by simulation.

Each test simulates `MANY` collections and compares a number of rejections, or a mean coverage, with
its expectation.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest
from benchmark_modules import import_benchmark
from decodings import FALSE_ALARM
from scipy import stats

from rappor.planning import predict_association

if TYPE_CHECKING:
    from benchmarks import association
else:
    association = import_benchmark("association")

MANY = 200
"""Number of simulated collections. With more, the binomial bounds are narrower and the tests
slower."""

TABLE_OF_STRINGS = (20, 5)
"""Numbers of listed values of both fields, where the values are strings. A string is hashed, so an
estimate also has an error from collisions."""

TABLES_OF_CATEGORIES = ((3, 3), (2, 5))
"""Numbers of listed values of both fields, where the values are categories."""

PROFILES_AND_TABLES = [
    # Under the profile "balanced" a report has noisy bits. Under the profile "once" a report names
    # one of k buckets. The two kinds of reports have different estimators.
    *((profile, shape) for shape in TABLES_OF_CATEGORIES for profile in ("balanced", "once")),
    ("balanced", TABLE_OF_STRINGS),
]

INDEPENDENT_FIELDS = [
    association.Setting(
        shape=shape,
        profile=profile,
        n_reports=n_reports,
        unlisted=unlisted,
        are_strings=shape == TABLE_OF_STRINGS,
    )
    for profile, shape in PROFILES_AND_TABLES
    for n_reports in (20_000, 1_000_000)
    for unlisted in (0.0, 0.3)
]
"""Settings with independent fields. `unlisted` is the share of the devices whose values are not
among the listed values of the fields."""


def find_bounds(probability: float) -> tuple[float, float]:
    """Return binomial bounds of the number of successes in `MANY` collections, at FALSE_ALARM."""
    return (
        float(stats.binom.ppf(FALSE_ALARM / 2, MANY, probability)),
        float(stats.binom.ppf(1 - FALSE_ALARM / 2, MANY, probability)),
    )


@pytest.mark.acceptance
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("setting", INDEPENDENT_FIELDS, ids=str)
def test_independent_fields_are_rejected_at_the_level(setting: association.Setting) -> None:
    """The test rejects 5 % of the collections at the level 5 %, and half of them at 50 %."""
    p_values = np.array([association.measure_p_value(seed, setting) for seed in range(MANY)])
    for level in (0.05, 0.5):
        least, most = find_bounds(level)
        assert least <= (p_values <= level).sum() <= most


@pytest.mark.acceptance
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("profile", ["balanced", "low-noise"])
def test_intervals_of_strings_contain_the_truth(profile: str) -> None:
    """Of 20,000 intervals of cells at 95 %, 93 to 97 % contain the true share.

    200 collections have 100 cells each. The cells of one collection are correlated, so these bounds
    are wider than binomial bounds of 20,000 intervals. A table has fewer margins (sums of rows and
    columns) than cells, so the bounds of the margins are wider still.
    """
    setting = association.Setting(
        shape=TABLE_OF_STRINGS,
        profile=profile,
        n_reports=100_000,
        cramers_v=0.2,
        are_strings=True,
    )
    runs = [association.measure_errors(seed, setting) for seed in range(MANY)]
    coverage = association.compute_mean_coverage([run.coverage for run in runs])
    assert 0.93 <= coverage.cells <= 0.97
    assert 0.92 <= coverage.margins <= 0.98
    assert 0.92 <= coverage.conditional_shares <= 0.98
    # The interval of Cramer's V is longer than necessary, so its coverage has a lower bound only.
    assert coverage.cramers_v * MANY >= find_bounds(0.95)[0]


@pytest.mark.acceptance
@pytest.mark.timeout(3600)
def test_predicted_power_is_the_share_of_rejections() -> None:
    """Independence of dependent strings is rejected as often as `predict_association` predicts.

    30 % of the devices have unlisted strings. The listed strings of a field are equally frequent,
    as the prediction assumes.
    """
    independent = association.Setting(
        shape=TABLE_OF_STRINGS,
        profile="balanced",
        n_reports=100_000,
        are_strings=True,
        has_equal_frequencies=True,
    )
    planned = predict_association(independent.params, TABLE_OF_STRINGS, reports=1e5, listed=0.7)
    assert planned.cramers_v is not None
    dependent = dataclasses.replace(independent, cramers_v=planned.cramers_v)
    p_values = np.array([association.measure_p_value(seed, dependent) for seed in range(MANY)])
    least, most = find_bounds(planned.power)
    assert least <= (p_values <= association.LEVEL).sum() <= most
