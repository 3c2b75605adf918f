"""The transport over real sockets: redirects, long and slow responses, and no server."""

from __future__ import annotations

import http.server
import socket
import time

import pytest
from sockets import answering

from rappor.base.errors import CollectorError, ParamsError
from rappor.remote.http_exchange import HttpExchange, HttpRequest


def make_request(seconds: float = 30.0) -> HttpRequest:
    """Return a request with a token."""
    return HttpRequest(
        method="GET", path="/v1/metrics", headers={"Authorization": "Bearer x"}, seconds=seconds
    )


def test_a_response_is_complete() -> None:
    """Status, headers and body are returned for any status.

    The path follows the path of the address.
    """
    seen: list[str] = []

    def handle(request: http.server.BaseHTTPRequestHandler) -> None:
        seen.extend([request.path, request.headers["Authorization"]])
        request.send_response(418)
        request.send_header("Location", "/there")
        request.end_headers()
        request.wfile.write(b"tea")

    with answering(handle) as url:
        response = HttpExchange(f"{url}/base/")(make_request())
    assert (response.status, response.headers["location"], response.body) == (418, "/there", b"tea")
    assert seen == ["/base/v1/metrics", "Bearer x"]


@pytest.mark.parametrize("status", [301, 303, 308])
def test_no_redirect_is_followed(status: int) -> None:
    """The redirect is the response, so the token reaches one host only."""
    paths: list[str] = []

    def handle(request: http.server.BaseHTTPRequestHandler) -> None:
        paths.append(request.path)
        request.send_response(status)
        request.send_header("Location", "/elsewhere")
        request.end_headers()

    with answering(handle) as url:
        assert HttpExchange(f"{url}/base/")(make_request()).status == status
    assert paths == ["/base/v1/metrics"]


def test_an_endless_response_is_refused() -> None:
    """The response is limited in bytes and in time."""

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

    with answering(flood) as url, pytest.raises(CollectorError, match="at most 1,000,000 bytes"):
        HttpExchange(f"{url}/base/", most_bytes=1_000_000)(make_request())
    with answering(drip) as url, pytest.raises(CollectorError, match="took too long"):
        HttpExchange(f"{url}/base/")(make_request(0.5))


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
    with answering(wait_forever) as url, timed_out:
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
    """An address without "http://" is the most frequent mistake.

    The message does not repeat the address.
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
    """The flag is for the services of one container network, not for the internet."""
    if is_accepted:
        assert repr(HttpExchange(url, allow_http=True)).startswith("HttpExchange(")
    else:
        with pytest.raises(ParamsError, match="url must be an https address"):
            HttpExchange(url, allow_http=True)
