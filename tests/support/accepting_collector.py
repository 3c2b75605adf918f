"""A small collector for tests of the client, which parses uploads strictly and stores reports."""

from __future__ import annotations

import contextlib
import http.server
import json
from collections.abc import Iterator

from sockets import run_server

from rappor import Registry, ReportError
from rappor.protocol.wire import Report, parse_upload


class AcceptingCollector(http.server.ThreadingHTTPServer):
    """A collector in the process of the test.

    Attributes
    ----------
    reports : valid reports of all uploads. The reports of a repeated upload are stored once.
    keys : header `Authorization` of every request, None without the header.
    ids : ids of all uploads.
    """

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
    """Handler of requests, each with one upload."""

    server: AcceptingCollector

    def do_POST(self) -> None:
        """Accept every valid report, and refuse the others."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        # A result is a valid Report, or the ReportError of a wrong report.
        upload_id, results = parse_upload(body, self.server.registry.lookup)
        self.server.keys.append(self.headers["Authorization"])
        # A client that got no response sends the same upload again, under the same id.
        if upload_id not in self.server.ids:
            self.server.ids.add(upload_id)
            self.server.reports += [result for result in results if isinstance(result, Report)]
        statuses = [
            {"status": "accepted"}
            if isinstance(result, Report)
            else {"status": "refused", "reason": _name_reason(result)}
            for result in results
        ]
        response = json.dumps({"reports": statuses}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(response)))
        self.end_headers()
        self.wfile.write(response)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _name_reason(error: ReportError) -> str:
    """Return the collector's reason for a report that cannot be read."""
    # The code "unknown" stands for an unknown metric and for unknown parameters. The collector
    # distinguishes them (`rappor_server.ingest.validate`).
    return "unknown-params" if error.code == "unknown" else error.code


@contextlib.contextmanager
def run_accepting_collector(registry: Registry) -> Iterator[AcceptingCollector]:
    """Run a collector for a registry during a `with` block, and yield the collector."""
    server = AcceptingCollector(registry)
    with run_server(server):
        yield server
