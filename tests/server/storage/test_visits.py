"""Visits: begun, seen, ended by time, by number and by sign-out; links; tokens of forms."""

from __future__ import annotations

import pytest
from rappor_server.storage import visits
from rappor_server.storage.store import Store


def test_a_visit_ends_when_nobody_asks_for_half_an_hour(store: Store) -> None:
    """Each request renews it, until one comes too late."""
    now = 0.0
    cookie = visits.begin(store, "token", now=now)
    for _ in range(3):
        now += visits.IDLE_SECONDS
        assert visits.find(store, cookie, now=now) == "token"
    assert visits.find(store, cookie, now=now + visits.IDLE_SECONDS + 1) is None


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_visit_ends_after_twelve_hours_however_busy(store: Store) -> None:
    """Requests do not renew it beyond that."""
    now = 0.0
    cookie = visits.begin(store, "token", now=now)
    while now < visits.LONGEST_SECONDS:
        assert visits.find(store, cookie, now=now) == "token"
        now += visits.IDLE_SECONDS / 2
    assert visits.find(store, cookie, now=now + 1) is None


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_there_are_only_some_visits_at_a_time(store: Store) -> None:
    """One more ends the visit that was idle longest."""
    cookies = [visits.begin(store, "token", now=float(number), most=5) for number in range(5)]
    assert visits.find(store, cookies[0], now=100.0) == "token"
    visits.begin(store, "token", now=101.0, most=5)
    ended = [visits.find(store, each, now=102.0) is None for each in cookies]
    assert ended == [False, True, False, False, False]


def test_a_link_signs_in_once_and_soon(store: Store) -> None:
    """It is no cookie, a cookie is no link, and one that was used or is old is worth nothing."""
    used, late = (visits.link(store, "token", now=0.0) for _ in range(2))
    assert visits.find(store, used, now=0.0) is None
    assert visits.open_link(store, visits.begin(store, "token", now=0.0), now=0.0) is None
    assert visits.open_link(store, used, now=1.0) == "token"
    assert visits.open_link(store, used, now=1.0) is None
    assert visits.open_link(store, late, now=visits.LINK_SECONDS + 1) is None
