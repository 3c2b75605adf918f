"""Load a server with uploads over many connections, from a separate process.

`python -m benchmarks.load PORT CONNECTIONS SECONDS REPORTS REGISTRY` prints JSON: `per_second`, the
uploads a second; `p50` and `p99`, percentiles of their times in milliseconds; `bad`, the number of
responses other than 200; `total`, the number of all uploads. Each connection sends an upload, waits
for the response, and sends the next upload.

The reports of an upload belong to the metrics of the registry in turn.

The load uses the same processors as the server, so it must be cheap. Uploads are written before the
first one is sent, and only their ids are new each time.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from typing import Any

import uvicorn

from rappor.protocol.wire import Report, Upload
from rappor.registry.registry import Registry

_WARM_SECONDS = 1.0
"""Seconds at the beginning that are not counted, because the server fills its caches."""
_N_UPLOADS = 4096
"""Number of different uploads, which are sent in turn with new ids. More uploads take more
memory."""


class _Sender(asyncio.Protocol):
    """One connection, which sends an upload and waits for the response before the next one."""

    def __init__(self, load: _Load) -> None:
        self._load = load
        self._received = b""
        self._sent = 0.0

    def connection_made(self, transport: Any) -> None:
        """Send the first upload."""
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        """Record the response when it is complete, and send the next upload."""
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator:
            return
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if len(body) >= length:
            self._received = b""
            self._load.record(time.perf_counter() - self._sent, is_good=b" 200 " in head[:20])
            self._send()

    def _send(self) -> None:
        """Send an upload, and store the time."""
        self._sent = time.perf_counter()
        self._transport.write(self._load.create_request())


class _Load:
    """The requests, and the figures of their responses."""

    def __init__(self, n_reports: int, registry: Registry) -> None:
        self._n_reports = n_reports
        self._metrics = itertools.cycle(registry.values())
        self._noise = os.urandom(1 << 16)
        self.seconds: list[float] = []
        self.n_bad = 0
        self.n_total = 0
        self.is_measured = False
        # Start of the next report's bits in `_noise`.
        self._offset = 0
        self._parts = itertools.cycle([self._split_at_id() for _ in range(_N_UPLOADS)])

    def create_request(self) -> bytes:
        """Return a complete request: the HTTP head, and an upload with a fresh id."""
        before, after = next(self._parts)
        return before + Upload.new_id().encode() + after

    def _split_at_id(self) -> tuple[bytes, bytes]:
        """Return the bytes before and after the id in a request."""
        reports = tuple(self._create_report(j) for j in range(self._n_reports))
        upload_id = Upload.new_id()
        body = Upload(id=upload_id, reports=reports).to_json()
        head = (
            f"POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        before, _, after = (head.encode() + body).partition(upload_id.encode())
        return before, after

    def record(self, seconds: float, *, is_good: bool) -> None:
        """Store the time and the success of one response."""
        self.n_total += 1
        if self.is_measured:
            self.seconds.append(seconds)
            self.n_bad += not is_good

    def _create_report(self, j: int) -> Report:
        """Return a report with random bits. `j` distributes the reports over the cohorts."""
        metric = next(self._metrics)
        params = metric.params
        # The bits of all reports are cut from one block of random bytes. The step is larger than a
        # report, so two reports in a row share no bytes. It is a prime number, so the reports of a
        # long load begin at many different bytes.
        self._offset = (self._offset + 7919) % (len(self._noise) - params.n_bytes)
        return Report(
            metric=metric.name,
            params=params.fingerprint,
            cohort=(self._offset + j) % params.m,
            bits=self._noise[self._offset : self._offset + params.n_bytes],
        )


async def _run(
    port: int, connections: int, seconds: float, n_reports: int, registry: Registry
) -> dict[str, float]:
    """Send uploads for some seconds, and return the figures of the module's docstring."""
    load = _Load(n_reports, registry)
    loop = asyncio.get_running_loop()
    transports = [
        await loop.create_connection(lambda: _Sender(load), "127.0.0.1", port)
        for _ in range(connections)
    ]
    await asyncio.sleep(_WARM_SECONDS)
    load.is_measured = True
    start = time.perf_counter()
    await asyncio.sleep(seconds)
    measured_seconds = time.perf_counter() - start
    load.is_measured = False
    for transport, _ in transports:
        transport.abort()
    durations = sorted(load.seconds)
    return {
        "per_second": len(durations) / measured_seconds,
        "p50": 1e3 * durations[len(durations) // 2],
        "p99": 1e3 * durations[99 * len(durations) // 100],
        "bad": load.n_bad,
        "total": load.n_total,
    }


if __name__ == "__main__":
    port, connections, seconds, n_reports, path = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvicorn.Config("").get_loop_factory()) as runner:
        run = _run(int(port), int(connections), float(seconds), int(n_reports), Registry.load(path))
        figures = runner.run(run)
    json.dump(figures, sys.stdout)
