"""Intervals of strings: normal ones, which know that few devices are a small sample."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rappor.decoding.inference import normal_interval
from rappor.decoding.significance import normal_tail

ERROR = 0.05


@pytest.mark.parametrize("n_held", [0, 3, 15, 30])
def test_where_only_devices_are_sampled_the_interval_is_wilsons(n_held: int) -> None:
    """Of 30 devices none or all may hold a string that others hold or do not."""
    share = n_held / 30
    error = np.array([np.sqrt(share * (1 - share) / 30)])
    low, high = normal_interval(np.array([share]), error, normal_tail(), devices=30)(ERROR)
    expected = stats.binomtest(n_held, 30).proportion_ci(1 - ERROR, method="wilson")
    assert low[0] == pytest.approx(expected.low, abs=1e-9)
    assert high[0] == pytest.approx(expected.high, abs=1e-9)


def test_of_many_devices_the_interval_is_normal() -> None:
    """Two errors of a thousandth each way, below 0 and above 1 too."""
    share = np.array([-0.001, 0.0005, 0.5, 0.9999, 1.001])
    error = np.full(5, 0.001)
    low, high = normal_interval(share, error, normal_tail(), devices=1e9)(ERROR)
    reach = stats.norm.isf(ERROR / 2) * error
    assert low == pytest.approx(share - reach, abs=1e-7)
    assert high == pytest.approx(share + reach, abs=1e-7)


@pytest.mark.parametrize("p_value", [0.5, 1e-3, 1e-12, 1e-300])
def test_the_normal_tail_is_normal(p_value: float) -> None:
    """From one half to the least number that there is."""
    tail = normal_tail()
    z = stats.norm.isf(p_value)
    assert tail.quantile(p_value) == pytest.approx(z, abs=1e-3)
    assert tail.p_values(np.array([z]))[0] == pytest.approx(p_value, rel=2e-3)
