"""The report in a real browser: under a policy that forbids scripts, and with sorting."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import http.server
from collections.abc import Iterator
from typing import Any, Final

import pytest
from browsers import browsing, keep_picture, opened, violations
from decodings import released
from sockets import answering

from rappor import Estimates, Params, Population, decode, simulate_counts, trend
from rappor.reporting.comparison_page import comparison_page
from rappor.reporting.page import estimates_page

STRICT: Final = "default-src 'none'"
"""What build servers and wikis forbid: everything."""


@pytest.fixture(scope="module")
def estimates() -> Estimates:
    """Return estimates of few candidates in few bits: axe-core examines every mark of a page."""
    names = [f"site {number}.example" for number in range(20)]
    params = dataclasses.replace(Params.profile("low-noise"), k=32, m=8)
    weights = [1 / (rank + 1) for rank in range(20)]
    counts = simulate_counts(Population(names, weights), params, n_reports=20_000, seed=5)
    return decode(counts, [*names, "absent.example"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing() as found:
        yield found


@contextlib.contextmanager
def served(page: str) -> Iterator[tuple[str, list[str]]]:
    """Serve a page, under /strict with a policy that forbids all; yield addresses and requests."""
    requests: list[str] = []

    def handle(request: http.server.BaseHTTPRequestHandler) -> None:
        requests.append(request.path)
        request.send_response(200)
        request.send_header("Content-Type", "text/html; charset=utf-8")
        if request.path == "/strict":
            request.send_header("Content-Security-Policy", STRICT)
        request.end_headers()
        request.wfile.write(page.encode())

    with answering(handle) as url:
        yield url, requests


@pytest.fixture(scope="module")
def reports(estimates: Estimates) -> Iterator[tuple[str, list[str]]]:
    """Serve a report."""
    with served(estimates_page(estimates)) as found:
        yield found


@pytest.fixture(scope="module")
def trends() -> Iterator[tuple[str, list[str]]]:
    """Serve the trend of two strings over three days. The second day has no reports."""
    params = Params(k=8, h=1, m=2, f=0.1, p=0.1, q=0.9)
    days = [datetime.date(2026, 11, number) for number in (1, 3)]
    weights = ([5, 3], [3, 5])
    counts = {
        day: simulate_counts(Population(["cat", "dog"], weight), params, n_reports=1e5, seed=1)
        for day, weight in zip(days, weights, strict=True)
    }
    with served(comparison_page(trend(released(counts, "pet"), ["cat", "dog"], smooth=2))) as found:
        yield found


@pytest.mark.slow
def test_where_all_is_forbidden_the_report_is_whole(
    browser: Any, reports: tuple[str, list[str]], estimates: Estimates
) -> None:
    """Under the strict policy all rows are visible, sections open, and no file is requested."""
    address, requests = reports
    requests.clear()
    with opened(browser, f"{address}/strict", color_scheme="dark") as (page, said):
        assert len(said) == 2
        assert "inline style" in said[0]
        assert "inline script" in said[1]
        assert requests == ["/strict"]
        rows = page.locator("table#candidates tbody tr")
        assert rows.count() == len(estimates)
        assert page.locator("svg[role=img]").count() == 4
        assert page.locator("svg[role=img]:visible").count() == 1
        page.get_by_text("Diagnostics").click()
        assert page.locator("svg[role=img]:visible").count() == 4
        drawn = "getComputedStyle(document.querySelector('svg text')).fill"
        assert page.evaluate(drawn) == page.evaluate("getComputedStyle(document.body).color")
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(255, 255, 255)"
        keep_picture(page, "report-strict-dark")


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_report_is_accessible_and_fits(
    browser: Any, reports: tuple[str, list[str]], scheme: str, width: int
) -> None:
    """axe-core reports no fault, the console is empty, and the page fits the window."""
    address, requests = reports
    requests.clear()
    window = {"width": width, "height": 900}
    with opened(browser, address, color_scheme=scheme, viewport=window) as (page, said):
        assert page.locator("table#candidates").bounding_box()["y"] < 900 or width < 1280
        page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert said == []
        assert requests == ["/"]
        keep_picture(page, f"report-{scheme}-{width}")


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1280)])
def test_trend_is_accessible_and_fits(
    browser: Any, trends: tuple[str, list[str]], scheme: str, width: int
) -> None:
    """The page of a trend is complete under the strict policy, accessible, and fits the window."""
    address, requests = trends
    requests.clear()
    window = {"width": width, "height": 900}
    with opened(browser, address, color_scheme=scheme, viewport=window) as (page, said):
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert (said, requests) == ([], ["/"])
        keep_picture(page, f"trend-{scheme}-{width}")
    with opened(browser, f"{address}/strict", color_scheme=scheme, viewport=window) as (page, said):
        assert len(said) == 2
        assert page.locator("svg[role=img]:visible").count() == 3  # the changes, and two strings
        assert page.locator("table tbody tr:visible").count() == 2
        keep_picture(page, f"trend-strict-{scheme}")


@pytest.mark.slow
def test_candidates_are_sorted_and_filtered(
    browser: Any, reports: tuple[str, list[str]], estimates: Estimates
) -> None:
    """The table can be sorted by number and by name, and filtered by text."""
    address, _ = reports
    names = "table#candidates tbody tr:not([hidden]) th"
    with opened(browser, address) as (page, _said):
        page.get_by_role("button", name="p-value").click()
        page.get_by_role("button", name="p-value").click()
        least = page.locator(names).first.inner_text()
        assert least in {row["candidate"] for row in estimates.rows() if row["detected"]}
        page.get_by_role("button", name="reports").click()
        assert page.locator(names).first.inner_text() == estimates.candidates[0]
        page.get_by_role("button", name="candidate").click()
        page.get_by_role("button", name="candidate").click()
        names_shown = page.locator(names).all_inner_texts()
        assert names_shown[0] == "absent.example"
        page.get_by_label("Show rows that contain").fill("site 7.")
        assert page.locator(names).all_inner_texts() == ["site 7.example"]


@pytest.mark.slow
def test_without_scripts_there_is_no_dead_control(
    browser: Any, reports: tuple[str, list[str]], estimates: Estimates
) -> None:
    """Without scripts the page has no button and no field, and the table is complete."""
    address, _ = reports
    with opened(browser, address, java_script_enabled=False) as (page, said):
        assert page.locator("button, input").count() == 0
        assert page.locator("table#candidates tbody tr").count() == len(estimates)
        assert said == []
