"""Fixtures of the pages: a collector with five days of counts, and visitors who sign in to it."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from collectors import Running, find_free_port, make_token, run_collector, store_counts
from dashboards import DAYS, HOSTILE, NAMES, TOML, Visitor
from rappor_server.storage.database import open_database
from rappor_server.storage.schema_versions import migrate

from rappor import Population, Registry, simulate_counts


@pytest.fixture(scope="session")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run one collector for all tests. The last two of its five days have other shares."""
    folder = tmp_path_factory.mktemp("dashboard")
    database = f"sqlite:///{folder / 'counts.sqlite3'}"
    migrate(database)
    (folder / "metrics.toml").write_text(TOML, encoding="utf-8")
    # The registry names pages.txt as the list of candidates of the metric home_page. One candidate
    # has no device. The hostile names are texts that might break a page.
    lines = [*NAMES, "absent.example", *HOSTILE]
    (folder / "pages.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    _fill(database, folder / "metrics.toml")
    with run_collector(folder, database, "--pages", admin=find_free_port()) as running:
        yield running


def _fill(database: str, registry: Path) -> None:
    """Store simulated counts of five days: strings, tuples, and categories in two segments."""
    # `today` is any day on which no metric of the registry has expired.
    metrics = Registry.load(registry, today=datetime.date(2025, 1, 1))
    pages, theme, setup = (metrics[name].params for name in ("home_page", "theme", "setup"))
    # One hostile name has devices, so that it is detected and appears on the pages. The others are
    # candidates only.
    names = [*NAMES, HOSTILE[0]]
    with open_database(database) as engine:
        for number, day in enumerate(DAYS):
            # The shares follow Zipf's law. The fourth name triples on the last two days, so that
            # pages show a change.
            weights = [1 / (rank + 1) for rank in range(len(names))]
            weights[3] *= 3 if number > 2 else 1
            counts = simulate_counts(
                Population(names, weights), pages, n_reports=20_000, seed=number, metric="home_page"
            )
            store_counts(engine, counts, day)
            # Shares .4, .1, .2 and .3 of vim linux, vim mac, code linux and code mac: editor and
            # system depend on each other.
            counts = simulate_counts(
                Population(setup.categories, [4, 1, 2, 3]),
                setup,
                n_reports=2000,
                seed=number,
                metric="setup",
            )
            store_counts(engine, counts, day)
            for version, shares in (("1", [3, 1]), ("2", [1, 2])):
                params = theme.with_segment((("version", version),))
                population = Population(["light", "dark"], shares)
                counts = simulate_counts(
                    population, params, n_reports=2000, seed=number, metric="theme"
                )
                store_counts(engine, counts, day)


@pytest.fixture
def new_visitor(dashboard: Running) -> Iterator[Callable[[], Visitor]]:
    """Yield a function that returns a new visitor, who is not signed in.

    The connections of all visitors are closed when the test ends.
    """
    with contextlib.ExitStack() as stack:

        def create_visitor() -> Visitor:
            visitor = Visitor(dashboard)
            stack.enter_context(visitor.http)
            return visitor

        yield create_visitor


@pytest.fixture(scope="session")
def token(dashboard: Running) -> str:
    """Return a token for all metrics."""
    return make_token(dashboard.database)


@pytest.fixture
def reader(new_visitor: Callable[[], Visitor], token: str) -> Visitor:
    """Return a visitor who is signed in, with a token for all metrics."""
    visitor = new_visitor()
    assert visitor.sign_in(token).status_code == 303
    return visitor
