"""Malicious senders: slow, oversized, compressed beyond measure, malformed; each is bounded."""

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
from collectors import REGISTRY, Running, free_port, make_token, report_of, serving_file, upload_of
from hostile_uploads import bomb_of, costly, mutated, seeded
from programs import until

MEBIBYTE = 1 << 20
HEAD = b"POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
LIMIT_SECONDS = 1.5
SIZES = (200, 2_000, 20_000, 200_000)
REFUSED = "rappor_refused_connections_total"
BULLY, OTHER = "127.0.0.2", "127.0.0.3"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A collector that waits 1.5 seconds for a head or a body."""
    folder = tmp_path_factory.mktemp("hostile")
    with serving_file(folder, "--body-seconds", str(LIMIT_SECONDS)) as collector:
        yield collector


def memory_of(running: Running) -> int:
    """Return the resident bytes of a collector."""
    command = ["ps", "-o", "rss=", "-p", str(running.process.pid)]
    return 1024 * int(subprocess.run(command, capture_output=True, check=True).stdout)


def dribble(running: Running, first: bytes, then: bytes) -> bytes:
    """Send a beginning and then a little again and again; return everything that came back."""
    answer = b""
    with connect(running) as sender:
        selector = selectors.DefaultSelector()
        selector.register(sender, selectors.EVENT_READ)
        try:
            sender.sendall(first)
            while True:
                if selector.select(0.1):
                    if not (data := sender.recv(65536)):
                        return answer
                    answer += data
                elif then:
                    sender.sendall(then)
        except OSError:  # cut off while sending
            return answer


SLOW = {
    "nothing at all": (b"", b""),
    "blank lines": (b"", b"\r\n"),
    "request line": (b"POST /v1", b"x"),
    "headers": (HEAD, b"a"),
    "more headers": (HEAD, b"X-A: b\r\n"),
    "blank lines after an answer": (GET + b"\r\n", b"\r\n"),
    "half a head after an answer": (GET + b"\r\n" + GET, b"a"),
}


def test_requests_that_never_begin_are_cut_off(running: Running) -> None:
    """A head that trickles, or never comes, ends its connection; others are served meanwhile."""
    with ThreadPoolExecutor(len(SLOW)) as pool:
        waiting = {
            name: pool.submit(dribble, running, first, then) for name, (first, then) in SLOW.items()
        }
        assert running.post(upload_of()).status_code == 200
        answers = {name: future.result(timeout=60) for name, future in waiting.items()}
    for name, answer in answers.items():
        assert answer == b"" if "answer" not in name else answer.endswith(b"alive\n"), name


def test_bodies_that_do_not_arrive_are_given_up(running: Running) -> None:
    """A body that does not arrive gets 408, and the connection ends."""
    answer = dribble(running, HEAD + b"Content-Length: 1000\r\n\r\n", b"a")
    assert answer.startswith(b"HTTP/1.1 408")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["status"] == 408


def test_endless_headers_and_trailers_cost_no_memory(tmp_path: Path) -> None:
    """What has no end is thrown away, and cut off after kilobytes, long before its time is over."""
    in_chunks = HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n"
    with serving_file(tmp_path, "--body-seconds", "60") as running:
        before = memory_of(running)
        for first, line in (
            (HEAD + b"X-Long: ", b"a" * 65536),
            (in_chunks + b"X-Long: ", b"a" * 65536),
            (in_chunks, b"a: b\r\n" * 9000),
        ):
            assert flood(running, first, line=line, most=256 * MEBIBYTE) < 64 * MEBIBYTE
        assert memory_of(running) - before < 16 * MEBIBYTE
        assert running.post(upload_of()).status_code == 200


def flood(running: Running, first: bytes, *, most: int, line: bytes) -> int:
    """Send a beginning and then lines without an end; return how many were received."""
    n_sent = 0
    with connect(running) as sender:
        try:
            sender.sendall(first)
            while n_sent < most:
                n_sent += sender.send(line)
        except ConnectionError:
            pass
    return n_sent


def post(running: Running, body: bytes, **headers: str) -> httpx.Response:
    """Send a body and check that an error is a problem document."""
    answer = running.post(body, **headers)
    if answer.is_error:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == answer.status_code
    return answer


def test_oversized_bodies_are_refused_by_what_they_say_and_by_what_they_are(
    running: Running,
) -> None:
    """Bodies that are too large are refused with a length, true or not, and in chunks without."""
    assert post(running, b" " * 1_000_001).status_code == 413
    chunk = b"40000\r\n" + b" " * 0x40000 + b"\r\n"
    for head, then in (
        (b"Content-Length: 99999999999", b""),
        (b"Transfer-Encoding: chunked", chunk),
    ):
        assert dribble(running, HEAD + head + b"\r\n\r\n", then).startswith(b"HTTP/1.1 413")


def test_zip_bombs_cost_nothing(running: Running) -> None:
    """Twenty requests of a megabyte that unpack to 18 GiB are refused, and cost no memory."""
    sent = bomb_of(bytes(1), 900)
    assert len(sent) < 1_000_000
    assert post(running, sent, Content_Encoding="gzip").status_code == 413
    before = memory_of(running)
    for _ in range(20):
        assert post(running, sent, Content_Encoding="gzip").status_code == 413
    assert memory_of(running) - before < 16 * MEBIBYTE


def test_all_bodies_share_one_budget(tmp_path: Path) -> None:
    """Half-sent bodies beyond it get 503 with Retry-After; when they end, others are taken."""
    flags = ("--max-bodies", "1000000", "--body-seconds", "60")
    with serving_file(tmp_path, *flags) as running:
        half = HEAD + b"Content-Length: 300000\r\n\r\n" + b" " * 200_000
        with ThreadPoolExecutor(8) as pool:
            senders = [connect(running) for _ in range(8)]
            list(pool.map(lambda sender: sender.sendall(half), senders))
            answered = selectors.DefaultSelector()
            for sender in senders:
                answered.register(sender, selectors.EVENT_READ)
            ready = answered.select(30)
            assert ready
            (first, _), *_ = ready
            assert isinstance(first.fileobj, socket.socket)
            refused = first.fileobj.recv(65536)
            assert refused.startswith(b"HTTP/1.1 503")
            assert b"retry-after: 5" in refused.lower()
            assert plain_http.get(f"{running.url}/healthz", timeout=30).status_code == 200
            for sender in senders:
                sender.close()
        until(lambda: running.post(upload_of(*[report_of()] * 900)).status_code == 200)


def test_questions_leave_room_for_uploads(tmp_path: Path) -> None:
    """However much analysts send, and however slowly, half of the budget is for devices."""
    with serving_file(tmp_path, "--max-bodies", "1000000") as running:
        head = b"POST /v1/metrics/page/estimates HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
        head += make_token(running.database).encode() + b"\r\nContent-Length: 1000000\r\n\r\n"
        with connect(running) as asker:
            with contextlib.suppress(ConnectionError):
                asker.sendall(head + b" " * 999_999)
            time.sleep(0.5)  # until all of it is read
            assert running.post(upload_of(*[report_of()] * 100)).status_code == 200
            with contextlib.suppress(ConnectionError):  # what was not read is thrown away
                assert asker.recv(100).startswith(b"HTTP/1.1 503")


def test_connections_are_bounded_and_operators_are_not_kept_out(tmp_path: Path) -> None:
    """One connection too many gets 503 with Retry-After; when others end, there is room again."""
    flags = ("--max-connections", "20", "--body-seconds", "60")
    with serving_file(tmp_path, *flags, admin=free_port()) as running:
        idle = [connect(running) for _ in range(20)]
        with connect(running) as surplus:
            answer = b"".join(iter(lambda: surplus.recv(65536), b""))
        head, _, document = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"retry-after: 5" in head.lower()
        assert b"x-content-type-options: nosniff" in head
        assert json.loads(document)["status"] == 503
        counters = plain_http.get(f"{running.admin_url}/metrics", timeout=30).text
        assert f'\n{REFUSED}{{bound="max_connections"}} 1.0\n' in counters
        assert plain_http.get(f"{running.admin_url}/readyz", timeout=30).status_code == 200
        for connection in idle:
            connection.close()
        until(lambda: running.post(upload_of()).status_code == 200)


def connect(running: Running, address: str = "127.0.0.1") -> socket.socket:
    """Connect from an address."""
    there = ("127.0.0.1", running.port)
    return socket.create_connection(there, 30, source_address=(address, 0))


def status_of(running: Running, address: str, sent: bytes) -> int:
    """Send a request from an address; return the status of the answer."""
    with connect(running, address) as sender:
        with contextlib.suppress(ConnectionError):  # it may be refused before it is sent
            sender.sendall(sent)
        return read_answer(sender.makefile("rb"))[0]


def test_connections_of_one_source_keep_nobody_else_out(tmp_path: Path) -> None:
    """A source has no more than its own, idle or with half heads; a trusted proxy has no bound."""
    flags = ("--max-source-connections", "8", "--body-seconds", "60")
    body = upload_of()
    upload = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with serving_file(tmp_path, *flags, admin=free_port()) as running:
        bully = [connect(running, BULLY) for _ in range(40)]
        for each in bully[:4]:
            each.sendall(HEAD)
        refused = [read_answer(each.makefile("rb"))[0] for each in bully[8:]]
        assert refused == [429] * 32
        assert status_of(running, OTHER, upload) == 200
        counters = plain_http.get(f"{running.admin_url}/metrics", timeout=30).text
        assert f'\n{REFUSED}{{bound="max_source_connections"}} 32.0\n' in counters
        for each in bully:
            each.close()
        until(lambda: status_of(running, BULLY, upload) == 200)
        proxy = [connect(running, "127.0.0.1") for _ in range(40)]
        for each in proxy:
            each.sendall(upload)
            assert read_answer(each.makefile("rb"))[0] == 200
            each.close()


@pytest.mark.parametrize(
    ("bully", "same", "other", "forwarded"),
    [
        (BULLY, BULLY, OTHER, b""),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1", b"X-Forwarded-For: 2001:db8:0:%s\r\n"),
    ],
)
def test_half_bodies_of_one_source_leave_memory_for_others(
    tmp_path: Path, bully: str, same: str, other: str, forwarded: bytes
) -> None:
    """A source holds a quarter of what all bodies may; behind a proxy it is whom the proxy names.

    Of IPv6 all addresses of a /64 are one source.
    """
    flags = ("--max-bodies", "1000000", "--body-seconds", "60")
    bodies = upload_of(*[report_of()] * 900)
    first, second, third = (
        (forwarded % each if forwarded else b"") for each in (b"0::1", b"0:9::2", b"1::1")
    )
    length = b"Content-Length: %d\r\n\r\n"
    with serving_file(tmp_path, *flags) as running, connect(running, bully) as holder:
        holder.sendall(HEAD + first + length % 300_000 + b" " * 200_000)
        whole = length % len(bodies) + bodies
        until(lambda: status_of(running, same, HEAD + second + whole) == 429)
        assert status_of(running, other, HEAD + third + whole) == 200


def test_who_reads_no_answer_is_disconnected(tmp_path: Path) -> None:
    """Peers that ask and read nothing lose their connections, and there is room for others."""
    flags = ("--max-connections", "4", "--body-seconds", "1")
    long = REGISTRY + "#" * 20_000_000  # more than the system's buffers hold
    with serving_file(tmp_path, *flags, registry=long) as running, contextlib.ExitStack() as peers:
        for _ in range(4):
            deaf = peers.enter_context(small_buffer(running))
            deaf.sendall(b"GET /v1/registry HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: running.post(upload_of()).status_code == 200)


def small_buffer(running: Running) -> socket.socket:
    """Connect with a socket whose system takes little that nobody has read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(30)
    connection.connect(("127.0.0.1", running.port))
    return connection


