"""A real browser for tests: Debian's chromium, driven by playwright, and what it said."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tools import need

SCREENSHOTS: Final = "RAPPOR_SCREENSHOTS"
"""Environment variable that names a folder for pictures of the pages that tests look at."""


@contextlib.contextmanager
def browsing() -> Iterator[Any]:
    """Start the browser; as root it needs no sandbox of its own."""
    chromium = need("chromium")
    need("playwright")
    playwright = importlib.import_module("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def opened(browser: Any, address: str, **context: Any) -> Iterator[tuple[Any, list[str]]]:
    """Open an address in a fresh context; yield the page and what its console says."""
    fresh = browser.new_context(**context)
    page = fresh.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(address)
    try:
        yield page, said
    finally:
        fresh.close()


def violations(page: Any) -> list[str]:
    """Return what axe-core finds wrong with a page for people who cannot see it as others do."""
    axe = importlib.import_module("axe_playwright_python.sync_playwright")
    found = axe.Axe().run(page).response["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found]


def keep_picture(page: Any, name: str) -> None:
    """Keep a picture of the whole page where the environment asks for pictures."""
    if folder := os.environ.get(SCREENSHOTS):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
