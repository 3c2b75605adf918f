"""What a collector may ask for in its answers, and who takes part in a sample."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from devices import BALANCED, Opener, metric_of, peek, secret_of, write_device
from rappor_client import Answer, FlushReason, Outcome
from rappor_client.testing import FixedClock, MemoryTransport

from rappor.encode import takes_part


def stopping(stop: object) -> Answer:
    """Return an answer that accepts one report and asks for a stop."""
    document = {"reports": [{"status": "accepted"}], "stop": stop}
    return Answer(status=200, body=json.dumps(document).encode())


def test_stopped_metric_is_silent_until_its_day_is_over(
    open_client: Opener, clock: FixedClock
) -> None:
    """Over restarts; another metric goes on; the day after it goes on itself."""
    metrics = (metric_of(), metric_of("other"))
    transport = MemoryTransport([stopping({"page": "2026-11-20"})])
    client = open_client(*metrics, collector=transport)
    client.record("page", "x")
    assert client.flush()
    assert client.record("page", "x") == Outcome.SILENT
    client.close()
    again = open_client(*metrics)
    clock.set("2026-11-20T23:59:59")
    assert again.record("page", "x") == Outcome.SILENT
    assert again.record("other", "x") == Outcome.KEPT
    clock.set("2026-11-21T00:00:00")
    assert again.record("page", "x") == Outcome.KEPT


def test_stop_lasts_thirty_days_at_most(open_client: Opener, clock: FixedClock) -> None:
    """Whatever day the collector names, and however the clock was set when it did."""
    transport = MemoryTransport([stopping({"page": "9999-12-31"})] * 2)
    client = open_client(collector=transport)
    client.record("page", "x")
    assert client.flush()
    clock.advance(days=30)
    assert client.record("page", "x") == Outcome.SILENT
    clock.advance(days=1)
    assert client.record("page", "x") == Outcome.KEPT
    clock.advance(days=500)
    assert client.flush()
    assert client.record("page", "x") == Outcome.SILENT
    clock.advance(days=-500)
    assert client.record("page", "x") == Outcome.KEPT


@pytest.mark.parametrize(
    "stop",
    [
        *[None, 1, "page", [], ["page"], {"page": 1}, {"page": None}, {"page": "soon"}, {"x": {}}],
        *[{"page": 20261120}, {"page": "20261120"}, {"page": "2026-W47-5"}],
    ],
)
def test_whatever_else_is_asked_for_stops_nothing(stop: Any, open_client: Opener) -> None:
    """The report is accepted all the same."""
    client = open_client(collector=MemoryTransport([stopping(stop)]))
    client.record("page", "x")
    assert client.flush()
    assert client.record("page", "x") == Outcome.KEPT


@pytest.mark.parametrize("folder", [str(i) for i in range(12)])
def test_sample_is_decided_by_the_secret(
    folder: str, open_client: Opener, clock: FixedClock, tmp_path: Path
) -> None:
    """Who is not in it keeps nothing of the metric; the choice is another one in each epoch."""
    metric = metric_of(epoch="month", sample=0.5)
    client = open_client(metric, folder=folder)
    secret = secret_of(tmp_path / folder)
    for month in range(1, 9):
        clock.set(f"2027-{month:02}-15T12:00:00")
        before = peek(tmp_path / folder)
        is_in = takes_part(secret, metric, f"2027-{month:02}")
        outcomes = {client.record("page", value) for value in "aba"}
        expected = {Outcome.KEPT if is_in else Outcome.SILENT}
        assert outcomes == expected
        after = peek(tmp_path / folder)
        assert (after == before) is not is_in


@pytest.mark.parametrize(
    "fields", [{"params": dataclasses.replace(BALANCED, f=0.5)}, {"sample": 0.001}]
)
def test_device_that_has_reported_is_in_the_sample_until_the_epoch_ends(
    fields: dict[str, Any], open_client: Opener, clock: FixedClock, tmp_path: Path
) -> None:
    """Other parameters draw the sample anew, and a smaller share leaves some out: both later."""
    old = metric_of(epoch="month", sample=0.5)
    new = dataclasses.replace(old, **fields)
    secret = next(
        secret
        for secret in (i.to_bytes(32, "little") for i in range(1000))
        if takes_part(secret, old, "2026-11")
        and not takes_part(secret, new, "2026-11")
        and not takes_part(secret, new, "2026-12")
    )
    write_device(tmp_path / "reported", secret)
    write_device(tmp_path / "new", secret)
    with open_client(old, folder="reported") as client:
        assert client.record("page", "x") == Outcome.KEPT
    assert open_client(new, folder="reported").record("page", "x")
    assert open_client(new, folder="new").record("page", "x") == Outcome.SILENT
    clock.set("2026-12-01T12:00:00")
    assert open_client(new, folder="reported").record("page", "x") == Outcome.SILENT


def test_samples_are_of_their_share() -> None:
    """Of secrets that are counted out, about a tenth: the bound holds but for 1e-9 (Hoeffding)."""
    metric = metric_of(epoch="quarter", sample=0.1)
    n = 4000
    taking = sum(takes_part(i.to_bytes(32, "little"), metric, "2026-Q4") for i in range(n))
    assert abs(taking / n - 0.1) < 0.0518  # sqrt(ln(2e9) / (2 n))


def test_larger_sample_keeps_those_who_were_in() -> None:
    """A share can grow in the middle of an epoch."""
    secrets = [i.to_bytes(32, "little") for i in range(200)]
    small, large = (metric_of(epoch="quarter", sample=share) for share in (0.2, 0.6))
    inside = [secret for secret in secrets if takes_part(secret, small, "2026-Q4")]
    assert inside
    assert all(takes_part(secret, large, "2026-Q4") for secret in inside)


def test_reports_of_a_stopped_metric_wait(open_client: Opener, clock: FixedClock) -> None:
    """The collector would refuse them, tried ones too; others go, and a flush says until when."""
    stop = stopping({"page": "2026-11-20"})
    transport = MemoryTransport([Answer(status=500), stop, stop])
    client = open_client(metric_of(), metric_of("other"), collector=transport)
    client.record("page", "x")
    assert not client.flush(timeout=0.0)
    for name in ("other", "page", "other", "page"):
        client.record(name, "x")
    flushed = client.flush()
    assert (flushed.reason, flushed.waiting) == (FlushReason.ASKED_TO_WAIT, 3)
    sent = [json.loads(body)["reports"][0]["metric"] for body in transport.bodies]
    assert sent == ["page", "other", "other"]
    clock.set("2026-11-20T23:59:59")
    assert flushed.retry_at == clock() + 1
    assert client.flush(timeout=0.0).sent == 0
    clock.advance(seconds=1)
    assert client.flush().sent == 3
    assert transport.bodies[0] in transport.bodies[3:]


def test_stop_and_its_end_reach_every_client_of_the_folder(open_client: Opener) -> None:
    """One that had not the answer and only records; the newest answer counts."""
    metrics = (metric_of(), metric_of("other"))
    running = open_client(*metrics)
    transport = MemoryTransport([stopping({"page": "2026-11-20"})])
    sending = open_client(*metrics, collector=transport)
    sending.record("page", "x")
    assert sending.flush()
    running.record("page", "x")
    assert running.waiting() == 0
    assert running.record("page", "x") == Outcome.SILENT
    sending.record("other", "x")
    assert sending.flush()
    assert sending.record("page", "x") == Outcome.KEPT
    running.record("other", "x")
    running.waiting()
    assert running.record("page", "x") == Outcome.KEPT


class Meanwhile(MemoryTransport):
    """A collector that answers slowly; something else happens before it does."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self.action = action

    def send(self, body: bytes, *, timeout: float) -> Answer:
        """Accept an upload afterwards."""
        self.action()
        return super().send(body, timeout=timeout)


def test_stop_that_came_meanwhile_is_lifted_by_a_newer_answer(
    open_client: Opener, clock: FixedClock
) -> None:
    """Another client had it while the newer answer was on its way."""
    metrics = (metric_of(), metric_of("other"))
    other = open_client(*metrics, collector=MemoryTransport([stopping({"page": "2026-11-20"})]))

    def be_stopped() -> None:
        clock.advance(seconds=3)
        other.flush()
        assert other.record("page", "x") == Outcome.SILENT
        other.record("other", "x")

    client = open_client(*metrics, collector=Meanwhile(be_stopped))
    client.record("page", "x")
    client.flush()
    other.record("other", "x")
    other.waiting()
    assert other.record("page", "x") == Outcome.KEPT


def test_flush_in_an_event_loop(open_client: Opener) -> None:
    """It returns what flush() returns, and the context manager closes the client."""

    async def host() -> int:
        async with open_client(collector=MemoryTransport()) as client:
            client.record("page", "x")
            return (await client.aflush(timeout=60.0)).sent

    assert asyncio.run(host()) == 1
