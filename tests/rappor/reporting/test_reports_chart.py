"""Chart of released reports by day: bars, their positions, and the dates below them."""

from __future__ import annotations

import datetime
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import SVG, parse_drawings, read_text

from rappor.reporting.reports_chart import draw_reports_by_day

MONDAY = datetime.date(2025, 12, 29)
"""First day of the charts. A new year begins in its week."""


def draw(numbers: dict[int, int]) -> ElementTree.Element:
    """Draw the chart of {days after MONDAY: reports}."""
    days = [(MONDAY + datetime.timedelta(n), reports) for n, reports in numbers.items()]
    return parse_drawings(draw_reports_by_day("theme", days).inline())["theme"]


def get(bar: ElementTree.Element, name: str) -> float:
    """Return a number of a bar, in units of SVG or in per cent of the width."""
    return float(bar.attrib[name].removesuffix("%"))


@given(
    st.dictionaries(st.integers(0, 400), st.integers(1, 10**9), min_size=1).map(
        lambda numbers: dict(sorted(numbers.items()))
    )
)
def test_bars_show_days_and_numbers(numbers: dict[int, int]) -> None:
    """Heights are in proportion to the reports, and positions to the days.

    Each bar is in the space of its day, and has its day and number as a tooltip.
    """
    bars = list(draw(numbers).iter(f"{SVG}rect"))
    largest, tallest = max(numbers.values()), max(get(bar, "height") for bar in bars)
    first, day_width = min(numbers), 88 / max(max(numbers) - min(numbers) + 1, 14)
    for (day, reports), bar in zip(numbers.items(), bars, strict=True):
        assert get(bar, "height") == pytest.approx(tallest * reports / largest, abs=0.02)
        # The bar is in the middle of its day, and the axis begins at 12 % of the width.
        left = 12 + day_width * (day - first)
        assert get(bar, "x") + get(bar, "width") / 2 == pytest.approx(left + day_width / 2, abs=0.1)
        assert left <= get(bar, "x")
        assert get(bar, "x") + get(bar, "width") <= left + day_width
        date = MONDAY + datetime.timedelta(day)
        assert bar[0].text == f"{date}: {reports:,} report{'s' * (reports != 1)}"


@pytest.mark.parametrize(
    ("numbers", "names"),
    [
        ({0: 10}, ["Dec 29", "2025", "Jan 1", "2026", "Jan 4", "Jan 7", "Jan 10"]),
        ({0: 10, 30: 5}, ["Dec 29", "2025", "Jan 5", "2026", "Jan 12", "Jan 19", "Jan 26"]),
    ],
)
def test_five_days_are_named(numbers: dict[int, int], names: list[str]) -> None:
    """Below the bars are at most five dates, and each year once."""
    texts = [read_text(text) for text in draw(numbers).iter(f"{SVG}text")]
    assert texts[-len(names) :] == names
