"""Measure the cost of the client in a fresh process, and print it as JSON.

The keys are those that `benchmarks.device` shows: "import" and "open" in seconds, "memory" and
"repeated bytes" in bytes, "uploads", and for each kind of call, such as "record", its median,
99th and 99.9th percentile and worst time in microseconds.

Run as `python -m benchmarks.device_once N_RECORDS`. Only the standard library is loaded before the
client, so that import time and memory are the client's own. Run it twice: the first run compiles
the bytecode, which installed packages already have, and does not count.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rappor_client import Client
    from rappor_client.network.transport import TransportResponse

_ENTRY = """
description = "a"
owner = "b"
expires = 2100-01-01
epoch = "life"
encoding = "bloom"
profile = "balanced"
"""
_TOML = f"[budget]\ntotal = inf\n[metrics.page]{_ENTRY}"
_SENT = tuple(f"sent{i}" for i in range(200))
"""Names of 200 metrics. Each has one report to send while the calls are timed.

A device sends at most one report of a metric in a day, so a long series of uploads needs many
metrics.
"""
_DAY = 86_400.0
"""Number of seconds in a day, by which the client's clock is moved."""
_CALLS = 1000
"""Number of calls that are timed while a stopped process has the lock of the device."""
_EVENTS = 2000
"""Number of timed events on a day that has an event already. Such an event draws no report."""
_BLOCK = bytes(100_000)
"""Bytes that are hashed for comparison. Hashing them takes about as long as drawing a report."""
_FROZEN = """
import sys
from pathlib import Path
from rappor_client.folder.identity_folder import IdentityFolder
folder = IdentityFolder(Path(sys.argv[1]))
with folder.try_lock() as is_inside:
    print(is_inside, flush=True)
    sys.stdin.read()
"""
"""Program of another process. It takes the lock of the device, and is stopped while it has it."""


def measure(n_records: int) -> dict[str, float]:
    """Measure import, opening and several kinds of calls, mostly of record().

    The docstring of the module has the keys and units. Kinds of calls:

        record       the first event of a day
        make         drawing a report, without the folder of the device
        sending      the first event of a day, while another thread sends
        distinct     the first event of a day, each with another value
        repeated     a further event of a day
        frozen       the first event of a day, while a stopped process has the lock of the device
        computing    hashing some bytes, for comparison with `frozen`
    """
    before = read_resident_bytes()
    start = time.perf_counter()
    from rappor_client import Client, ClientOptions  # noqa: PLC0415 - this is what is measured

    results = {"import": time.perf_counter() - start}
    from rappor_client.budget.prepared_report import prepare_report  # noqa: PLC0415

    from rappor import Registry  # noqa: PLC0415
    from rappor.protocol.randomizer import draw_system_coins  # noqa: PLC0415

    registry = Registry.loads(_TOML)
    now = [time.time()]
    options = ClientOptions(clock=lambda: now[0])
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {"registry": registry, "consent": True, "options": options}
        collector = _Collector()
        start = time.perf_counter()
        client = Client.open(folder, collector=collector, **settings)
        results["open"] = time.perf_counter() - start

        def record_next_day(value: str) -> None:
            """Record the first event of the next day. A later event of a day may write nothing."""
            now[0] += _DAY
            client.record("page", value)

        results |= time_calls("record", lambda: record_next_day("duckduckgo"), n_records)
        results["memory"] = read_resident_bytes() - before
        client.flush(timeout=60.0)
        secret = bytes(32)
        results |= time_calls(
            "make",
            lambda: prepare_report(
                secret, registry["page"], "x", epoch="", coins=draw_system_coins
            ),
            n_records,
        )
        client.close()
        entries = "".join(f"[metrics.{name}]{_ENTRY}" for name in _SENT)
        settings["registry"] = Registry.loads(_TOML + entries)
        client = Client.open(folder, collector=collector, **settings)
        results |= time_while_sending(client, collector, record_next_day, n_records)
        values = iter(f"value {i}" for i in range(1 << 30))
        results |= time_calls("distinct", lambda: record_next_day(next(values)), n_records)
        client.flush(timeout=60.0)
        results |= time_repeated_events(client)
        results |= time_beside_frozen_process(record_next_day, Path(folder))
        client.close()
    return results


