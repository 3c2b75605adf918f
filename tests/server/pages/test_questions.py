"""Trends, comparisons and segments: the numbers of the library, shown and kept as files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from dashboards import DAYS, NAMES, Visitor
from pages import drawings, tables


def record(reader: Visitor, page: httpx.Response, name: str) -> Mapping[str, Any]:
    """Return the file of numbers of an answer; the others must be there too."""
    assert page.status_code == 200, page.text
    for other in ("report.html", f"{name}.csv", "chart.svg", "chart.png"):
        assert reader.file(page, other).status_code == 200
    found: Mapping[str, Any] = json.loads(reader.file(page, f"{name}.json").text)
    return found


@pytest.mark.slow
def test_shares_run_over_days(reader: Visitor) -> None:
    """Each day has its reports, days without any are named, and a panel is drawn."""
    page = reader.answer("/pages/metrics/theme/trend", by="day", smooth="2")
    found = record(reader, page, "trend")
    assert [each["first"] for each in found["samples"] if each["reports"]] == [
        str(day) for day in DAYS
    ]
    assert len(found["samples"]) == (DAYS[-1] - DAYS[0]).days + 1
    assert "There are no reports for 2026-11-04, " in page.text
    assert drawings(page.text)


def test_two_ranges_are_compared(reader: Visitor) -> None:
    """The string that rose is a rise, and samples are named by their days."""
    page = reader.answer(
        "/pages/metrics/home_page/comparison", to=str(DAYS[2]), from_after=str(DAYS[3])
    )
    found = record(reader, page, "comparison")
    kinds = {row["candidate"]: row.get("direction") for row in found["rows"]}
    assert kinds[NAMES[3]] == "rise"
    assert "What changed from 2026-11-02/2026-11-05 to 2026-11-09/2026-11-10" in page.text
    (shown,) = [rows for caption, rows in tables(page.text).items() if "by their p" in caption]
    assert len(shown) - 1 == found["candidates"]


def test_both_ranges_end_with_a_closed_day(reader: Visitor) -> None:
    """An answer is kept, so its address names no day that may still get reports."""
    path = "/pages/metrics/home_page/comparison"
    page = reader.get(f"{path}?from={DAYS[3]}&to=2100-01-01&to_after={DAYS[2]}")
    assert page.headers["location"] == f"{path}?from={DAYS[3]}&to={DAYS[-1]}&to_after={DAYS[2]}"


@pytest.mark.slow
def test_segments_are_shown_apart(reader: Visitor) -> None:
    """Of the one dimension that there is."""
    page = reader.answer("/pages/metrics/theme/segments", dimension="version")
    found = record(reader, page, "segments")
    assert [each["name"] for each in found["samples"]] == ["version=1", "version=2"]
    assert "theme by version" in page.text
