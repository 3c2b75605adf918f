"""Background sender: when its thread starts, when it sends, and which failures it survives.

The sender waits for two random times, which hide the time of an event. A report has a `send_after`,
a random time of the interval after its own. Before each upload the sender draws a further delay of
up to `max_delay`. A recorded event of a later interval queues the report and wakes the thread.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from days import build_metrics, finish_days, record_days
from devices import Home, Opener, build_metric, list_sender_threads, open_device
from programs import run_python, wait_until
from rappor_client import Client, TransportResponse
from rappor_client.outbox.background import limit_sleep
from rappor_client.testing import FixedClock, MemoryTransport, constant_coins

from rappor.base.threads import start_thread

LATE = constant_coins(2**32 - 1)
"""With these coins every random wait is as long as possible."""
EARLY = constant_coins(0)
"""With these coins every random wait is 0."""


@pytest.fixture
def open_sending(home: Home) -> Opener:
    """A function that opens clients with a background sender."""

    def opener(*metrics: Any, **settings: Any) -> Client:
        return home.open(*metrics, **({"background": True} | settings))

    return opener


def record_and_wake(client: Client) -> None:
    """Queue the report of a day, and wake the sender by an event of the next day."""
    record_days(client, "page", "x")
    client.record("page", "x")


def test_no_thread_until_something_is_recorded(open_sending: Opener) -> None:
    """Opening, reading and skipped values start no thread. A recorded value starts one thread.

    Closing ends the thread.
    """
    before = len(list_sender_threads())
    client = open_sending(collector=MemoryTransport(), opted_out={"page"})
    client.record("page", "x")
    client.flush()
    client.privacy_spent()
    assert len(list_sender_threads()) == before
    client.close()
    client = open_sending(collector=MemoryTransport())
    record_days(client, "page", "x")
    assert client.queued_count() == 1
    assert len(list_sender_threads()) == before + 1
    record_days(client, "page", "x")
    assert client.queued_count() == 2
    assert len(list_sender_threads()) == before + 1
    client.close()
    assert len(list_sender_threads()) == before


def test_background_sender_waits_a_random_time_first(open_sending: Opener) -> None:
    """No upload leaves for an hour with the largest coin. All leave at once with the smallest."""
    transport = MemoryTransport()
    late = open_sending(collector=transport, max_delay=3600.0, coins=LATE, folder="late")
    record_and_wake(late)
    early = open_sending(collector=MemoryTransport(), max_delay=3600.0, coins=EARLY, folder="early")
    record_and_wake(early)
    wait_until(lambda: early.queued_count() == 0)
    assert transport.bodies == []


def test_each_upload_waits_a_random_time_of_its_own(open_sending: Opener, home: Home) -> None:
    """The second upload does not follow the first upload at once, but draws another delay."""
    first_delay = iter([0])

    def coins(n: int) -> list[int]:
        """Return coins for no first delay, then the longest delays. A delay takes one coin."""
        return [next(first_delay, 2**32 - 1)] if n == 1 else [2**31] * n

    metrics = build_metrics(3)
    client = open_sending(*metrics, collector=home.transport, coins=coins)
    # With these coins the send_after of all reports is the end of their interval.
    recording = home.open(*metrics, coins=EARLY)
    for metric in metrics:
        recording.record(metric.name, "x")
    finish_days(recording)
    client.record("page0", "x")  # wakes the sender
    wait_until(lambda: client.queued_count() == 2)
    assert len(home.transport.bodies) == 1


@pytest.mark.parametrize(
    ("seconds", "delay", "expected"),
    [(-5, 0, 0), (10, 0, 10), (1e9, 0, 3600), (0, 86_400, 86_400), (1e9, 7200, 10_800)],
)
def test_delay_longer_than_an_hour_is_not_cut(
    seconds: float, delay: float, expected: float
) -> None:
    """The sleep until a time of the clock is limited to an hour. The random delay has no limit."""
    assert limit_sleep(seconds, delay=delay) == expected


@pytest.mark.parametrize(("hours", "n_sent"), [(18, 0), (19, 1)])
def test_reports_of_an_interval_leave_spread_over_the_next_one(
    hours: int, n_sent: int, home: Home, clock: FixedClock
) -> None:
    """A coin of three quarters makes the report of a day leave at 18:00 (UTC) of the next day."""
    client = home.open(collector=home.transport, coins=constant_coins(3 * 2**30))
    client.record("page", "x")
    clock.set("2026-11-19T00:00:00")
    clock.advance(hours=hours, seconds=-1)
    sender = client._get_sender()
    assert sender is not None
    assert sender.uploader.step().is_attempt is bool(n_sent)
    assert client.flush()  # a flush ignores send_after
    assert len(home.transport.reports) == 1


def test_sender_keeps_the_wait_after_a_failure(open_sending: Opener, clock: FixedClock) -> None:
    """The background sender waits for the backoff. Only a flush ignores it."""
    transport = MemoryTransport([None])
    first = open_sending(collector=transport, coins=LATE)
    record_days(first, "page", "x")
    assert not first.flush(timeout=0.0)
    first.close()
    metrics = (build_metric(), build_metric("other"))
    client = open_sending(*metrics, collector=transport, coins=EARLY, max_delay=0.0)
    client.record("page", "x")  # wakes the sender
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        assert len(transport.bodies) == 1
        time.sleep(0.01)
    clock.advance(seconds=5)
    client.record("other", "x")  # wakes the sender again
    wait_until(lambda: client.queued_count() == 0)
    assert len(transport.bodies) == 2


def test_opening_sends_the_reports_of_an_earlier_run(open_sending: Opener, home: Home) -> None:
    """Opening a client wakes the sender for the reports of an earlier run.

    The first upload leaves without a delay, and every other upload after a short delay.
    """
    run = home.open(*build_metrics(2), coins=EARLY)
    for metric in build_metrics(2):
        run.record(metric.name, "x")
    finish_days(run)
    run.close()
    n_sent_at_draws: list[int] = []

    def coins(n: int) -> list[int]:
        """Return the largest coins, and note how many uploads had left at the time of the draw."""
        n_sent_at_draws.append(len(home.transport.bodies))
        return [2**32 - 1] * n

    client = open_sending(*build_metrics(2), collector=home.transport, coins=coins)
    # The sender draws for the last time after the last report has left the queue.
    wait_until(lambda: client.queued_count() == 0 and len(n_sent_at_draws) >= 4)
    client.close()
    # Each of the two attempts draws twice. The draw before the upload is a random part of the
    # interval that follows the metric's cooldown. The draw after the upload is the delay before the
    # next upload.
    assert n_sent_at_draws == [0, 1, 1, 2]


def return_nothing() -> Any:
    """Return no response at all, as a wrong transport of a host may."""
    return None


def end_the_thread() -> Any:
    """End the thread of the sender. Python prints nothing for SystemExit in a thread."""
    raise SystemExit


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("breaking", [return_nothing, end_the_thread])
def test_sender_survives_a_wrong_transport(
    breaking: Callable[[], Any], open_sending: Opener
) -> None:
    """A wrong transport ends one attempt. If it ends the thread, the next event starts another."""

    class Broken(MemoryTransport):
        def send(self, body: bytes, *, timeout: float) -> TransportResponse:
            if not broken:
                broken.append(threading.current_thread())
                return cast("TransportResponse", breaking())
            return super().send(body, timeout=timeout)

    broken = list[threading.Thread]()
    transport = Broken([None, TransportResponse(status=500)])
    settings: dict[str, Any] = {"max_delay": 0.0, "coins": EARLY}
    client = open_sending(*build_metrics(5), collector=transport, **settings)
    client.record("page0", "x")
    finish_days(client)
    client.record("page1", "x")  # wakes the sender
    wait_until(lambda: broken and (breaking is return_nothing or not broken[0].is_alive()))
    for i in (2, 3, 4):
        finish_days(client)
        client.record(f"page{i}", "x")
        wait_until(lambda: client.queued_count() == 0)
    assert len(transport.reports) == 4


HEAD = """
import atexit, http.server, resource, socket, sys, tempfile, threading, time
from pathlib import Path
from days import FallingCoins, record_days
from devices import open_device
from rappor_client import FlushReason
from rappor_client.testing import FixedClock, MemoryTransport, constant_coins

