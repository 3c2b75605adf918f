"""The share of cohorts with enough reports to be released."""

from __future__ import annotations

import pytest
from scipy import stats

from rappor.privacy.small_cohorts import CohortFilling, choose_list_cohorts


@pytest.mark.parametrize("m", [2, 16, 128, 65_536])
@pytest.mark.parametrize("least", [1, 10, 100])
@pytest.mark.parametrize("devices", [0, 1, 9, 100, 2000, 1_000_000])
def test_share_is_a_binomial_tail(m: int, least: int, devices: int) -> None:
    """The share is a binomial tail. At the largest m most cohorts have enough reports."""
    filling = CohortFilling(devices=devices, m=m, min_cohort=least)
    assert filling.share == pytest.approx(stats.binom.sf(least - 1, devices, 1 / m), abs=1e-8)
    assert filling.is_m_too_large == (devices < 2 * least * m)
    assert filling.is_m_too_large or filling.share > 0.86


def test_the_summary_has_share_and_better_m() -> None:
    """The sentence has the share, and a better number of cohorts."""
    summary = CohortFilling(devices=1000, m=128, min_cohort=10).summary
    assert summary.startswith("of 128 cohorts, 26 % have at least 10 reports in an interval")
    assert summary.endswith("m = 50 would do")


@pytest.mark.parametrize(
    ("reports", "least", "cohorts"),
    [
        (0, 10, 4),
        (239, 10, 4),
        (240, 10, 8),
        (300, 10, 8),
        (479, 10, 8),
        (3839, 10, 64),
        (3840, 10, 128),
        (1e9, 10, 128),
        (300, 1, 64),
        (300, 20, 4),
    ],
)
def test_a_list_has_as_many_cohorts_as_its_reports_fill(
    reports: float, least: int, cohorts: int
) -> None:
    """Every cohort gets three times the smallest number of reports, in 4 to 128 cohorts."""
    assert choose_list_cohorts(reports, min_cohort=least) == cohorts