def time_repeated_events(client: Client) -> dict[str, float]:
    """Return the times of events that can only repeat a response, and the bytes that they write."""
    # Wait until the writer thread has written the events in memory.
    time.sleep(0.5)
    before = read_written_bytes()
    results = time_calls("repeated", lambda: client.record("page", "x"), _EVENTS)
    client.queued_count()
    return results | {"repeated bytes": read_written_bytes() - before}


def time_beside_frozen_process(record: Callable[[str], None], folder: Path) -> dict[str, float]:
    """Return the times of record() while a stopped process has the device's lock."""
    command = [sys.executable, "-c", _FROZEN, str(folder / "device")]
    with subprocess.Popen(  # noqa: S603 - ours
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as frozen:
        assert frozen.stdout is not None
        frozen.stdout.readline()
        frozen.send_signal(signal.SIGSTOP)
        try:
            return time_in_turn(
                {
                    "frozen": lambda: record("duckduckgo"),
                    "computing": lambda: hashlib.sha256(_BLOCK).digest(),
                },
                _CALLS,
            )
        finally:
            frozen.send_signal(signal.SIGCONT)
            frozen.kill()


def read_written_bytes() -> int:
    """Return the number of bytes that this process has written to disks so far (Linux)."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(": ") for line in lines)["write_bytes"])


class _Collector:
    """A transport to a collector that accepts every report at once."""

    def __init__(self) -> None:
        self.n_uploads = 0

    def send(self, body: bytes, *, timeout: float) -> TransportResponse:
        # The import of the client is measured, so nothing of it is imported before.
        from rappor_client.network.transport import TransportResponse  # noqa: PLC0415

        del timeout
        self.n_uploads += 1
        statuses = [{"status": "accepted"} for _ in json.loads(body)["reports"]]
        return TransportResponse(status=200, body=json.dumps({"reports": statuses}).encode())

    def close(self) -> None:
        pass


def time_while_sending(
    client: Client, collector: _Collector, record: Callable[[str], None], n: int
) -> dict[str, float]:
    """Return the times of record() while another thread sends without a pause, and its uploads."""
    for name in _SENT:
        client.record(name, "x")
    # An event on the next day finishes the reports of these metrics, so that they can be sent.
    record("duckduckgo")
    client.queued_count()
    is_over = threading.Event()

    def send() -> None:
        while not is_over.is_set():
            client.flush(timeout=60.0)

    sender = threading.Thread(target=send)
    before = collector.n_uploads
    sender.start()
    results = time_calls("sending", lambda: record("duckduckgo"), n)
    results["uploads"] = collector.n_uploads - before
    is_over.set()
    sender.join()
    return results


def time_calls(name: str, work: Callable[[], object], n: int) -> dict[str, float]:
    """Return the median, the 99th percentile and the largest time of n calls, in microseconds."""
    return time_in_turn({name: work}, n)


def time_in_turn(works: Mapping[str, Callable[[], object]], n: int) -> dict[str, float]:
    """Time several calls in turn, so that other work of the machine delays all of them alike."""
    # The first calls fill caches, and are not timed.
    for _ in range(20):
        for work in works.values():
            work()
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(n):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    ranks = {"median": 500, "p99": 990, "p99.9": 999, "worst": 1000}  # in thousandths
    return {
        f"{name} {quantile}": 1e6 * sorted(seconds[name])[math.ceil(n * rank / 1000) - 1]
        for name in works
        for quantile, rank in ranks.items()
    }


def read_resident_bytes() -> float:
    """Return the resident size of this process in bytes (Linux).

    The peak (ru_maxrss) would be wrong: the peak of a child begins at the peak of its parent.
    """
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    json.dump(measure(int(sys.argv[1])), sys.stdout)