def build_client(collector, **chosen):
    chosen |= {"clock": FixedClock("2026-11-18T12:00:00"), "coins": constant_coins(0)}
    return open_device(Path(tempfile.mkdtemp()), collector=collector, **chosen)

def leave_no_room():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 32, -1))
    threading.stack_size(1 << 33)  # no thread has room for its stack
"""
"""Begins the sources below. `leave_no_room` limits the memory of the process, so that no thread can
start from then on."""


NO_THREADS = """
client = build_client(MemoryTransport(), background=True, max_delay=0.0)
client.close()  # the thread that opened the folder ends
leave_no_room()
record_days(client, "page", "x")
assert client.queued_count() == 1
assert threading.active_count() == 1
threading.stack_size(0)
client.record("page", "x")  # wakes the sender
while client.queued_count():
    pass
client.close()
sys.stdout.write("done")
"""
"""Source of a program that records while no thread can start. Once threads can start again, the
background sender sends the report."""


NO_EXCHANGE = """
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.wfile.write(b"HTTP/1.1 200 OK\\r\\n\\r\\n" + b'{"reports":[{"status":"accepted"}]}')
    def log_message(self, *words):
        pass

def drip():
    connection, _ = dripping.accept()
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nX: ")
    while True:
        connection.sendall(b"x")
        time.sleep(0.01)

