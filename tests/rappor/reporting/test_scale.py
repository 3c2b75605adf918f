"""Scales: positions of numbers, ticks, and formatted shares."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rappor.reporting.numbers import format_share
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
    """The axis reaches from the smallest to the largest value, from `start` to `end`.

    A single value has no range. It lies in the middle of an axis from half to three halves of it,
    and 0 in the middle of an axis of length 1. Without values the axis reaches from 0 to 1.
    """
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
    """Ticks are round numbers from one end of the axis to the other.

    3 * 0.1 is larger than 0.3 in binary floating point, but the tick at the end must not be lost.
    """
    assert Scale(low=0.0, high=high, start=0.0, end=1.0).ticks(n) == pytest.approx(ticks)


def test_ticks_of_a_logarithmic_axis_are_powers_of_ten() -> None:
    """Ticks are powers of ten, with their multiples by 2 and 5 if the powers are few.

    An axis over less than two powers of ten would otherwise have one or two ticks.
    """
    wide = Scale.over([1.0, 1e6], start=0.0, end=1.0, log=True)
    assert wide.ticks(5) == [1, 10, 100, 1e3, 1e4, 1e5, 1e6]
    narrow = Scale.over([0.01, 0.3], start=0.0, end=1.0, log=True)
    assert narrow.ticks(5) == pytest.approx([0.01, 0.02, 0.05, 0.1, 0.2])
    assert wide(1e3) == 0.5


@given(st.lists(st.tuples(st.floats(-0.1, 1.0), st.floats(0.001, 0.2)), min_size=1, max_size=12))
def test_a_broken_axis_keeps_order_and_its_gap_contains_no_interval(
    rows: list[tuple[float, float]],
) -> None:
    """Positions keep the order of numbers, and no interval ends inside the gap.

    An axis is broken only if both conditions of the module hold: half of the intervals lie in the
    first tenth of the unbroken axis, and the gap takes at least half of it.
    """
    segments = [(low, low + length) for low, length in rows]
    scale = Scale.broken(segments, start=2.0, end=98.0)
    ends = sorted(end for segment in segments for end in segment)
    positions = [scale(end) for end in ends]
    assert positions == sorted(positions)
    assert (scale(scale.low), scale(scale.high)) == (2.0, 98.0)
    if scale.gap is not None:
        below, above = scale.gap
        assert not [end for end in ends if below < end < above]
        crowded = [low for low, high in segments if (low + high) / 2 <= 0.1 * scale.high]
        assert 2 * len(crowded) >= len(segments)
        assert scale.high >= 2 * below


@pytest.mark.parametrize(
    ("share", "error", "text"),
    [
        (0.60127, 0.005, "60.13 %"),
        (0.60127, 0.05, "60.1 %"),
        (0.60127, 0.5, "60 %"),
        (0.60127, 0.000123, "60.127 %"),
        (-0.0000001, 0.01, "0.0 %"),
        (0.5, None, "50.000 %"),
        (None, 0.1, ""),
    ],
)
def test_a_share_is_rounded_to_two_digits_of_its_error(
    share: float | None, error: float | None, text: str
) -> None:
    """A share is rounded to the second significant digit of its standard error.

    Further digits are noise. A share without a known error has three decimal places. A negative
    share that rounds to 0 has no sign.
    """
    assert format_share(share, error) == text
