"""The default transport against real servers: over HTTP, TLS and a proxy, and without an end."""

from __future__ import annotations

import contextlib
import datetime
import gzip
import http.server
import json
import re
import signal
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from days import build_metrics, finish_days, record_days
from devices import Home, peek
from rappor_client import FlushReason, UploadError
from rappor_client.network.address import parse_collector, parse_proxy
from rappor_client.network.http_transport import HttpTransport
from rappor_client.testing import constant_coins
from sockets import run_server, write_certificate

from rappor.base.errors import ParamsError

ACCEPTED = b'{"reports":[{"status":"accepted"}]}'


class Collector(http.server.ThreadingHTTPServer):
    """A server that stores requests. Its attributes determine its responses.

    Attributes
    ----------
    requests : method, path, header fields and body of each request
    connections : addresses of the clients, one for each connection
    status, body, headers : the response
    interim : statuses 1xx that precede the response
    tunnel_status : status of the response to CONNECT, in which the server is a proxy
    pause : seconds before a response
    context : certificate of the server, for TLS
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.connections: set[Any] = set()
        self.status = 200
        self.body = ACCEPTED
        self.headers: dict[str, str] = {}
        self.interim: tuple[int, ...] = ()
        self.tunnel_status = 200
        self.pause = 0.0
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection of the server."""

    protocol_version = "HTTP/1.1"
    server: Collector

    def do_POST(self) -> None:
        """Store the request and respond."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append((self.command, self.path, dict(self.headers), body))
        self.server.connections.add(self.client_address)
        time.sleep(self.server.pause)
        for status in self.server.interim:
            self.wfile.write(f"HTTP/1.1 {status} Interim\r\nLink: </x>\r\n\r\n".encode())
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        with contextlib.suppress(BrokenPipeError):  # the client has timed out
            self.end_headers()
            self.wfile.write(self.server.body)

    def do_CONNECT(self) -> None:
        """Respond as a proxy, and then as the collector at the end of the tunnel."""
        self.server.requests.append((self.command, self.path, dict(self.headers), b""))
        for status in self.server.interim:
            self.wfile.write(f"HTTP/1.1 {status} Interim\r\nLink: </x>\r\n\r\n".encode())
        self.send_response(self.server.tunnel_status)
        self.end_headers()
        self.connection = self.server.context.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", buffering=0)

    def finish(self) -> None:
        """Close the connection, and the TLS connection inside a tunnel."""
        super().finish()
        self.connection.close()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Run a server."""
    server = Collector()
    with run_server(server):
        yield server


@pytest.mark.parametrize("key", [None, "sesame"])
def test_request_contains_no_more_than_it_must(key: str | None, collector: Collector) -> None:
    """A request contains path, type, length, host, name and version of the library, and the key.

    The second request contains no cookie, although the first response has set one.
    """
    collector.headers = {"Set-Cookie": "id=1"}
    transport = HttpTransport(collector.url + "/telemetry/", key=key)
    for _ in range(2):
        assert transport.send(b"{}", timeout=5).body == ACCEPTED
    for method, path, headers, body in collector.requests:
        assert (method, path, body) == ("POST", "/telemetry/v1/reports", b"{}")
        assert re.fullmatch(r"rappor-client/[0-9.]+(rc[0-9]+)?", headers.pop("User-Agent"))
        assert headers.pop("Authorization", None) == (None if key is None else f"Bearer {key}")
        assert headers == {
            "Host": collector.url.removeprefix("http://"),
            "Accept-Encoding": "identity",
            "Connection": "close",
            "Content-Length": "2",
            "Content-Type": "application/json",
        }
    assert "sesame" not in repr(transport)


def test_client_sends_each_report_on_a_connection_of_its_own(
    collector: Collector, home: Home
) -> None:
    """Three queued reports leave as three uploads on three connections.

    The server would allow more requests on a connection, as HTTP/1.1 servers do.
    """
    client = home.open(*build_metrics(3), collector=collector.url, upload_key="k")
    for i in range(3):
        client.record(f"page{i}", "x")
    finish_days(client)
    assert client.flush()
    assert client.event_counts()["accepted"] == 3
    uploads = [json.loads(body) for *_, body in collector.requests]
    sent = [[report["metric"] for report in upload["reports"]] for upload in uploads]
    assert sent == [["page0"], ["page1"], ["page2"]]
    assert len({upload["id"] for upload in uploads}) == 3
    assert len(collector.connections) == 3


