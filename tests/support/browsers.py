"""A real browser for tests, Debian's chromium: what it said, and a site that it visits."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import uvicorn
from tools import need

PATIENCE: Final = 60.0
"""Seconds that a test waits for what a page or a site does."""

SCREENSHOTS: Final = "RAPPOR_SCREENSHOTS"
"""Environment variable that names a folder for pictures of the pages that tests look at."""


@contextlib.contextmanager
def browsing() -> Iterator[Any]:
    """Start the browser; as root it needs no sandbox of its own."""
    chromium = need("chromium")
    need("playwright")
    playwright = importlib.import_module("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
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


@contextlib.contextmanager
def site(app: Any) -> Iterator[str]:
    """Run an application in a thread while the block runs; return its address."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + PATIENCE
        while not server.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
