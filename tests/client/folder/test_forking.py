"""Forks and threads: nothing hangs, nothing is sent twice, and everybody goes on."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import forking_child
import interrupted_fork_child
import pytest
from days import finish_days, record_days
from devices import Home, list_sender_threads, metric_of
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


@pytest.mark.parametrize("way", ["os", "multiprocessing"])
@pytest.mark.parametrize("rounds", [20, pytest.param(500, marks=pytest.mark.acceptance)])
def test_two_threads_fork_while_a_third_records(rounds: int, way: str, tmp_path: Path) -> None:
    """Parent and children go on recording, in all these forks of each thread."""
    words = (str(tmp_path / "device"), str(rounds), way)
    assert int(run_python(forking_child.__file__, *words).stdout) == 2 * rounds + 1


def test_a_child_is_another_process_for_the_folders_lock(home: Home) -> None:
    """It has not the lock of its parent, takes its own, and leaves the parent's alone."""
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


@pytest.mark.parametrize("normalizer", sorted(NORMALIZERS))
def test_methods_of_an_open_client_load_nothing(normalizer: str, tmp_path: Path) -> None:
    """A child of a fork could wait for the module that another thread was importing."""
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
def test_fork_waits_for_what_another_thread_loads(late: str, action: str, tmp_path: Path) -> None:
    """A child opens a device of its own, or normalizes for metrics that its host makes itself."""
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
    """It is left out: the line of the log for which it is meant is lost, and nothing waits."""
    told: list[bool] = []

    def look() -> None:
        with block_forks() as is_kept:
            told.append(is_kept)

    class Looking(Shared):
        def before_fork(self, deadline: float) -> None:
            super().before_fork(deadline)
            other = threading.Thread(target=look)
            other.start()
            other.join()

    _shared = Looking()
    in_child(bool)
    look()
    assert told == [False, True]


def test_no_property_of_the_device_is_cached_under_a_lock() -> None:
    """functools.cached_property holds one in Python 3.11, which a fork would leave taken."""
    folders = ("rappor/protocol", "rappor/registry", "rappor/privacy", "client/rappor_client")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 50
    assert not [path for path in sources if "cached_property" in path.read_text(encoding="utf-8")]


def test_threads_that_start_together_share_one_sender(home: Home) -> None:
    """However the interpreter switches between them: 20 clients, 8 threads each."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for i in range(20):
            client = home.open(
                folder=str(i), collector=MemoryTransport(), background=True, max_delay=3600.0
            )
            assert len(senders_of(client, n_threads=8)) == 1
            client.close()
    finally:
        sys.setswitchinterval(before)
    assert not list_sender_threads()


def senders_of(client: Client, n_threads: int) -> set[int]:
    """Let threads record at the same moment; return who would send for each."""
    start = threading.Barrier(n_threads)
    met: set[int] = set()

    def work() -> None:
        start.wait()
        client.record("page", "x")
        sender = client._get_sender()
        assert sender is not None
        met.add(id(sender))

    threads = [threading.Thread(target=work) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return met


def test_child_does_not_rely_on_what_its_parent_had_to_write(home: Home) -> None:
    """The parent ends before it writes the interval's event, as when a program becomes a daemon."""
    client = home.open(metric_of(interval="day"))
    for _ in range(2):  # the second day's first event is as good as any other
        client.record("page", "a")
        client.queued_count()
        home.clock.advance(days=1)
    read, write = os.pipe()
    if (parent := os.fork()) == 0:
        try:
            client.record("page", "a")
            if os.fork() == 0:
                client.record("page", "a")
                client.queued_count()
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(parent, 0)
    assert os.read(read, 1) == b""  # the child has ended, too
    os.close(read)
    assert any(
        held.interval_end > home.clock() for held in testing.peek(home.folder).pending_reports
    )


@pytest.mark.parametrize("inside", ["database", "state"])
def test_fork_does_not_wait_for_a_disk_that_hangs(
    inside: str, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child has no database if a thread was inside; in the parent nothing is lost."""
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
    assert not in_child(lambda: see(client, 0 if inside == "database" else 1))
    if inside == "database":  # nor has another client there, by another name of the folder
        again = f"../{home.place.name}/{home.folder.name}"
        assert not in_child(lambda: see(home.open(folder=again), 0))
    may_end.set()
    hanging.join()
    assert len(testing.peek(home.folder).pending_reports) == (0 if inside == "database" else 1)
    record_days(client, "page", "x")
    assert client.queued_count() == 2
    assert not in_child(lambda: see(client, 2))
    assert len(testing.peek(home.folder).pending_reports) == 1


def see(client: Client, waiting: int) -> None:
    """Record, and look at what waits; where nothing is on the disk, nothing raises."""
    assert client.record("page", "x")
    assert client.queued_count() == waiting
    client.close()


class Interrupted(Shared):
    """What threads share, in whose hook a signal's handler raises."""

    def __init__(self, at: str) -> None:
        self.at = at
        super().__init__()

    def before_fork(self, deadline: float) -> None:
        """Raise once, if that is where."""
        self.happen("before")
        super().before_fork(deadline)

    def after_fork_in_parent(self) -> None:
        """Raise once, if that is where."""
        self.happen("after")
        super().after_fork_in_parent()

    def happen(self, at: str) -> None:
        """Raise as Ctrl-C does."""
        if self.at == at:
            self.at = "done"
            raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("at", ["before", "after"])
def test_signal_that_raises_in_a_fork_leaves_nothing_locked(at: str, home: Home) -> None:
    """Before it or after it: another thread records, opens a client and forks afterwards."""
    client = home.open()
    failures = [Failures(home.place) for _ in range(20)]
    interrupted = Interrupted(at)
    in_child(bool)
    assert interrupted.at == "done"

    def go_on() -> None:
        client.record("page", "x")
        for each in (*failures, Failures(home.place)):
            each.note(OSError())
        in_child(bool)

    going_on = threading.Thread(target=go_on, daemon=True)
    going_on.start()
    going_on.join(60)
    assert not going_on.is_alive()
    finish_days(client)
    assert client.queued_count() == 1


def test_signal_beside_the_fork_of_another_thread_leaves_nothing_locked(tmp_path: Path) -> None:
    """What the other thread holds is let go of, although the signal's thread forks meanwhile.

    In a program of its own: where more modules watch forks, the thread may wait for one of those.
    """
    run_python(interrupted_fork_child.__file__, str(tmp_path))
