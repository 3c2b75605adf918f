"""Many devices in one process: each has a folder, a client and one word of its own.

Run as `python device_child.py REGISTRY URL FOLDER` with words on standard input, one a line.
"""

from __future__ import annotations

import sys
from pathlib import Path

from devices import UNCAPPED
from rappor_client import Client, Outcome
from rappor_client.http_transport import HttpTransport

from rappor import Registry


def main(registry_path: str, url: str, folder: str) -> None:
    """Let every device record its word and deliver it."""
    registry = Registry.load(registry_path)
    transport = HttpTransport(url)
    for i, line in enumerate(sys.stdin):
        client = Client.open(
            Path(folder) / str(i),
            registry=registry,
            transport=transport,
            consent=True,
            caps=UNCAPPED,
            max_delay=3600.0,
        )
        assert client.record("word", line.rstrip("\n")) is Outcome.RECORDED
        assert client.flush(timeout=30.0)
        assert client.counters() == {"accepted": 1, "recorded": 1}
        client.close()
    sys.stdout.write("delivered")


if __name__ == "__main__":
    main(*sys.argv[1:])
