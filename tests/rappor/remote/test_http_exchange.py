"""The transport against real sockets: redirects, long answers, slow ones, nobody there."""

from __future__ import annotations

import http.server
import socket
import time

import pytest
from sockets import answering

from rappor.base.errors import CollectorError, ParamsError
from rappor.remote.http_exchange import HttpExchange, HttpRequest


def ask(seconds: float = 30.0) -> HttpRequest:
    """Return a request with a token."""
    return HttpRequest(
        method="GET", path="/v1/metrics", headers={"Authorization": "Bearer x"}, seconds=seconds
    )


def test_an_answer_is_whole() -> None:
    """Status, headers and body of any status; the path follows that of the address."""
    seen: list[str] = []

    def handle(request: http.server.BaseHTTPRequestHandler) -> None:
        seen.extend([request.path, request.headers["Authorization"]])
        request.send_response(418)
        request.send_header("Location", "/there")
        request.end_headers()
        request.wfile.write(b"tea")

    with answering(handle) as url:
        answer = HttpExchange(f"{url}/base/")(ask())
    assert (answer.status, answer.headers["location"], answer.body) == (418, "/there", b"tea")
    assert seen == ["/base/v1/metrics", "Bearer x"]


@pytest.mark.parametrize("status", [301, 303, 308])
def test_no_redirect_is_followed(status: int) -> None:
    """The token reaches one host only; the redirect is the answer."""
    paths: list[str] = []

    def handle(request: http.server.BaseHTTPRequestHandler) -> None:
        paths.append(request.path)
        request.send_response(status)
        request.send_header("Location", "/elsewhere")
        request.end_headers()

    with answering(handle) as url:
        assert HttpExchange(f"{url}/base/")(ask()).status == status
    assert paths == ["/base/v1/metrics"]


def test_an_answer_without_end_is_refused() -> None:
    """Neither memory nor patience is without bounds."""

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
        HttpExchange(f"{url}/base/", most_bytes=1_000_000)(ask())
    with answering(drip) as url, pytest.raises(CollectorError, match="took too long"):
        HttpExchange(f"{url}/base/")(ask(0.5))


def test_nobody_there_is_one_sentence() -> None:
    """No port, and no answer in time."""

    def silent(_: http.server.BaseHTTPRequestHandler) -> None:
        time.sleep(5)

    with socket.socket() as deaf:  # bound, and listening to nobody
        deaf.bind(("127.0.0.1", 0))
        with pytest.raises(CollectorError, match=r"was not reached: .*refused"):
            HttpExchange(f"http://127.0.0.1:{deaf.getsockname()[1]}")(ask())
    timed_out = pytest.raises(CollectorError, match="was not reached: timed out")
    with answering(silent) as url, timed_out:
        HttpExchange(f"{url}/base/")(ask(0.3))


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("http://collector:8080", "http"),
        ("10.0.0.7:80", "no scheme"),
        ("ftp://a.example", "ftp"),
    ],
)
def test_a_refused_address_names_its_scheme(url: str, scheme: str) -> None:
    """An address without "http://" is the most frequent mistake; the address is not repeated."""
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
        ("http://[2001:db8::1]", False),
    ],
)
def test_http_is_accepted_to_names_without_a_dot_only(url: str, is_accepted: bool) -> None:
    """The flag is for the services of one container network, not for the internet."""
    if is_accepted:
        assert "collector" in repr(HttpExchange(url, allow_http=True))
    else:
        with pytest.raises(ParamsError, match="url must be an https address"):
            HttpExchange(url, allow_http=True)
