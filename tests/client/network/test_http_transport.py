"""The default transport, against real sockets: plain, over TLS, and through a proxy."""

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
from days import finish_days, metrics_of, record_days
from devices import Home, peek
from rappor_client import FlushReason, UploadError
from rappor_client.network.address import parse_collector, parse_proxy
from rappor_client.network.http_transport import HttpTransport
from rappor_client.testing import constant_coins
from sockets import certificate, serving

from rappor.base.errors import ParamsError

ACCEPTED = b'{"reports":[{"status":"accepted"}]}'


class Collector(http.server.ThreadingHTTPServer):
    """Remembers requests and answers as told."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.connections: set[Any] = set()
        self.status = 200
        self.answer = ACCEPTED
        self.headers: dict[str, str] = {}
        self.interim: tuple[int, ...] = ()
        self.tunnel_status = 200
        self.pause = 0.0
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Collector

    def do_POST(self) -> None:
        """Remember the request and answer it."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append((self.command, self.path, dict(self.headers), body))
        self.server.connections.add(self.client_address)
        time.sleep(self.server.pause)
        for status in self.server.interim:
            self.wfile.write(f"HTTP/1.1 {status} Interim\r\nLink: </x>\r\n\r\n".encode())
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.answer)))
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        with contextlib.suppress(BrokenPipeError):  # who is too slow is left alone
            self.end_headers()
            self.wfile.write(self.server.answer)

    def do_CONNECT(self) -> None:
        """Be a proxy, and then the collector at the end of its tunnel."""
        self.server.requests.append((self.command, self.path, dict(self.headers), b""))
        self.send_response(self.server.tunnel_status)
        self.end_headers()
        self.connection = self.server.context.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", buffering=0)

    def finish(self) -> None:
        """Close the tunnel, too."""
        super().finish()
        self.connection.close()

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector on a port of its own."""
    server = Collector()
    with serving(server):
        yield server


@pytest.mark.parametrize("key", [None, "sesame"])
def test_request_says_no_more_than_it_must(key: str | None, collector: Collector) -> None:
    """Path, type, length, host, the library's name and version, and the key; no cookie."""
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
    """Three reports that waited together are three uploads, though the collector keeps lines."""
    client = home.open(*metrics_of(3), collector=collector.url, upload_key="k")
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


