"""Uploads past the application: which take that road, and that nobody can tell it from outside."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from collectors import REGISTRY, Running, report_of, serving, upload_of

from rappor.protocol.wire import Upload

HEAD = b"POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
PROGRAM = """
import asyncio, dataclasses, sys
from collectors import upload_of
from rappor_server.cli.serve import prepare
from rappor_server.collector import Collector
from rappor_server.http.direct_uploads import DirectUploads
from rappor_server.http.slow_clients import DIRECT, METRICS, SETTINGS, PunctualProtocol
from rappor_server.request_limits import RateLimit
from rappor_server.settings import Settings
from uvicorn import Config
from uvicorn.server import ServerState

async def application(scope, receive, send):
    await receive()
    await asyncio.sleep(0.1)
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": b""})

def request(*more, line=b"POST /v1/reports HTTP/1.1", kind=b"application/json", body=None):
    body = upload_of() if body is None else body
    head = [line, b"Host: x", b"Content-Type: " + kind, b"Content-Length: %d" % len(body), *more]
    return b"\\r\\n".join([*head, b"", body])

async def main():
    settings = Settings(registry=sys.argv[1], suspicious="accept", max_body=10_000)
    prepare(settings)
    collector = Collector(settings)
    await collector.ready()
    config = Config(
        application, lifespan="off", http=PunctualProtocol, ws="none", access_log=False,
        timeout_keep_alive=0.01,
    )
    config.load()
    state = {SETTINGS: settings, METRICS: collector.metrics, DIRECT: DirectUploads(collector)}
    server = await asyncio.get_running_loop().create_server(
        lambda: PunctualProtocol(config=config, server_state=ServerState(), app_state=state),
        "127.0.0.1", 0,
    )
    async def ask(*parts):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.1)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        print(*[part[:3].decode() for part in answer.split(b"HTTP/1.1 ")[1:]])

    for parts in (
        [request()],
        [request(b"User-Agent: a", b"Accept: */*", b"Connection: keep-alive")],
        [request(b"Connection: close")],
        [request(body=b"no upload")],
        [request() + request()],
        [request(body=b"no upload") + request()],
        [request()[:-5], request()[-5:]],
        [request(b"Content-Encoding: gzip")],
        [request(b"Origin: https://example.org")],
        [request(b"X-Forwarded-For: 10.0.0.1")],
        [request(b"Expect: 100-continue")],
        [request(b"Content-Type: application/json")],
        [request(kind=b"application/json; charset=utf-8")],
        [request(kind=b"text/plain")],
        [request(body=b" " * 10_001)],
        [request(line=b"POST /v1/reports?a=b HTTP/1.1")],
        [request(line=b"POST /v1/reports HTTP/1.0")],
        [request(line=b"PUT /v1/reports HTTP/1.1")],
        [request(line=b"POST /v1/report HTTP/1.1")],
    ):
        await ask(*parts)
    refused = collector.metrics.refusals.labels
    print(refused("malformed")._value.get())
    every = collector.bodies.share()
    every.grow(settings.max_bodies)  # all other bodies have given back what they held
    await ask(request())
    every.release()
    collector.rate = RateLimit(1)
    await ask(request())
    await ask(request())
    print(refused("service-unavailable")._value.get(), refused("too-many-requests")._value.get())
    collector.settings = dataclasses.replace(settings, origins=("https://example.org",))
    state[DIRECT] = DirectUploads(collector)
    await ask(request())
    server.close()
    await collector.close()

asyncio.run(main())
"""


def test_only_plain_and_whole_uploads_go_past_the_application(tmp_path: Path) -> None:
    """The application answers 418 to whatever reaches it, and that is all that is not plain.

    Memory and rate are bounded here too, and what is refused whole is counted.
    """
    registry = tmp_path / "metrics.toml"
    registry.write_text(REGISTRY)
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(registry)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert answer.returncode == 0, answer.stderr
    plain = ["200", "200", "200", "400", "200 418", "400 418"]
    others = ["418"] * 4 + ["100 418"] + ["418"] * 8
    limits = ["2.0", "503", "200", "429", "1.0 1.0"]
    origins = ["418"]  # where pages may send, every answer says that it depends on the origin
    assert answer.stdout.splitlines() == plain + others + limits + origins


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A collector that needs an upload key."""
    folder = tmp_path_factory.mktemp("direct")
    key = folder / "key"
    key.write_bytes(KEY)
    database = f"sqlite:///{folder}/counts.sqlite3"
    with serving(folder, database, "--upload-key-file", str(key)) as collector:
        yield collector


def ask(running: Running, *parts: bytes) -> bytes:
    """Send a request in parts and return its whole answer."""
    with socket.create_connection(("127.0.0.1", running.port), 30) as sender:
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            sender.sendall(part)
            time.sleep(0.05)
        with sender.makefile("rb") as answer:
            head = b"".join(iter(answer.readline, b"\r\n"))
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            return head + answer.read(length)


KEY = b"sesame"
ID = Upload.new_id()
BODIES = {
    "accepted": upload_of(upload_id=ID),
    "conflict": upload_of(report_of(), report_of(), upload_id=ID),
    "partly refused": upload_of(report_of(), report_of("old")),
    "malformed": b"{",
    "empty": b"",
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"])
@pytest.mark.parametrize("key", [KEY, b"other"])
def test_both_roads_answer_the_same(running: Running, name: str, more: bytes, key: bytes) -> None:
    """An upload in one packet has the same answer, byte for byte, as one that comes in two."""
    body = BODIES[name]
    head = HEAD + b"Authorization: Bearer " + key + b"\r\n" + more
    request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    whole = ask(running, request)
    assert whole.startswith(b"HTTP/1.1 ")
    plain = head + b"Content-Length: %d\r\nX-Forwarded-For: 10.0.0.1\r\n\r\n" % len(body) + body
    assert whole == ask(running, plain)
    if body and key == KEY:  # without it a body is not waited for
        assert whole == ask(running, request[:-1], request[-1:])
