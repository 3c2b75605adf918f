"""Dashboard of a collector for tests: its registry, and visitors that sign in without a browser."""

from __future__ import annotations

import datetime
import itertools
import re
import time
from typing import Final

import httpx
import plain_http
from collectors import LOUD, UNBOUNDED, Running, entry

NAMES: Final = [f"site {number}.example" for number in range(12)]
HOSTILE: Final = (
    "<script>alert(1)</script>",
    "\u202egpj.exe",
    "=HYPERLINK(1)",
    "a" * 10_000,
    "\x00\x1b[31m",
    '"><img src=x onerror=alert(1)>',
)
DAYS: Final = tuple(datetime.date(2026, 11, day) for day in (2, 3, 5, 9, 10))
_QUARTERLY: Final = {"epoch": "quarter"}
TOML: Final = (
    UNBOUNDED
    + entry(
        "home_page",
        description="The <b>page</b> that a browser opens first",
        candidates="pages.txt",
        k=32,
        m=8,
        **_QUARTERLY | LOUD,
    )
    + entry(
        "theme",
        encoding="onehot",
        categories=["light", "dark"],
        segments={"version": ["1", "2"]},
        **_QUARTERLY | LOUD,
    )
    + entry(
        "setup",
        encoding="onehot",
        categories={"editor": ["vim", "code"], "system": ["linux", "mac"]},
        **_QUARTERLY | LOUD,
    )
    + entry(
        "other",
        expires=datetime.date(2026, 1, 1),
        profile="strict",
        **_QUARTERLY | dict.fromkeys(("f", "p", "q", "min_reports")),
    )
)

_ADDRESSES = itertools.count(1)


class Visitor:
    """Visitor with an own network address and a session, as a browser without scripts has it."""

    def __init__(self, dashboard: Running) -> None:
        """Open a session with a new address."""
        self.address = f"10.0.0.{next(_ADDRESSES)}"
        self.http = httpx.Client(
            base_url=dashboard.admin_url,
            verify=plain_http.NO_CERTIFICATES,
            headers={"Origin": dashboard.admin_url, "X-Forwarded-For": self.address},
            timeout=60,
            limits=httpx.Limits(max_keepalive_connections=0),  # one that waits long may be closed
        )

    def get(self, path: str, **headers: str) -> httpx.Response:
        """Request a page."""
        return self.http.get(path, headers=headers)

    def post(self, path: str, *, at: str, **fields: str) -> httpx.Response:
        """Send the form of the page `at` to a path."""
        return self.http.post(path, data={"form": form_token(self.get(at).text)} | fields)

    def sign_in(self, token: str) -> httpx.Response:
        """Sign in with a token."""
        return self.post("/pages/sign-in", at="/pages/sign-in", token=token)

    def answer(self, path: str, **fields: str) -> httpx.Response:
        """Request a result by its address, and wait until it is computed."""
        deadline = time.monotonic() + 120
        page = self.http.get(path, params=fields, follow_redirects=True)
        while "data-progress" in page.text:
            assert time.monotonic() < deadline, page.text
            time.sleep(0.1)
            page = self.http.get(page.url)
        return page

    def file(self, page: httpx.Response, name: str) -> httpx.Response:
        """Request a file of a result."""
        return self.http.get(page.url.copy_with(path=f"{page.url.path}/files/{name}"))


def form_token(page: str) -> str:
    """Return the token of the forms of a page, which protects them against other sites."""
    token = re.search(r'name="form" value="([0-9a-f]{64})"', page)
    assert token, page
    return token[1]