def test_gzip_where_it_pays(collector: Collector) -> None:
    """Long uploads are compressed; short ones are not, nor what no collector would unpack."""
    transport = HttpTransport(collector.url)
    long = json.dumps([f"report {i}" for i in range(500)]).encode()
    same = json.dumps(["report"] * 500).encode()
    for body in (b"{}", long, same):
        transport.send(body, timeout=5)
    (_, _, plain, short_body), (_, _, packed, long_body), repeated = collector.requests
    assert "Content-Encoding" not in plain
    assert short_body == b"{}"
    assert "Content-Encoding" not in repeated[2]
    assert repeated[3] == same
    assert packed["Content-Encoding"] == "gzip"
    assert gzip.decompress(long_body) == long


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("120", 120),
        ("0", 0),
        ("Fri, 01 Jan 2100 00:00:00 GMT", 1e8),  # or more
        ("Friday, 01-Jan-99 00:00:00 GMT", 0),
        ("Fri, 01 Jan 1999 00:00:00 GMT", 0),
        ("Fri Jan  1 00:00:00 1999", 0),
        *((nonsense, None) for nonsense in ("soon", "-5", None)),
    ],
)
def test_retry_after_is_read(
    written: str | None, seconds: float | None, collector: Collector
) -> None:
    """Seconds are, and a date: a past one is zero; nonsense is not."""
    collector.status = 503
    collector.headers = {} if written is None else {"Retry-After": written}
    answer = HttpTransport(collector.url).send(b"{}", timeout=5)
    found = answer.retry_after
    assert (answer.status, found if found is None else min(found, 1e8)) == (503, seconds)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize(
    "form", ["%a, %d %b %Y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y", "%a, %d %b %Y %H:%M:%S"]
)
def test_a_date_is_utc_wherever_the_device_is(
    form: str, zone: str, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without a zone, as in the asctime format."""
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
    """Whatever they are, and with header fields of their own."""
    collector.interim = statuses
    assert HttpTransport(collector.url).send(b"{}", timeout=5).body == ACCEPTED


def test_network_failures_are_upload_errors(collector: Collector) -> None:
    """Refused, too slow, cut: each says only its kind."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UploadError, match="the collector was not reached: ConnectionRefused"):
        HttpTransport(f"http://127.0.0.1:{port}").send(b"{}", timeout=5)
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
def test_right_addresses_are_read(url: str, host: str, port: int, path: str) -> None:
    """IPv6 in brackets, ports, paths; names in small letters."""
    address = parse_collector(url)
    assert (address.host, address.port, address.path) == (host, port, path)


@pytest.mark.parametrize(
    ("told", "urls"),
    [
        ("collector must be an https address .*, got http", ["http://example.org"]),
        ("collector must be an https address .*, got ftp", ["ftp://example.org"]),
        ("collector must be an https address .*, got no scheme", ["example.org"]),
        ("collector must be an https address", ["https://", ""]),
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
def test_wrong_addresses_are_refused_at_opening(told: str, urls: list[str], home: Home) -> None:
    """By one sentence, which shows no password."""
    for url in urls:
        with pytest.raises(ParamsError, match=told) as caught:
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
def test_proxies_are_read(text: str, authority: str | None) -> None:
    """With or without scheme and port; those of other kinds are not spoken to in plain text."""
    if authority is not None:
        assert parse_proxy(text).authority == authority
        return
    with pytest.raises(ParamsError, match="the system's proxy must"):
        parse_proxy(text)


# Servers that never end


class Endless(socketserver.ThreadingTCPServer):
    """Says one thing, and then another again and again, until the test is over."""

    daemon_threads = True

    def __init__(self, once: bytes, again: bytes) -> None:
        super().__init__(("127.0.0.1", 0), EndlessHandler)
        self.once, self.again = once, again
        self.is_over = threading.Event()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class EndlessHandler(socketserver.BaseRequestHandler):
    """One connection."""

    server: Endless

    def handle(self) -> None:
        """Never let a read wait for long, and never end."""
        with contextlib.suppress(OSError):
            self.request.sendall(self.server.once)
            while not self.server.is_over.wait(0.01):
                self.request.sendall(self.server.again)


ENDLESS = {
    "hang": (b"", b""),
    "head": (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"),
    "interim": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body": (b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n", b"x"),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_flush_ends_with_its_time_whatever_the_server_does(kind: str, home: Home) -> None:
    """The server goes on until flush() has returned: it returns, or this test never ends."""
    server = Endless(*ENDLESS[kind])
    with serving(server):
        client = home.open(collector=server.url)
        record_days(client, "page", "x")
        flushed = client.flush(timeout=0.2)
        server.is_over.set()
    assert flushed.reason is FlushReason.UNREACHABLE
    assert flushed.detail == "the collector was not reached: TimeoutError"
    assert client.queued_count() == 1


def test_time_that_was_the_callers_own_earns_no_waiting(home: Home) -> None:
    """The collector did not fail within the time that a background upload has."""
    server = Endless(b"", b"")
    with serving(server):
        client = home.open(collector=server.url, coins=constant_coins(2**32 - 1))
        record_days(client, "page", "x")
        assert not client.flush(timeout=0.05)
        server.is_over.set()
    (pending,) = peek(home.folder).tried_uploads
    assert pending.attempts == 1
    assert pending.backoff_until <= home.clock()


def test_closing_severs_the_exchange_under_way() -> None:
    """A request that would never end ends when another thread closes the transport."""
    server = Endless(b"", b"")
    met: list[UploadError] = []
    with serving(server):
        transport = HttpTransport(server.url)

        def ask() -> None:
            with pytest.raises(UploadError) as caught:
                transport.send(b"{}", timeout=1e6)
            met.append(caught.value)

        thread = threading.Thread(target=ask)
        thread.start()
        while thread.is_alive():
            transport.close()
            thread.join(0.01)
        server.is_over.set()
    assert len(met) == 1


# TLS and proxies


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises, also where the tests were started in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_exchange_whose_wait_a_signal_has_ended_is_severed() -> None:
    """Ctrl-C while the collector is silent: its end is seen there, and no exchange goes on."""

    def silent(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            received = b""
            while not received.endswith(b"\r\n\r\nx"):  # its head and body may come apart
                received += connection.recv(1 << 16)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            connection.settimeout(60)
            ended.append(connection.recv(1 << 16))

    ended: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=silent, args=(listening,))
        serving.start()
        transport = HttpTransport(f"http://127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(KeyboardInterrupt):
            transport.send(b"x", timeout=60.0)
        serving.join(60)
    assert ended == [b""]


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[Collector, Path]]:
    """A collector over TLS, and the certificate to trust."""
    cert, key = certificate(tmp_path)
    server = Collector()
    server.context.load_cert_chain(cert, key)
    server.socket = server.context.wrap_socket(server.socket, server_side=True)
    with serving(server):
        yield server, cert


def test_https_checks_the_certificate(
    secure: tuple[Collector, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown one is a failure of the network, a trusted one is not."""
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
    """HTTPS goes through its tunnel, with its login; no_proxy is heeded."""
    server, cert = secure
    url = f"https://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    proxy = Collector()
    proxy.context = server.context
    with serving(proxy):
        address = proxy.url.removeprefix("http://")
        monkeypatch.setenv("https_proxy", f"http://user:pa%20ss@{address}")
        for no_proxy, n_tunnels in (("", 1), ("", 2), ("127.0.0.1", 2)):
            proxy.tunnel_status = 199 + n_tunnels  # every 2xx accepts
            monkeypatch.setenv("no_proxy", no_proxy)
            assert HttpTransport(url).send(b"{}", timeout=5).body == ACCEPTED
            assert len(proxy.requests) == 2 * n_tunnels  # one tunnel for each upload
    (connect, where, headers, _), (_, path, inside, body) = proxy.requests[:2]
    assert (connect, where) == ("CONNECT", url.removeprefix("https://"))
    assert headers["Proxy-Authorization"] == "Basic dXNlcjpwYSBzcw=="
    assert (path, body) == ("/v1/reports", b"{}")
    assert "Proxy-Authorization" not in inside