server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
dripping = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=drip, daemon=True).start()
ports = server.server_port, dripping.getsockname()[1]
clients = [build_client(f"http://127.0.0.1:{port}") for port in ports]
for client in clients:
    record_days(client, "page", "x")
leave_no_room()
assert clients[0].flush(timeout=60.0).sent == 1
flushed = clients[1].flush(timeout=0.5)
assert flushed.reason is FlushReason.UNREACHABLE, flushed
assert clients[1].queued_count() == 1
sys.stdout.write("done")
"""
"""Source of a program that flushes while no thread can start, so the exchange with the collector
runs in the thread of the caller. The second collector sends one byte after the other, and the flush
ends at its timeout all the same."""


AT_EXIT = """
def late():
    client = build_client(MemoryTransport(), background=True, max_delay=0.0)
    record_days(client, "page", "x")
    assert client.flush(timeout=60.0)
    client.close()
    sys.stdout.write("done")

atexit.register(late)
"""
"""Source of a program that opens a device and flushes in a handler of `atexit`."""


AFTER_EXIT = """
from devices import open_spool

class Session:
    def __del__(self):
        at_exit = self.tag()
        self.client.record("page", "x")
        tags = self.tag(), at_exit, self.first
        sys.stdout.write("done" if tags[0] < tags[1] < tags[2] else f"{tags} are written")
        sys.stdout.flush()

    def tag(self):
        with open_spool(folder) as db:  # `queued_count` would write the events in memory
            return db.execute("SELECT tag FROM held").fetchone()[0]

folder = Path(tempfile.mkdtemp())
session = Session()
session.client = open_device(folder, background=False, coins=FallingCoins())
atexit._clear()  # the handler of the host shall run last, as if it were registered first
atexit.register(session.client.record, "page", "x")
from rappor_client.outbox import writer
atexit.register(writer._end_all)
session.client.record("page", "x")
session.client.queued_count()
session.first = session.tag()
"""
"""Source of a program that records three times: while it runs, in a handler of `atexit` after the
last commit of the client, and in the `__del__` of an object when the modules end. `FallingCoins`
give each event a smaller tag than the event before, so the tag of the pending report shows which
event was written last."""


WITHOUT_DAEMON_THREADS = """
client = build_client("http://127.0.0.1:9", background=True)
record_days(client, "page", "x")
flushed = client.flush(timeout=1.0)
assert flushed.waiting == 1, flushed
assert client.event_counts() == {"recorded": 1, "failures": 2}, client.event_counts()
client.close()
sys.stdout.write("done")
"""
"""Source of a program that flushes where no daemon thread can start, as in a subinterpreter."""
IN_SUBINTERPRETER = """
import sys
import _xxsubinterpreters as interpreters

