"""Hosts that are killed at random times, with a collector that fails at random.

Every confirmed event ends in one place: its report was delivered exactly once by upload id, is
still in the spool, or is counted as dropped. No budget is exceeded, and each scope shows one
permanent response.
"""

from __future__ import annotations

import concurrent.futures
import functools
import gzip
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
from collections import Counter
from pathlib import Path
from typing import Any

import crash_child
import pytest
from crash_child import CLEAR, DAILY, VALUES, compute_total, fast_clock
from devices import compute_response, read_secret
from rappor_client import Client, ClientOptions
from rappor_client.testing import constant_coins, peek
from sockets import run_server

from rappor import Registry
from rappor.protocol.wire import decode_base64url

CHILD = Path(crash_child.__file__)

ACCEPTED = b'{"reports": [{"status": "accepted"}]}'
TWICE = ACCEPTED.replace(b"[", b'[{"status": "accepted"}, ')
BOMB = gzip.compress(bytes(10_000_000))


def build_head(body: bytes, more: bytes = b"", status: bytes = b"200 OK") -> bytes:
    """Return the head of an HTTP response with a body."""
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n%s\r\n" % (status, len(body), more)


COMPLETE = build_head(ACCEPTED) + ACCEPTED
REFUSING = {
    "hang up": b"",
    "error": build_head(b"", status=b"500 Error"),
    "busy": build_head(b"", b"Retry-After: 0\r\n", b"503 Busy"),
    "redirect": build_head(b"", b"Location: /v1/elsewhere\r\n", b"307 Elsewhere"),
    "minus 17": build_head(b"", b"Retry-After: -17\r\n", b"503 Busy"),
}
"""Contains, by mood, responses of a collector that accepts nothing."""
UNCLEAR = {
    "cut": COMPLETE[: -len(ACCEPTED) // 2],
    "lost": b"",
    "cut headers": COMPLETE[:20],
    "hang": b"",
    "bomb": build_head(BOMB, b"Content-Encoding: gzip\r\n") + BOMB,
    "garbage": build_head(bytes(99)) + bytes(range(157, 256)),
    "wrong count": build_head(TWICE) + TWICE,
}
"""Contains, by mood, responses that do not show that the upload was accepted."""
RIGHT = {
    "well": COMPLETE,
    "drip": COMPLETE,
    "hundreds": b"HTTP/1.1 100 Continue\r\n\r\n" * 9 + COMPLETE,
    "old http": b"HTTP/1.0 200 OK\r\n\r\n" + ACCEPTED,
}
"""Contains, by mood, right responses. All but the first arrive in an unusual way."""
RESPONSES = REFUSING | UNCLEAR | RIGHT


class Moody(http.server.ThreadingHTTPServer):
    """A collector that accepts uploads exactly once by id, and responds by a random mood."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), MoodyHandler)
        self.accepted: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.is_moody = True
        self.moods = Counter[str]()
        self.n_conflicts = 0

    def draw_mood(self) -> str:
        """Draw the next mood. About a third of the moods are "well": 8 of 23."""
        moody = random.choice(["well"] * 7 + list(RESPONSES))  # noqa: S311
        chosen = moody if self.is_moody else "well"
        with self.lock:
            self.moods[chosen] += 1
        return chosen

    def accept(self, body: bytes) -> None:
        """Store an upload, and count an id that comes with another body."""
        with self.lock:
            first = self.accepted.setdefault(json.loads(body)["id"], body)
            self.n_conflicts += first != body

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing about hosts that were killed during a response."""


class MoodyHandler(http.server.BaseHTTPRequestHandler):
    """One connection of the collector."""

    server: Moody

    def do_POST(self) -> None:
        """Accept an upload or not, and respond or not, as the mood says."""
        mood = self.server.draw_mood()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if mood not in REFUSING:
            self.server.accept(body)
        if mood == "hang":
            time.sleep(random.uniform(0, 0.5))  # noqa: S311
        size = 1 if mood == "drip" else len(BOMB) + 1000
        for start in range(0, len(RESPONSES[mood]), size):
            self.wfile.write(RESPONSES[mood][start : start + size])
            time.sleep(0.001 if mood == "drip" else 0.0)
        if mood in UNCLEAR or not RESPONSES[mood]:
            # Lingering is on, for 0 seconds: the end of the connection is a reset.
            reset = b"\1\0\0\0\0\0\0\0"
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def start_host(
    folder: Path, url: str, started: float, total: int, number: int
) -> subprocess.Popen[bytes]:
    """Start a host program."""
    paths = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, str(CHILD), str(folder), url, str(number), str(started), str(total)],
        stdout=subprocess.PIPE,
        start_new_session=True,  # its forks are killed with it
        env={**os.environ, "PYTHONPATH": paths},
    )


def kill_one(folder: Path, url: str, started: float, total: int, number: int) -> set[int]:
    """Kill a host and its forks after a random time, and return the numbers that they confirmed."""
    child = start_host(folder, url, started, total, number)
    assert child.stdout is not None
    try:
        first = child.stdout.readline()
        time.sleep(random.uniform(0, 0.25))  # noqa: S311
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        rest, _ = child.communicate()
    assert child.returncode == -signal.SIGKILL, "it ended by itself"
    lines = (first + rest).split(b"\n")[:-1]  # an incomplete line confirms nothing
    return {int(line) for line in lines}


