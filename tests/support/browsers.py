"""Real browser for tests (Debian's chromium): pages, messages of the console, and a web server."""

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
"""Largest number of seconds that a test waits for a page or a server. A busy machine is slow."""

SCREENSHOTS: Final = "RAPPOR_SCREENSHOTS"
"""Environment variable that names a folder. Tests save pictures of pages there."""


@contextlib.contextmanager
def browsing() -> Iterator[Any]:
    """Start the browser for a `with` block, without its sandbox, which root cannot use."""
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
    """Open an address without cookies; yield the page and the list of its console messages."""
    fresh = browser.new_context(**context)
    page = fresh.new_page()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(address)
    try:
        yield page, messages
    finally:
        fresh.close()


def violations(page: Any) -> list[str]:
    """Return the faults of accessibility that axe-core reports for a page."""
    axe = importlib.import_module("axe_playwright_python.sync_playwright")
    rules = axe.Axe().run(page).response["violations"]
    return [f"{rule['id']}: {rule['nodes'][0]['html'][:200]}" for rule in rules]


def keep_picture(page: Any, name: str) -> None:
    """Save a picture of the whole page, if the variable RAPPOR_SCREENSHOTS names a folder."""
    if folder := os.environ.get(SCREENSHOTS):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@contextlib.contextmanager
def site(app: Any) -> Iterator[str]:
    """Run a web application in a thread during a `with` block; yield its address."""
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