def test_long_uploads_are_compressed(collector: Collector) -> None:
    """Long uploads are compressed, short uploads are not.

    An upload that is too compressible is sent as it is, because a collector refuses to decompress
    it: such a body may be an attack.
    """
    transport = HttpTransport(collector.url)
    short = b"{}"
    long = json.dumps([f"report {i}" for i in range(500)]).encode()
    repetitive = json.dumps(["report"] * 500).encode()
    for upload in (short, long, repetitive):
        transport.send(upload, timeout=5)
    encodings = [headers.get("Content-Encoding") for _, _, headers, _ in collector.requests]
    bodies = [body for *_, body in collector.requests]
    assert encodings == [None, "gzip", None]
    assert [bodies[0], gzip.decompress(bodies[1]), bodies[2]] == [short, long, repetitive]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120),
        ("0", 0),
        ("Fri, 01 Jan 2100 00:00:00 GMT", 1e8),  # 1e8 stands for any larger number
        ("Friday, 01-Jan-99 00:00:00 GMT", 0),
        ("Fri, 01 Jan 1999 00:00:00 GMT", 0),
        ("Fri Jan  1 00:00:00 1999", 0),
        *((text, None) for text in ("soon", "-5", None)),
    ],
)
def test_retry_after_is_parsed(
    header: str | None, seconds: float | None, collector: Collector
) -> None:
    """Retry-After contains seconds or a date. A past date means 0, any other text means no wait."""
    collector.status = 503
    collector.headers = {} if header is None else {"Retry-After": header}
    response = HttpTransport(collector.url).send(b"{}", timeout=5)
    retry_after = response.retry_after
    assert response.status == 503
    assert (None if retry_after is None else min(retry_after, 1e8)) == seconds


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize(
    "form", ["%a, %d %b %Y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y", "%a, %d %b %Y %H:%M:%S"]
)
def test_date_is_in_utc_in_every_time_zone(
    form: str, zone: str, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A date is in UTC in every time zone of the device, also in the asctime format."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        date = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=600)
        collector.status = 503
        collector.headers = {"Retry-After": date.strftime(form)}
        retry_after = HttpTransport(collector.url).send(b"{}", timeout=5).retry_after
    finally:
        monkeypatch.undo()
        time.tzset()
    assert retry_after is not None
    assert 500 < retry_after <= 600


@pytest.mark.parametrize("statuses", [(100,), (102,), (103, 103), (100, 199, 103)])
def test_interim_responses_are_skipped(statuses: tuple[int, ...], collector: Collector) -> None:
    """All statuses 1xx are skipped, with their header fields."""
    collector.interim = statuses
    assert HttpTransport(collector.url).send(b"{}", timeout=5).body == ACCEPTED


def test_network_failures_are_upload_errors(collector: Collector) -> None:
    """A refused connection and a timeout raise UploadError with the type of the failure."""
    # The socket is bound and does not listen. So no other test gets its port, and the system
    # refuses connections.
    with socket.socket() as closed_port:
        closed_port.bind(("127.0.0.1", 0))
        closed_url = f"http://127.0.0.1:{closed_port.getsockname()[1]}"
        with pytest.raises(UploadError, match="the collector was not reached: ConnectionRefused"):
            HttpTransport(closed_url).send(b"{}", timeout=5)
    collector.pause = 1.0
    slow = HttpTransport(collector.url)
    with pytest.raises(UploadError, match="not reached: TimeoutError"):
        slow.send(b"{}", timeout=0.05)
    collector.pause = 0.0
    assert slow.send(b"{}", timeout=5).status == 200


# Addresses


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("https://example.org", "example.org", 443, ""),
        ("https://example.org:8443/telemetry/", "example.org", 8443, "/telemetry"),
        ("https://[2001:db8::5]", "2001:db8::5", 443, ""),
        ("https://[2001:db8::5]:99", "2001:db8::5", 99, ""),
        ("http://[::1]:8080", "::1", 8080, ""),
        ("http://localhost", "localhost", 80, ""),
        ("HTTPS://Example.ORG", "example.org", 443, ""),
        ("https://example.org/v1/reports", "example.org", 443, ""),
        ("https://example.org/telemetry/v1/reports/", "example.org", 443, "/telemetry"),
        ("https://example.org/telemetry//v1/reports", "example.org", 443, "/telemetry"),
        ("https://example.org/v1/reports/v1", "example.org", 443, "/v1/reports/v1"),
    ],
)
def test_right_addresses_are_parsed(url: str, host: str, port: int, path: str) -> None:
    """Addresses may have IPv6 in brackets, ports, paths and capital letters.

    The path of the endpoint, `/v1/reports`, is removed from the end of an address.
    """
    address = parse_collector(url)
    assert (address.host, address.port, address.path) == (host, port, path)


