"""A device whose two copies of the state are lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from devices import Home, identity_path, metric_of
from rappor_client import Outcome, SkipReason
from rappor_client.folder import copies
from rappor_client.folder.spool import find_latest_year


def leave_queued(home: Home) -> None:
    """Leave a queued report in the spool."""
    with home.open(metric_of(interval="day", epoch="year")) as client:
        assert client.record("page", "a")
        home.clock.advance(days=1)
        assert client.record("page", "a")


def leave_sent(home: Home) -> None:
    """Leave a sent upload in the log of the spool."""
    leave_queued(home)
    with home.open(metric_of(interval="day", epoch="year"), collector=home.transport) as client:
        assert client.flush()


def leave_pending(home: Home) -> None:
    """Leave a pending report of an open interval in the spool."""
    with home.open(metric_of(interval="day", epoch="year")) as client:
        assert client.record("page", "a")


@pytest.mark.parametrize("leave", [leave_queued, leave_sent, leave_pending])
def test_metrics_are_skipped_until_the_latest_year_of_the_spool_is_over(
    leave: Callable[[Home], None], home: Home
) -> None:
    """Metrics are skipped until the later of two years is over: the spool's and the clock's.

    A clock without a battery shows an earlier year, in which the device reserved nothing.
    """
    leave(home)
    for name in copies.NAMES:
        (identity_path(home.folder) / name).write_bytes(b"damaged")
    outcomes = []
    for year in (2024, 2025, 2026, 2027):
        home.clock.set(f"{year}-06-01T12:00:00")
        with home.open(metric_of(interval="day", epoch="year")) as client:
            outcomes.append(client.record("page", "a"))
    assert [outcome.reason for outcome in outcomes[:3]] == [SkipReason.NO_BUDGET] * 3
    assert outcomes[3] == Outcome.RECORDED


def test_unreadable_spool_contains_no_year(home: Home) -> None:
    """A damaged spool, another file in its place, and no file contain no year."""
    path = home.place / "spool-00.sqlite3"
    assert find_latest_year(path) == 0
    for data in (b"", b"no database", b"SQLite format 3\0" + bytes(200)):
        path.write_bytes(data)
        assert find_latest_year(path) == 0
