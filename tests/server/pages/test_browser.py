"""The dashboard in a real browser: signing in, queries, files, accessibility, phones."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsers import PATIENCE, list_accessibility_faults, run_browser, save_screenshot
from collectors import Running, find_free_port, make_token, run_file_collector
from dashboards import DAYS, HOSTILE, NAMES, TOML

HOME = "/pages/metrics/home_page"
STATUS_MESSAGE = "Failed to load resource: the server responded with a status of "
"""The browser logs a message with this beginning if a page has an error status."""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Yield a browser without a window."""
    with run_browser() as started:
        yield started


@contextlib.contextmanager
def open_page(browser: Any, dashboard: Running, token: str, **window: Any) -> Iterator[Any]:
    """Yield a page of a person who is signed in.

    At the end, check that the browser logged no message, except about pages with an error status,
    and that it requested nothing from another site.
    """
    context = browser.new_context(**window)
    context.set_default_timeout(1000 * PATIENCE)
    page = context.new_page()
    messages: list[str] = []
    urls: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("dialog", lambda dialog: messages.append(dialog.message))
    page.on("request", lambda request: urls.append(request.url))
    page.goto(f"{dashboard.admin_url}/pages")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{dashboard.admin_url}/pages/")
    try:
        yield page
        assert [message for message in messages if not message.startswith(STATUS_MESSAGE)] == []
        allowed = (f"{dashboard.admin_url}/pages", "data:")
        assert [url for url in urls if not url.startswith(allowed)] == []
    finally:
        context.close()


def test_visit_of_an_analyst(browser: Any, dashboard: Running, token: str, tmp_path: Path) -> None:
    """Sign in, see a result, upload candidates, decode, sort, download, compare, sign out."""
    listed = tmp_path / "candidates.txt"
    listed.write_text("".join(f"{name}\n" for name in [*NAMES, HOSTILE[0], HOSTILE[-1]]))
    with open_page(browser, dashboard, token) as page:
        page.get_by_role("link", name="home_page").click()
        page.get_by_text("leads with").wait_for()
        save_screenshot(page, "dashboard-overview")
        page.get_by_role("link", name="Ask", exact=True).click()
        page.get_by_label("File, UTF-8").set_input_files(listed)
        page.get_by_role("button", name="Upload list").click()
        uploaded = page.locator("th a[download]").first
        uploaded.wait_for()
        digest = uploaded.get_attribute("href").partition("list=")[2]

        ranking = page.locator("form[action$=ranking]")
        ranking.locator("select[name=list]").select_option(digest)
        ranking.get_by_role("button", name="Decode").click()
        rows = page.locator("table#candidates tbody tr:not([hidden]) th")
        rows.first.wait_for()
        assert rows.count() == len(NAMES) + 2
        page.get_by_role("button", name="candidate").click()
        page.get_by_role("button", name="candidate").click()
        assert rows.all_inner_texts()[0] == min(HOSTILE[-1], HOSTILE[0])
        for name, check in (("estimates.csv", "candidate,"), ("report.html", "<!DOCTYPE html>")):
            with page.expect_download() as download:
                page.get_by_role("link", name=name).click()
            assert download.value.path().read_text(encoding="utf-8").startswith(check)
        save_screenshot(page, "dashboard-ranking")

        page.get_by_role("link", name="Ask", exact=True).click()
        page.get_by_role("link", name="Comparison").click()
        comparison = page.locator("form[action$=comparison]")
        comparison.locator("input[name=to]").fill(str(DAYS[2]))
        comparison.locator("input[name=from_after]").fill(str(DAYS[3]))
        comparison.get_by_role("button", name="Compare").click()
        change = page.locator("table#changes-of-all tbody tr").first
        assert change.inner_text().split("\t")[:2] == [NAMES[3], "rise"]
        with page.expect_download() as download:
            page.get_by_role("link", name="comparison.json").click()
        assert json.loads(download.value.path().read_bytes())["rows"]
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Token").wait_for()
        page.goto(f"{dashboard.admin_url}{HOME}")
        assert page.get_by_label("Token").is_visible()


