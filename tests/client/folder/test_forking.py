"""Forks and threads: no deadlock, no report twice, and parent and child go on."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import forking_child
import interrupted_fork_child
import pytest
from days import finish_days, record_days
from devices import Home, list_sender_threads, metric_of, write_events
from forks import in_child
from places import ROOT
from programs import run_python
from rappor_client import Client, testing
from rappor_client.folder import forking
from rappor_client.folder.failures import Failures
from rappor_client.folder.forking import Shared, block_forks
from rappor_client.testing import MemoryTransport
from registries import toml_of

from rappor.protocol.normalizers import NORMALIZERS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["os", "multiprocessing"])
@pytest.mark.parametrize("rounds", [20, pytest.param(500, marks=pytest.mark.acceptance)])
def test_two_threads_fork_while_a_third_records(rounds: int, way: str, tmp_path: Path) -> None:
    """Parent and children record, in all forks of both threads."""
    words = (str(tmp_path / "device"), str(rounds), way)
    assert int(run_python(forking_child.__file__, *words).stdout) == 2 * rounds + 1


def test_a_child_is_another_process_for_the_folders_lock(home: Home) -> None:
    """A child does not own the lock of its parent, and releases only its own lock."""
    client = home.open()
    record_days(client, "page", "x")
    assert client.queued_count() == 1
    assert client._writer is not None
    folder = client._writer.identity.folder

    def attempt() -> bool:
        with folder.try_lock() as is_inside:
            return is_inside

    with folder.try_lock() as is_inside:
        assert is_inside
        assert in_child(attempt) == 0
    assert in_child(attempt) == 1
    assert attempt()


@pytest.mark.slow
@pytest.mark.parametrize("normalizer", sorted(NORMALIZERS))
def test_methods_of_an_open_client_load_nothing(normalizer: str, tmp_path: Path) -> None:
    """No method of an open client imports a module.

    The child of a fork could wait for a module that another thread was importing.
    """
    program = (
        "import sys\n"
        "from rappor_client import Client, ClientOptions\n"
        "from rappor import Registry\n"
        "choices = {'registry': Registry.load('metrics.toml'), 'consent': True}\n"
        "address = 'http://127.0.0.1:9'\n"
        "options = ClientOptions(background=False, raise_errors=True)\n"
        "with Client.open('device', collector=address, options=options, **choices) as client:\n"
        "    loaded = set(sys.modules)\n"
        "    assert client.record('page', 'https://straße.example/')\n"
        "    client.privacy_spent(), client.sent_uploads()\n"
        "    client.event_counts(), client.queued_count()\n"
        "    client.opt_out('page')\n"
        "    client.withdraw()\n"
        "assert not set(sys.modules) - loaded, set(sys.modules) - loaded\n"
    )
    (tmp_path / "metrics.toml").write_text(toml_of(normalize=f"'{normalizer}'"))
    run_python("-c", program, folder=tmp_path)


NORMALIZING = "normalize('host', 'straße.example')"
OPENING = "Client.open(str(os.getpid()), registry='metrics.toml', consent=True)"


@pytest.mark.parametrize(
    ("late", "action"),
    [
        ("unicodedata", NORMALIZING),
        ("encodings.idna", NORMALIZING),
        ("tomllib", OPENING),
        ("publicsuffixlist", OPENING),
    ],
)
def test_fork_waits_for_the_imports_of_another_thread(
    late: str, action: str, tmp_path: Path
) -> None:
    """A fork waits until another thread has imported a module that the client loads late.

    So the child can open a device and normalize values.
    """
    program = (
        "import importlib.util, os, signal, sys, threading, time\n"
        "from rappor.protocol.normalizers import normalize\n"
        "from rappor_client import Client\n"
        "is_inside = threading.Event()\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name != {late!r}:\n"
        "            return None\n"
        "        sys.meta_path.remove(self)\n"
        "        spec = importlib.util.find_spec(name)\n"
        "        self.create_module = spec.loader.create_module\n"
        "        self.run, spec.loader = spec.loader.exec_module, self\n"
        "        return spec\n"
        "    def exec_module(self, module):\n"
        "        is_inside.set()\n"
        "        time.sleep(0.5)\n"
        "        self.run(module)\n"
        "sys.meta_path.insert(0, Slow())\n"
        f"loading = threading.Thread(target=lambda: {action})\n"
        "loading.start()\n"
        "assert is_inside.wait(300)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.alarm(60)  # ends a child that waits for a module\n"
        f"    {action}\n"
        "    os._exit(0)\n"
        "loading.join()\n"
        "sys.exit(abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))\n"
    )
    (tmp_path / "metrics.toml").write_text(toml_of(normalize="'domain'"))
    run_python("-c", program, folder=tmp_path)


def test_no_late_import_begins_beside_a_fork() -> None:
    """Beside a fork, `block_forks` yields False.

    The late import is left out then, and its log line is lost.
    """
    results: list[bool] = []

    def try_blocking() -> None:
        with block_forks() as is_blocked:
            results.append(is_blocked)

    class Blocking(Shared):
        def before_fork(self, deadline: float) -> None:
            super().before_fork(deadline)
            other = threading.Thread(target=try_blocking)
            other.start()
            other.join()

    _shared = Blocking()
    in_child(bool)
    try_blocking()
    assert results == [False, True]


def test_no_property_of_the_device_is_cached_under_a_lock() -> None:
    """The sources do not use functools.cached_property, which holds a lock in Python 3.11."""
    folders = ("rappor/protocol", "rappor/registry", "rappor/privacy", "client/rappor_client")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 50
    assert not [path for path in sources if "cached_property" in path.read_text(encoding="utf-8")]


def test_threads_that_start_together_share_one_sender(home: Home) -> None:
    """Eight threads of each of 20 clients get one sender, however the interpreter switches."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for i in range(20):
            client = home.open(
                folder=str(i), collector=MemoryTransport(), background=True, max_delay=3600.0
            )
            assert len(record_in_threads(client, n_threads=8)) == 1
            client.close()
    finally:
        sys.setswitchinterval(before)
    assert not list_sender_threads()


