"""Pages in a real browser: accessible, complete without scripts, sorted and filtered with them."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import http.server
from collections.abc import Iterator
from typing import Any, Final

import pytest
from browsers import list_accessibility_faults, open_page, run_browser, save_screenshot
from decodings import build_released_counts
from sockets import run_handler

from rappor import Estimates, Params, Population, decode, simulate_counts, trend
from rappor.reporting.comparison_page import comparison_page
from rappor.reporting.document import document
from rappor.reporting.numbers import format_p_value
from rappor.reporting.page import estimates_page
from rappor.reporting.tables import Column, Table

STRICT: Final = "default-src 'none'"
"""Content security policy of build servers and wikis: a page may load nothing and run nothing."""


@pytest.fixture(scope="module")
def estimates() -> Estimates:
    """Return estimates of few candidates in few bits, because axe-core examines every mark."""
    names = [f"site {number}.example" for number in range(20)]
    params = dataclasses.replace(Params.profile("low-noise"), k=32, m=8)
    weights = [1 / (rank + 1) for rank in range(20)]
    counts = simulate_counts(Population(names, weights), params, n_reports=20_000, seed=5)
    return decode(counts, [*names, "absent.example"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Start one browser for all tests of this module."""
    with run_browser() as browser_process:
        yield browser_process


@contextlib.contextmanager
def serve_page(page: str) -> Iterator[tuple[str, list[str]]]:
    """Serve a page at /, and at /strict under the policy STRICT.

    Yields the address of the server, and the list of the paths that were requested.
    """
    requests: list[str] = []

    def handle(request: http.server.BaseHTTPRequestHandler) -> None:
        requests.append(request.path)
        request.send_response(200)
        request.send_header("Content-Type", "text/html; charset=utf-8")
        if request.path == "/strict":
            request.send_header("Content-Security-Policy", STRICT)
        request.end_headers()
        request.wfile.write(page.encode())

    with run_handler(handle) as url:
        yield url, requests


@pytest.fixture(scope="module")
def reports(estimates: Estimates) -> Iterator[tuple[str, list[str]]]:
    """Serve the page of a decode."""
    with serve_page(estimates_page(estimates)) as address:
        yield address


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
    with serve_page(
        comparison_page(trend(build_released_counts(counts, "pet"), ["cat", "dog"], smooth=2))
    ) as address:
        yield address


@pytest.mark.slow
def test_report_is_complete_under_a_policy_that_forbids_everything(
    browser: Any, reports: tuple[str, list[str]], estimates: Estimates
) -> None:
    """Under a policy that forbids styles and scripts, a reader still gets every row and drawing.

    Wikis and build servers show attached pages under such a policy. The browser reports the two
    refusals, of the style sheet and of the script. Rows are visible, the folded section opens
    without a script, and drawings have the colour of the text, so they are visible on a dark page.
    """
    address, requests = reports
    requests.clear()
    with open_page(browser, f"{address}/strict", color_scheme="dark") as (page, console_messages):
        assert len(console_messages) == 2
        assert "inline style" in console_messages[0]
        assert "inline script" in console_messages[1]
        assert requests == ["/strict"]
        rows = page.locator("table#candidates tbody tr")
        assert rows.count() == len(estimates)
        assert page.locator("svg[role=img]").count() == 4
        assert page.locator("svg[role=img]:visible").count() == 1
        page.get_by_text("Diagnostics").click()
        assert page.locator("svg[role=img]:visible").count() == 4
        colour_of_drawing = "getComputedStyle(document.querySelector('svg text')).fill"
        assert page.evaluate(colour_of_drawing) == page.evaluate(
            "getComputedStyle(document.body).color"
        )
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(255, 255, 255)"
        save_screenshot(page, "report-strict-dark")


LOOKS: Final = [("light", 390), ("dark", 1280)]
"""Colour schemes and widths of the window in pixels, of a telephone and of a desktop."""


def set_look(page: Any, scheme: str, width: int) -> None:
    """Give a page another colour scheme and width. A new page would take a new process."""
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})


