"""How many cohorts hold enough reports to be shown."""

from __future__ import annotations

import pytest
from scipy import stats

from rappor.privacy.small_cohorts import ENOUGH, fill


@pytest.mark.parametrize("m", [2, 16, 128, 65_536])
@pytest.mark.parametrize("least", [1, 10, 100])
@pytest.mark.parametrize("reports", [0, 1, 9, 100, 2000, 1_000_000])
def test_share_is_a_binomial_tail(m: int, least: int, reports: int) -> None:
    """A cohort holds a binomial number of the reports."""
    expected = stats.binom.sf(least - 1, reports, 1 / m)
    assert fill(m, least, reports).share == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("m", [1, 2, 16, 128, 65_536])
@pytest.mark.parametrize("least", [1, 10, 100])
def test_needed_reports_are_the_fewest(m: int, least: int) -> None:
    """As many fill nine cohorts in ten, and one fewer does not."""
    needed = fill(m, least, 0).needed
    assert fill(m, least, needed).share >= ENOUGH > fill(m, least, needed - 1).share
    assert not fill(m, least, needed).m_is_too_large
    assert fill(m, least, needed - 1).m_is_too_large


def test_what_is_told() -> None:
    """The sentence has the share, and the reports that would do."""
    told = fill(128, 10, 1000).summary
    assert "with 1,000 reports, 26 % of 128 cohorts have at least 10" in told
    assert "about 1,816 reports" in told