def list_reports(body: bytes) -> list[tuple[str, bytes]]:
    """Return metric and bits of the reports of an upload."""
    reports: list[dict[str, Any]] = json.loads(body)["reports"]
    return [(report["metric"], decode_base64url("bits", report["bits"])) for report in reports]


def list_unsent_reports(folder: Path, accepted: dict[str, bytes]) -> list[tuple[str, bytes]]:
    """Return the queued reports without those whose upload the collector has accepted."""
    contents = peek(folder)
    waiting = Counter((report.metric, report.bits) for report in contents.queued_reports)
    for upload in contents.tried_uploads:
        if upload.id in accepted:
            waiting.subtract(list_reports(upload.body))
    return list(waiting.elements())


def read_numbers(reports: list[tuple[str, bytes]]) -> list[int]:
    """Return the numbers that the bits of the reports spell."""
    return [int.from_bytes(bits, "little") for metric, bits in reports if metric != DAILY.name]


def kill_hosts(folder: Path, kills: int) -> None:
    """Kill hosts, two at a time, and account for every event."""
    confirmed: set[int] = set()
    late: set[int] = set()
    started, total = time.time(), compute_total(kills)
    server = Moody()
    with run_server(server):
        url = f"http://127.0.0.1:{server.server_address[1]}"
        with concurrent.futures.ThreadPoolExecutor(2) as two:
            hosts = range(1, kills + 1)
            for safe in two.map(functools.partial(kill_one, folder, url, started, total), hosts):
                assert safe, "a host recorded nothing"
                confirmed |= {number for number in safe if number > 0}
                late |= {-number for number in safe if number < 0}
        server.is_moody = False
        days = 1  # so all claims and backoffs are over
        with Client.open(
            folder,
            registry=Registry([DAILY], total=total),
            collector=url,
            consent=True,
            options=ClientOptions(
                background=False,
                clock=lambda: fast_clock(started) + 86_400 * days,
                coins=constant_coins(0),
            ),
        ) as client:
            # A killed host and its fork may each have recorded one event without printing its
            # number.
            in_flight = 2 * kills + len(late)
            check_accounts(client, folder, server, confirmed, in_flight, total)
            waiting = list_unsent_reports(folder, server.accepted)
            while not (flushed := client.flush(timeout=60)):  # late reports leave one by one
                assert flushed.sent
                days += 1
            counters = client.event_counts()
            check_accounts(client, folder, server, confirmed, in_flight, total)
    delivered = [report for body in server.accepted.values() for report in list_reports(body)]
    assert not Counter(waiting) - Counter(delivered)
    assert counters["accepted"] == len(delivered)
    assert server.n_conflicts == 0
    assert sum(server.moods.values()) >= kills, "the hosts hardly sent"
    assert kills < 200 or set(server.moods) == set(RESPONSES)
    check_responses(folder, delivered, kills)


def check_accounts(
    client: Client,
    folder: Path,
    server: Moody,
    confirmed: set[int],
    max_unconfirmed: int,
    total: int,
) -> None:
    """Assert that events, deliveries, spool and counters agree.

    `max_unconfirmed` is the largest number of events that were recorded and not confirmed.
    """
    # One copy: on a busy machine the collector may still accept an upload of a killed host. With
    # two copies such an upload would be neither delivered nor waiting.
    with server.lock:
        accepted = dict(server.accepted)
    delivered = [report for body in accepted.values() for report in list_reports(body)]
    finished = delivered + list_unsent_reports(folder, accepted)
    pending_reports = peek(folder).pending_reports
    pending = [report for row in pending_reports for report in list_reports(row.body)]
    numbers = read_numbers(finished + pending)
    counters = client.event_counts()
    dropped = counters.get("dropped_full", 0) + counters.get("given_up", 0)
    assert not {"dropped_old", "spool_lost", "identity_lost"} & set(counters)
    assert len(numbers) == len(set(numbers)), "a report was delivered under two ids"
    assert counters["recorded"] == len(finished) + dropped
    assert len(confirmed - set(numbers)) <= dropped
    assert len(set(numbers) - confirmed) <= max_unconfirmed, (
        "more than the records in flight were unconfirmed"
    )
    assert confirmed <= set(numbers) or dropped
    assert max(client.privacy_spent().reserved.values()) <= total


def check_responses(folder: Path, delivered: list[tuple[str, bytes]], kills: int) -> None:
    """Assert that each scope has reported the permanent response of one value."""
    secret, scopes = read_secret(folder), peek(folder).scopes
    values = {
        compute_response(secret, value, name=DAILY.name, epoch=scope.epoch, params=CLEAR): (
            scope.epoch,
            value,
        )
        for scope in scopes
        for value in VALUES
        if scope.metric == DAILY.name
    }
    reported_values = {values[bits] for name, bits in delivered if name == DAILY.name}
    assert reported_values or kills < 200, "the hosts hardly sent"
    assert max(Counter(epoch for epoch, _ in reported_values).values(), default=1) == 1


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(20, marks=pytest.mark.slow),
        pytest.param(300, marks=pytest.mark.acceptance),  # enough to meet all moods
    ],
)
def test_killed_host_loses_nothing_confirmed(kills: int, tmp_path: Path) -> None:
    """Hosts that are killed in pairs on one folder lose no confirmed event."""
    kill_hosts(tmp_path / "device", kills)