def test_requests_that_wait_for_others_are_few(running: Running) -> None:
    """A thousand in one packet: some are answered, the next gets 400, and the connection ends."""
    ask = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with connect(running) as sender:
        sender.sendall(ask * 1000)
        answers = sender.makefile("rb")
        statuses = [read_answer(answers)[0] for _ in range(18)]
        assert statuses == [200] * 17 + [400]
        assert is_let_go(sender)
    before = memory_of(running)
    senders = [connect(running) for _ in range(20)]
    for sender in senders:
        sender.setblocking(False)
        with contextlib.suppress(OSError):
            sender.send(ask * 20_000)
    assert running.post(upload_of()).status_code == 200
    assert memory_of(running) - before < 64 * MEBIBYTE
    for sender in senders:
        sender.close()


def test_bytes_that_are_no_request_wait_for_their_turn(running: Running) -> None:
    """What was asked before them is answered first, and to each request its own answer."""
    upload = upload_of()
    whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(upload) + upload
    in_chunks = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    for broken, statuses in (
        (whole + b"\x00\x01\r\n\r\n", [200]),
        (whole * 3 + b"nonsense\r\n\r\n", [200] * 3),
        (whole + in_chunks + b"nonsense\r\n", [200, 400]),
        (in_chunks + b"nonsense\r\n", [400]),
        (b"nonsense\r\n\r\n", [400]),
    ):
        with connect(running) as sender, sender.makefile("rb") as answers:
            sender.sendall(broken)
            assert [read_answer(answers)[0] for _ in statuses] == statuses
            assert is_let_go(sender)


