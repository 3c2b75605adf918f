"""The ledger: exact, and holding no value."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from pathlib import Path

import pytest
from devices import BALANCED, BOOLEAN, Opener, database, metric_of
from hypothesis import given
from hypothesis import strategies as st
from rappor_client import Caps, Outcome
from rappor_client.budget import ledger
from rappor_client.budget.ledger import SEVERAL_PATTERNS
from rappor_client.folder.store import in_memory
from rappor_client.testing import FixedClock, MemoryTransport, peek

from rappor import Params, epsilon_inf
from rappor.ground.errors import ParamsError
from rappor.protocol.loss import belief_bound, epsilon_n, epsilon_reports

QUIETER = dataclasses.replace(BALANCED, p=0.4, q=0.6)
OTHER_F = Params(k=128, h=1, m=1, f=0.4, p=BALANCED.p, q=BALANCED.q)


def test_loss_is_the_sum_over_patterns_of_epsilon_n(open_client: Opener) -> None:
    """Three reports of one value and one of another, in two metrics."""
    client = open_client(metric_of(patterns=2), metric_of("sound", BOOLEAN))
    for value in ("x", "x", "y", "x"):
        client.record("page", value)
    client.record("sound", True)
    spent = client.spent()
    page = epsilon_n(BALANCED, 3) + epsilon_n(BALANCED, 1)
    assert spent.metrics["page"].nats == pytest.approx(page, rel=1e-12)
    assert (spent.metrics["page"].patterns, spent.metrics["page"].reports) == (2, 4)
    assert spent.nats == pytest.approx(page + epsilon_n(BOOLEAN, 1), rel=1e-12)
    assert spent.belief(0.5) == belief_bound(spent.nats, 0.5)


def test_many_reports_of_a_value_never_pass_epsilon_inf(open_client: Opener) -> None:
    """The sum for one value approaches epsilon_inf from below."""
    client = open_client(metric_of("sound", BOOLEAN))
    for _ in range(200):
        client.record("sound", False)
    assert client.spent().nats <= epsilon_inf(BOOLEAN)
    assert client.spent().nats == pytest.approx(epsilon_inf(BOOLEAN), rel=1e-6)


def test_change_of_p_and_q_goes_on_under_the_same_response(open_client: Opener) -> None:
    """The reports of both settings share one pattern, and its loss is the joint one."""
    first = open_client(metric_of())
    first.record("page", "x")
    first.close()
    second = open_client(metric_of(params=QUIETER))
    second.record("page", "x")
    spent = second.spent()
    joint = epsilon_reports({BALANCED: 1, QUIETER: 1})
    assert spent.metrics["page"].patterns == 1
    assert spent.nats == pytest.approx(joint, rel=1e-12)
    assert joint < epsilon_n(BALANCED, 1) + epsilon_n(QUIETER, 1)


@pytest.mark.parametrize(
    "changed",
    [
        OTHER_F,
        dataclasses.replace(BALANCED, k=64),
        dataclasses.replace(BALANCED, h=2),
        dataclasses.replace(BALANCED, m=64),
        dataclasses.replace(BALANCED, normalize="casefold"),
    ],
    ids=["f", "k", "h", "m", "normalizer"],
)
def test_other_changes_are_charged_anew(changed: Params, open_client: Opener) -> None:
    """f, k, h, m and the normalizer make new permanent responses, whose losses add."""
    first = open_client(metric_of())
    first.record("page", "x")
    first.close()
    second = open_client(metric_of(params=changed))
    second.record("page", "x")
    spent = second.spent()
    assert spent.metrics["page"].patterns == 2
    assert spent.nats == pytest.approx(epsilon_n(BALANCED, 1) + epsilon_n(changed, 1), rel=1e-12)


def test_total_is_over_all_metrics(open_client: Opener) -> None:
    """Metrics reserve in the registry's order; one that does not fit is silent, whatever comes."""
    metrics = (metric_of("one"), metric_of("two", patterns=2), metric_of("three"))
    client = open_client(*metrics, caps=Caps(total=9.0))  # 4, 8 and 4
    assert client.record("one", "x") is Outcome.RECORDED
    assert [client.record("two", value) for value in "xxy"] == [Outcome.SILENT] * 3
    assert client.record("three", "x") is Outcome.RECORDED
    assert set(client.spent().metrics) == {"one", "three"}
    assert client.spent().nats <= 9.0


@pytest.mark.parametrize("wrong", [-1, math.nan, True, "8", None])
def test_caps_are_numbers(wrong: object) -> None:
    """NaN would be no cap at all."""
    with pytest.raises(ParamsError, match="total must be a number in"):
        Caps(total=wrong)  # type: ignore[arg-type]