@pytest.mark.parametrize(
    ("message", "urls"),
    [
        ("collector must be an https address .*, got http", ["http://example.org"]),
        ("collector must be an https address .*, got ftp", ["ftp://example.org"]),
        (
            "collector must be an https address .*, got no scheme",
            ["example.org", "localhost:8080", ""],
        ),
        ("collector must have a host name", ["https://", "https:///v1/reports"]),
        ("collector must have no user name", ["https://me:secret@example.org"]),
        (
            "collector must be an address without",
            [f"https://example.org{more}" for more in ("/?key=1", "/?", "#top")],
        ),
        (
            "collector must have a port in",
            [f"https://example.org:{port}" for port in ("99999", "0", "abc", "")],
        ),
        ("without spaces", ["https://example.org\r\nX: y", " https://example.org"]),
        ("punycode", ["https://b\u00fccher.example"]),
        ("collector must have a", ["https://2001:db8::5"]),
        (
            "IPv6 in brackets",
            [f"https://[{host}" for host in ("2001:db8::5", "fe80::1%25eth0]", "example.org]")],
        ),
    ],
)
def test_wrong_addresses_are_refused_at_opening(message: str, urls: list[str], home: Home) -> None:
    """A wrong address raises ParamsError at opening, without a password in the message."""
    for url in urls:
        with pytest.raises(ParamsError, match=message) as caught:
            home.open(collector=url)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "authority"),
    [
        ("proxy", "proxy:80"),
        ("http://proxy", "proxy:80"),
        ("proxy:3128", "proxy:3128"),
        ("http://[::1]:3128/", "[::1]:3128"),
        ("http://me:pass@[::1]", "[::1]:80"),
        ("https://proxy", None),
        ("socks5://proxy:1080", None),
        ("http://proxy:abc", None),
    ],
)
def test_proxies_are_parsed(text: str, authority: str | None) -> None:
    """An address of a proxy may lack scheme and port. A proxy of another kind is refused."""
    if authority is not None:
        assert parse_proxy(text).authority == authority
        return
    with pytest.raises(ParamsError, match="the system's proxy must"):
        parse_proxy(text)


# Servers whose responses never end


class EndlessServer(socketserver.ThreadingTCPServer):
    """A server that sends first bytes, and then other bytes again and again until the test ends."""

    daemon_threads = True

    def __init__(self, first_bytes: bytes, repeated_bytes: bytes) -> None:
        super().__init__(("127.0.0.1", 0), EndlessHandler)
        self.first_bytes, self.repeated_bytes = first_bytes, repeated_bytes
        self.is_over = threading.Event()

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class EndlessHandler(socketserver.BaseRequestHandler):
    """One connection of the endless server."""

    server: EndlessServer

    def handle(self) -> None:
        """Send bytes every 10 ms without an end."""
        with contextlib.suppress(OSError):
            self.request.sendall(self.server.first_bytes)
            while not self.server.is_over.wait(0.01):
                self.request.sendall(self.server.repeated_bytes)


ENDLESS_RESPONSES = {
    "hang": (b"", b""),
    "head": (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"),
    "interim": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body": (b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n", b"x"),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
}
"""Contains, by the part of the response without an end: first bytes, and repeated bytes."""


@pytest.mark.parametrize("kind", ENDLESS_RESPONSES)
def test_flush_ends_in_time_beside_an_endless_server(kind: str, home: Home) -> None:
    """A flush ends with its timeout beside a server that never ends its response."""
    server = EndlessServer(*ENDLESS_RESPONSES[kind])
    with run_server(server):
        client = home.open(collector=server.url)
        record_days(client, "page", "x")
        result = client.flush(timeout=0.2)
        server.is_over.set()
    assert result.reason is FlushReason.UNREACHABLE
    assert result.detail == "the collector was not reached: TimeoutError"
    assert client.queued_count() == 1


