"""Forks and threads: no deadlock, no report twice, and parent and child go on."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import forking_child
import interrupted_fork_child
import pytest
from days import finish_days, record_days
from devices import Home, build_metric, list_sender_threads, write_events
from forks import run_in_child
from places import ROOT
from programs import run_python
from rappor_client import Client, testing
from rappor_client.folder import forking
from rappor_client.folder.failures import Failures
from rappor_client.folder.forking import Shared, block_forks
from rappor_client.outbox import background
from rappor_client.testing import MemoryTransport
from registries import format_registry

from rappor.protocol.normalizers import NORMALIZERS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


@pytest.mark.slow
@pytest.mark.parametrize("module", ["os", "multiprocessing"])
@pytest.mark.parametrize("rounds", [20, pytest.param(500, marks=pytest.mark.acceptance)])
def test_two_threads_fork_while_a_third_records(rounds: int, module: str, tmp_path: Path) -> None:
    """The parent and the child of every fork record: each has a pending report."""
    words = (str(tmp_path / "device"), str(rounds), module)
    assert int(run_python(forking_child.__file__, *words).stdout) == 2 * rounds + 1


def test_a_child_is_another_process_for_the_folders_lock(home: Home) -> None:
    """A child does not own the lock of its parent, and can acquire a released lock."""
    client = home.open()
    record_days(client, "page", "x")
    assert client.queued_count() == 1
    assert client._writer is not None
    folder = client._writer.identity.folder

    def can_lock() -> bool:
        with folder.try_lock() as is_locked:
            return is_locked

    with folder.try_lock() as is_locked:
        assert is_locked
        assert run_in_child(can_lock) == 0
    assert run_in_child(can_lock) == 1
    assert can_lock()


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
    (tmp_path / "metrics.toml").write_text(format_registry(normalize=f"'{normalizer}'"))
    run_python("-c", program, folder=tmp_path)


NORMALIZE = "normalize('host', 'straße.example')"
OPEN_CLIENT = "Client.open(str(os.getpid()), registry='metrics.toml', consent=True)"


@pytest.mark.parametrize(
    ("module", "action"),
    [
        ("unicodedata", NORMALIZE),
        ("encodings.idna", NORMALIZE),
        ("tomllib", OPEN_CLIENT),
        ("publicsuffixlist", OPEN_CLIENT),
    ],
)
def test_fork_waits_for_the_imports_of_another_thread(
    module: str, action: str, tmp_path: Path
) -> None:
    """A fork waits until another thread has imported a module that the client loads late.

    The import of the module ends a tenth of a second after the fork has begun. The child can open
    a device and normalize values, because its module is complete.
    """
    program = (
        "import importlib.util, os, signal, sys, threading, time\n"
        "from rappor.protocol.normalizers import normalize\n"
        "from rappor_client import Client\n"
        "from rappor_client.folder import forking\n"
        "forking._FORK_SECONDS = 300  # a busy machine may import for longer than two seconds\n"
        # Python imports unicodedata when it compiles "\\N{...}" of a file without stored byte code.
        f"sys.modules.pop({module!r}, None)\n"
        "is_importing, is_forking = threading.Event(), threading.Event()\n"
        # Python calls the hooks before a fork in the reverse order of their registration.
        "os.register_at_fork(before=is_forking.set)\n"
        "class SlowImporter:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name != {module!r}:\n"
        "            return None\n"
        "        sys.meta_path.remove(self)\n"
        "        spec = importlib.util.find_spec(name)\n"
        "        self.create_module = spec.loader.create_module\n"
        "        self.run, spec.loader = spec.loader.exec_module, self\n"
        "        return spec\n"
        "    def exec_module(self, module):\n"
        "        is_importing.set()\n"
        "        assert is_forking.wait(300)\n"
        "        time.sleep(0.1)\n"
        "        self.run(module)\n"
        "sys.meta_path.insert(0, SlowImporter())\n"
        f"importing_thread = threading.Thread(target=lambda: {action})\n"
        "importing_thread.start()\n"
        "assert is_importing.wait(300)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.alarm(300)  # ends a child that waits for a module\n"
        f"    {action}\n"
        "    os._exit(0)\n"
        "importing_thread.join()\n"
        "sys.exit(abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))\n"
    )
    (tmp_path / "metrics.toml").write_text(format_registry(normalize="'domain'"))
    run_python("-c", program, folder=tmp_path)


def test_no_late_import_begins_beside_a_fork() -> None:
    """While another thread forks, `block_forks` yields False.

    Its caller then leaves the import of `logging` out, and loses a log line.
    """
    results: list[bool] = []

    def try_blocking() -> None:
        with block_forks() as is_blocked:
            results.append(is_blocked)

    class BlockingInHook(Shared):
        def before_fork(self, deadline: float) -> None:
            super().before_fork(deadline)
            thread = threading.Thread(target=try_blocking)
            thread.start()
            thread.join()

    _shared = BlockingInHook()
    run_in_child(bool)  # a fork whose child does nothing
    try_blocking()
    assert results == [False, True]


def test_no_property_of_the_device_is_cached_under_a_lock() -> None:
    """The sources do not use functools.cached_property, which holds a lock in Python 3.11.

    A child whose parent computed such a property in another thread would wait without end.
    """
    folders = ("rappor/protocol", "rappor/registry", "rappor/privacy", "client/rappor_client")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 50
    assert not [path for path in sources if "cached_property" in path.read_text(encoding="utf-8")]


def test_threads_that_start_together_share_one_sender(home: Home) -> None:
    """Eight threads of each of 20 clients get one sender, however the interpreter switches."""
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for i in range(20):
            client = home.open(
                folder=str(i), collector=MemoryTransport(), background=True, max_delay=3600.0
            )
            assert len(record_in_threads(client, n_threads=8)) == 1
            client.close()
    finally:
        sys.setswitchinterval(switch_interval)
    assert not list_sender_threads()


def test_end_of_a_child_does_not_wait_for_the_sender_of_its_parent(home: Home) -> None:
    """A child ends although the parent's sender held its lock during the fork."""
    client = home.open(collector=MemoryTransport(), background=True, max_delay=3600.0)
    client.record("page", "x")
    write_events(client)
    sender = client._get_sender()
    assert sender is not None
    is_held, may_release = threading.Event(), threading.Event()

    def hold_lock() -> None:
        with sender._wake:
            is_held.set()
            may_release.wait(300.0)

    def end_child() -> None:
        signal.alarm(120)
        background._end_all()

    holder = threading.Thread(target=hold_lock)
    holder.start()
    assert is_held.wait(120.0)
    try:
        assert run_in_child(end_child) == 0
    finally:
        may_release.set()
        holder.join()


