"""Hostile clients: slow, oversized, compressed or malformed requests, and floods.

Each test attacks a collector over a socket with one kind of client. It then checks the response to
the client, the cost of the attack (memory, connections), and that an honest upload still gets 200.
Most tests share one collector. The last of these tests checks that the collector still works.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import selectors
import socket
import subprocess
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import httpx
import plain_http
import pytest
from collectors import (
    REGISTRY,
    Running,
    build_report,
    build_upload,
    find_free_port,
    make_token,
    run_file_collector,
)
from hostile_uploads import (
    build_costly_uploads,
    generate_mutated_uploads,
    make_generator,
    make_gzip_bomb,
)
from programs import wait_until

MEBIBYTE = 1 << 20
HEAD = b"POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
"""Begins the head of an upload. Tests add further headers and the blank line."""
GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
"""Begins the head of a request without a body. Tests add the blank line."""
LIMIT_SECONDS = 1.5
"""Limits the time of a head or a body in seconds. With the default of 15 seconds the tests would
take a minute; a smaller value fails on a busy machine."""
SIZES = (200, 2_000, 20_000, 200_000)
"""Sizes in bytes of the hostile uploads that `build_costly_uploads` makes."""
REFUSED = "rappor_refused_connections_total"
"""Counts refused connections by the reached limit, in Prometheus."""
ATTACKER, OTHER = "127.0.0.2", "127.0.0.3"
"""Addresses of two sources on this machine. 127.0.0.1 is trusted as a proxy and has no limit, so a
test of the limit needs other addresses."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a collector that waits 1.5 seconds for a head or a body."""
    folder = tmp_path_factory.mktemp("hostile")
    with run_file_collector(folder, "--body-seconds", str(LIMIT_SECONDS)) as collector:
        yield collector


def measure_memory(running: Running) -> int:
    """Return the resident memory of a collector in bytes."""
    command = ["ps", "-o", "rss=", "-p", str(running.process.pid)]
    return 1024 * int(subprocess.run(command, capture_output=True, check=True).stdout)


def send_slowly(running: Running, first_bytes: bytes, repeated_bytes: bytes) -> bytes:
    """Send bytes once, then other bytes every 0.1 seconds, and return all received bytes."""
    received = b""
    with connect(running) as sender:
        selector = selectors.DefaultSelector()
        selector.register(sender, selectors.EVENT_READ)
        try:
            sender.sendall(first_bytes)
            while True:
                if selector.select(0.1):
                    if not (data := sender.recv(65536)):
                        return received
                    received += data
                elif repeated_bytes:
                    sender.sendall(repeated_bytes)
        except OSError:  # the collector closed the connection
            return received


# Name, bytes sent at once, and bytes sent every 0.1 seconds. The last two send a complete request
# first, so a response arrives before the connection ends.
SLOW_HEADS = {
    "nothing at all": (b"", b""),
    "blank lines": (b"", b"\r\n"),
    "request line": (b"POST /v1", b"x"),
    "headers": (HEAD, b"a"),
    "more headers": (HEAD, b"X-A: b\r\n"),
    "blank lines after a response": (GET + b"\r\n", b"\r\n"),
    "half a head after a response": (GET + b"\r\n" + GET, b"a"),
}


def test_slow_heads_are_disconnected(running: Running) -> None:
    """A connection ends if its head is not complete in time. Other clients are served meanwhile."""
    with ThreadPoolExecutor(len(SLOW_HEADS)) as pool:
        waiting = {
            name: pool.submit(send_slowly, running, first_bytes, repeated_bytes)
            for name, (first_bytes, repeated_bytes) in SLOW_HEADS.items()
        }
        assert running.post(build_upload()).status_code == 200
        responses = {name: future.result(timeout=60) for name, future in waiting.items()}
    for name, response in responses.items():
        if "response" in name:
            assert response.endswith(b"alive\n"), name
        else:
            assert not response, name


