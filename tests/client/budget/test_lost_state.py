"""A device whose two copies of the state are lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from devices import Home, metric_of, own
from rappor_client import Outcome, SkipReason
from rappor_client.folder import copies
from rappor_client.folder.spool import find_latest_year


def queue(home: Home) -> None:
    """Leave a finished report in the spool."""
    with home.open(metric_of(interval="day", epoch="year")) as client:
        assert client.record("page", "a")
        home.clock.advance(days=1)
        assert client.record("page", "a")


def send(home: Home) -> None:
    """Leave a sent upload in the log of the spool."""
    queue(home)
    with home.open(metric_of(interval="day", epoch="year"), collector=home.transport) as client:
        assert client.flush()


def hold(home: Home) -> None:
    """Leave a pending report of an open interval in the spool."""
    with home.open(metric_of(interval="day", epoch="year")) as client:
        assert client.record("page", "a")


@pytest.mark.parametrize("leave", [queue, send, hold])
def test_metrics_are_skipped_until_the_latest_year_that_the_spool_names_is_over(
    leave: Callable[[Home], None], home: Home
) -> None:
    """The clock of a device without a battery shows an earlier year, of which nothing was used."""
    leave(home)
    for name in copies.NAMES:
        (own(home.folder) / name).write_bytes(b"damaged")
    told = []
    for year in (2024, 2025, 2026, 2027):
        home.clock.set(f"{year}-06-01T12:00:00")
        with home.open(metric_of(interval="day", epoch="year")) as client:
            told.append(client.record("page", "a"))
    assert [outcome.reason for outcome in told[:3]] == [SkipReason.NO_BUDGET] * 3
    assert told[3] == Outcome.RECORDED


def test_a_spool_that_cannot_be_read_names_no_year(home: Home) -> None:
    """Whatever is in its place."""
    path = home.place / "spool-00.sqlite3"
    assert find_latest_year(path) == 0
    for data in (b"", b"no database", b"SQLite format 3\0" + bytes(200)):
        path.write_bytes(data)
        assert find_latest_year(path) == 0
