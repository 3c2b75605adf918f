"""A real browser, and a site that it visits."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import uvicorn
from playwright.sync_api import Browser, sync_playwright
from tools import need

PATIENCE = 60.0


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    """Run the system's Chromium, without a window; each context in it is a fresh profile."""
    path = str(need("chromium"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


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