def test_slow_bodies_get_408(running: Running) -> None:
    """A body that does not arrive in time gets 408, and the connection ends."""
    response = send_slowly(running, HEAD + b"Content-Length: 1000\r\n\r\n", b"a")
    assert response.startswith(b"HTTP/1.1 408")
    assert json.loads(response.partition(b"\r\n\r\n")[2])["status"] == 408


@pytest.mark.slow
def test_endless_headers_and_trailers_use_no_memory(tmp_path: Path) -> None:
    """A connection ends if its head or trailers exceed 16 KB, long before the limit of time."""
    # A body of one chunk "{" and the last chunk of length 0. Trailers may follow.
    in_chunks = HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n"
    with run_file_collector(tmp_path, "--body-seconds", "60") as running:
        before = measure_memory(running)
        for first, line in (
            (HEAD + b"X-Long: ", b"a" * 65536),
            (in_chunks + b"X-Long: ", b"a" * 65536),
            (in_chunks, b"a: b\r\n" * 9000),
        ):
            # The limit is 16 KB. The buffers of the operating system take a few megabytes more
            # before the sender notices the end of the connection.
            assert send_flood(running, first, line=line, max_bytes=256 * MEBIBYTE) < 64 * MEBIBYTE
        assert measure_memory(running) - before < 16 * MEBIBYTE
        assert running.post(build_upload()).status_code == 200


def send_flood(running: Running, first: bytes, *, max_bytes: int, line: bytes) -> int:
    """Send `first`, then lines until the connection ends, and return the number of sent bytes."""
    n_sent = 0
    with connect(running) as sender:
        try:
            sender.sendall(first)
            while n_sent < max_bytes:
                n_sent += sender.send(line)
        except ConnectionError:
            pass
    return n_sent


def post(running: Running, body: bytes, **headers: str) -> httpx.Response:
    """Send a body, and check that an error is a problem document."""
    response = running.post(body, **headers)
    if response.is_error:
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["status"] == response.status_code
    return response


def test_oversized_bodies_get_413(running: Running) -> None:
    """A body of more than 1,000,000 bytes gets 413: by its declared length, or by its chunks."""
    assert post(running, b" " * 1_000_001).status_code == 413
    chunk = b"40000\r\n" + b" " * 0x40000 + b"\r\n"
    for head, repeated_bytes in (
        (b"Content-Length: 99999999999", b""),  # refused before any byte of the body
        (b"Transfer-Encoding: chunked", chunk),  # refused by the fourth chunk of 256 KB
    ):
        assert send_slowly(running, HEAD + head + b"\r\n\r\n", repeated_bytes).startswith(
            b"HTTP/1.1 413"
        )


def test_gzip_bombs_use_no_memory(running: Running) -> None:
    """Twenty bodies that decompress to 18 GiB get 413, and the collector's memory hardly grows.

    A compressed body has less than a megabyte.
    """
    bomb = make_gzip_bomb(bytes(1), 900)  # 900 MiB of zero bytes
    assert len(bomb) < 1_000_000
    assert post(running, bomb, Content_Encoding="gzip").status_code == 413
    before = measure_memory(running)
    for _ in range(20):
        assert post(running, bomb, Content_Encoding="gzip").status_code == 413
    assert measure_memory(running) - before < 16 * MEBIBYTE


@pytest.mark.slow
def test_all_bodies_share_one_budget(tmp_path: Path) -> None:
    """Incomplete bodies beyond the memory budget get 503 with Retry-After.

    The end of their connections frees the memory.
    """
    flags = ("--max-bodies", "1000000", "--body-seconds", "60")
    with run_file_collector(tmp_path, *flags) as running:
        # Eight senders of 200,000 bytes each exceed the budget of 1,000,000. None of them sends the
        # rest of its body, so each keeps its memory.
        incomplete_request = HEAD + b"Content-Length: 300000\r\n\r\n" + b" " * 200_000
        with ThreadPoolExecutor(8) as pool:
            senders = [connect(running) for _ in range(8)]
            list(pool.map(lambda sender: sender.sendall(incomplete_request), senders))
            selector = selectors.DefaultSelector()
            for sender in senders:
                selector.register(sender, selectors.EVENT_READ)
            responses = selector.select(30)
            assert responses
            (first, _), *_ = responses  # only a refused sender has a response
            assert isinstance(first.fileobj, socket.socket)
            refused = first.fileobj.recv(65536)
            assert refused.startswith(b"HTTP/1.1 503")
            assert b"retry-after: 5" in refused.lower()
            assert plain_http.get(f"{running.url}/healthz", timeout=30).status_code == 200
            for sender in senders:
                sender.close()
        # This upload needs nine tenths of the budget, so all memory must be free again. White space
        # after the JSON is allowed.
        large = build_upload() + b" " * 900_000
        wait_until(lambda: running.post(large).status_code == 200)


