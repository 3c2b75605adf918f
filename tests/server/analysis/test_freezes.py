"""Frozen ranges: what was published can be read again."""

from __future__ import annotations

import datetime

import pytest
from collectors import ACCEPTED, TODAY, beside, commit, report_of, upload_of
from rappor_server.analysis import closing, freezes, releases
from rappor_server.analysis.freezes import MAX_FREEZES
from rappor_server.errors import LimitError
from rappor_server.storage.store import Store

SMALL = ACCEPTED.registry["small"]
TOMORROW = TODAY + datetime.timedelta(days=1)


def release_of(store: Store, n: int = 0) -> releases.Release:
    """Send some reports, and return what is released of all days tomorrow."""
    commit(store, *(upload_of(report_of("small", bits=i, cohort=i % 4)) for i in range(n)))
    closing.close_days(store, SMALL, TOMORROW)
    return releases.release(store, SMALL, TODAY, TOMORROW)


def test_frozen_range_stays(store: Store) -> None:
    """Later reports do not change a frozen range, and only its own metric shows it."""
    release = release_of(store, 8)
    name = freezes.freeze(store, release, today=TODAY)
    bodies = [upload_of(report_of("small", cohort=i % 4)) for i in range(20)]
    commit(store, *bodies, today=TOMORROW)
    assert freezes.frozen(store, "small", name) == release
    assert release.n_reports == 8
    assert freezes.frozen(store, "page", name) is None
    for nobody in ("0" * 16, "", "\0", "\ud800", "0" * 15 + "\0"):
        assert freezes.frozen(store, "small", nobody) is None
        assert not freezes.delete(store, "small", nobody)


def test_frozen_ranges_are_listed_and_deleted(store: Store) -> None:
    """A list names each range of a metric; a deleted one cannot be read any more."""
    release = release_of(store, 8)
    names = [freezes.freeze(store, release, today=day) for day in (TODAY, TOMORROW)]
    listed = freezes.list_all(store, "small")
    assert [each.id for each in listed] == names
    assert (listed[0].first, listed[0].last, listed[0].created) == (TODAY, TOMORROW, TODAY)
    assert freezes.list_all(store, "page") == []
    assert not freezes.delete(store, "page", names[0])
    assert freezes.delete(store, "small", names[0])
    assert not freezes.delete(store, "small", names[0])
    assert freezes.frozen(store, "small", names[0]) is None
    assert [each.id for each in freezes.list_all(store, "small")] == names[1:]


def test_frozen_ranges_are_limited(store: Store) -> None:
    """A metric has at most a hundred; after one is deleted there is room again."""
    release = release_of(store)
    names = [freezes.freeze(store, release, today=TODAY) for _ in range(MAX_FREEZES)]
    with pytest.raises(LimitError, match="at most 100 frozen ranges, got one more: delete one"):
        freezes.freeze(store, release, today=TODAY)
    assert freezes.delete(store, "small", names[0])
    assert freezes.freeze(store, release, today=TODAY)


def test_two_at_once_do_not_pass_the_limit(store: Store) -> None:
    """Of two who ask for the last place, one gets it and the other is told."""
    if store.engine.dialect.name != "postgresql":
        pytest.skip("SQLite has one writer at a time")
    release = release_of(store)
    for _ in range(MAX_FREEZES - 1):
        freezes.freeze(store, release, today=TODAY)
    told: list[str] = []

    def ask() -> None:
        with pytest.raises(LimitError):
            freezes.freeze(store, release, today=TODAY)
        told.append("at most 100")

    other = beside(store, 'INSERT INTO "freeze"', ask)
    freezes.freeze(store, release, today=TODAY)
    other.join()
    assert told == ["at most 100"]
    assert len(freezes.list_all(store, "small")) == MAX_FREEZES
