"""Many devices in one process, one after the other. Each device records and reports one word.

Run as `python device_child.py REGISTRY URL` with the words on standard input, one a line. Each
device has a folder and a client of its own. The folders are in memory if the system has a file
system there, which is faster. No folder is needed after the process.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from devices import UNCAPPED
from rappor_client import Client, ClientOptions, Outcome
from rappor_client.network.http_transport import HttpTransport
from rappor_client.testing import FixedClock

from rappor import Registry

MEMORY = "/dev/shm"  # noqa: S108 - Linux mounts a file system in memory here


def main(registry_path: str, url: str) -> None:
    """Let every device record its word and send the report."""
    registry = Registry.load(registry_path)
    transport = HttpTransport(url)
    parent = MEMORY if os.access(MEMORY, os.W_OK) else None
    for line in sys.stdin:
        clock = FixedClock("2026-11-18T12:00:00")
        with tempfile.TemporaryDirectory(dir=parent) as folder:
            client = Client.open(
                Path(folder) / "device",
                registry=registry,
                collector=transport,
                consent=True,
                options=ClientOptions(budget_cap=UNCAPPED, max_delay=3600.0, clock=clock),
            )
            assert client.record("word", line.rstrip("\n")) == Outcome.RECORDED
            client.queued_count()  # writes the event
            clock.advance(days=1)
            assert client.flush(timeout=30.0)
            assert client.event_counts() == {"accepted": 1, "recorded": 1}
            client.close()
    sys.stdout.write("delivered")


if __name__ == "__main__":
    main(*sys.argv[1:])