@pytest.mark.slow
def test_queries_leave_memory_for_uploads(tmp_path: Path) -> None:
    """Bodies of analysts use at most half of the budget, so uploads are accepted meanwhile."""
    with run_file_collector(tmp_path, "--max-bodies", "1000000") as running:
        head = b"POST /v1/metrics/page/estimates HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
        head += make_token(running.database).encode() + b"\r\nContent-Length: 1000000\r\n\r\n"
        with connect(running) as analyst:
            with contextlib.suppress(ConnectionError):
                analyst.sendall(head + b" " * 999_999)
            time.sleep(0.5)  # until the collector has read all bytes
            assert running.post(build_upload(*[build_report()] * 100)).status_code == 200
            with contextlib.suppress(ConnectionError):  # unread bytes reset the connection
                assert analyst.recv(100).startswith(b"HTTP/1.1 503")


@pytest.mark.slow
def test_connections_are_limited_except_at_the_admin_address(tmp_path: Path) -> None:
    """The 21st connection gets 503 with Retry-After. The end of other connections makes room.

    Connections to the admin address do not count.
    """
    flags = ("--max-connections", "20", "--body-seconds", "60")
    with run_file_collector(tmp_path, *flags, admin=find_free_port()) as running:
        idle_connections = [connect(running) for _ in range(20)]
        with connect(running) as surplus:
            response = b"".join(iter(lambda: surplus.recv(65536), b""))
        head, _, document = response.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"retry-after: 5" in head.lower()
        assert b"x-content-type-options: nosniff" in head
        assert json.loads(document)["status"] == 503
        counters = plain_http.get(f"{running.admin_url}/metrics", timeout=30).text
        assert f'\n{REFUSED}{{bound="max_connections"}} 1.0\n' in counters
        assert plain_http.get(f"{running.admin_url}/readyz", timeout=30).status_code == 200
        for connection in idle_connections:
            connection.close()
        wait_until(lambda: running.post(build_upload()).status_code == 200)


def connect(running: Running, address: str = "127.0.0.1") -> socket.socket:
    """Connect to a collector from an address."""
    target = ("127.0.0.1", running.port)
    return socket.create_connection(target, 30, source_address=(address, 0))


def send_from(running: Running, address: str, request: bytes) -> int:
    """Send a request from an address, and return the status of the response."""
    with connect(running, address) as sender:
        # A refused connection may end before the request is sent.
        with contextlib.suppress(ConnectionError):
            sender.sendall(request)
        return read_response(sender.makefile("rb"))[0]


@pytest.mark.slow
def test_connections_of_one_source_are_limited(tmp_path: Path) -> None:
    """A source may have eight connections, also idle ones. Further connections get 429.

    Other sources are not affected, and a trusted proxy has no limit.
    """
    flags = ("--max-source-connections", "8", "--body-seconds", "60")
    body = build_upload()
    upload = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with run_file_collector(tmp_path, *flags, admin=find_free_port()) as running:
        attacks = [connect(running, ATTACKER) for _ in range(40)]
        for connection in attacks[:4]:  # of the eight accepted connections, four begin a head
            connection.sendall(HEAD)
        refused = [read_response(connection.makefile("rb"))[0] for connection in attacks[8:]]
        assert refused == [429] * 32
        assert send_from(running, OTHER, upload) == 200
        counters = plain_http.get(f"{running.admin_url}/metrics", timeout=30).text
        assert f'\n{REFUSED}{{bound="max_source_connections"}} 32.0\n' in counters
        for connection in attacks:
            connection.close()
        # The closed connections make room.
        wait_until(lambda: send_from(running, ATTACKER, upload) == 200)
        proxy = [connect(running, "127.0.0.1") for _ in range(40)]
        for connection in proxy:
            connection.sendall(upload)
            assert read_response(connection.makefile("rb"))[0] == 200
            connection.close()


