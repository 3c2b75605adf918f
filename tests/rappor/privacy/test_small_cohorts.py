"""The share of cohorts that get enough reports to be released, and a good number of cohorts.

A collector releases the reports of a cohort only if the cohort has at least `min_cohort` reports in
an interval. With too many cohorts, few cohorts are released.
"""

from __future__ import annotations

import pytest
from scipy import stats

from rappor.privacy.small_cohorts import CohortFilling, choose_list_cohorts


@pytest.mark.parametrize("m", [2, 16, 128, 65_536])
@pytest.mark.parametrize("least", [1, 10, 100])
@pytest.mark.parametrize("devices", [0, 1, 9, 100, 2000, 1_000_000])
def test_share_is_a_binomial_tail(m: int, least: int, devices: int) -> None:
    """The share of cohorts with at least `min_cohort` reports is a binomial tail.

    Each device is in each of the m cohorts with probability 1/m. `is_m_too_large` is False if a
    cohort has twice the minimum on average. Then more than 86 % of the cohorts have enough reports.
    The worst case is a minimum of 1: with a mean of 2 devices, a cohort has no device with
    probability e^-2 = 13.5 % at most.
    """
    filling = CohortFilling(devices=devices, m=m, min_cohort=least)
    assert filling.share == pytest.approx(stats.binom.sf(least - 1, devices, 1 / m), abs=1e-8)
    assert filling.is_m_too_large == (devices < 2 * least * m)
    assert filling.is_m_too_large or filling.share > 0.86


def test_the_summary_has_share_and_better_m() -> None:
    """The summary states the share of cohorts with enough reports, and a better m."""
    summary = CohortFilling(devices=1000, m=128, min_cohort=10).summary
    assert summary.startswith("of 128 cohorts, 26 % have at least 10 reports in an interval")
    assert summary.endswith("m = 32 would do")


@pytest.mark.parametrize(
    ("devices", "least_m", "end"),
    [
        (9, 1, "no m would do below 80 devices, which need m = 4"),
        (79, 3, "no m would do below 80 devices, which need m = 4"),
        (80, 3, "m = 4 would do"),
        (119, 6, "no m would do below 120 devices, which need m = 6"),
        (120, 6, "m = 6 would do"),
        (300, 1, "m = 8 would do"),
    ],
)
def test_the_summary_of_few_devices_recommends_no_useless_m(
    devices: int, least_m: int, end: str
) -> None:
    """The summary recommends no m whose cohort has too few reports, or that mixes candidates up.

    With fewer than 4 cohorts, strings that collide in all cohorts cannot be distinguished. The
    number of devices in the sentence is the smallest one for which an m is good.
    """
    filling = CohortFilling(devices=devices, m=128, min_cohort=10, least_m=least_m)
    assert filling.summary.endswith(f"; {end}")


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
def test_number_of_cohorts_follows_from_the_reports(
    reports: float, least: int, cohorts: int
) -> None:
    """For a list of candidates, m is the largest power of 2 with 3 `min_cohort` reports a cohort.

    The factor 3 is a margin, because the expected number of reports is a guess. m is at least 4, so
    that strings that collide in one cohort differ in another. m is at most 128: more cohorts gain
    little accuracy, and smaller cohorts reveal more about which reports come from one device.
    """
    assert choose_list_cohorts(reports, min_cohort=least) == cohorts


@pytest.mark.parametrize("least", [1, 10, 100])
@pytest.mark.parametrize("devices", [100, 300, 2559, 3000, 1_000_000])
def test_the_summary_recommends_what_a_plan_chooses(devices: int, least: int) -> None:
    """The recommended m is the choice of the planner, and causes no warning itself.

    The summary once recommended the largest m without a warning: 15 for 300 devices, where a plan
    has 8.
    """
    filling = CohortFilling(devices=devices, m=65_536, min_cohort=least)
    planned = choose_list_cohorts(devices, min_cohort=least)
    assert filling.recommended_m == planned
    recommended = CohortFilling(devices=devices, m=planned, min_cohort=least)
    if recommended.is_m_too_large:
        assert f"no m would do below {8 * least:,} devices" in filling.summary
    else:
        assert filling.summary.endswith(f"; m = {planned:,} would do")