def test_attempt_that_a_flush_cuts_short_has_no_backoff(home: Home) -> None:
    """An attempt that the timeout of a flush has cut short leads to no backoff.

    Such a timeout is no failure of the collector, which had less time than in a background upload.
    """
    server = EndlessServer(b"", b"")
    with run_server(server):
        client = home.open(collector=server.url, coins=constant_coins(2**32 - 1))
        record_days(client, "page", "x")
        assert not client.flush(timeout=0.05)
        server.is_over.set()
    (upload,) = peek(home.folder).tried_uploads
    assert upload.attempts == 1
    assert upload.backoff_until <= home.clock()


def test_close_ends_the_exchange_of_another_thread() -> None:
    """`close` ends a request of another thread that would never end."""
    server = EndlessServer(b"", b"")
    errors: list[UploadError] = []
    with run_server(server):
        transport = HttpTransport(server.url)

        def send() -> None:
            with pytest.raises(UploadError) as caught:
                transport.send(b"{}", timeout=1e6)
            errors.append(caught.value)

        thread = threading.Thread(target=send)
        thread.start()
        while thread.is_alive():
            transport.close()
            thread.join(0.01)
        server.is_over.set()
    assert len(errors) == 1


# TLS and proxies


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt, also if a shell runs the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_signal_ends_the_exchange() -> None:
    """Ctrl-C during a request closes the connection, so no exchange goes on in its thread.

    The server never responds. It sends the signal when the request is complete. It then reads no
    byte, which is the end of the connection.
    """
    last_reads: list[bytes] = []

    def serve_silently(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            request = b""
            while not request.endswith(b"\r\n\r\nx"):  # head and body may arrive separately
                request += connection.recv(1 << 16)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            connection.settimeout(60)
            last_reads.append(connection.recv(1 << 16))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server_thread = threading.Thread(target=serve_silently, args=(listening,))
        server_thread.start()
        transport = HttpTransport(f"http://127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(KeyboardInterrupt):
            transport.send(b"x", timeout=60.0)
        server_thread.join(60)
    assert last_reads == [b""]


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[Collector, Path]]:
    """Run a server over TLS; yield the server and the path of its certificate."""
    cert, key = write_certificate(tmp_path)
    server = Collector()
    server.context.load_cert_chain(cert, key)
    server.socket = server.context.wrap_socket(server.socket, server_side=True)
    with run_server(server):
        yield server, cert


def test_https_checks_the_certificate(
    secure: tuple[Collector, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown certificate raises UploadError, a trusted one does not."""
    server, cert = secure
    url = f"https://127.0.0.1:{server.server_address[1]}"
    with pytest.raises(UploadError, match="SSLCertVerificationError"):
        HttpTransport(url).send(b"{}", timeout=5)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    transport = HttpTransport(url)
    assert transport.send(b"{}", timeout=5).body == ACCEPTED


def test_proxy_of_the_system_is_used(
    secure: tuple[Collector, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTPS uses a tunnel of the proxy, with its login, and obeys no_proxy."""
    server, cert = secure
    url = f"https://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    proxy = Collector()
    proxy.context = server.context
    with run_server(proxy):
        address = proxy.url.removeprefix("http://")
        monkeypatch.setenv("https_proxy", f"http://user:pa%20ss@{address}")
        for no_proxy, n_tunnels in (("", 1), ("", 2), ("127.0.0.1", 2)):
            proxy.tunnel_status = 199 + n_tunnels  # every 2xx accepts
            proxy.interim = (103, 100)[:n_tunnels]  # every 1xx is skipped
            monkeypatch.setenv("no_proxy", no_proxy)
            assert HttpTransport(url).send(b"{}", timeout=5).body == ACCEPTED
            assert len(proxy.requests) == 2 * n_tunnels  # one tunnel for each upload
    (method, target, proxy_headers, _), (_, path, headers, body) = proxy.requests[:2]
    assert (method, target) == ("CONNECT", url.removeprefix("https://"))
    assert proxy_headers["Proxy-Authorization"] == "Basic dXNlcjpwYSBzcw=="  # user:pa ss
    assert (path, body) == ("/v1/reports", b"{}")
    assert "Proxy-Authorization" not in headers  # the collector does not get the proxy's password
