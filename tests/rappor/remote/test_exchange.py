"""The transport against real sockets: redirects, long answers, slow ones, nobody there."""

from __future__ import annotations

import http.server
import socket
import time

import pytest
from sockets import answering

from rappor.base.errors import CollectorError
from rappor.remote.exchange import Ask, HttpExchange


def ask(seconds: float = 30.0) -> Ask:
    """Return a request with a token."""
    return Ask(
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