# `attacker` holds memory. `same_source` is another address of its source, `other_source` is not. In
# the second case all three come through a proxy, which names their IPv6 addresses.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("attacker", "same_source", "other_source", "forwarded"),
    [
        (ATTACKER, ATTACKER, OTHER, b""),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1", b"X-Forwarded-For: 2001:db8:0:%s\r\n"),
    ],
)
def test_incomplete_bodies_of_one_source_leave_memory_for_others(
    tmp_path: Path, attacker: str, same_source: str, other_source: str, forwarded: bytes
) -> None:
    """A source may use a quarter of the budget. Behind a proxy, X-Forwarded-For names the source.

    All addresses of a /64 of IPv6 are one source.
    """
    flags = ("--max-bodies", "1000000", "--body-seconds", "60")
    # A source may use 250,000 bytes. The attacker holds 200,000 bytes of an incomplete body, so
    # this upload of 63,000 bytes is too much for the same source.
    body = build_upload(*[build_report()] * 900)
    # The first two addresses differ after the first 64 bits only: 2001:db8:0:0::1 and
    # 2001:db8:0:0:9::2 are one source. The third one is another source.
    first, second, third = (
        (forwarded % address if forwarded else b"") for address in (b"0::1", b"0:9::2", b"1::1")
    )
    length = b"Content-Length: %d\r\n\r\n"
    with run_file_collector(tmp_path, *flags) as running, connect(running, attacker) as holder:
        holder.sendall(HEAD + first + length % 300_000 + b" " * 200_000)
        complete_body = length % len(body) + body
        wait_until(lambda: send_from(running, same_source, HEAD + second + complete_body) == 429)
        assert send_from(running, other_source, HEAD + third + complete_body) == 200