def record_in_threads(client: Client, n_threads: int) -> set[int]:
    """Let threads record at the same moment; return the ids of the senders that they get."""
    start = threading.Barrier(n_threads)
    sender_ids: set[int] = set()

    def work() -> None:
        start.wait()
        client.record("page", "x")
        sender = client._get_sender()
        assert sender is not None
        sender_ids.add(id(sender))

    threads = [threading.Thread(target=work) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sender_ids


def test_child_does_not_rely_on_the_writes_of_its_parent(home: Home) -> None:
    """A child writes its own event if the parent ends before it has written the interval's event.

    A program that becomes a daemon does this.
    """
    client = home.open(metric_of(interval="day"))
    for _ in range(2):  # on the second day the scope is memoized, so one event is enough
        client.record("page", "a")
        write_events(client)
        home.clock.advance(days=1)
    read, write = os.pipe()
    if (parent := os.fork()) == 0:
        try:
            client.record("page", "a")
            if os.fork() == 0:
                client.record("page", "a")
                write_events(client)
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(parent, 0)
    assert os.read(read, 1) == b""  # the child has ended, too
    os.close(read)
    assert any(
        report.interval_end > home.clock() for report in testing.peek(home.folder).pending_reports
    )


@pytest.mark.parametrize("inside", ["database", "state"])
def test_fork_does_not_wait_for_a_disk_that_hangs(
    inside: str, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork goes on without the lock of a thread that hangs inside the database or the folder.

    The child has no database if a thread was inside it. The parent loses nothing.
    """
    monkeypatch.setattr(forking, "_FORK_SECONDS", 0.05)
    client = home.open()
    record_days(client, "page", "x")
    assert client.queued_count() == 1
    writer = client._writer
    assert writer is not None
    is_inside, may_end = threading.Event(), threading.Event()

    def hang() -> None:
        with writer.store.transaction() if inside == "database" else writer._turn.acquire(1.0):
            is_inside.set()
            may_end.wait(300)

    hanging = threading.Thread(target=hang)
    hanging.start()
    assert is_inside.wait(300)
    assert not in_child(lambda: check_queued(client, 0 if inside == "database" else 1))
    if inside == "database":  # another client has no database either, by another path
        again = f"../{home.place.name}/{home.folder.name}"
        assert not in_child(lambda: check_queued(home.open(folder=again), 0))
    may_end.set()
    hanging.join()
    assert len(testing.peek(home.folder).pending_reports) == (0 if inside == "database" else 1)
    record_days(client, "page", "x")
    assert client.queued_count() == 2
    assert not in_child(lambda: check_queued(client, 2))
    assert len(testing.peek(home.folder).pending_reports) == 1


def check_queued(client: Client, waiting: int) -> None:
    """Record, and assert the number of queued reports."""
    assert client.record("page", "x")
    assert client.queued_count() == waiting
    client.close()


class RaisingInHook(Shared):
    """A shared object whose hook raises once, as the handler of a signal does."""

    def __init__(self, at: str) -> None:
        self.at = at
        super().__init__()

    def before_fork(self, deadline: float) -> None:
        """Raise, if this is the place."""
        self.raise_once("before")
        super().before_fork(deadline)

    def after_fork_in_parent(self) -> None:
        """Raise, if this is the place."""
        self.raise_once("after")
        super().after_fork_in_parent()

    def raise_once(self, at: str) -> None:
        """Raise KeyboardInterrupt once."""
        if self.at == at:
            self.at = "done"
            raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("at", ["before", "after"])
def test_signal_that_raises_in_a_fork_leaves_nothing_locked(at: str, home: Home) -> None:
    """After an exception in a hook, another thread records, opens a client and forks."""
    client = home.open()
    failures = [Failures(home.place) for _ in range(20)]
    interrupted = RaisingInHook(at)
    in_child(bool)
    assert interrupted.at == "done"

    def use_client() -> None:
        client.record("page", "x")
        for instance in (*failures, Failures(home.place)):
            instance.note(OSError())
        in_child(bool)

    thread = threading.Thread(target=use_client, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    finish_days(client)
    assert client.queued_count() == 1


def test_signal_beside_the_fork_of_another_thread_leaves_nothing_locked(tmp_path: Path) -> None:
    """The locks of a forking thread are released although a signal's handler forks beside it.

    The program runs alone: where other modules have hooks, the thread may wait for one of them.
    """
    run_python(interrupted_fork_child.__file__, str(tmp_path))