path = f"import sys; sys.path[:] = {{sys.path}}"
interpreters.run_string(interpreters.create(), path + {program!r})
"""
"""This program is a template. A subinterpreter of its process runs another program."""


IS_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
CAN_LOAD_MMH3 = pytest.mark.skipif(sys.version_info >= (3, 12), reason="mmh3 refuses to be loaded")


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(HEAD + NO_THREADS, id="record without threads", marks=IS_LINUX),
        pytest.param(HEAD + NO_EXCHANGE, id="flush without threads", marks=IS_LINUX),
        pytest.param(HEAD + AT_EXIT, id="while the interpreter ends"),
        pytest.param(HEAD + AFTER_EXIT, id="after the last writes, and while modules end"),
        pytest.param(
            IN_SUBINTERPRETER.format(program=HEAD + WITHOUT_DAEMON_THREADS),
            id="in a subinterpreter",
            marks=CAN_LOAD_MMH3,
        ),
    ],
)
def test_record_and_flush_work_without_threads(program: str) -> None:
    """Without threads the report stays queued or is sent in the thread of the caller.

    The missing sender counts as a failure.
    """
    assert run_python("-c", program).stdout == "done"


NO_HANDLES = """
client = build_client(MemoryTransport(), background=True, max_delay={max_delay})
record_days(client, "page", "x")
client.record("page", "x")  # wakes the sender
time.sleep({seconds})
resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
client.record("page", "y")
assert "Privacy loss so far" in str(client.privacy_spent())
sys.stdout.write("done")
"""
"""Template of a program that has no free file handle from some `seconds` on. By then the background
sender waits, is due, or has sent, as its `max_delay` says."""


@IS_LINUX
@pytest.mark.parametrize(
    ("max_delay", "seconds"), [(900.0, 0.0), (0.01, 0.05), (0.0, 0.2)], ids=["idle", "due", "sent"]
)
def test_program_without_free_handles_ends(max_delay: float, seconds: float) -> None:
    """A program without free file handles ends normally.

    The interpreter kills a thread that wakes while it ends. Linux needs a handle for this, and
    aborted the process without one.
    """
    program = HEAD + NO_HANDLES.format(max_delay=max_delay, seconds=seconds)
    assert run_python("-c", program).stdout == "done"


FORK_WITHOUT_HANDLES = """
import os
from rappor_client.folder.forking import ForkAware

class HookRecorder(ForkAware):
    n_hooks = 0
    def before_fork(self, deadline):
        self.n_hooks += 1
    def after_fork_in_parent(self):
        pass
    def after_fork_in_child(self):
        pass

recorder = HookRecorder()
client = build_client(MemoryTransport(), background=True)
client.record("page", "x")
resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
child = os.fork()
if child == 0:
    client.record("page", "y")
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert recorder.n_hooks == 1
sys.stdout.write("done")
"""
"""A program that forks while it has no free file handle."""


@IS_LINUX
def test_program_without_free_handles_forks() -> None:
    """The hooks of a fork run also if the module that they load beforehand cannot be opened."""
    ended = run_python("-c", HEAD + FORK_WITHOUT_HANDLES)
    assert (ended.stdout, "Traceback" in ended.stderr) == ("done", False)


def test_close_ends_every_thread(tmp_path: Path) -> None:
    """A program that opens and closes 20 devices in a row has no thread left."""
    before = set(threading.enumerate())
    for n in range(20):
        client = open_device(tmp_path / str(n), collector=MemoryTransport(), background=True)
        client.record("page", "x")
        client.close()
        assert set(threading.enumerate()) == before


def test_no_thread_starts_while_the_interpreter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """`start_thread` raises. Python 3.11 would wait without end until the thread runs."""
    monkeypatch.setattr("sys.is_finalizing", lambda: True)
    thread = threading.Thread(target=int)
    with pytest.raises(RuntimeError, match="the interpreter is shutting down"):
        start_thread(thread)
    assert thread.ident is None