BARS = "[...document.querySelectorAll('.bar')].map(bar => bar.getBoundingClientRect().width)"
"""Script that returns the width of each bar of a chart, in pixels."""
LOOKS = [("light", 390), ("dark", 1280)]
"""Colour schemes and widths of the window, in pixels, that the browser takes in turn. The scheme
decides about contrasts and the width about the layout, so two looks show both of each."""
VIEWS = {
    "metrics": "",
    "overview": "metrics/home_page",
    "ask": "metrics/theme/ask",
    "health": "metrics/theme/health",
    "segments": "metrics/theme/segments?dimension=version",
    "association": "metrics/setup/association",
    "ranking": "metrics/home_page/ranking",
    "trend": "metrics/theme/trend",
    "unanswered": "metrics/other/overview",
}


@pytest.fixture(scope="module")
def analyst_page(browser: Any, dashboard: Running, token: str) -> Iterator[Any]:
    """Yield one page of a person who is signed in, which all views of a test replace in turn.

    A page of its own for each view would cost a new process of the browser and a sign-in.
    """
    with open_page(browser, dashboard, token) as page:
        yield page


@pytest.mark.parametrize("name", VIEWS)
def test_pages_are_accessible_and_fit(analyst_page: Any, dashboard: Running, name: str) -> None:
    """axe-core finds no violation. The page fits the window and has less than 200,000 bytes.

    All bars of a page have one width, because they have one scale.
    """
    page = analyst_page
    response = page.goto(f"{dashboard.admin_url}/pages/{VIEWS[name]}")
    assert response.ok == (name != "unanswered")
    page.wait_for_selector("[data-progress]", state="detached")
    if name == "ask":
        page.get_by_text("Error rates and intervals").first.click()
    assert len(page.content().encode()) < 200_000
    for scheme, width in LOOKS:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        assert list_accessibility_faults(page) == [], (scheme, width)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert len({round(width) for width in page.evaluate(BARS)}) <= 1, "bars of one scale"
        save_screenshot(page, f"dashboard-{name}-{scheme}-{width}")


def test_everything_works_without_scripts(browser: Any, dashboard: Running, token: str) -> None:
    """Without scripts, the page of a running query reloads until the result is computed.

    Forms work, and no button without an effect is shown.
    """
    with open_page(browser, dashboard, token, java_script_enabled=False) as page:
        page.goto(f"{dashboard.admin_url}{HOME}/ask")
        page.get_by_role("link", name="Over time").click()
        trend = page.locator("form[action$=trend]")
        trend.get_by_label("By").select_option("week")
        trend.get_by_role("button", name="Show over time").click()
        page.locator("table#changes-of-all").wait_for()
        assert page.locator("main button").count() == 0
        page.get_by_role("link", name="Ask", exact=True).click()
        page.get_by_label("or type the candidates").fill("site 0.example\nsite 1.example")
        page.get_by_role("button", name="Upload list").click()
        # A list has no name and no button that deletes it: it goes some days after its last use.
        page.locator("th a[download]").first.wait_for()
        assert page.get_by_text("site 0.example, site 1.example").count() > 0


def test_link_of_another_site_keeps_the_visit(browser: Any, dashboard: Running, token: str) -> None:
    """A link on another site, such as a chat, opens the page of a person who is signed in."""
    with open_page(browser, dashboard, token) as page:
        page.goto(f"data:text/html,<a href={dashboard.admin_url}{HOME}>home_page</a>")
        page.get_by_role("link", name="home_page").click()
        page.get_by_role("heading", name="home_page").wait_for()
        page.goto(f"{dashboard.admin_url}/pages/")
        page.get_by_role("link", name="home_page").wait_for()


def test_long_names_fit_a_phone(browser: Any, tmp_path: Path) -> None:
    """A name without a space is broken and does not widen a page."""
    name = f"a{'_' * 20}{'x' * 40}"
    (tmp_path / "metrics.toml").write_text(TOML.replace("[metrics.other]", f"[metrics.{name}]"))
    with run_file_collector(tmp_path, "--pages", admin=find_free_port()) as dashboard:
        token = make_token(dashboard.database)
        window = {"width": 390, "height": 900}
        with open_page(browser, dashboard, token, viewport=window) as page:
            for path in ("", f"metrics/{name}/overview", f"metrics/{name}/health"):
                page.goto(f"{dashboard.admin_url}/pages/{path}")
                assert page.evaluate("document.documentElement.scrollWidth") == 390, path
