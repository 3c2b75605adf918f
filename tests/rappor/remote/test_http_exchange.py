"""The transport over real sockets: redirects, long and slow responses, and no server."""

from __future__ import annotations

import http.server
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
from sockets import run_handler, write_certificate

from rappor.base.errors import CollectorError, ParamsError
from rappor.remote.http_exchange import HttpExchange, HttpRequest


def make_request(seconds: float = 30.0) -> HttpRequest:
    """Return a request with a token."""
    return HttpRequest(
        method="GET", path="/v1/metrics", headers={"Authorization": "Bearer x"}, seconds=seconds
    )


def test_a_response_is_complete() -> None:
    """The exchange returns status, headers and body of a response with any status.

    The path of the request is appended to the path of the address, because a proxy may serve the
    collector under a path. Status 418 is one that no collector uses.
    """
    received: list[str] = []

    def handle(request: http.server.BaseHTTPRequestHandler) -> None:
        received.extend([request.path, request.headers["Authorization"]])
        request.send_response(418)
        request.send_header("Location", "/there")
        request.end_headers()
        request.wfile.write(b"tea")

    with run_handler(handle) as url:
        response = HttpExchange(f"{url}/base/")(make_request())
    assert (response.status, response.headers["location"], response.body) == (418, "/there", b"tea")
    assert received == ["/base/v1/metrics", "Bearer x"]


@pytest.mark.parametrize("status", [301, 303, 308])
def test_no_redirect_is_followed(status: int) -> None:
    """A redirect is returned like any other response and not followed.

    The target may be another host, which would receive the token.
    """
    paths: list[str] = []

    def handle(request: http.server.BaseHTTPRequestHandler) -> None:
        paths.append(request.path)
        request.send_response(status)
        request.send_header("Location", "/elsewhere")
        request.end_headers()

    with run_handler(handle) as url:
        assert HttpExchange(f"{url}/base/")(make_request()).status == status
    assert paths == ["/base/v1/metrics"]


@pytest.mark.parametrize("statuses", [(100,), (102,), (103, 103), (100, 199, 103)])
def test_interim_responses_are_skipped(statuses: tuple[int, ...]) -> None:
    """All statuses 1xx are skipped, with their header fields."""

    def handle(request: http.server.BaseHTTPRequestHandler) -> None:
        for status in statuses:
            request.wfile.write(f"HTTP/1.1 {status} Interim\r\nLink: </x>\r\n\r\n".encode())
        request.send_response(200)
        request.end_headers()
        request.wfile.write(b"final")

    with run_handler(handle) as url:
        response = HttpExchange(url)(make_request())
    assert (response.status, response.body) == (200, b"final")