def test_who_asks_for_another_protocol_is_answered_and_let_go(running: Running) -> None:
    """What follows is never read as a request, whether it was sent as a body or not."""
    upload = upload_of()
    whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(upload) + upload
    for protocol in (b"websocket", b"h2c"):
        upgrade = b"Connection: Upgrade\r\nUpgrade: %s\r\n" % protocol
        length = b"Content-Length: %d\r\n\r\n" % len(whole)
        for head, status in ((HEAD + upgrade + length, 400), (GET + upgrade + b"\r\n", 200)):
            for parts in ((head + whole,), (head, whole)):
                with connect(running) as sender:
                    with contextlib.suppress(OSError):
                        for part in parts:
                            sender.sendall(part)
                            time.sleep(0.01)
                    answers = sender.makefile("rb")
                    assert read_answer(answers)[0] == status
                    assert is_let_go(sender)


def test_who_sends_no_more_is_still_answered(running: Running) -> None:
    """A sender may close its half of the connection behind its uploads."""
    upload = upload_of()
    whole = HEAD + b"Content-Length:  %d  \r\n\r\n" % len(upload) + upload
    with connect(running) as sender:
        sender.sendall(whole * 3)
        sender.shutdown(socket.SHUT_WR)
        answers = sender.makefile("rb")
        assert [read_answer(answers)[0] for _ in range(3)] == [200] * 3
        assert is_let_go(sender)


