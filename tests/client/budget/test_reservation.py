"""What a year's budget has room for: decided at opening, whatever the values are."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from days import finish
from devices import Home, metric_of, peek
from rappor_client import BudgetCap, Outcome
from rappor_client.budget.reservation import Reservations

from rappor import Metric, Params
from rappor.privacy import cost_of_change
from rappor.registry.budget import scope_cost

SKIPPED = Outcome.SKIPPED


def test_metric_without_room_is_named_once_and_silent(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """From the opening on and for every value, without a trace; a later metric still fits."""
    metrics = (metric_of("large", epoch="month"), metric_of("small"))  # 48 and 4
    client = home.open(*metrics, budget_cap=BudgetCap(total=4.01))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "the budget of 2026 has no room for large: nothing is sent"
    assert [client.record("large", value) for value in "aab"] == [SKIPPED] * 3
    assert client.record("small", "a") == Outcome.RECORDED
    finish(client)
    assert client.event_counts() == {"recorded": 1}
    assert [scope.metric for scope in peek(home.folder).scopes] == ["small"]
    assert set(client.privacy_spent().metrics) == {"small"}
    assert len(caplog.records) == 1


def test_next_year_has_a_budget_of_its_own(home: Home) -> None:
    """Silent in the year that another registry used up, and heard from its end on."""
    caps = BudgetCap(total=4.01)
    first = home.open(metric_of("old", epoch="year"), budget_cap=caps)
    assert first.record("old", "a") == Outcome.RECORDED
    first.close()
    second = home.open(metric_of("new", epoch="year"), budget_cap=caps)
    assert second.record("new", "a") == SKIPPED
    home.clock.set("2027-01-01T00:00:00")
    assert second.record("new", "a") == Outcome.RECORDED


def test_metric_that_ends_early_reserves_no_more_epochs(home: Home) -> None:
    """Quarters that begin after its last day cost nothing: three fit where four do not."""
    home.clock.set("2026-05-01T00:00:00")
    outcomes = []
    for last in (datetime.date(2026, 12, 31), datetime.date(2026, 9, 30)):
        client = home.open(
            metric_of(epoch="quarter", expires=last), budget_cap=BudgetCap(total=12.01)
        )
        outcomes.append(client.record("page", "a"))
        client.close()
    assert outcomes == [SKIPPED, Outcome.RECORDED]


def test_running_client_heeds_what_another_identity_reserved(home: Home) -> None:
    """Withdrawn and consented again elsewhere: the client that runs on falls silent."""
    metric, caps = metric_of(), BudgetCap(total=4.01)
    running, other = home.open(metric, budget_cap=caps), home.open(metric, budget_cap=caps)
    assert running.record("page", "a") == Outcome.RECORDED
    finish(running)
    assert running.queued_count() == 1
    other.withdraw()
    home.open(metric, budget_cap=caps)
    running.record("page", "a")
    assert running.flush().sent == 0
    assert running.record("page", "a") == SKIPPED


OLD = metric_of(params=Params(k=1, encoding="boolean", f=0.1, p=0.25, q=0.75))
QUARTER = dataclasses.replace(OLD, epoch="quarter", interval="week")


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
def test_change_reserves_what_privacy_and_check_say(
    old: Metric, fields: dict[str, Any], home: Home, *, is_back: bool
) -> None:
    """There or back, with two values, over half a year; what is spent stays below it."""
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
        if metric is before and len(home.transport.reports) < 4:
            assert spent.reserved == pytest.approx({2026: change.reserved_before})
    assert home.transport.reports
    assert spent.reserved == pytest.approx({2026: change.reserved})
    assert spent.nats <= change.reserved


def test_reservation_is_told(home: Home) -> None:
    """The person reads what the year can cost at most."""
    client = home.open(metric_of(epoch="quarter"))
    client.record("page", "a")
    assert client.privacy_spent().reserved == {2026: pytest.approx(16, abs=0.01)}
    assert "Reserved for 2026: epsilon = 16.00 at most." in str(client.privacy_spent())


BARE = Params(k=1, encoding="boolean", f=0, p=0.25, q=0.75)
"""Without permanent noise each report costs: 31 of a month, or six."""


def test_cheaper_metric_keeps_the_room_that_it_has_reserved(home: Home) -> None:
    """What may be spent already is no room for another metric."""
    dear, cheap = (
        metric_of("x", BARE, epoch="month", interval=interval) for interval in ("day", "week")
    )
    caps = BudgetCap(total=12 * scope_cost(dear) + 0.01)
    client = home.open(dear, budget_cap=caps)
    assert client.record("x", True) == Outcome.RECORDED
    client.close()
    client = home.open(cheap, metric_of("y"), budget_cap=caps)
    assert client.record("x", False) == Outcome.RECORDED
    assert client.record("y", "a") == SKIPPED


def test_expired_metric_without_a_price_leaves_the_budget_in_force(home: Home) -> None:
    """No scope of infinite price costs nothing, and others are still counted."""
    gone = metric_of(
        "gone",
        params=Params(encoding="boolean", k=1, f=0, p=0.1, q=0.9),
        expires=datetime.date(2020, 1, 1),
    )
    client = home.open(gone, metric_of("x"), budget_cap=BudgetCap(total=1.0))
    assert client.record("x", "a") == SKIPPED


def test_what_is_lost_or_reserved_never_becomes_less() -> None:
    """Neither an earlier year nor a smaller number takes the place of what is known."""
    reserved = Reservations.from_years({2025: 5.0, 2026: math.inf, 2024: math.inf})
    assert reserved.sum_by_year() == {2025: 5.0, 2026: math.inf}
    assert Reservations.from_plain(json.loads(json.dumps(reserved.to_plain()))) == reserved


@pytest.mark.parametrize(
    ("years", "lost"), [((1970, 2026), 2026), ((2026, 2027, 2028), 2026), ((2026, 2025), 2026)]
)
def test_loss_moves_to_a_year_that_a_clock_jumps_to(years: Sequence[int], lost: int) -> None:
    """Unless it only follows on the year of the loss, or the clock is set back."""
    reserved = Reservations.from_years({years[0]: math.inf})
    for year in years[1:]:
        reserved = reserved.advance_to(year)
    assert reserved.sum_by_year() == {lost: math.inf}
