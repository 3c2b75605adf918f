"""Visits: begun, seen, ended by time, by number and by sign-out; tokens of forms."""

from __future__ import annotations

from rappor_server.pages import visits
from rappor_server.pages.visits import Visits, is_cookie, new_cookie


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        """Begin at nothing."""
        self.now = 0.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


def test_a_visit_ends_when_nobody_asks_for_half_an_hour() -> None:
    """Each request renews it, until one comes too late."""
    clock = Clock()
    some = Visits(clock=clock)
    cookie = some.begin("token")
    for _ in range(3):
        clock.now += visits.IDLE_SECONDS
        assert some.find(cookie) == "token"
    clock.now += visits.IDLE_SECONDS + 1
    assert some.find(cookie) is None
    clock.now -= 2
    assert some.find(cookie) is None


def test_a_visit_ends_after_twelve_hours_however_busy() -> None:
    """Requests do not renew it beyond that."""
    clock = Clock()
    some = Visits(clock=clock)
    cookie = some.begin("token")
    while clock.now < visits.LONGEST_SECONDS:
        assert some.find(cookie) == "token"
        clock.now += visits.IDLE_SECONDS / 2
    clock.now += 1
    assert some.find(cookie) is None


def test_a_visit_ends_by_sign_out_and_no_other_one_does() -> None:
    """Two visits by one token have cookies of their own."""
    some = Visits()
    first, second = some.begin("token"), some.begin("token")
    some.end(first)
    assert (some.find(first), some.find(second)) == (None, "token")
    assert first != second
    assert is_cookie(first)


def test_there_are_only_some_visits_at_a_time() -> None:
    """One more ends the visit that was idle longest."""
    clock = Clock()
    some = Visits(clock=clock)
    cookies = []
    for _ in range(visits.MOST):
        clock.now += 1e-3
        cookies.append(some.begin("token"))
    assert some.find(cookies[0]) == "token"
    some.begin("token")
    assert [some.find(each) is None for each in cookies[:3]] == [False, True, False]


def test_a_form_belongs_to_one_cookie_of_one_process() -> None:
    """Neither another cookie nor another process takes it."""
    some, others = Visits(), Visits()
    cookie, another = new_cookie(), new_cookie()
    token = some.form_token(cookie)
    assert some.is_form_token(cookie, token)
    assert not some.is_form_token(another, token)
    assert not others.is_form_token(cookie, token)
    assert not some.is_form_token(cookie, "")
    assert not some.is_form_token(cookie, "ä")
