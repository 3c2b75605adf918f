"""Visits: begun, seen, ended by time, by number and by sign-out; links; tokens of forms."""

from __future__ import annotations

import pytest
from rappor_server.storage import visits
from sqlalchemy import Engine


def test_a_visit_ends_when_nobody_asks_for_half_an_hour(engine: Engine) -> None:
    """Each request renews it, until one comes too late."""
    now = 0.0
    cookie = visits.begin(engine, "token", now=now)
    for _ in range(3):
        now += visits.IDLE_SECONDS
        assert visits.find(engine, cookie, now=now) == "token"
    assert visits.find(engine, cookie, now=now + visits.IDLE_SECONDS + 1) is None


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_visit_ends_after_twelve_hours_however_busy(engine: Engine) -> None:
    """Requests do not renew it beyond that."""
    now = 0.0
    cookie = visits.begin(engine, "token", now=now)
    while now < visits.LONGEST_SECONDS:
        assert visits.find(engine, cookie, now=now) == "token"
        now += visits.IDLE_SECONDS / 2
    assert visits.find(engine, cookie, now=now + 1) is None


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_there_are_only_some_visits_at_a_time(engine: Engine) -> None:
    """One more ends the visit that was idle longest."""
    cookies = [visits.begin(engine, "token", now=float(number), most=5) for number in range(5)]
    assert visits.find(engine, cookies[0], now=100.0) == "token"
    visits.begin(engine, "token", now=101.0, most=5)
    ended = [visits.find(engine, each, now=102.0) is None for each in cookies]
    assert ended == [False, True, False, False, False]


def test_a_link_signs_in_once_and_soon(engine: Engine) -> None:
    """It is no cookie, a cookie is no link, and one that was used or is old is worth nothing."""
    used, late = (visits.begin(engine, "token", now=0.0, once=True) for _ in range(2))
    assert visits.find(engine, used, now=0.0) is None
    assert visits.open_link(engine, visits.begin(engine, "token", now=0.0), now=0.0) is None
    assert visits.open_link(engine, used, now=1.0) == "token"
    assert visits.open_link(engine, used, now=1.0) is None
    assert visits.open_link(engine, late, now=visits.LINK_SECONDS + 1) is None