@pytest.mark.slow
def test_clients_that_do_not_read_are_disconnected(tmp_path: Path) -> None:
    """A client that does not read its response is disconnected, so other clients can connect."""
    flags = ("--max-connections", "4", "--body-seconds", "1")
    long = REGISTRY + "#" * 20_000_000  # more than the buffers of the operating system
    with (
        run_file_collector(tmp_path, *flags, registry=long) as running,
        contextlib.ExitStack() as clients,
    ):
        # Four clients use up all connections. Nothing else can connect until they are reset.
        for _ in range(4):
            client = clients.enter_context(connect_small_buffer(running))
            client.sendall(b"GET /v1/registry HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: running.post(build_upload()).status_code == 200)


def connect_small_buffer(running: Running) -> socket.socket:
    """Connect with a socket whose receive buffer has 4 KB."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(30)
    connection.connect(("127.0.0.1", running.port))
    return connection


def test_pipelined_requests_are_limited(running: Running) -> None:
    """Of 1,000 requests in one packet, 17 get a response. The next gets 400, and nothing follows.

    Many connections with 20,000 requests each hardly increase the memory.
    """
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with connect(running) as sender:
        sender.sendall(request * 1000)
        responses = sender.makefile("rb")
        # One request is in progress, 16 wait in the pipeline, and one more is too many.
        statuses = [read_response(responses)[0] for _ in range(18)]
        assert statuses == [200] * 17 + [400]
        assert is_closed_by_peer(sender)
    before = measure_memory(running)
    senders = [connect(running) for _ in range(20)]
    for sender in senders:
        sender.setblocking(False)
        with contextlib.suppress(OSError):
            sender.send(request * 20_000)
    assert running.post(build_upload()).status_code == 200
    assert measure_memory(running) - before < 64 * MEBIBYTE
    for sender in senders:
        sender.close()


def test_invalid_bytes_get_400_after_previous_responses(running: Running) -> None:
    """Bytes that are no request get 400 or end the connection, after the responses before them."""
    upload = build_upload()
    upload_request = HEAD + b"Content-Length: %d\r\n\r\n" % len(upload) + upload
    in_chunks = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    for broken, statuses in (
        # Complete uploads, then garbage: the last upload's response is the last one.
        (upload_request + b"\x00\x01\r\n\r\n", [200]),
        (upload_request * 3 + b"nonsense\r\n\r\n", [200] * 3),
        # A head is complete and its body is broken: the request itself gets 400.
        (upload_request + in_chunks + b"nonsense\r\n", [200, 400]),
        (in_chunks + b"nonsense\r\n", [400]),
        # No request at all.
        (b"nonsense\r\n\r\n", [400]),
    ):
        with connect(running) as sender, sender.makefile("rb") as responses:
            sender.sendall(broken)
            assert [read_response(responses)[0] for _ in statuses] == statuses
            assert is_closed_by_peer(sender)


def test_request_for_another_protocol_ends_the_connection(running: Running) -> None:
    """A request to upgrade to another protocol gets a response, and the connection ends.

    Later bytes are never parsed as a request, because they may be of the other protocol.
    """
    upload = build_upload()
    upload_request = HEAD + b"Content-Length: %d\r\n\r\n" % len(upload) + upload
    for protocol in (b"websocket", b"h2c"):
        upgrade = b"Connection: Upgrade\r\nUpgrade: %s\r\n" % protocol
        length = b"Content-Length: %d\r\n\r\n" % len(upload_request)
        # The body of the first request is a complete upload. It must not be parsed as the next
        # request, whether it comes in the same packet or in another one.
        for head, status in ((HEAD + upgrade + length, 400), (GET + upgrade + b"\r\n", 200)):
            for parts in ((head + upload_request,), (head, upload_request)):
                with connect(running) as sender:
                    with contextlib.suppress(OSError):
                        for part in parts:
                            sender.sendall(part)
                            time.sleep(0.01)
                    responses = sender.makefile("rb")
                    assert read_response(responses)[0] == status
                    assert is_closed_by_peer(sender)


def test_half_closed_connection_gets_its_responses(running: Running) -> None:
    """A client that closes its sending half after three uploads gets three responses."""
    upload = build_upload()
    # White space around a length is allowed (RFC 9112).
    upload_request = HEAD + b"Content-Length:  %d  \r\n\r\n" % len(upload) + upload
    with connect(running) as sender:
        sender.sendall(upload_request * 3)
        sender.shutdown(socket.SHUT_WR)
        responses = sender.makefile("rb")
        assert [read_response(responses)[0] for _ in range(3)] == [200] * 3
        assert is_closed_by_peer(sender)


def test_each_form_of_a_request_gets_one_response(running: Running) -> None:
    """Requests come pipelined, in chunks, in single bytes, without a body, and with Expect."""
    body = build_upload()
    length = f"Content-Length: {len(body)}\r\n".encode()
    upload_request = HEAD + length + b"\r\n" + body
    in_chunks = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    in_chunks += b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (9, body[:9], len(body) - 9, body[9:])
    request = b"%s /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    expecting = HEAD + length + b"Expect: 100-continue\r\n\r\n"
    with connect(running) as sender:
        responses = sender.makefile("rb")
        for parts, n_responses in (
            ((upload_request * 3,), 3),
            ((in_chunks,), 1),
            ((request % b"HEAD", request % b"GET"), 2),
            ([bytes([byte]) for byte in upload_request], 1),
        ):
            for part in parts:
                sender.sendall(part)
            if parts[0] == request % b"HEAD":
                assert read_response(responses, has_body=False) == (200, b"")
                assert read_response(responses) == (200, b"alive\n")
            else:
                stored = [(200, b'{"reports":[{"status":"accepted"}]}')] * n_responses
                assert [read_response(responses) for _ in range(n_responses)] == stored
        sender.sendall(expecting)
        assert responses.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert responses.readline() == b"\r\n"
        sender.sendall(body)
        assert read_response(responses)[0] == 200


def read_response(responses: BinaryIO, *, has_body: bool = True) -> tuple[int, bytes]:
    """Read one response with a Content-Length, and return its status and body."""
    status = int(responses.readline().split()[1])
    n_bytes = 0
    while (line := responses.readline()) != b"\r\n":
        name, _, value = line.partition(b":")
        n_bytes = int(value) if name.lower() == b"content-length" else n_bytes
    return status, responses.read(n_bytes) if has_body else b""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", {}, 400),
        (b"\xff\xfe", {}, 400),  # not UTF-8
        (b"[" * 900_000, {}, 400),
        (b'{"v":' + b"9" * 900_000 + b"}", {}, 400),
        (gzip.compress(build_upload())[:-1], {"Content_Encoding": "gzip"}, 400),  # truncated
        # garbage behind the stream
        (gzip.compress(build_upload()) + b"x", {"Content_Encoding": "gzip"}, 400),
        (gzip.compress(build_upload()) * 2, {"Content_Encoding": "gzip"}, 400),  # two streams
        (zlib.compress(build_upload()), {"Content_Encoding": "gzip"}, 400),  # another format
        (gzip.compress(build_upload()), {"Content_Encoding": "gzip"}, 200),
    ],
)
def test_malformed_bodies_are_problems(
    running: Running, body: bytes, headers: dict[str, str], status: int
) -> None:
    """Deep nesting, long numbers and wrong encodings get a problem document, and never 5xx.

    A valid compressed upload is accepted.
    """
    assert post(running, body, **headers).status_code == status


def is_closed_by_peer(connection: socket.socket) -> bool:
    """Wait until the collector closes a connection. Return False if it sends bytes instead."""
    try:
        return connection.recv(100) == b""
    except ConnectionResetError:
        return True


@pytest.mark.slow
def test_the_collector_works_after_all_other_tests(running: Running) -> None:
    """The same process still responds, and has logged no error."""
    assert running.process.poll() is None
    assert running.post(build_upload()).status_code == 200
    assert '"level": "error"' not in running.log.read_text(encoding="utf-8")


N_SENDERS = 8
"""Number of connections that send hostile uploads at the same time."""


@pytest.mark.acceptance
@pytest.mark.timeout(3600)
def test_twenty_thousand_hostile_requests_get_responses(tmp_path: Path) -> None:
    """All responses are 200, 400 or 413, errors are problem documents, and memory is bounded."""
    rng = make_generator(3)
    # A fifth of the bodies is compressed. `generate_mutated_uploads` changes honest uploads at
    # random, and `build_costly_uploads` makes uploads that are expensive to parse.
    bodies = itertools.chain(
        generate_mutated_uploads(rng, 19_800),
        *(build_costly_uploads(n).values() for n in SIZES * 2),
    )
    requests = [(body, rng.random() < 0.2) for body in bodies]
    assert len(requests) >= 20_000
    with run_file_collector(tmp_path) as running, ThreadPoolExecutor(N_SENDERS) as pool:
        before = measure_memory(running)
        shares = [requests[i::N_SENDERS] for i in range(N_SENDERS)]
        statuses = sum(pool.map(send_all, [running] * N_SENDERS, shares), Counter[int]())
        assert statuses.total() == len(requests)
        assert set(statuses) <= {200, 400, 413}
        assert measure_memory(running) - before < 50_000_000  # bytes
        assert '"level": "error"' not in running.log.read_text(encoding="utf-8")


def send_all(running: Running, requests: list[tuple[bytes, bool]]) -> Counter[int]:
    """Send bodies, some compressed, over one connection. Return the numbers of their statuses."""
    statuses = Counter[int]()
    with httpx.Client(base_url=running.url, timeout=60) as client:
        for body, is_compressed in requests:
            headers = {"Content-Type": "application/json"}
            if is_compressed:
                headers["Content-Encoding"] = "gzip"
            content = gzip.compress(body) if is_compressed else body
            response = client.post("/v1/reports", content=content, headers=headers)
            if response.is_error:
                assert response.json()["status"] == response.status_code
            statuses[response.status_code] += 1
    return statuses