@pytest.mark.slow
def test_report_is_accessible_and_fits(browser: Any, reports: tuple[str, list[str]]) -> None:
    """The report has no fault of accessibility and fits a telephone and a desktop window.

    axe-core checks contrasts, names and headings with all sections open. The page is as wide as the
    window, so a reader does not scroll sideways. On a desktop, the table begins within the first
    screen.
    """
    address, requests = reports
    requests.clear()
    with open_page(browser, address) as (page, console_messages):
        for scheme, width in LOOKS:
            set_look(page, scheme, width)
            show_sections(page, is_open=False)
            assert page.locator("table#candidates").bounding_box()["y"] < 900 or width < 1280
            show_sections(page, is_open=True)
            assert list_accessibility_faults(page) == [], (scheme, width)
            assert page.evaluate("document.documentElement.scrollWidth") == width
            save_screenshot(page, f"report-{scheme}-{width}")
        assert (console_messages, requests) == ([], ["/"])


def show_sections(page: Any, *, is_open: bool) -> None:
    """Open or fold all sections of a page."""
    page.evaluate(
        "isOpen => document.querySelectorAll('details').forEach(each => { each.open = isOpen })",
        is_open,
    )


@pytest.mark.slow
def test_trend_is_accessible_and_fits(browser: Any, trends: tuple[str, list[str]]) -> None:
    """The page of a trend has no fault of accessibility, fits the window, and needs no script."""
    address, requests = trends
    requests.clear()
    with open_page(browser, address) as (page, console_messages):
        for scheme, width in LOOKS:
            set_look(page, scheme, width)
            assert list_accessibility_faults(page) == [], (scheme, width)
            assert page.evaluate("document.documentElement.scrollWidth") == width
            save_screenshot(page, f"trend-{scheme}-{width}")
        assert (console_messages, requests) == ([], ["/"])
        page.goto(f"{address}/strict")
        assert len(console_messages) == 2  # the style sheet and the script are refused
        for scheme, width in LOOKS:
            set_look(page, scheme, width)
            assert page.locator("svg[role=img]:visible").count() == 3  # changes, and two strings
            assert page.locator("table tbody tr:visible").count() == 2  # changes of two strings
            save_screenshot(page, f"trend-strict-{scheme}")


@pytest.mark.slow
def test_candidates_are_sorted_and_filtered(
    browser: Any, reports: tuple[str, list[str]], estimates: Estimates
) -> None:
    """A click on a heading sorts the table, and a text in the field filters it.

    The first click on a heading sorts in descending order, the second click in ascending order. The
    smallest p-value belongs to a detected candidate.
    """
    address, _ = reports
    names = "table#candidates tbody tr:not([hidden]) th"
    with open_page(browser, address) as (page, _console_messages):
        page.get_by_role("button", name="p-value").click()
        page.get_by_role("button", name="p-value").click()
        with_least_p_value = page.locator(names).first.inner_text()
        assert with_least_p_value in {
            row["candidate"] for row in estimates.rows() if row["detected"]
        }
        page.get_by_role("button", name="reports").click()
        assert page.locator(names).first.inner_text() == estimates.candidates[0]
        page.get_by_role("button", name="candidate").click()
        page.get_by_role("button", name="candidate").click()
        names_shown = page.locator(names).all_inner_texts()
        assert names_shown[0] == "absent.example"
        page.get_by_label("Show rows that contain").fill("site 7.")
        assert page.locator(names).all_inner_texts() == ["site 7.example"]


@pytest.mark.slow
def test_the_smallest_p_values_are_sorted_as_numbers(browser: Any) -> None:
    """A p-value that is written as "less than 1e-99" is smaller than any written number."""
    values = (0.5, 1e-120, 2e-98, None)
    table = Table(title="", columns=(Column("p-value", format_p_value),) * 2, rows=values)
    with (
        serve_page(document("", table.to_html(name="values"))) as (address, _),
        open_page(browser, address) as (page, _console_messages),
    ):
        page.get_by_role("button", name="p-value").last.click()
        shown = page.locator("table#values tbody td").all_inner_texts()
        assert shown == ["unknown", "0.5", "2e-98", "less than 1e-99"]


@pytest.mark.slow
def test_without_scripts_there_is_no_dead_control(
    browser: Any, reports: tuple[str, list[str]], estimates: Estimates
) -> None:
    """Without scripts the page has no button and no field, and the table is complete.

    A button that does nothing would look like a fault of the page. The script adds the buttons.
    """
    address, _ = reports
    with open_page(browser, address, java_script_enabled=False) as (page, console_messages):
        assert page.locator("button, input").count() == 0
        assert page.locator("table#candidates tbody tr").count() == len(estimates)
        assert console_messages == []
