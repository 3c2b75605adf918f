"""What a collector may ask for in its answers, and who takes part in a sample."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from days import record_days
from devices import BALANCED, Home, metric_of, peek, read_secret, write_device
from rappor_client import FlushReason, Outcome, TransportResponse
from rappor_client.testing import MemoryTransport, constant_coins

from rappor.encode import is_sampled
from rappor.protocol.randomizer import derive_sampling_coin


def stopping(stop: object) -> TransportResponse:
    """Return an answer that accepts one report and asks for a stop."""
    document = {"reports": [{"status": "accepted"}], "stop": stop}
    return TransportResponse(status=200, body=json.dumps(document).encode())


def test_stopped_metric_is_silent_until_its_day_is_over(home: Home) -> None:
    """Over restarts; another metric goes on; the day after it goes on itself."""
    metrics = (metric_of(), metric_of("other"))
    transport = MemoryTransport([stopping({"page": "2026-11-20"})])
    client = home.open(*metrics, collector=transport)
    record_days(client, "page", "x")
    assert client.flush()
    assert client.record("page", "x") == Outcome.SKIPPED
    client.close()
    again = home.open(*metrics)
    home.clock.set("2026-11-20T23:59:59")
    assert again.record("page", "x") == Outcome.SKIPPED
    assert again.record("other", "x") == Outcome.RECORDED
    home.clock.set("2026-11-21T00:00:00")
    assert again.record("page", "x") == Outcome.RECORDED


def test_stop_lasts_thirty_days_at_most(home: Home) -> None:
    """Whatever day the collector names, and however the clock was set when it did."""
    transport = MemoryTransport([stopping({"page": "9999-12-31"})] * 2)
    client = home.open(collector=transport)
    record_days(client, "page", "x")
    assert client.flush()
    home.clock.advance(days=30)
    assert client.record("page", "x") == Outcome.SKIPPED
    home.clock.advance(days=1)
    assert client.record("page", "x") == Outcome.RECORDED
    home.clock.advance(days=500)
    assert client.flush()
    assert client.record("page", "x") == Outcome.SKIPPED
    home.clock.advance(days=-500)
    assert client.record("page", "x") == Outcome.RECORDED


@pytest.mark.parametrize(
    "stop",
    [
        *[None, 1, "page", [], ["page"], {"page": 1}, {"page": None}, {"page": "soon"}, {"x": {}}],
        *[{"page": 20261120}, {"page": "20261120"}, {"page": "2026-W47-5"}],
    ],
)
def test_whatever_else_is_asked_for_stops_nothing(stop: Any, home: Home) -> None:
    """The report is accepted all the same."""
    client = home.open(collector=MemoryTransport([stopping(stop)]))
    record_days(client, "page", "x")
    assert client.flush()
    assert client.record("page", "x") == Outcome.RECORDED


@pytest.mark.parametrize("folder", [str(i) for i in range(12)])
def test_sample_is_decided_by_the_secret(folder: str, home: Home) -> None:
    """Who is not in it keeps nothing of the metric; the choice is another one in each epoch."""
    metric = metric_of(epoch="month", sampling_rate=0.5)
    client = home.open(metric, folder=folder)
    secret = read_secret(home.place / folder)
    for month in range(1, 9):
        home.clock.set(f"2027-{month:02}-15T12:00:00")
        before = peek(home.place / folder)
        coin = derive_sampling_coin(secret, "page", f"2027-{month:02}", metric.params)
        is_in = coin < 2**31  # by the protocol alone
        assert is_sampled(secret, metric, f"2027-{month:02}") is is_in
        outcomes = {client.record("page", value) for value in "aba"}
        expected = {Outcome.RECORDED if is_in else Outcome.SKIPPED}
        assert outcomes == expected
        after = peek(home.place / folder)
        assert (after == before) is not is_in


@pytest.mark.parametrize(
    "fields", [{"params": dataclasses.replace(BALANCED, f=0.5)}, {"sampling_rate": 0.001}]
)
def test_device_that_has_reported_is_in_the_sample_until_the_epoch_ends(
    fields: dict[str, Any], home: Home
) -> None:
    """Other parameters draw the sample anew, and a smaller share leaves some out: both later."""
    old = metric_of(epoch="month", sampling_rate=0.5)
    new = dataclasses.replace(old, **fields)
    secret = next(
        secret
        for secret in (i.to_bytes(32, "little") for i in range(1000))
        if is_sampled(secret, old, "2026-11")
        and not is_sampled(secret, new, "2026-11")
        and not is_sampled(secret, new, "2026-12")
    )
    write_device(home.place / "reported", secret)
    write_device(home.place / "new", secret)
    with home.open(old, folder="reported") as client:
        record_days(client, "page", "x")
    assert home.open(new, folder="reported").record("page", "x")
    assert home.open(new, folder="new").record("page", "x") == Outcome.SKIPPED
    home.clock.set("2026-12-01T12:00:00")
    assert home.open(new, folder="reported").record("page", "x") == Outcome.SKIPPED


def test_reports_of_a_stopped_metric_wait(home: Home) -> None:
    """The collector would refuse them, tried ones too; others go, and a flush says until when."""
    stop = stopping({"page": "2026-11-20"})
    transport = MemoryTransport([TransportResponse(status=500), stop])
    late = constant_coins(2**32 - 1)  # the upload that fails waits for five seconds
    client = home.open(metric_of("other"), metric_of(), collector=transport, coins=late)
    record_days(client, "page", "x")
    home.clock.set("2026-11-19T23:59:58")
    for name in ("other", "page"):
        client.record(name, "x")
    assert not client.flush(timeout=0.0)
    home.clock.set("2026-11-20T00:00:00")
    flushed = client.flush()
    assert (flushed.reason, flushed.waiting) == (FlushReason.ASKED_TO_WAIT, 2)
    sent = [json.loads(body)["reports"][0]["metric"] for body in transport.bodies]
    assert sent == ["page", "other"]
    home.clock.set("2026-11-20T23:59:59")
    assert flushed.retry_at == home.clock() + 1
    assert client.flush(timeout=0.0).sent == 0
    home.clock.advance(seconds=1)
    assert client.flush().sent == 1
    assert transport.bodies[2] == transport.bodies[0]
    home.clock.advance(days=1)
    assert client.flush().sent == 1


def test_stop_and_its_end_reach_every_client_of_the_folder(home: Home) -> None:
    """One that had not the answer and only records; the newest answer counts."""
    metrics = (metric_of(), metric_of("other"))
    running = home.open(*metrics)
    transport = MemoryTransport([stopping({"page": "2026-11-20"})])
    sending = home.open(*metrics, collector=transport)
    record_days(sending, "page", "x")
    assert sending.flush()
    running.record("page", "x")
    assert running.queued_count() == 0
    assert running.record("page", "x") == Outcome.SKIPPED
    record_days(sending, "other", "x")
    assert sending.flush()
    assert sending.record("page", "x") == Outcome.RECORDED
    running.record("other", "x")
    running.queued_count()
    assert running.record("page", "x") == Outcome.RECORDED


class Meanwhile(MemoryTransport):
    """A collector that answers slowly; something else happens before it does."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self.action = action

    def send(self, body: bytes, *, timeout: float) -> TransportResponse:
        """Accept an upload afterwards."""
        self.action()
        return super().send(body, timeout=timeout)


def test_stop_that_came_meanwhile_is_lifted_by_a_newer_answer(home: Home) -> None:
    """Another client had it while the newer answer was on its way."""
    metrics = (metric_of(), metric_of("other"))
    other = home.open(*metrics, collector=MemoryTransport([stopping({"page": "2026-11-20"})]))

    def be_stopped() -> None:
        home.clock.advance(seconds=3)
        other.flush()
        assert other.record("page", "x") == Outcome.SKIPPED
        other.record("other", "x")

    client = home.open(*metrics, collector=Meanwhile(be_stopped))
    record_days(client, "page", "x")
    client.flush()
    other.record("other", "x")
    other.queued_count()
    assert other.record("page", "x") == Outcome.RECORDED


def test_flush_in_an_event_loop(home: Home) -> None:
    """It returns what flush() returns, and the context manager closes the client."""

    async def host() -> int:
        async with home.open(collector=MemoryTransport()) as client:
            record_days(client, "page", "x")
            return (await client.aflush(timeout=60.0)).sent

    assert asyncio.run(host()) == 1
