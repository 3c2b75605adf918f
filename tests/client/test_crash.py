"""A host that is killed at any moment, against a collector that fails at random.

Every confirmed record ends in one place: delivered exactly once by upload id, still in the
spool, or in the counter of what was dropped.
"""

from __future__ import annotations

import concurrent.futures
import functools
import http.server
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import crash_child
import pytest
from crash_child import fast_clock
from devices import UNCAPPED, metric_of
from rappor_client import Client
from rappor_client.testing import constant_coins, peek
from registries import registry_of
from sockets import serving

from rappor.protocol.wire import decode_base64url

CHILD = Path(crash_child.__file__)


MOODS = ("well", "well", "hang up", "error", "busy", "cut", "lost", "cut headers")


class Moody(http.server.ThreadingHTTPServer):
    """Accepts uploads by id, exactly once, and answers as its mood is."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), MoodyHandler)
        self.accepted: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.is_moody = True
        self.moods: dict[str, int] = {}
        self.n_conflicts = 0

    def mood(self) -> str:
        """Draw the next mood."""
        chosen = random.choice(MOODS) if self.is_moody else "well"  # noqa: S311
        with self.lock:
            self.moods[chosen] = self.moods.get(chosen, 0) + 1
        return chosen

    def accept(self, body: bytes) -> None:
        """Remember an upload; the same id must always have the same body."""
        with self.lock:
            first = self.accepted.setdefault(json.loads(body)["id"], body)
            self.n_conflicts += first != body


class MoodyHandler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Moody

    def do_POST(self) -> None:
        """Take an upload, or not, and say so, or not."""
        mood = self.server.mood()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if mood in ("hang up", "error", "busy"):
            return self.refuse(mood)
        self.server.accept(body)
        if mood == "lost":
            return self.hang_up()
        statuses = [{"status": "accepted"} for _ in json.loads(body)["reports"]]
        answer = json.dumps({"reports": statuses}).encode()
        if mood == "cut headers":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-")
            return self.hang_up()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer if mood == "well" else answer[: len(answer) // 2])
        self.close_connection = mood != "well"
        return None

    def refuse(self, mood: str) -> None:
        """Accept nothing."""
        if mood == "hang up":
            return self.hang_up()
        self.send_response(500 if mood == "error" else 503)
        self.send_header("Content-Length", "0")
        if mood == "busy":
            self.send_header("Retry-After", "0")
        self.end_headers()
        return None

    def hang_up(self) -> None:
        """Close with a reset."""
        linger = b"\1\0\0\0\0\0\0\0"
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


def start(folder: Path, url: str, started: float, number: int) -> subprocess.Popen[bytes]:
    """Start a host program."""
    paths = os.pathsep.join([str(CHILD.parent), *filter(None, sys.path)])
    return subprocess.Popen(
        [sys.executable, str(CHILD), str(folder), url, str(number), str(started)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    )


def kill_one(folder: Path, url: str, started: float, number: int) -> set[int]:
    """Let a host run for a random time, kill it, and return what it had confirmed."""
    child = start(folder, url, started, number)
    assert child.stdout is not None
    try:
        first = child.stdout.readline()
        time.sleep(random.uniform(0, 0.25))  # noqa: S311
    finally:
        child.send_signal(signal.SIGKILL)
        rest, _ = child.communicate()
    assert child.returncode == -signal.SIGKILL, "it ended by itself"
    lines = (first + rest).split(b"\n")[:-1]  # what is cut was not said
    return {int(line) for line in lines}


def numbers_of(body: bytes) -> list[int]:
    """Return the numbers that the reports of an upload spell."""
    reports: list[dict[str, Any]] = json.loads(body)["reports"]
    return [
        int.from_bytes(decode_base64url("bits", report["bits"]), "little") for report in reports
    ]


def spooled(folder: Path, accepted: dict[str, bytes]) -> list[int]:
    """Return the numbers that wait, but for those of pending uploads that were accepted."""
    contents = peek(folder)
    waiting = [int.from_bytes(report.bits, "little") for report in contents.waiting]
    known = {
        number
        for upload in contents.pending
        if upload.id in accepted
        for number in numbers_of(upload.body)
    }
    return [number for number in waiting if number not in known]


def crash(folder: Path, kills: int) -> None:
    """Kill hosts two at a time, then account for every record."""
    confirmed: set[int] = set()
    late: set[int] = set()
    started = time.time()
    server = Moody()
    with serving(server):
        url = f"http://127.0.0.1:{server.server_address[1]}"
        with concurrent.futures.ThreadPoolExecutor(2) as two:
            hosts = range(1, kills + 1)
            for safe in two.map(functools.partial(kill_one, folder, url, started), hosts):
                assert safe, "a host recorded nothing"
                confirmed |= {number for number in safe if number > 0}
                late |= {-number for number in safe if number < 0}
        server.is_moody = False
        with Client.open(
            folder,
            registry=registry_of(metric_of("one"), metric_of("two")),
            collector=url,
            consent=True,
            caps=UNCAPPED,
            background=False,
            clock=lambda: fast_clock(started) + 3600,  # past every claim and backoff
            coins=constant_coins(0),
        ) as client:
            account(client, folder, server, confirmed, kills + len(late))
            waiting = spooled(folder, server.accepted)
            assert client.flush(timeout=60)
            counters = client.counters()
            account(client, folder, server, confirmed, kills + len(late))
    delivered = [n for body in server.accepted.values() for n in numbers_of(body)]
    assert set(waiting) <= set(delivered)
    assert counters["accepted"] == len(delivered)
    assert server.n_conflicts == 0
    assert sum(server.moods.values()) >= kills, "the hosts hardly sent"
    assert kills < 200 or set(server.moods) == set(MOODS)


def account(client: Client, folder: Path, server: Moody, confirmed: set[int], kills: int) -> None:
    """Check that records, deliveries, the spool and the counters agree."""
    delivered = [n for body in server.accepted.values() for n in numbers_of(body)]
    kept = delivered + spooled(folder, server.accepted)
    counters = client.counters()
    dropped = counters.get("dropped_full", 0)
    assert len(kept) == len(set(kept)), "a report was delivered under two ids"
    assert counters["recorded"] == len(kept) + dropped
    assert len(confirmed - set(kept)) <= dropped
    assert len(set(kept) - confirmed) <= kills, "more than the record in flight was unconfirmed"
    assert confirmed <= set(kept) or dropped
    spent = client.spent()
    assert sum(metric.reports for metric in spent.metrics.values()) == counters["recorded"]


def test_killed_host_loses_nothing_confirmed(tmp_path: Path) -> None:
    """Twenty kills, two hosts at a time on one folder."""
    crash(tmp_path / "device", 20)


@pytest.mark.acceptance
def test_killed_host_loses_nothing_confirmed_in_full(tmp_path: Path) -> None:
    """Two hundred kills."""
    crash(tmp_path / "device", 200)
