"""A local device: a client without a collector."""

from __future__ import annotations

from pathlib import Path

from programs import run_python
from rappor_client.testing import peek
from registries import format_registry

LOCAL = """
import json, sys, threading
from rappor_client import Client, ClientOptions, FlushReason
from rappor_client.testing import FixedClock

clock = FixedClock("2026-11-18T12:00:00")
choices = {"registry": "metrics.toml", "consent": True, "options": ClientOptions(clock=clock)}
events = []
# Python reports each use of a socket to this function.
sys.addaudithook(lambda event, _: events.append(event) if event.startswith("socket") else None)
with Client.open("device", **choices) as client:
    assert client.record("page", "x")
    client.queued_count()  # writes the event to the folder
    clock.advance(days=1)
    assert client.record("page", "x")  # ends the interval of the day before
    assert client.queued_count() == 1
    flushed = client.flush()
    assert not flushed and flushed.reason is FlushReason.NO_COLLECTOR and flushed.waiting == 1
    assert "rappor-sender" not in [thread.name for thread in threading.enumerate()]
    assert client.privacy_spent().nats > 0 and client.sent_uploads() == []
assert not events and "http.client" not in sys.modules, events
"""
"""Program that uses a local device and opens no socket."""


def test_local_device_collects_and_sends_nothing(tmp_path: Path) -> None:
    """A local device stores reports for people to see, opens no socket and starts no sender."""
    (tmp_path / "metrics.toml").write_text(format_registry())
    run_python("-c", LOCAL, folder=tmp_path)
    (report,) = peek(tmp_path / "device").queued_reports
    assert report.metric == "page"
