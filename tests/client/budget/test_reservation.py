"""Reservations: which metrics fit into the budget of a year, whatever the values are.

A client reserves the cost of all scopes of a metric in a calendar year before it records the first
value. `build_metric` returns a metric of profile "balanced" with daily reports: 4 nats for each
scope. So a metric for life or with epochs of a year costs 4 nats in a year, a metric with quarters
16 and a metric with months 48. Caps such as 4.01 add .01 to a cost, for rounding errors.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from days import finish_days
from devices import Home, build_metric, peek, write_events
from rappor_client import BudgetCap, Outcome
from rappor_client.budget.reservation import Reservations

from rappor import Metric, Params
from rappor.privacy import cost_of_change
from rappor.registry.budget import scope_cost

SKIPPED = Outcome.SKIPPED


def test_metric_without_room_is_logged_once_and_skipped(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """A metric that does not fit is skipped for every value and named in one log line.

    It leaves no trace, and a later metric still fits.
    """
    metrics = (build_metric("large", epoch="month"), build_metric("small"))  # 48 and 4 nats
    client = home.open(*metrics, budget_cap=BudgetCap(total=4.01))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "the budget of 2026 has no room for large: nothing is sent"
    assert [client.record("large", value) for value in "aab"] == [SKIPPED] * 3
    assert client.find_unaffordable_metrics() == {"large"}
    assert client.record("small", "a") == Outcome.RECORDED
    finish_days(client)
    assert client.event_counts() == {"recorded": 1}
    assert [scope.metric for scope in peek(home.folder).scopes] == ["small"]
    assert set(client.privacy_spent().metrics) == {"small"}
    assert len(caplog.records) == 1


@pytest.mark.parametrize("obstacle", ["", "withdrawal", "clock"])
def test_metrics_without_room_are_named_while_the_client_works(home: Home, obstacle: str) -> None:
    """A client that skips all metrics for another reason names no metric without room.

    Another client has withdrawn consent, or the clock of the host raises.
    """

    def read_clock() -> float:
        if obstacle == "clock" and is_open:
            raise OSError
        return home.clock()

    is_open = False
    metrics = (build_metric("large", epoch="month"), build_metric("small"))
    client = home.open(*metrics, budget_cap=BudgetCap(total=4.01), clock=read_clock)
    is_open = True
    if obstacle == "withdrawal":
        home.open(*metrics).withdraw()
        client.record("small", "a")
        write_events(client)  # the write finds that the folder is erased
    assert client.find_unaffordable_metrics() == (set() if obstacle else {"large"})


def test_next_year_has_a_budget_of_its_own(home: Home) -> None:
    """A registry that has used up the budget of a year leaves the next year to another registry."""
    cap = BudgetCap(total=4.01)
    first_client = home.open(build_metric("old", epoch="year"), budget_cap=cap)
    assert first_client.record("old", "a") == Outcome.RECORDED
    first_client.close()
    second_client = home.open(build_metric("new", epoch="year"), budget_cap=cap)
    assert second_client.record("new", "a") == SKIPPED
    home.clock.set("2027-01-01T00:00:00")
    assert second_client.record("new", "a") == Outcome.RECORDED


def test_event_at_the_turn_of_the_year_reserves_in_the_year_of_its_epoch(home: Home) -> None:
    """An event has one time, also if the clock passes midnight during `record`.

    The clock moves by a minute at each reading, so a second reading would be in the next year.
    """

    def read_clock() -> float:
        now = home.clock()
        home.clock.advance(minutes=is_moving)
        return now

    is_moving = False
    client = home.open(build_metric(epoch="quarter"), clock=read_clock)
    home.clock.set("2026-12-31T23:59:30")
    is_moving = True
    assert client.record("page", "x")
    is_moving = False
    (pending,) = peek(home.folder).pending_reports
    assert pending.interval_end == datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC).timestamp()
    assert list(client.privacy_spent().reserved) == [2026]


def test_metric_that_ends_early_reserves_no_more_epochs(home: Home) -> None:
    """Quarters that begin after the last day of a metric reserve nothing.

    The cap has room for three quarters of 4 nats. A metric that ends in September has three
    quarters, and a metric that ends in December has four. The past first quarter counts too.
    """
    home.clock.set("2026-05-01T00:00:00")
    outcomes = []
    for last in (datetime.date(2026, 12, 31), datetime.date(2026, 9, 30)):
        client = home.open(
            build_metric(epoch="quarter", expires=last), budget_cap=BudgetCap(total=12.01)
        )
        outcomes.append(client.record("page", "a"))
        client.close()
    assert outcomes == [SKIPPED, Outcome.RECORDED]


def test_running_client_obeys_the_reservation_of_another_identity(home: Home) -> None:
    """A running client skips a metric after a withdrawal and a second consent in another client.

    The first identity has reserved the budget of the year, which has room for one metric of 4 nats.
    The second identity gets no budget.
    """
    metric, cap = build_metric(), BudgetCap(total=4.01)
    running, withdrawing = home.open(metric, budget_cap=cap), home.open(metric, budget_cap=cap)
    assert running.record("page", "a") == Outcome.RECORDED
    finish_days(running)
    assert running.queued_count() == 1
    withdrawing.withdraw()
    home.open(metric, budget_cap=cap)
    running.record("page", "a")
    assert running.flush().sent == 0
    assert running.record("page", "a") == SKIPPED


OLD = build_metric(params=Params(k=1, encoding="boolean", f=0.1, p=0.25, q=0.75))
QUARTER = dataclasses.replace(OLD, epoch="quarter", interval="week")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "fields"),
    [
        (OLD, {"interval": "week"}),
        (OLD, {"epoch": "quarter"}),
        (OLD, {"params": dataclasses.replace(OLD.params, p=0.4)}),
        (OLD, {"params": dataclasses.replace(OLD.params, f=0.2)}),
        (QUARTER, {"interval": "day"}),
        (QUARTER, {"epoch": "month"}),
        (QUARTER, {"epoch": "life"}),
        (QUARTER, {"params": dataclasses.replace(OLD.params, q=0.7)}),
        (QUARTER, {"params": dataclasses.replace(OLD.params, f=0.2)}),
    ],
)
@pytest.mark.parametrize("is_back", [False, True])
def test_change_reserves_its_cost(
    old: Metric, fields: dict[str, Any], home: Home, *, is_back: bool
) -> None:
    """A changed registry entry reserves the cost that `cost_of_change` computes.

    The registry changes and changes back, with two values, over half a year. The spent nats never
    exceed the reserved nats.
    """
    before, after = old, dataclasses.replace(old, **fields)
    if is_back:
        before, after = after, before
    change = cost_of_change(before, after, reports=10)
    home.clock.set("2026-02-01T00:00:00")
    for metric in (before, after, before):
        for value in (True, False, True):
            client = home.open(metric, collector=home.transport)
            client.record("page", value)
            for _ in range(4):
                home.clock.advance(days=5)
                client.flush()
            spent = client.privacy_spent()
            client.close()
        # The registry before the change leads to three reports at most, one for each value. After
        # the registry has changed and changed back, the collector has more reports.
        if metric is before and len(home.transport.reports) < 4:
            assert spent.reserved == pytest.approx({2026: change.reserved_before})
    assert home.transport.reports
    assert spent.reserved == pytest.approx({2026: change.reserved})
    assert spent.nats <= change.reserved


def test_person_reads_the_reservation(home: Home) -> None:
    """The person reads how many nats are reserved for the year."""
    client = home.open(build_metric(epoch="quarter"))
    client.record("page", "a")
    assert client.privacy_spent().reserved == {2026: pytest.approx(16, abs=0.01)}
    assert "Reserved for 2026: epsilon = 16.00 at most." in str(client.privacy_spent())


WITHOUT_PERMANENT_NOISE = Params(k=1, encoding="boolean", f=0, p=0.25, q=0.75)
"""Parameters without permanent noise, so that the cost grows with the number of reports. A report
costs ln 3 = 1.1 nats. A month has at most 31 daily or 6 weekly reports: 34.1 or 6.6 nats."""


def test_cheaper_metric_keeps_its_reservation(home: Home) -> None:
    """A metric that becomes cheaper keeps its larger reservation, which may be used already.

    Another metric gets no room from it.
    """
    expensive, cheap = (
        build_metric("x", WITHOUT_PERMANENT_NOISE, epoch="month", interval=interval)
        for interval in ("day", "week")
    )
    cap = BudgetCap(total=12 * scope_cost(expensive) + 0.01)
    client = home.open(expensive, budget_cap=cap)
    assert client.record("x", True) == Outcome.RECORDED
    client.close()
    client = home.open(cheap, build_metric("y"), budget_cap=cap)
    assert client.record("x", False) == Outcome.RECORDED
    assert client.record("y", "a") == SKIPPED


def test_expired_metric_of_infinite_cost_leaves_the_budget_in_force(home: Home) -> None:
    """An expired metric has no scopes, so its infinite cost counts as 0.

    The metrics after it are still checked against the budget.
    """
    expired_metric = build_metric(
        "gone",
        params=Params(encoding="boolean", k=1, f=0, p=0.1, q=0.9),
        expires=datetime.date(2020, 1, 1),
    )
    client = home.open(expired_metric, build_metric("x"), budget_cap=BudgetCap(total=1.0))
    assert client.record("x", "a") == SKIPPED


def test_unknown_and_reserved_years_survive_json() -> None:
    """The latest lost year and the nats of earlier years are kept, also through JSON.

    Infinity marks a year whose reservations are lost. Of two lost years, the later is kept.
    """
    reservations = Reservations.from_years({2025: 5.0, 2026: math.inf, 2024: math.inf})
    assert reservations.sum_by_year() == {2025: 5.0, 2026: math.inf}
    assert Reservations.from_plain(json.loads(json.dumps(reservations.to_plain()))) == reservations


@pytest.mark.parametrize(
    ("years", "lost"),
    [
        ((1970, 2026), 2026),  # the clock had no battery when the state was lost
        ((2026, 2027, 2028), 2026),
        ((2026, 2025), 2026),
    ],
)
def test_lost_year_moves_with_a_clock_that_skips_a_year(years: Sequence[int], lost: int) -> None:
    """The lost year moves if the clock skips a year, because the clock was wrong at the loss.

    It does not move if the clock shows the next year or an earlier one.
    """
    reservations = Reservations.from_years({years[0]: math.inf})
    for year in years[1:]:
        reservations = reservations.advance_to(year)
    assert reservations.sum_by_year() == {lost: math.inf}
