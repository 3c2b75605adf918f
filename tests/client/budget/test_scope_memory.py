"""Which value a scope answers for, on the real client: closing, restarts, changes, clocks."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from pathlib import Path

import pytest
from devices import Opener, metric_of, peek, secret_of
from rappor_client import Outcome
from rappor_client.testing import FixedClock, MemoryTransport

from rappor import Metric, Params
from rappor.protocol.encodings import encoder
from rappor.protocol.parts import Part
from rappor.protocol.randomizer import cohort, permanent

CLEAR = Params(k=128, h=4, m=64, f=0.5, p=0.0, q=1.0)
"""Reports that show the permanent response itself, of values that do not collide."""
NOISY = dataclasses.replace(CLEAR, p=0.25, q=0.75)
RECORDED, EARLIER = Outcome.KEPT, Outcome.KEPT


def bits_of(
    open_client: Opener, metric: Metric, values: Sequence[str], *, restarts: bool = False
) -> list[bytes]:
    """Record values, perhaps with a new client for each; return the bits that arrive."""
    transport = MemoryTransport()
    client = open_client(metric, collector=transport)
    for value in values:
        assert client.record("page", value)
        if restarts:
            client.close()
            client = open_client(metric, collector=transport)
    assert client.flush()
    client.close()
    return [report.bits for report in transport.reports]


def response(folder: Path, epoch: str, value: str, params: Params = CLEAR) -> bytes:
    """Return the permanent response of a value, computed by the protocol alone."""
    secret = secret_of(folder)
    truth = encoder(params).encode(value, cohort(secret, "page", epoch, params))
    return permanent(secret, "page", epoch, params, truth)


def test_clock_that_was_wrong_freezes_no_epoch(
    open_client: Opener, clock: FixedClock, tmp_path: Path
) -> None:
    """After a boot ten years ahead, the true epochs answer for their own values."""
    metric = metric_of(params=CLEAR, epoch="month", expires=datetime.date(2099, 1, 1))
    clock.set("2036-11-18T00:00:00")
    bits_of(open_client, metric, ["wrong"])
    for day, epoch in (("2026-11-18", "2026-11"), ("2026-12-01", "2026-12")):
        clock.set(f"{day}T00:00:00")
        shown = bits_of(open_client, metric, [epoch])
        assert shown == [response(tmp_path / "device", epoch, epoch)]


def test_metric_for_life_follows_a_change_of_p_and_q(open_client: Opener) -> None:
    """Its permanent responses are the same: the scope stays as it is, closed."""
    transport = MemoryTransport()
    client = open_client(metric_of(params=NOISY, patterns=2), collector=transport)
    assert [client.record("page", value) for value in "abc"] == [RECORDED, RECORDED, EARLIER]
    client.close()
    client = open_client(metric_of(params=CLEAR, patterns=2), collector=transport)
    assert client.record("page", "a") is EARLIER
    assert client.flush()
    fingerprints = [report.params for report in transport.reports]
    assert fingerprints == [NOISY.fingerprint] * 3 + [CLEAR.fingerprint]
    assert client.spent().metrics["page"].patterns == 2


def test_epoch_keeps_its_p_and_q(open_client: Opener) -> None:
    """Other noise waits for the next epoch, for a value that repeats as well."""
    transport = MemoryTransport()
    for params in (NOISY, CLEAR):
        client = open_client(metric_of(params=params, epoch="year"), collector=transport)
        assert client.record("page", "a") is RECORDED
        assert client.flush()
        client.close()
    assert [report.params for report in transport.reports] == [NOISY.fingerprint] * 2


def test_metric_for_life_draws_anew_under_another_response(open_client: Opener) -> None:
    """Any other change begins a scope, which answers for its own first value."""
    client = open_client(metric_of(params=CLEAR))
    assert client.record("page", "a") is RECORDED
    client.close()
    client = open_client(metric_of(params=dataclasses.replace(CLEAR, k=64)))
    assert [client.record("page", value) for value in "bab"] == [RECORDED, EARLIER, RECORDED]
    assert client.spent().metrics["page"].patterns == 2


def test_fewer_patterns_than_admitted_close_the_scope(open_client: Opener, tmp_path: Path) -> None:
    """A registry that takes patterns back stops the answers for the others."""
    bits_of(open_client, metric_of(params=CLEAR, patterns=3), "abc")
    shown = bits_of(open_client, metric_of(params=CLEAR), "ab")
    assert shown == [response(tmp_path / "device", "", "c")] * 2


def test_held_report_goes_under_the_scope_that_it_was_prepared_in(
    open_client: Opener, clock: FixedClock, tmp_path: Path
) -> None:
    """Released in the next epoch and under a changed registry, it is charged to its own."""
    client = open_client(metric_of(params=CLEAR, epoch="quarter", interval="day"))
    clock.set("2026-12-31T23:00:00")
    assert client.record("page", "a") == Outcome.KEPT
    client.close()
    clock.set("2027-01-01T01:00:00")
    changed = metric_of(params=NOISY, epoch="quarter", interval="day")
    transport = MemoryTransport()
    client = open_client(changed, collector=transport)
    assert client.record("page", "b") == Outcome.KEPT
    assert client.flush()
    (report,) = transport.reports
    assert (report.params, report.bits) == (
        CLEAR.fingerprint,
        response(tmp_path / "device", "2026-Q4", "a"),
    )
    (scope,) = peek(tmp_path / "device").scopes
    assert scope.epoch == "2026-Q4"


def test_device_answers_for_one_part_over_restarts(open_client: Opener) -> None:
    """Every report of an epoch carries the same part's fingerprint."""
    parts = (Part("prefix:2", 0.5), Part("whole"))
    metric = metric_of(params=NOISY, epoch="quarter", parts=parts)
    transport = MemoryTransport()
    for value in ("alpha", "alpha", "beta"):
        client = open_client(metric, collector=transport)
        assert client.record("page", value)
        assert client.flush()
        client.close()
    (fingerprint,) = {report.params for report in transport.reports}
    assert fingerprint in metric.accepted


