"""A collector with pages, and people who sign in to it without a browser."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import plain_http
from collectors import LOUD, UNBOUNDED, Running, entry, free_port, put, serving
from rappor_server.storage.database import migrate, opened

from rappor import Population, Registry, simulate_counts

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
_QUARTERLY: Final = {"epoch": "quarter", "interval": None}
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
        "other",
        expires=datetime.date(2026, 1, 1),
        profile="strict",
        **_QUARTERLY | dict.fromkeys(("f", "p", "q", "min_reports")),
    )
)

_ADDRESSES = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A collector with pages."""

    running: Running
    database: str

    @property
    def url(self) -> str:
        """The address of operators."""
        return self.running.admin_url


@contextlib.contextmanager
def dashboard_in(folder: Path) -> Iterator[Dashboard]:
    """Run a collector that holds reports of five days; the last two have another mixture."""
    database = f"sqlite:///{folder / 'counts.sqlite3'}"
    migrate(database)
    (folder / "metrics.toml").write_text(TOML, encoding="utf-8")
    lines = [*NAMES, "absent.example", *HOSTILE]
    (folder / "pages.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    _fill(database, folder / "metrics.toml")
    with serving(folder, database, "--pages", admin=free_port()) as running:
        yield Dashboard(running, database)


def _fill(database: str, registry: Path) -> None:
    metrics = Registry.load(registry, today=datetime.date(2025, 1, 1))
    pages, theme = metrics["home_page"].params, metrics["theme"].params
    names = [*NAMES, HOSTILE[0]]
    with opened(database) as engine:
        for number, day in enumerate(DAYS):
            weights = [1 / (rank + 1) for rank in range(len(names))]
            weights[3] *= 3 if number > 2 else 1
            counts = simulate_counts(
                Population(names, weights), pages, n_reports=20_000, seed=number, metric="home_page"
            )
            put(engine, counts, day)
            for version, shares in (("1", [3, 1]), ("2", [1, 2])):
                params = theme.in_segment((("version", version),))
                population = Population(["light", "dark"], shares)
                counts = simulate_counts(
                    population, params, n_reports=2000, seed=number, metric="theme"
                )
                put(engine, counts, day)


class Visitor:
    """Somebody with a browser without scripts, at an address of their own."""

    def __init__(self, dashboard: Dashboard) -> None:
        """Come to the site."""
        self.address = f"10.0.0.{next(_ADDRESSES)}"
        self.http = httpx.Client(
            base_url=dashboard.url,
            verify=plain_http.NO_CERTIFICATES,
            headers={"Origin": dashboard.url, "X-Forwarded-For": self.address},
            timeout=60,
            limits=httpx.Limits(max_keepalive_connections=0),  # one that waits long may be closed
        )

    def get(self, path: str, **headers: str) -> httpx.Response:
        """Ask for a page."""
        return self.http.get(path, headers=headers)

    def post(self, path: str, *, at: str, **fields: str) -> httpx.Response:
        """Send the form of a page."""
        return self.http.post(path, data={"form": form_token(self.get(at).text)} | fields)

    def sign_in(self, token: str) -> httpx.Response:
        """Sign in with a token."""
        return self.post("/pages/sign-in", at="/pages/sign-in", token=token)

    def answer(self, path: str, **fields: str) -> httpx.Response:
        """Ask a question by its address, and wait for its answer."""
        deadline = time.monotonic() + 120
        page = self.http.get(path, params=fields, follow_redirects=True)
        while "data-progress" in page.text:
            assert time.monotonic() < deadline, page.text
            time.sleep(0.1)
            page = self.http.get(page.url)
        return page

    def file(self, page: httpx.Response, name: str) -> httpx.Response:
        """Ask for a file of an answer."""
        return self.http.get(page.url.copy_with(path=f"{page.url.path}/files/{name}"))


def form_token(page: str) -> str:
    """Return what the forms of a page carry."""
    found = re.search(r'name="form" value="([0-9a-f]{64})"', page)
    assert found, page
    return found[1]
