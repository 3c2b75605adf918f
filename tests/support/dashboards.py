"""Pages of a collector for tests: a registry, and visitors that sign in without a browser."""

from __future__ import annotations

import datetime
import itertools
import re
import time
from typing import Final

import httpx
import plain_http
from collectors import LOUD, UNBOUNDED, Running, format_entry

NAMES: Final = [f"site {number}.example" for number in range(12)]
"""Candidates of the metric `home_page`. The blank in a name has to be escaped in links."""

HOSTILE: Final = (
    "<script>alert(1)</script>",
    "\u202egpj.exe",
    "=HYPERLINK(1)",
    "a" * 10_000,
    "\x00\x1b[31m",
    '"><img src=x onerror=alert(1)>',
)
"""Strings that harm a page or a file if they are not escaped: markup, a right-to-left override, a
formula of a spreadsheet, a very long text, and control characters."""

DAYS: Final = tuple(datetime.date(2026, 11, day) for day in (2, 3, 5, 9, 10))
"""Days with reports. They belong to two weeks, and some days of both weeks have no reports."""

_QUARTERLY: Final = {"epoch": "quarter"}
TOML: Final = (
    UNBOUNDED
    + format_entry(
        "home_page",
        description="The <b>page</b> that a browser opens first",
        candidates="pages.txt",
        k=32,
        m=8,
        **_QUARTERLY | LOUD,
    )
    + format_entry(
        "theme",
        encoding="onehot",
        categories=["light", "dark"],
        segments={"version": ["1", "2"]},
        **_QUARTERLY | LOUD,
    )
    + format_entry(
        "setup",
        encoding="onehot",
        categories={"editor": ["vim", "code"], "system": ["linux", "mac"]},
        **_QUARTERLY | LOUD,
    )
    + format_entry(
        "other",
        expires=datetime.date(2026, 1, 1),
        profile="strict",
        **_QUARTERLY | dict.fromkeys(("f", "p", "q", "min_reports")),
    )
)
"""Registry of the collector with pages. It has metrics of strings, of categories in segments, and
of tuples, and an expired metric without candidates."""

_ADDRESSES = itertools.count(1)
"""Last bytes of the addresses of visitors. A collector limits the attempts to sign in from one
address, so each visitor has an address of its own."""


class Visitor:
    """Person who uses the pages: an HTTP client with cookies and an address, without JavaScript."""

    def __init__(self, dashboard: Running) -> None:
        """Open a session with a new address."""
        self.address = f"10.0.0.{next(_ADDRESSES)}"
        self.http = httpx.Client(
            base_url=dashboard.admin_url,
            verify=plain_http.NO_CERTIFICATES,
            headers={"Origin": dashboard.admin_url, "X-Forwarded-For": self.address},
            timeout=60,
            # The server may close a connection that waits long for the next request.
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def get(self, path: str, **headers: str) -> httpx.Response:
        """Request a page."""
        return self.http.get(path, headers=headers)

    def post(self, path: str, *, at: str, **fields: str) -> httpx.Response:
        """Send a form to a path. `at` is the page with the form and with the form's token."""
        return self.http.post(path, data={"form": find_form_token(self.get(at).text)} | fields)

    def sign_in(self, token: str) -> httpx.Response:
        """Sign in with a token."""
        return self.post("/pages/sign-in", at="/pages/sign-in", token=token)

    def request_result(self, path: str, **fields: str) -> httpx.Response:
        """Request a result by the path and the fields of its form. Return the page of the result.

        A page with `data-progress` says that the result is not computed yet.
        """
        deadline = time.monotonic() + 120
        page = self.http.get(path, params=fields, follow_redirects=True)
        while "data-progress" in page.text:
            assert time.monotonic() < deadline, page.text
            time.sleep(0.1)
            page = self.http.get(page.url)
        return page

    def file(self, page: httpx.Response, name: str) -> httpx.Response:
        """Request a file of a result, such as its CSV, by its name."""
        return self.http.get(page.url.copy_with(path=f"{page.url.path}/files/{name}"))


def find_form_token(page: str) -> str:
    """Return the token of the forms of a page. The token protects a form against other sites."""
    token = re.search(r'name="form" value="([0-9a-f]{64})"', page)
    assert token, page
    return token[1]
