"""The transport over real sockets: redirects, long and slow responses, and no server."""

from __future__ import annotations

import http.server
import socket
import time

import pytest
from sockets import run_handler

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
