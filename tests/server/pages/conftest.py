"""A collector with pages for the tests of this folder, and people who sign in to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from collectors import make_token
from dashboards import Dashboard, Visitor, dashboard_in


@pytest.fixture(scope="session")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """One collector for all tests."""
    with dashboard_in(tmp_path_factory.mktemp("dashboard")) as running:
        yield running


@pytest.fixture
def new_visitor(dashboard: Dashboard) -> Iterator[Callable[[], Visitor]]:
    """Return somebody who is not signed in, and leaves when the test ends."""
    with contextlib.ExitStack() as stack:

        def come() -> Visitor:
            visitor = Visitor(dashboard)
            stack.enter_context(visitor.http)
            return visitor

        yield come


@pytest.fixture(scope="session")
def token(dashboard: Dashboard) -> str:
    """A token for all metrics."""
    return make_token(dashboard.database)


@pytest.fixture
def reader(new_visitor: Callable[[], Visitor], token: str) -> Visitor:
    """Somebody who is signed in, with a token for all metrics."""
    visitor = new_visitor()
    assert visitor.sign_in(token).status_code == 303
    return visitor