def test_every_way_to_send_a_request_is_answered_once(running: Running) -> None:
    """In one packet with others, in chunks, after 100 Continue, in single bytes, without a body."""
    body = upload_of()
    length = f"Content-Length: {len(body)}\r\n".encode()
    whole = HEAD + length + b"\r\n" + body
    in_chunks = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    in_chunks += b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (9, body[:9], len(body) - 9, body[9:])
    ask = b"%s /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    expecting = HEAD + length + b"Expect: 100-continue\r\n\r\n"
    with connect(running) as sender:
        answers = sender.makefile("rb")
        for sent, n_answers in (
            ((whole * 3,), 3),
            ((in_chunks,), 1),
            ((ask % b"HEAD", ask % b"GET"), 2),
            ([bytes([each]) for each in whole], 1),
        ):
            for part in sent:
                sender.sendall(part)
            if sent[0] == ask % b"HEAD":
                assert read_answer(answers, has_body=False) == (200, b"")
                assert read_answer(answers) == (200, b"alive\n")
            else:
                stored = (200, b'{"reports":[{"status":"accepted"}]}')
                assert [read_answer(answers) for _ in range(n_answers)] == [stored] * n_answers
        sender.sendall(expecting)
        assert answers.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert answers.readline() == b"\r\n"
        sender.sendall(body)
        assert read_answer(answers)[0] == 200


