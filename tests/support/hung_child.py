"""A program that makes one call of the client while its disk hangs.

Run as `python hung_child.py CALL FOLDER`, with the name of a call in `CALLS`. The program and the
test alternate:

    program                                        test
    prints "here", waits for a line                lets the disk hang, writes a line
    makes the call, prints its result as JSON      lets the disk go on (the thaw), writes a line
    prints the contents of the device as JSON
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
from devices import build_metric, open_device
from rappor_client import Client
from rappor_client.testing import FixedClock, MemoryTransport, peek

METRICS = (build_metric(), build_metric("crash", durable=True))
CLOCK = FixedClock("2026-11-18T12:00:00")


class LateTransport(MemoryTransport):
    """A transport that accepts an upload after the disk has begun to hang."""

    def send(self, body: bytes, *, timeout: float) -> Any:
        """Wait until the disk hangs, then accept the upload."""
        wait_for_freeze()
        return super().send(body, timeout=timeout)


def wait_for_freeze() -> None:
    """Print "here", and wait for a line. The test lets the disk hang before it writes the line."""
    sys.stdout.write("here\n")
    sys.stdout.flush()
    sys.stdin.readline()


def print_json(result: object) -> None:
    """Print a result as a line of JSON."""
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def open_client(folder: Path, *, consent: bool = True, **settings: Any) -> Client:
    """Open a client on the device of a folder."""
    return open_device(folder, *METRICS, consent=consent, clock=CLOCK, **settings)


def flush(client: Client, timeout: float) -> list[object]:
    """Flush, and return the reason of the end, and the numbers of sent and of queued reports."""
    result = client.flush(timeout=timeout)
    return [result.reason.name, result.sent, result.waiting]


def end_block(client: Client) -> None:
    """Record in a `with` block, and end the block."""
    with client:
        client.record("page", "y")


def record_and_close(client: Client) -> None:
    """Record, and close the client, which writes the event."""
    client.record("page", "y")
    client.close()


def fork(client: Client) -> int:
    """Fork; return the exit code of a child: 0 if `record` works and no database is open there.

    Without a database `queued_count` returns 0, although the parent has a queued report.
    """
    if (child := os.fork()) == 0:
        is_right = bool(client.record("page", "z")) and client.queued_count() == 0
        os._exit(0 if is_right else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def read_device(client: Client) -> list[object]:
    """Return the results of three methods that read the device.

    While the disk hangs, the results come from memory.
    """
    client.record("page", "y")
    client.flush(timeout=0.1)  # begins a write that does not end
    return [client.privacy_spent().nats > 0, client.queued_count(), client.sent_uploads()]


CALLS: dict[str, Callable[[Client, Path], object]] = {
    "close": lambda client, _: client.close(),
    "close after a record": lambda client, _: record_and_close(client),
    "the end of a with block": lambda client, _: end_block(client),
    "flush": lambda client, _: flush(client, 0.5),
    "flush while the collector answers": lambda client, _: flush(client, 0.5),
    "looks": lambda client, _: read_device(client),
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
    transport = LateTransport() if is_sending else MemoryTransport()
    client = open_client(folder, collector=transport if "flush" in name else None)
    record_days(client, "page", "x")
    assert client.queued_count() == 1
    if name.startswith("open"):
        client.close()
    if not is_sending:  # otherwise the transport waits for the freeze
        wait_for_freeze()
    print_json(CALLS[name](client, folder))
    sys.stdin.readline()  # the test has thawed the disk
    end = time.monotonic() + 60.0
    while any(thread.name.startswith("rappor") for thread in threading.enumerate()):
        assert time.monotonic() < end, "a thread did not end after the thaw"
        time.sleep(0.01)
    if "flush" in name:
        CLOCK.advance(seconds=10)  # the claim of the earlier flush ends
        client.flush(timeout=30.0)
    contents = peek(folder)
    statuses = [report.status for upload in contents.sent_uploads for report in upload.reports]
    # A report without a response is in the queue and in the log.
    n_waiting = (
        len(contents.queued_reports) + len(contents.pending_reports) - statuses.count("unanswered")
    )
    print_json([contents.has_secret, n_waiting, statuses, len(transport.bodies)])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
