"""A program that makes one call of the client while its disk hangs.

Arguments: the name of the call, and the folder. The program prints a line before the call and waits
for a line of input, during which the test lets the disk hang. It prints the result of the call as
JSON, waits for another line, and prints the contents of the device after the thaw.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from days import record_days
from devices import metric_of, open_device
from rappor_client import Client
from rappor_client.testing import FixedClock, MemoryTransport, peek

METRICS = (metric_of(), metric_of("crash", durable=True))
CLOCK = FixedClock("2026-11-18T12:00:00")


class Stopping(MemoryTransport):
    """A collector that responds after the disk has begun to hang."""

    def send(self, body: bytes, *, timeout: float) -> Any:
        """Accept an upload."""
        meet()
        return super().send(body, timeout=timeout)


def meet() -> None:
    """Print a line, and wait for a line of the test."""
    sys.stdout.write("here\n")
    sys.stdout.flush()
    sys.stdin.readline()


def show(result: object) -> None:
    """Print a result as JSON."""
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def open_client(folder: Path, *, consent: bool = True, **chosen: Any) -> Client:
    """Open a client on the device."""
    return open_device(folder, *METRICS, consent=consent, clock=CLOCK, **chosen)


def flush(client: Client, timeout: float) -> list[object]:
    """Flush; return reason, number of sent reports and number of waiting reports."""
    flushed = client.flush(timeout=timeout)
    return [flushed.reason.name, flushed.sent, flushed.waiting]


def end_block(client: Client) -> None:
    """Record in a `with` block, and end the block."""
    with client:
        client.record("page", "y")


def fork(client: Client) -> int:
    """Fork; return the exit code of a child that records and has no database."""
    if (child := os.fork()) == 0:
        is_right = bool(client.record("page", "z")) and client.queued_count() == 0
        os._exit(0 if is_right else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def look(client: Client) -> list[object]:
    """Return the results of three methods, which come from memory if the disk does not answer."""
    client.record("page", "y")
    client.flush(timeout=0.1)  # begins a write that does not end
    return [client.privacy_spent().nats > 0, client.queued_count(), client.sent_uploads()]


CALLS: dict[str, Callable[[Client, Path], object]] = {
    "close": lambda client, _: client.close(),
    "close after a record": lambda client, _: (client.record("page", "y"), client.close())[1],
    "the end of a with block": lambda client, _: end_block(client),
    "flush": lambda client, _: flush(client, 0.5),
    "flush while the collector answers": lambda client, _: flush(client, 0.5),
    "looks": lambda client, _: look(client),
    "opt_out": lambda client, _: client.opt_out("page"),
    "withdraw": lambda client, _: str(client.withdraw()),
    "durable record": lambda client, _: str(client.record("crash", "y")),
    "fork": lambda client, _: fork(client),
    "open": lambda _, folder: open_client(folder).disabled_reason,
    "open of a new folder": lambda _, folder: open_client(folder / "new").disabled_reason,
    "open without consent": lambda _, folder: open_client(folder, consent=False).disabled_reason,
    "exit": lambda client, _: (client.record("page", "y"), sys.exit())[1],
}
"""Calls that the program makes, by name. Each takes the client and the folder."""


def main(name: str, folder: Path) -> None:
    """Make a call while the disk hangs."""
    is_sending = name == "flush while the collector answers"
    transport = Stopping() if is_sending else MemoryTransport()
    client = open_client(folder, collector=transport if "flush" in name else None)
    record_days(client, "page", "x")
    assert client.queued_count() == 1
    if name.startswith("open"):
        client.close()
    if not is_sending:
        meet()
    show(CALLS[name](client, folder))
    sys.stdin.readline()
    end = time.monotonic() + 60.0
    while any(thread.name.startswith("rappor") for thread in threading.enumerate()):
        assert time.monotonic() < end, "a thread did not end after the thaw"
        time.sleep(0.01)
    if "flush" in name:
        CLOCK.advance(seconds=10)  # the claim of the earlier flush ends
        client.flush(timeout=30.0)
    contents = peek(folder)
    statuses = [report.status for upload in contents.sent_uploads for report in upload.reports]
    waiting = (
        len(contents.queued_reports) + len(contents.pending_reports) - statuses.count("unanswered")
    )
    show([contents.has_secret, waiting, statuses, len(transport.bodies)])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
