"""A device whose two copies of the state are lost: its metrics are skipped until the year is over.

The state contains the secret and the reserved nats of the year. Without the state, nothing shows
which part of the year's budget is used. The clock begins at noon of 2026-11-18.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from devices import Home, build_metric, get_identity_folder
from rappor_client import Outcome, SkipReason
from rappor_client.folder import copies
from rappor_client.folder.spool import find_latest_year


def leave_queued(home: Home) -> None:
    """Leave a queued report in the spool."""
    with home.open(build_metric(interval="day", epoch="year")) as client:
        assert client.record("page", "a")
        home.clock.advance(days=1)
        assert client.record("page", "a")


def leave_sent(home: Home) -> None:
    """Leave a sent upload in the log of the spool."""
    leave_queued(home)
    with home.open(build_metric(interval="day", epoch="year"), collector=home.transport) as client:
        assert client.flush()


def leave_pending(home: Home) -> None:
    """Leave a pending report of an open interval in the spool."""
    with home.open(build_metric(interval="day", epoch="year")) as client:
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
        (get_identity_folder(home.folder) / name).write_bytes(b"damaged")
    outcomes = []
    for year in (2024, 2025, 2026, 2027):
        home.clock.set(f"{year}-06-01T12:00:00")
        with home.open(build_metric(interval="day", epoch="year")) as client:
            outcomes.append(client.record("page", "a"))
    # The times in the spool are of 2026, so the lost year is 2026. A clock that shows 2024 or 2025
    # is wrong, and does not end the lost year.
    assert [outcome.reason for outcome in outcomes[:3]] == [SkipReason.NO_BUDGET] * 3
    assert outcomes[3] == Outcome.RECORDED


@pytest.mark.parametrize("is_open", [True, False])
def test_lost_state_is_counted_and_logged_once(
    is_open: bool, home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """A state that is lost while a client runs counts as one that the next run finds lost."""
    leave_pending(home)
    metric = build_metric(interval="day", epoch="year")
    running = home.open(metric) if is_open else None
    for name in copies.NAMES:
        (get_identity_folder(home.folder) / name).write_bytes(b"damaged")
    for opened in (running, None, None):
        client = opened or home.open(metric)
        client.record("page", "a")
        assert client.event_counts() == {"identity_lost": 1}
    lines = [record.getMessage() for record in caplog.records]
    assert [line.endswith("no metric is recorded until the year is over") for line in lines].count(
        True
    ) == 1


def test_unreadable_spool_contains_no_year(home: Home) -> None:
    """The latest year is 0 if the spool is damaged, is no database, or is absent.

    Metrics are skipped until the later one of this year and the year of the clock is over. With 0,
    the year of the clock decides.
    """
    path = home.parent / "spool-00.sqlite3"
    assert find_latest_year(path) == 0
    for data in (b"", b"no database", b"SQLite format 3\0" + bytes(200)):
        path.write_bytes(data)
        assert find_latest_year(path) == 0
