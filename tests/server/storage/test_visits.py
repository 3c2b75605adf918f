"""Visits of signed-in people: when a visit ends, and one-time sign-in links."""

from __future__ import annotations

import pytest
from databases import ON_BOTH_DATABASES
from rappor_server.storage import visits
from sqlalchemy import Engine


@ON_BOTH_DATABASES
def test_a_visit_ends_after_half_an_hour_without_a_request(engine: Engine) -> None:
    """Each request begins another half hour. A request after a longer pause finds no visit."""
    half_hour = 30 * 60.0  # seconds
    now = 0.0
    secret = visits.begin(engine, "token", now=now)
    for _ in range(3):
        now += half_hour
        assert visits.find(engine, secret, now=now) == "token"
    assert visits.find(engine, secret, now=now + half_hour + 1) is None


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_visit_ends_after_twelve_hours_with_requests(engine: Engine) -> None:
    """A request every quarter of an hour does not extend a visit beyond twelve hours."""
    quarter_hour = 15 * 60.0  # seconds
    secret = visits.begin(engine, "token", now=0.0)
    for i in range(4 * 12):
        assert visits.find(engine, secret, now=i * quarter_hour) == "token"
    assert visits.find(engine, secret, now=4 * 12 * quarter_hour + 1) is None


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_visit_ends_if_the_clock_was_ahead_at_the_sign_in(engine: Engine) -> None:
    """A visit that began by a clock a day ahead ends when the clock is set back.

    Otherwise the visit would last for that day and twelve hours. Clocks of two hosts may differ by
    less than half an hour. A link lasts for ten minutes, so their clocks may differ by as much.
    """
    half_hour, ten_minutes, day = 30 * 60.0, 10 * 60.0, 86_400.0  # seconds
    secret, link = (
        visits.begin(engine, "token", now=day, is_link=is_link) for is_link in (False, True)
    )
    assert visits.find(engine, secret, now=day - half_hour) == "token"
    assert visits.find(engine, secret, now=day - half_hour - 1) is None
    assert visits.open_link(engine, link, now=day - ten_minutes - 1) is None
    link = visits.begin(engine, "token", now=day, is_link=True)
    assert visits.open_link(engine, link, now=day - ten_minutes) == "token"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_number_of_visits_is_limited(engine: Engine) -> None:
    """A visit beyond the largest number ends the visit that was idle longest."""
    secrets = [
        visits.begin(engine, "token", now=float(second), max_visits=5) for second in range(5)
    ]
    # A request of the first visit. The second visit is then idle longest.
    assert visits.find(engine, secrets[0], now=100.0) == "token"
    visits.begin(engine, "token", now=101.0, max_visits=5)
    is_ended = [visits.find(engine, secret, now=102.0) is None for secret in secrets]
    assert is_ended == [False, True, False, False, False]


@ON_BOTH_DATABASES
def test_a_link_signs_in_once_within_ten_minutes(engine: Engine) -> None:
    """A link that was used, or is older than ten minutes, does not sign in.

    The secret of a link is not accepted as the secret of a visit, and the other way round.
    """
    ten_minutes = 10 * 60.0  # seconds
    link, late_link = (visits.begin(engine, "token", now=0.0, is_link=True) for _ in range(2))
    visit = visits.begin(engine, "token", now=0.0)
    assert visits.find(engine, link, now=0.0) is None
    assert visits.open_link(engine, visit, now=0.0) is None
    assert visits.open_link(engine, link, now=ten_minutes) == "token"
    assert visits.open_link(engine, link, now=ten_minutes) is None
    assert visits.open_link(engine, late_link, now=ten_minutes + 1) is None