def test_values_that_fit_nowhere_are_reported_and_counted(open_client: Opener) -> None:
    """A report leaves as for any other value; the count stays on the device."""
    params = Params(k=2, encoding="onehot", categories=("a", "b"), f=0.5, p=0.25, q=0.75)
    client = open_client(metric_of(params=params, patterns=2))
    assert [client.record("page", value) for value in "azz"] == [RECORDED] * 3
    assert client.counters() == {"recorded": 3, "unfit": 2}


@pytest.mark.parametrize(
    "other",
    [
        metric_of(params=dataclasses.replace(CLEAR, k=64)),
        metric_of(params=CLEAR, epoch="quarter"),
    ],
    ids=["k", "epoch"],
)
def test_metric_for_life_that_changes_back_finds_what_it_answered(
    other: Metric, open_client: Opener, clock: FixedClock
) -> None:
    """A change that is taken back, again and again, admits no value more."""
    metric = metric_of(params=CLEAR)
    outcomes = []
    for month, value in enumerate("abc", 1):
        clock.set(f"2027-{3 * month:02}-01T00:00:00")
        for each in (metric, other):
            client = open_client(each)
            outcome = client.record("page", value)
            client.close()
            if each is metric:
                outcomes.append(outcome)
        clock.set(f"2027-{3 * month + 1:02}-01T00:00:00")  # the quarter is over
    assert outcomes == [RECORDED, EARLIER, EARLIER]


def test_epoch_keeps_its_interval_and_patterns(open_client: Opener, clock: FixedClock) -> None:
    """More reports and more values wait for the next epoch, as other noise does."""
    rare = metric_of(epoch="year", interval="week")
    often = metric_of(epoch="year", interval="none", patterns=2)
    client = open_client(rare)
    assert client.record("page", "a") == Outcome.KEPT
    clock.advance(days=7)
    assert client.record("page", "a") == Outcome.KEPT  # the first week's report is settled
    client.close()
    client = open_client(often)
    n_waiting = client.waiting()
    for value in "abab":
        client.record("page", value)
    assert client.waiting() == n_waiting
    clock.set("2027-06-01T00:00:00")
    for value in "ab":
        client.record("page", value)
    assert client.waiting() == n_waiting + 3  # with that of the second week
