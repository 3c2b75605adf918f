"""Trends, comparisons, segments, associations: pages and files with the numbers of the library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from dashboards import DAYS, NAMES, Visitor
from pages import drawings, tables


def load_numbers(reader: Visitor, page: httpx.Response, name: str) -> Mapping[str, Any]:
    """Return the JSON file of a result; check that the other files exist."""
    assert page.status_code == 200, page.text
    for other in ("report.html", f"{name}.csv", "chart.svg", "chart.png"):
        assert reader.file(page, other).status_code == 200
    numbers: Mapping[str, Any] = json.loads(reader.file(page, f"{name}.json").text)
    return numbers


@pytest.mark.slow
def test_trend_page(reader: Visitor) -> None:
    """Each day has its reports. Days without reports are named, and the page has a chart."""
    page = reader.answer("/pages/metrics/theme/trend", by="day", smooth="2")
    numbers = load_numbers(reader, page, "trend")
    assert [sample["first"] for sample in numbers["samples"] if sample["reports"]] == [
        str(day) for day in DAYS
    ]
    assert len(numbers["samples"]) == (DAYS[-1] - DAYS[0]).days + 1
    assert "There are no reports for 2026-11-04, " in page.text
    assert drawings(page.text)


def test_comparison_page(reader: Visitor) -> None:
    """The string with a larger share is a rise. The samples are named by their days."""
    page = reader.answer(
        "/pages/metrics/home_page/comparison", to=str(DAYS[2]), from_after=str(DAYS[3])
    )
    numbers = load_numbers(reader, page, "comparison")
    kinds = {row["candidate"]: row.get("direction") for row in numbers["rows"]}
    assert kinds[NAMES[3]] == "rise"
    assert "What changed from 2026-11-02/2026-11-05 to 2026-11-09/2026-11-10" in page.text
    (shown,) = [rows for caption, rows in tables(page.text).items() if "by their p" in caption]
    assert len(shown) - 1 == numbers["candidates"]


def test_both_ranges_end_with_a_closed_day(reader: Visitor) -> None:
    """The URL names no day that may still get reports, so its result never changes."""
    path = "/pages/metrics/home_page/comparison"
    page = reader.get(f"{path}?from={DAYS[3]}&to=2100-01-01&to_after={DAYS[2]}")
    assert page.headers["location"] == f"{path}?from={DAYS[3]}&to={DAYS[-1]}&to_after={DAYS[2]}"


@pytest.mark.slow
def test_segments_page(reader: Visitor) -> None:
    """The page compares the segments of the only property."""
    page = reader.answer("/pages/metrics/theme/segments", dimension="version")
    numbers = load_numbers(reader, page, "segments")
    assert [sample["name"] for sample in numbers["samples"]] == ["version=1", "version=2"]
    assert "theme by version" in page.text


def test_association_page(reader: Visitor) -> None:
    """The page of a tuple has a tab, the test of the library, and a colour for each cell."""
    page = reader.answer("/pages/metrics/setup/association")
    numbers = load_numbers(reader, page, "association")
    assert numbers["reports"] == 2000 * len(DAYS)
    assert (numbers["row_field"], numbers["column_field"]) == ("editor", "system")
    assert numbers["independence"]["p_value"] < 1e-6
    assert "setup: editor and system" in page.text
    assert 'association" aria-current="page"' in page.text
    assert 'class="heat-6"' in page.text
    for name in ("rows.svg", "columns.svg"):
        assert reader.file(page, name).status_code == 200
    turned = reader.answer("/pages/metrics/setup/association", rows="system", columns="editor")
    assert load_numbers(reader, turned, "association")["row_field"] == "system"


def test_only_tuples_have_an_association(reader: Visitor) -> None:
    """Other metrics have no tab and no form. A form offers the fields of a tuple."""
    assert "association" not in reader.get("/pages/metrics/theme/ask").text
    form = reader.get("/pages/metrics/setup/ask").text
    assert '<select name="columns">' in form
    assert "<option selected>system</option>" in form
