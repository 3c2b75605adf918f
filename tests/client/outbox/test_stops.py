"""Stops that a collector requests in its responses, and the sample of a metric."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from days import record_days
from devices import BALANCED, Home, build_metric, peek, read_secret, write_device, write_events
from rappor_client import FlushReason, Outcome, TransportResponse
from rappor_client.testing import MemoryTransport, constant_coins

from rappor.encode import is_sampled
from rappor.protocol.randomizer import derive_sampling_coin


def build_stop_response(stop: object) -> TransportResponse:
    """Return a response that accepts one report and requests a stop."""
    document = {"reports": [{"status": "accepted"}], "stop": stop}
    return TransportResponse(status=200, body=json.dumps(document).encode())


def test_stopped_metric_is_skipped_until_its_last_day_is_over(home: Home) -> None:
    """A stopped metric is skipped until the last day of the stop is over, also after a restart.

    Another metric is recorded.
    """
    metrics = (build_metric(), build_metric("other"))
    transport = MemoryTransport([build_stop_response({"page": "2026-11-20"})])
    client = home.open(*metrics, collector=transport)
    record_days(client, "page", "x")
    assert client.flush()
    assert client.record("page", "x") == Outcome.SKIPPED
    client.close()
    reopened_client = home.open(*metrics)
    home.clock.set("2026-11-20T23:59:59")
    assert reopened_client.record("page", "x") == Outcome.SKIPPED
    assert reopened_client.record("other", "x") == Outcome.RECORDED
    home.clock.set("2026-11-21T00:00:00")
    assert reopened_client.record("page", "x") == Outcome.RECORDED


def test_stop_lasts_thirty_days_at_most(home: Home) -> None:
    """A stop of any length ends after 30 days.

    A stop of a clock that was ahead ends at once when the clock is right again.
    """
    transport = MemoryTransport([build_stop_response({"page": "9999-12-31"})] * 2)
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
def test_other_forms_of_a_stop_are_ignored(stop: Any, home: Home) -> None:
    """A stop of any other form is ignored, and the report of the response is accepted."""
    client = home.open(collector=MemoryTransport([build_stop_response(stop)]))
    record_days(client, "page", "x")
    assert client.flush()
    assert client.record("page", "x") == Outcome.RECORDED


@pytest.mark.parametrize("folder", [str(i) for i in range(12)])
def test_sample_is_decided_by_the_secret(folder: str, home: Home) -> None:
    """The secret decides in each epoch whether a device is in the sample of a metric.

    A device outside of the sample stores nothing for the metric.
    """
    metric = build_metric(epoch="month", sampling_rate=0.5)
    client = home.open(metric, folder=folder)
    secret = read_secret(home.parent / folder)
    for month in range(1, 9):
        home.clock.set(f"2027-{month:02}-15T12:00:00")
        before = peek(home.parent / folder)
        coin = derive_sampling_coin(secret, "page", f"2027-{month:02}", metric.params)
        is_sampled_by_coin = coin < 2**31  # computed without the client
        assert is_sampled(secret, metric, f"2027-{month:02}") is is_sampled_by_coin
        outcomes = {client.record("page", value) for value in "aba"}
        expected = {Outcome.RECORDED if is_sampled_by_coin else Outcome.SKIPPED}
        assert outcomes == expected
        after = peek(home.parent / folder)
        assert (after == before) is not is_sampled_by_coin


@pytest.mark.parametrize(
    "fields", [{"params": dataclasses.replace(BALANCED, f=0.5)}, {"sampling_rate": 0.001}]
)
def test_device_that_has_reported_is_in_the_sample_until_the_epoch_ends(
    fields: dict[str, Any], home: Home
) -> None:
    """A device that has reported stays in the sample until the epoch ends.

    Changed parameters and a smaller sampling rate count from the next epoch on.
    """
    old_metric = build_metric(epoch="month", sampling_rate=0.5)
    new_metric = dataclasses.replace(old_metric, **fields)
    secret = next(
        secret
        for secret in (i.to_bytes(32, "little") for i in range(1000))
        if is_sampled(secret, old_metric, "2026-11")
        and not is_sampled(secret, new_metric, "2026-11")
        and not is_sampled(secret, new_metric, "2026-12")
    )
    write_device(home.parent / "reported", secret)
    write_device(home.parent / "new", secret)
    with home.open(old_metric, folder="reported") as client:
        record_days(client, "page", "x")
    assert home.open(new_metric, folder="reported").record("page", "x")
    assert home.open(new_metric, folder="new").record("page", "x") == Outcome.SKIPPED
    home.clock.set("2026-12-01T12:00:00")
    assert home.open(new_metric, folder="reported").record("page", "x") == Outcome.SKIPPED


def test_queued_reports_of_a_stopped_metric_wait(home: Home) -> None:
    """Queued reports of a stopped metric wait, also if they were tried, and other reports leave.

    The collector would refuse them. The flush returns the end of the stop.
    """
    stop = build_stop_response({"page": "2026-11-20"})
    transport = MemoryTransport([TransportResponse(status=500), stop])
    latest_coins = constant_coins(2**32 - 1)  # the failed upload gets the longest backoff, 5 s
    client = home.open(
        build_metric("other"), build_metric(), collector=transport, coins=latest_coins
    )
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
    """The newest response to one client stops or resumes a metric for all clients of a folder."""
    metrics = (build_metric(), build_metric("other"))
    running = home.open(*metrics)
    transport = MemoryTransport([build_stop_response({"page": "2026-11-20"})])
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
    write_events(running)
    assert running.record("page", "x") == Outcome.RECORDED


class SlowTransport(MemoryTransport):
    """A slow collector: an action happens before it responds."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self.action = action

    def send(self, body: bytes, *, timeout: float) -> TransportResponse:
        """Run the action, and accept the upload afterwards."""
        self.action()
        return super().send(body, timeout=timeout)


def test_newer_response_ends_a_stop_that_came_during_the_exchange(home: Home) -> None:
    """A response without a stop ends a stop that another client received during the exchange."""
    metrics = (build_metric(), build_metric("other"))
    stopped = home.open(
        *metrics, collector=MemoryTransport([build_stop_response({"page": "2026-11-20"})])
    )

    def receive_stop() -> None:
        home.clock.advance(seconds=3)
        stopped.flush()
        assert stopped.record("page", "x") == Outcome.SKIPPED
        stopped.record("other", "x")

    client = home.open(*metrics, collector=SlowTransport(receive_stop))
    record_days(client, "page", "x")
    client.flush()
    stopped.record("other", "x")
    write_events(stopped)  # reads the state that the other client has written
    assert stopped.record("page", "x") == Outcome.RECORDED


def test_flush_in_an_event_loop(home: Home) -> None:
    """`aflush` returns the result of `flush`, and `async with` closes the client."""

    async def host() -> int:
        async with home.open(collector=MemoryTransport()) as client:
            record_days(client, "page", "x")
            return (await client.aflush(timeout=60.0)).sent

    assert asyncio.run(host()) == 1
