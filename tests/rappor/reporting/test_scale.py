"""Where numbers are drawn, and which numbers are written beside an axis."""

from __future__ import annotations

import pytest

from rappor.reporting.scale import Scale


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([], 0.0, 1.0),
        ([2.0, 5.0, 3.0], 2.0, 5.0),
        ([4.0], 2.0, 6.0),
        ([-4.0, -4.0], -6.0, -2.0),
        ([0.0], -0.5, 0.5),
    ],
)
def test_a_scale_spans_its_values(values: list[float], low: float, high: float) -> None:
    """One value is in the middle of a span, also where it is zero."""
    scale = Scale.over(values, start=10.0, end=0.0)
    assert (scale.low, scale.high) == (low, high)
    assert (scale(low), scale(high), scale((low + high) / 2)) == (10.0, 0.0, 5.0)


@pytest.mark.parametrize(
    ("high", "n", "ticks"),
    [
        (10.0, 5, [0, 2, 4, 6, 8, 10]),
        (0.3, 3, [0, 0.1, 0.2, 0.3]),
        (0.6, 3, [0, 0.2, 0.4, 0.6]),
        (9.9, 2, [0, 5]),
    ],
)
def test_ticks_are_round_numbers_of_the_span_with_both_ends(
    high: float, n: int, ticks: list[float]
) -> None:
    """Whatever the last digit of a step is in binary."""
    assert Scale(low=0.0, high=high, start=0.0, end=1.0).ticks(n) == pytest.approx(ticks)