def test_parameters_that_promise_nothing_cost_everything(open_client: Opener) -> None:
    """An infinite loss passes no finite cap."""
    open_noise = Params(k=1, encoding="boolean", f=0.0, p=0.0, q=1.0, insecure=True)
    metric = metric_of("sound", open_noise)
    assert open_client(metric, caps=Caps(total=1e9)).record("sound", True) is Outcome.SILENT
    uncapped = open_client(metric)
    assert uncapped.record("sound", True) is Outcome.RECORDED
    assert uncapped.record("sound", True) is Outcome.RECORDED
    assert uncapped.spent().nats == math.inf
    assert uncapped.spent().belief() == (0.0, 1.0)


def test_spent_says_which_promise_each_metric_has(open_client: Opener, clock: FixedClock) -> None:
    """Printed, it holds the loss, the belief and the promises in words."""
    once = metric_of("once", epoch="month", interval="epoch")
    client = open_client(metric_of("page", patterns=2), metric_of("theme", epoch="month"), once)
    for value in "xy":
        client.record("page", value)
    client.record("theme", "x")
    clock.set("2026-11-30T12:00:00")  # no device draws a later day
    client.record("once", "x")
    clock.advance(days=8)
    client.record("theme", "x")
    text = str(client.spent())
    assert max(map(len, text.splitlines())) <= 80
    text = " ".join(text.split())
    assert text.startswith(
        "Privacy loss so far: epsilon = 10.00 (nats). Somebody who thought it 50 % "
        "likely that this device has some value is at most 99.996 % sure after all of its reports. "
    )
    assert " page: epsilon = 4.00, 2 reports of 2 bit patterns. " in text
    assert " theme: epsilon = 4.00, 2 reports of 2 bit patterns. " in text
    assert text.count("It does not hide WHEN a value changed or came back") == 1
    assert text.count("keeps repeating the value of its first report") == 1
    assert text.count("sends one report at most in each year, quarter or month") == 1


def test_promise_of_several_patterns_does_not_wait_for_the_second(open_client: Opener) -> None:
    """A metric that may answer for another value does not promise to keep to the first."""
    client = open_client(metric_of(patterns=2))
    client.record("page", "x")
    assert client.spent().metrics["page"].promise == SEVERAL_PATTERNS


def test_ledger_survives_restarts(open_client: Opener) -> None:
    """The next process goes on where this one ended."""
    first = open_client()
    first.record("page", "x")
    first.close()
    second = open_client()
    second.record("page", "x")
    assert second.spent().nats == pytest.approx(epsilon_n(BALANCED, 2), rel=1e-12)


@given(
    reports=st.lists(st.tuples(st.sampled_from([0.1, 0.25, 0.4]), st.integers(1, 5)), min_size=1)
)
def test_joint_loss_lies_between_the_largest_and_the_sum(
    reports: list[tuple[float, int]],
) -> None:
    """Mixed p and q under one permanent response lose no less than any part, no more than all."""
    mixed: dict[Params, int] = {}
    for p, n in reports:
        params = Params(k=4, f=0.3, p=p, q=1 - p)
        mixed[params] = mixed.get(params, 0) + n
    parts = [epsilon_n(params, n) for params, n in mixed.items()]
    joint = epsilon_reports(mixed)
    assert max(parts) - 1e-12 <= joint <= sum(parts) + 1e-12
    assert joint <= epsilon_inf(next(iter(mixed)))


def test_joint_loss_needs_one_permanent_response() -> None:
    """Parameters that draw another response are not mixed."""
    with pytest.raises(ParamsError, match="only p and q may differ"):
        epsilon_reports({BALANCED: 1, OTHER_F: 1})
    with pytest.raises(ParamsError, match="at least one parameter set"):
        epsilon_reports({})


def test_database_holds_keyed_names_only(open_client: Opener, tmp_path: Path) -> None:
    """Two devices name the same value's pattern differently."""
    names = []
    for folder in ("one", "two"):
        client = open_client(folder=folder)
        client.record("page", "x")
        names += [pattern.name for pattern in peek(tmp_path / folder).patterns]
    assert len(names) == len(set(names)) == 2


def test_number_of_reports_that_cannot_be_is_damage(open_client: Opener, tmp_path: Path) -> None:
    """The database is rebuilt from the copy, and goes on."""
    transport = MemoryTransport()
    for number in (-1, 2.5, float("inf"), 2**62):
        client = open_client(transport=transport)
        assert client.record("page", "a")
        assert client.flush()
        with database(tmp_path / "device") as db:
            db.execute("UPDATE charge SET reports = ?", (number,))
        client.close()
        client = open_client(transport=transport)
        assert client.record("page", "a")
        client.withdraw()


def test_what_earlier_identities_have_spent_never_becomes_less() -> None:
    """Whatever an older copy says."""
    with contextlib.closing(in_memory()) as db:
        for nats in (3.0, 5.0, 4.0):
            ledger.carry(db, nats)
        assert ledger.carried(db) == 5.0
