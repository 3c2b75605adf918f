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
def run_browser() -> Iterator[Any]:
    """Run the browser during a `with` block, and yield it.

    The browser has no sandbox, because root cannot use the sandbox, and tests may run as root.
    """
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
def open_page(browser: Any, address: str, **context: Any) -> Iterator[tuple[Any, list[str]]]:
    """Open an address without cookies; yield the page and the list of its console messages.

    The list grows while the page runs. It also contains the exceptions that the page does not
    catch. `context` are settings of the browser, such as `java_script_enabled`.
    """
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


def list_accessibility_faults(page: Any) -> list[str]:
    """Return the accessibility faults of a page that axe-core finds: rule and first element."""
    axe = importlib.import_module("axe_playwright_python.sync_playwright")
    rules = axe.Axe().run(page).response["violations"]
    return [f"{rule['id']}: {rule['nodes'][0]['html'][:200]}" for rule in rules]


def save_screenshot(page: Any, name: str) -> None:
    """Save a picture of the whole page, if the variable `RAPPOR_SCREENSHOTS` names a folder."""
    if folder := os.environ.get(SCREENSHOTS):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@contextlib.contextmanager
def run_web_application(app: Any) -> Iterator[str]:
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