def read_answer(answers: BinaryIO, *, has_body: bool = True) -> tuple[int, bytes]:
    """Read one answer with its length from a connection; return its status and body."""
    status = int(answers.readline().split()[1])
    n_bytes = 0
    while (line := answers.readline()) != b"\r\n":
        name, _, value = line.partition(b":")
        n_bytes = int(value) if name.lower() == b"content-length" else n_bytes
    return status, answers.read(n_bytes) if has_body else b""


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", {}, 400),
        (b"\xff\xfe", {}, 400),
        (b"[" * 900_000, {}, 400),
        (b'{"v":' + b"9" * 900_000 + b"}", {}, 400),
        (gzip.compress(upload_of())[:-1], {"Content_Encoding": "gzip"}, 400),
        (gzip.compress(upload_of()) + b"x", {"Content_Encoding": "gzip"}, 400),
        (gzip.compress(upload_of()) * 2, {"Content_Encoding": "gzip"}, 400),
        (zlib.compress(upload_of()), {"Content_Encoding": "gzip"}, 400),
        (gzip.compress(upload_of()), {"Content_Encoding": "gzip"}, 200),
    ],
)
def test_malformed_bodies_are_problems(
    running: Running, body: bytes, headers: dict[str, str], status: int
) -> None:
    """Deep nesting, endless digits and wrong encodings each get an answer, none of them 5xx."""
    assert post(running, body, **headers).status_code == status


def is_let_go(connection: socket.socket) -> bool:
    """Wait until the other side ends a connection."""
    try:
        return connection.recv(100) == b""
    except ConnectionResetError:
        return True


def test_the_collector_is_well_after_all_of_this(running: Running) -> None:
    """After all of this the same process answers, and has logged no error."""
    assert running.process.poll() is None
    assert running.post(upload_of()).status_code == 200
    assert '"level": "error"' not in running.log.read_text(encoding="utf-8")


N_SENDERS = 8


@pytest.mark.acceptance
@pytest.mark.timeout(3600)
def test_twenty_thousand_hostile_requests_are_answered(tmp_path: Path) -> None:
    """None of them is answered 5xx, each error is a problem, and nothing of them is kept."""
    rng = seeded(3)
    bodies = itertools.chain(mutated(rng, 19_800), *(costly(n).values() for n in SIZES * 2))
    requests = [(body, rng.random() < 0.2) for body in bodies]
    assert len(requests) >= 20_000
    with serving_file(tmp_path) as running, ThreadPoolExecutor(N_SENDERS) as pool:
        before = memory_of(running)
        shares = [requests[i::N_SENDERS] for i in range(N_SENDERS)]
        seen = sum(pool.map(send_all, [running] * N_SENDERS, shares), Counter[int]())
        assert seen.total() == len(requests)
        assert set(seen) <= {200, 400, 413}
        assert memory_of(running) - before < 50_000_000
        assert '"level": "error"' not in running.log.read_text(encoding="utf-8")


def send_all(running: Running, requests: list[tuple[bytes, bool]]) -> Counter[int]:
    """Send bodies, some of them packed, over one connection; count the statuses of the answers."""
    seen = Counter[int]()
    with httpx.Client(base_url=running.url, timeout=60) as client:
        for body, is_packed in requests:
            headers = {"Content-Type": "application/json"}
            headers |= {"Content-Encoding": "gzip"} if is_packed else {}
            sent = gzip.compress(body) if is_packed else body
            answer = client.post("/v1/reports", content=sent, headers=headers)
            if answer.is_error:
                assert answer.json()["status"] == answer.status_code
            seen[answer.status_code] += 1
    return seen