def record_in_threads(client: Client, n_threads: int) -> set[int]:
    """Let threads record at the same time; return the ids of the senders that they get."""
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
    """A child writes its own event although its parent has recorded an event of the same interval.

    The parent ends before it has written its event, as a program does that becomes a daemon.
    """
    client = home.open(build_metric(interval="day"))
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
    # The pipe has no writer any more, so the child has ended, too.
    assert os.read(read, 1) == b""
    os.close(read)
    pending_reports = testing.peek(home.folder).pending_reports
    assert any(report.interval_end > home.clock() for report in pending_reports)


@pytest.mark.parametrize("inside", ["database", "state"])
def test_fork_does_not_wait_for_a_disk_that_hangs(
    inside: str, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork goes on without the lock of a thread that hangs inside the database or the folder.

    The child has no database if a thread of the parent was inside the database: it counts no queued
    report. The parent loses nothing.
    """
    monkeypatch.setattr(forking, "_FORK_SECONDS", 0.05)
    client = home.open()
    record_days(client, "page", "x")
    assert client.queued_count() == 1
    writer = client._writer
    assert writer is not None
    is_hanging, is_thawed = threading.Event(), threading.Event()

    def hang() -> None:
        with writer.store.transaction() if inside == "database" else writer._turn.acquire(1.0):
            is_hanging.set()
            is_thawed.wait(300)

    hanging_thread = threading.Thread(target=hang)
    hanging_thread.start()
    assert is_hanging.wait(300)
    assert not run_in_child(lambda: check_queued(client, 0 if inside == "database" else 1))
    if inside == "database":  # another client has no database either, by another path
        path = f"../{home.parent.name}/{home.folder.name}"
        assert not run_in_child(lambda: check_queued(home.open(folder=path), 0))
    is_thawed.set()
    hanging_thread.join()
    assert len(testing.peek(home.folder).pending_reports) == (0 if inside == "database" else 1)
    record_days(client, "page", "x")
    assert client.queued_count() == 2
    assert not run_in_child(lambda: check_queued(client, 2))
    assert len(testing.peek(home.folder).pending_reports) == 1


def check_queued(client: Client, n_queued: int) -> None:
    """Record, and assert the number of queued reports."""
    assert client.record("page", "x")
    assert client.queued_count() == n_queued
    client.close()


class RaisingInHook(Shared):
    """A shared object of which one hook raises once, as the handler of a signal does."""

    def __init__(self, raising_hook: str) -> None:
        self.raising_hook = raising_hook
        self.has_raised = False
        super().__init__()

    def before_fork(self, deadline: float) -> None:
        """Raise if this is the hook that raises."""
        self.raise_once("before_fork")
        super().before_fork(deadline)

    def after_fork_in_parent(self) -> None:
        """Raise if this is the hook that raises."""
        self.raise_once("after_fork_in_parent")
        super().after_fork_in_parent()

    def raise_once(self, hook: str) -> None:
        """Raise KeyboardInterrupt in the hook that raises, at its first call."""
        if hook == self.raising_hook and not self.has_raised:
            self.has_raised = True
            raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("hook", ["before_fork", "after_fork_in_parent"])
def test_signal_that_raises_in_a_fork_leaves_nothing_locked(hook: str, home: Home) -> None:
    """After an exception in a hook, another thread records, logs failures and forks."""
    client = home.open()
    failures = [Failures(home.parent) for _ in range(20)]
    interrupted = RaisingInHook(hook)
    run_in_child(bool)
    assert interrupted.has_raised

    def use_client() -> None:
        client.record("page", "x")
        for instance in (*failures, Failures(home.parent)):
            instance.note(OSError())
        run_in_child(bool)

    thread = threading.Thread(target=use_client, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    finish_days(client)
    assert client.queued_count() == 1


def test_signal_beside_the_fork_of_another_thread_leaves_nothing_locked(tmp_path: Path) -> None:
    """The locks of a forking thread are released although a signal interrupts another fork.

    The test is a program of its own, because its thread must wait in the hooks of its own objects,
    and not in those of other tests.
    """
    run_python(interrupted_fork_child.__file__, str(tmp_path))
