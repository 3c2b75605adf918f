"""What a year's budget has room for: decided at opening, whatever the values are."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from devices import Opener, metric_of
from rappor_client import Caps, Outcome
from rappor_client.budget.reservation import Reserved
from rappor_client.testing import FixedClock, MemoryTransport

from rappor import Metric, Params
from rappor.privacy import price_change

SILENT = Outcome.SILENT


def test_metric_without_room_is_named_once_and_silent(
    open_client: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    """From the opening on and for every value; a later metric still fits."""
    metrics = (metric_of("large", patterns=3), metric_of("small"))  # 12 and 4
    client = open_client(*metrics, caps=Caps(total=4.01))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "the budget of 2026 has no room for large: nothing is sent"
    assert [client.record("large", value) for value in "aab"] == [SILENT] * 3
    assert client.record("small", "a") == Outcome.KEPT
    assert client.counters() == {"recorded": 1}
    assert len(caplog.records) == 1


def test_next_year_has_a_budget_of_its_own(open_client: Opener, clock: FixedClock) -> None:
    """Silent in the year that another registry used up, and heard from its end on."""
    caps = Caps(total=4.01)
    first = open_client(metric_of("old", epoch="year"), caps=caps)
    assert first.record("old", "a") == Outcome.KEPT
    first.close()
    second = open_client(metric_of("new", epoch="year"), caps=caps)
    assert second.record("new", "a") == SILENT
    clock.set("2027-01-01T00:00:00")
    assert second.record("new", "a") == Outcome.KEPT


def test_metric_that_ends_early_reserves_no_more_epochs(
    open_client: Opener, clock: FixedClock
) -> None:
    """Quarters that begin after its last day cost nothing: three fit where four do not."""
    clock.set("2026-05-01T00:00:00")
    outcomes = []
    for last in (datetime.date(2026, 12, 31), datetime.date(2026, 9, 30)):
        client = open_client(metric_of(epoch="quarter", expires=last), caps=Caps(total=12.01))
        outcomes.append(client.record("page", "a"))
        client.close()
    assert outcomes == [SILENT, Outcome.KEPT]


@pytest.mark.parametrize("how", ["withdraw", "reset"])
def test_new_identity_in_the_same_year_has_no_new_budget(
    how: str, open_client: Opener, clock: FixedClock, tmp_path: Path
) -> None:
    """What was reserved stays reserved until the year is over."""
    metric, caps = metric_of(epoch="year"), Caps(total=4.01)
    client = open_client(metric, caps=caps)
    assert client.record("page", "a") == Outcome.KEPT
    reserved = client.spent().reserved
    if how == "withdraw":
        client.withdraw()
    else:
        client.close()
        for copy in (tmp_path / "device" / "device").glob("state.*"):
            copy.unlink()
    again = open_client(metric, caps=caps)
    told = again.spent().reserved
    assert told == (reserved if how == "withdraw" else {2026: math.inf})
    assert again.record("page", "a") == SILENT
    clock.set("2027-01-01T00:00:00")
    assert again.record("page", "a") == Outcome.KEPT


def test_running_client_heeds_what_another_identity_reserved(open_client: Opener) -> None:
    """Withdrawn and consented again elsewhere: the client that runs on falls silent."""
    metric, caps = metric_of(), Caps(total=4.01)
    running, other = open_client(metric, caps=caps), open_client(metric, caps=caps)
    assert running.record("page", "a") == Outcome.KEPT
    assert running.waiting() == 1
    other.withdraw()
    open_client(metric, caps=caps)
    running.record("page", "a")
    assert running.flush().sent == 0
    assert running.record("page", "a") == SILENT


@pytest.mark.parametrize(
    "changed",
    [
        metric_of(epoch="month"),
        metric_of(epoch="year", params=Params.profile("strict")),
    ],
    ids=["epoch", "f"],
)
def test_other_scopes_are_reserved_in_addition(changed: Metric, open_client: Opener) -> None:
    """A registry whose scopes are others pays for them beside those that were opened."""
    client = open_client(metric_of(epoch="year"))
    assert client.record("page", "a") == Outcome.KEPT
    before = client.spent().reserved[2026]
    client.close()
    client = open_client(changed)
    assert client.record("page", "a")
    after = client.spent().reserved[2026]
    assert after > before + 1.9
    client.close()
    client = open_client(changed, caps=Caps(total=after - 0.1))
    assert client.record("page", "a") == SILENT


OLD = metric_of(params=Params(k=1, encoding="boolean", f=0.1, p=0.25, q=0.75))
QUARTER = dataclasses.replace(OLD, epoch="quarter", interval="week")


@pytest.mark.parametrize(
    ("old", "fields"),
    [
        (OLD, {"patterns": 3}),
        (OLD, {"interval": "week"}),
        (OLD, {"epoch": "quarter"}),
        (OLD, {"params": dataclasses.replace(OLD.params, p=0.4)}),
        (OLD, {"params": dataclasses.replace(OLD.params, f=0.2)}),
        (QUARTER, {"patterns": 2}),
        (QUARTER, {"interval": "none"}),
        (QUARTER, {"interval": "day"}),
        (QUARTER, {"epoch": "month"}),
        (QUARTER, {"epoch": "life"}),
        (QUARTER, {"params": dataclasses.replace(OLD.params, q=0.7)}),
        (QUARTER, {"params": dataclasses.replace(OLD.params, f=0.2)}),
    ],
)
@pytest.mark.parametrize("is_back", [False, True])
def test_change_reserves_what_privacy_and_check_say(
    old: Metric, fields: dict[str, Any], *, is_back: bool, open_client: Opener, clock: FixedClock
) -> None:
    """There or back, with two values, over half a year; what is spent stays below it."""
    before, after = old, dataclasses.replace(old, **fields)
    if is_back:
        before, after = after, before
    change = price_change(before, after, reports=10)
    clock.set("2026-02-01T00:00:00")
    transport = MemoryTransport()
    for metric in (before, after, before):
        for value in (True, False, True):
            client = open_client(metric, collector=transport)
            client.record("page", value)
            for _ in range(4):
                clock.advance(days=5)
                client.flush()
            spent = client.spent()
            client.close()
        if metric is before and len(transport.reports) < 4:
            assert spent.reserved == pytest.approx({2026: change.reserved_before})
    assert transport.reports
    assert spent.reserved == pytest.approx({2026: change.reserved})
    assert spent.nats <= change.reserved


def test_registry_that_is_opened_again_reserves_nothing_more(open_client: Opener) -> None:
    """Restarts and repeated values cost no room."""
    caps = Caps(total=4.01)
    for _ in range(3):
        client = open_client(metric_of(), caps=caps)
        assert client.record("page", "a") == Outcome.KEPT
        assert client.spent().reserved == {2026: pytest.approx(4, abs=0.001)}
        client.close()


def test_reservation_is_told(open_client: Opener) -> None:
    """The person reads what the year can cost at most."""
    client = open_client(metric_of(epoch="quarter"))
    client.record("page", "a")
    assert client.spent().reserved == {2026: pytest.approx(16, abs=0.01)}
    assert "Reserved for 2026: epsilon = 16.00 at most." in str(client.spent())


def test_cheaper_metric_keeps_the_room_that_it_has_reserved(open_client: Opener) -> None:
    """What may be spent already is no room for another metric."""
    dear, cheap = metric_of("x", patterns=2), metric_of("x", patterns=1)  # 8 and 4
    caps = Caps(total=8.01)
    client = open_client(dear, caps=caps)
    assert [client.record("x", value) for value in "ab"] == [Outcome.KEPT] * 2
    client.close()
    client = open_client(cheap, metric_of("y"), caps=caps)
    assert client.record("x", "b") == Outcome.KEPT
    assert client.record("y", "a") == SILENT


def test_expired_metric_without_a_price_leaves_the_budget_in_force(open_client: Opener) -> None:
    """No scope of infinite price costs nothing, and others are still counted."""
    gone = metric_of(
        "gone",
        params=Params(encoding="boolean", k=1, f=0, p=0.1, q=0.9),
        expires=datetime.date(2020, 1, 1),
    )
    client = open_client(gone, metric_of("x"), caps=Caps(total=1.0))
    assert client.record("x", "a") == SILENT


def test_what_is_lost_or_reserved_never_becomes_less() -> None:
    """Neither an earlier year nor a smaller number takes the place of what is known."""
    reserved = Reserved.of_earlier({2025: 5.0, 2026: math.inf, 2024: math.inf})
    assert reserved.by_year() == {2025: 5.0, 2026: math.inf}
    assert Reserved.from_plain(json.loads(json.dumps(reserved.to_plain()))) == reserved


@pytest.mark.parametrize(
    ("years", "lost"), [((1970, 2026), 2026), ((2026, 2027, 2028), 2026), ((2026, 2025), 2026)]
)
def test_loss_moves_to_a_year_that_a_clock_jumps_to(years: Sequence[int], lost: int) -> None:
    """Unless it only follows on the year of the loss, or the clock is set back."""
    reserved = Reserved.of_earlier({years[0]: math.inf})
    for year in years[1:]:
        reserved = reserved.followed(year)
    assert reserved.by_year() == {lost: math.inf}
