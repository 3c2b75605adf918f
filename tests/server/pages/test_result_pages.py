"""Trends, comparisons, segments, associations: pages and files with the numbers of the library."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from dashboards import DAYS, NAMES, Visitor
from pages import parse_drawings, parse_tables
from rappor_server.pages.rendering import render_template


def load_numbers(reader: Visitor, page: httpx.Response, name: str) -> Mapping[str, Any]:
    """Return the JSON file of a result, and check that its other files exist."""
    assert page.status_code == 200, page.text
    for file_name in ("report.html", f"{name}.csv", "chart.svg", "chart.png"):
        assert reader.file(page, file_name).status_code == 200
    numbers: Mapping[str, Any] = json.loads(reader.file(page, f"{name}.json").text)
    return numbers


@pytest.mark.slow
def test_trend_page(reader: Visitor) -> None:
    """Each day has its reports. Days without reports are named, and the page has a chart."""
    page = reader.request_result("/pages/metrics/theme/trend", by="day", smooth="2")
    numbers = load_numbers(reader, page, "trend")
    assert [sample["first"] for sample in numbers["samples"] if sample["reports"]] == [
        str(day) for day in DAYS
    ]
    assert len(numbers["samples"]) == (DAYS[-1] - DAYS[0]).days + 1
    assert "There are no reports for 2026-11-04, " in page.text
    assert parse_drawings(page.text)


def test_comparison_page(reader: Visitor) -> None:
    """A string whose share triples is a rise. The samples are named by their days."""
    page = reader.request_result(
        "/pages/metrics/home_page/comparison", to=str(DAYS[2]), from_after=str(DAYS[3])
    )
    numbers = load_numbers(reader, page, "comparison")
    directions = {row["candidate"]: row.get("direction") for row in numbers["rows"]}
    assert directions[NAMES[3]] == "rise"
    title = "home_page: what changed from 2026-11-02/2026-11-05 to 2026-11-09/2026-11-10"
    assert title in page.text
    (changes,) = [
        rows
        for caption, rows in parse_tables(page.text).items()
        if "smallest p-value first" in caption
    ]
    assert len(changes) - 1 == numbers["candidates"]


def test_both_ranges_end_with_a_closed_day(reader: Visitor) -> None:
    """The URL of a comparison names no day that may still get reports, so its result is fixed.

    Days after the last closed day are replaced by this day.
    """
    path = "/pages/metrics/home_page/comparison"
    page = reader.get(f"{path}?from={DAYS[3]}&to=2100-01-01&to_after={DAYS[2]}")
    assert page.headers["location"] == f"{path}?from={DAYS[3]}&to={DAYS[-1]}&to_after={DAYS[2]}"


@pytest.mark.slow
def test_segments_page(reader: Visitor) -> None:
    """The page compares the segments of the dimension version."""
    page = reader.request_result("/pages/metrics/theme/segments", dimension="version")
    numbers = load_numbers(reader, page, "segments")
    assert [sample["name"] for sample in numbers["samples"]] == ["version=1", "version=2"]
    assert "theme by version" in page.text


def test_only_the_tab_of_the_shown_property_is_marked() -> None:
    """The name of a property may begin with the name of another property."""
    names = ("version", "version_major")
    metric = SimpleNamespace(
        name="theme",
        description="",
        segments=[SimpleNamespace(name=name) for name in names],
        params=SimpleNamespace(field_names=()),
    )
    for name in names:
        page = render_template(
            "metric.html",
            metric=metric,
            parsed=SimpleNamespace(
                query=SimpleNamespace(dimension=name), url_query=f"dimension={name}"
            ),
            tab="segments",
            is_signed_in=False,
            form_token="",
        )
        assert re.findall(r'dimension=(\w+)" aria-current', page) == [name]


def test_association_page(reader: Visitor) -> None:
    """The association of a tuple has a tab, the p-value of independence, and coloured cells."""
    page = reader.request_result("/pages/metrics/setup/association")
    numbers = load_numbers(reader, page, "association")
    assert numbers["reports"] == 2000 * len(DAYS)
    assert (numbers["row_field"], numbers["column_field"]) == ("editor", "system")
    assert numbers["independence"]["p_value"] < 1e-6
    assert "setup: editor and system" in page.text
    assert 'association" aria-current="page"' in page.text
    assert 'class="heat-6"' in page.text
    for name in ("rows.svg", "columns.svg"):
        assert reader.file(page, name).status_code == 200
    transposed_page = reader.request_result(
        "/pages/metrics/setup/association", rows="system", columns="editor"
    )
    assert load_numbers(reader, transposed_page, "association")["row_field"] == "system"


def test_only_tuples_have_an_association(reader: Visitor) -> None:
    """A metric that is no tuple has no form for an association. A tuple has one with its fields."""
    assert "association" not in reader.get("/pages/metrics/theme/ask").text
    assert reader.get("/pages/metrics/theme/ask?question=association").status_code == 422
    form = reader.get("/pages/metrics/setup/ask?question=association").text
    assert '<select name="columns">' in form
    assert "<option selected>system</option>" in form
