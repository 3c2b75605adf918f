"""A small collector for tests of the client: it parses uploads strictly and accepts them."""

from __future__ import annotations

import contextlib
import http.server
import json
from collections.abc import Iterator

from sockets import serving

from rappor import Registry
from rappor.protocol.wire import Report, parse_upload


class AcceptingCollector(http.server.ThreadingHTTPServer):
    """A collector that stores the reports of each upload once, and the key of each request."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.registry = registry
        self.reports: list[Report] = []
        self.keys: list[str | None] = []
        self.ids: set[str] = set()

    @property
    def url(self) -> str:
        """The address of the collector."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(http.server.BaseHTTPRequestHandler):
    """Handler of one upload."""

    server: AcceptingCollector

    def do_POST(self) -> None:
        """Accept every valid report, and refuse the others."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        upload, read = parse_upload(body, self.server.registry.lookup)
        self.server.keys.append(self.headers["Authorization"])
        if upload not in self.server.ids:
            self.server.ids.add(upload)
            self.server.reports += [report for report in read if isinstance(report, Report)]
        statuses = [
            {"status": "accepted"}
            if isinstance(report, Report)
            else {"status": "refused", "reason": report.code}
            for report in read
        ]
        response = json.dumps({"reports": statuses}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(response)))
        self.end_headers()
        self.wfile.write(response)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def accepting(registry: Registry) -> Iterator[AcceptingCollector]:
    """Run a collector for a registry during a `with` block."""
    server = AcceptingCollector(registry)
    with serving(server):
        yield server