@pytest.mark.parametrize(
    ("answers", "is_accepted"),
    [
        *((f"HTTP/1.1 {status} x\r\nVia: y\r\n\r\n", True) for status in (200, 201, 204, 299)),
        ("HTTP/1.1 103 x\r\nLink: </x>\r\n\r\nHTTP/1.1 100 x\r\n\r\nHTTP/1.0 202\r\n\r\n", True),
        *((f"HTTP/1.1 {status} x\r\n\r\n", False) for status in (302, 403, 407, 502)),
    ],
)
def test_a_tunnel_of_the_proxy_is_used(
    answers: str, is_accepted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every status 2xx accepts a tunnel, also after interim responses."""
    cert, key = write_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    def serve(listening: socket.socket) -> None:
        plain, _ = listening.accept()
        with plain:
            assert plain.recv(1 << 16).startswith(b"CONNECT 127.0.0.1:8443 HTTP/1.")
            plain.sendall(answers.encode())
            if is_accepted:
                with context.wrap_socket(plain, server_side=True) as tls:
                    tls.recv(1 << 16)
                    tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{listening.getsockname()[1]}")
        server = threading.Thread(target=serve, args=(listening,))
        server.start()
        exchange = HttpExchange("https://127.0.0.1:8443")
        if is_accepted:
            assert exchange(make_request()).body == b"{}"
        else:
            with pytest.raises(CollectorError, match="Tunnel connection failed"):
                exchange(make_request())
        server.join()


@pytest.mark.parametrize(
    "address",
    [
        "http://user:secret@h:0",
        *("http://:3128", "http://h:port", "h:99999", "http://h:0", "http://h:", "http://"),
        *(
            "http://[::1",
            "ftp://h",
            "socks5://h:1080",
            "http://two words:1",
            "http://m\u00fcnchen:1",
        ),
    ],
)
def test_a_wrong_address_of_a_proxy_is_named(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is about the proxy, and not about the address of the collector."""
    monkeypatch.setenv("https_proxy", address)
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(
        CollectorError, match=r"the system's proxy must be an http address"
    ) as error:
        HttpExchange("https://collector.invalid")(make_request())
    assert "secret" not in str(error.value)


def test_an_endless_response_is_refused() -> None:
    """A response is limited in bytes and in seconds.

    A wrong or hostile server may send bytes without end, fast (`flood`) or so slowly that no single
    read times out: many bytes at a time (`drip`), or one byte at a time (`trickle`). The server
    would trickle for a minute, and the exchange must end long before.
    """

    def flood(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        while True:
            request.wfile.write(bytes(100_000))

    def drip(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        for _ in range(600):
            request.wfile.write(b" " * 70_000)
            time.sleep(0.1)

    def trickle(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(500)
        request.send_header("Content-Length", "600")
        request.end_headers()
        for _ in range(600):
            request.wfile.write(b" ")
            time.sleep(0.1)

    with run_handler(flood) as url, pytest.raises(CollectorError, match="at most 1,000,000 bytes"):
        HttpExchange(f"{url}/base/", most_bytes=1_000_000)(make_request())
    for handler in (drip, trickle):
        start = time.monotonic()
        with run_handler(handler) as url, pytest.raises(CollectorError, match="took too long"):
            HttpExchange(f"{url}/base/")(make_request(0.5))
        assert time.monotonic() - start < 30


def test_a_response_that_ends_early_is_refused() -> None:
    """A body shorter than the announced length raises CollectorError with any status.

    Without the check, the message would say that the address may be wrong.
    """
    for status in (200, 500):

        def stop_early(request: http.server.BaseHTTPRequestHandler, status: int = status) -> None:
            request.send_response(status)
            request.send_header("Content-Length", "600")
            request.end_headers()
            request.wfile.write(b"{}")

        early = pytest.raises(CollectorError, match="ended before the response was complete")
        with run_handler(stop_early) as url, early:
            HttpExchange(f"{url}/base/")(make_request())


def test_a_server_without_a_response_raises_collector_error() -> None:
    """A closed port and a server that never responds raise CollectorError with the reason."""

    def wait_forever(_: http.server.BaseHTTPRequestHandler) -> None:
        time.sleep(5)

    # The socket is bound and does not listen, so the system refuses connections to its port.
    with socket.socket() as closed_port:
        closed_port.bind(("127.0.0.1", 0))
        with pytest.raises(CollectorError, match=r"was not reached: .*refused"):
            HttpExchange(f"http://127.0.0.1:{closed_port.getsockname()[1]}")(make_request())
    timed_out = pytest.raises(CollectorError, match="was not reached: timed out")
    with run_handler(wait_forever) as url, timed_out:
        HttpExchange(f"{url}/base/")(make_request(0.3))


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("http://collector:8080", "http"),
        ("10.0.0.7:80", "no scheme"),
        ("ftp://a.example", "ftp"),
    ],
)
def test_a_refused_address_names_its_scheme(url: str, scheme: str) -> None:
    """The message about a wrong address names its scheme, and does not repeat the address.

    An address without "https://" is the most frequent mistake. An address may contain a password.
    """
    with pytest.raises(ParamsError, match=f"got {scheme}: write for example") as error:
        HttpExchange(url)
    assert url.rpartition("/")[2] not in str(error.value)


@pytest.mark.parametrize(
    ("url", "is_accepted"),
    [
        ("http://collector:8080", True),
        ("https://collector:8080", True),
        ("http://collector.example.org", False),
        ("http://192.0.2.1", False),
        ("http://134744072", False),
        ("http://[::1].example.org", False),
        ("http://[::1]example.org:8080", False),
        ("http://[::1]:8080", True),
        ("http://0x8080808", False),
        ("http://collector.", False),
        ("http://[2001:db8::1]", False),
    ],
)
def test_http_is_accepted_to_names_without_a_dot_only(url: str, is_accepted: bool) -> None:
    """`allow_http` accepts names without a dot and loopback addresses only.

    The flag is for services of one container network, whose names have no dot. On the internet,
    everybody on the way could read the token. Numbers such as 134744072 or 0x8080808 have no dot,
    but are the IPv4 address 8.8.8.8.
    """
    if is_accepted:
        assert repr(HttpExchange(url, allow_http=True)).startswith("HttpExchange(")
    else:
        with pytest.raises(ParamsError, match="url must be an https address"):
            HttpExchange(url, allow_http=True)
