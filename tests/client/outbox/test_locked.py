"""Another process, a thread, or an outer call holds the database's lock: record() goes on."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from devices import BALANCED, DATABASE, Opener, locked, metric_of
from rappor_client import Answer, Client, Outcome
from rappor_client.budget.prepared import prepare
from rappor_client.folder.failures import DamagedError
from rappor_client.folder.store import BusyError, Store
from rappor_client.outbox.stops import Stops
from rappor_client.outbox.unstored import Late, Unstored
from rappor_client.outbox.uploader import Uploader
from rappor_client.testing import FixedClock, MemoryTransport, peek

from rappor.protocol.randomizer import Secret, system_coins


def test_record_waits_in_memory_for_a_lock(open_client: Opener, tmp_path: Path) -> None:
    """While the lock is held, record() returns; afterwards the report is stored with the next."""
    client = open_client(metric_of(patterns=8))
    client.record("page", "a")
    with locked(tmp_path / "device"):
        assert client.record("page", "b") is Outcome.QUEUED
        assert client.waiting() == 1
    assert client.record("page", "c") is Outcome.RECORDED
    assert client.waiting() == 3
    assert client.spent().metrics["page"].patterns == 3


@pytest.mark.parametrize("how", ["flush", "close", "sender"])
def test_what_waits_in_memory_is_stored(how: str, open_client: Opener, tmp_path: Path) -> None:
    """By a flush, by closing, and by the background sender, without another record()."""
    transport = MemoryTransport()
    client = open_client(transport=transport, background=how == "sender", max_delay=0.0)
    with locked(tmp_path / "device"):
        assert client.record("page", "a") is Outcome.QUEUED
    if how == "flush":
        assert client.flush().sent == 1
    elif how == "close":
        client.close()
        assert len(peek(tmp_path / "device").waiting) == 1
    else:
        while not transport.reports:
            client.record("page", "a")  # its first step may have met the lock, too


def test_report_that_waited_over_new_year_is_stored(
    open_client: Opener, clock: FixedClock, tmp_path: Path
) -> None:
    """Whether it may be stored in the new year is asked before its transaction begins."""
    client = open_client(transport=MemoryTransport())
    client.record("page", "a")
    with locked(tmp_path / "device"):
        assert client.record("page", "a") is Outcome.QUEUED
    clock.set("2027-01-01T00:00:00")
    assert client.flush().sent == 2
    assert client.counters() == {"accepted": 2, "recorded": 2}


def test_opening_and_recording_beside_a_lock_forgets_nothing(
    open_client: Opener, tmp_path: Path
) -> None:
    """Reports are queued, and one of a stopped metric goes nowhere."""
    stop = json.dumps({"reports": [{"status": "accepted"}], "stop": {"other": "2026-11-20"}})
    metrics = (metric_of(params=BALANCED), metric_of("other"))
    transport = MemoryTransport([Answer(status=200, body=stop.encode())])
    client = open_client(*metrics, transport=transport)
    client.record("page", "a")
    assert client.flush()
    client.close()
    with locked(tmp_path / "device"):
        client = open_client(*metrics, transport=transport)
        assert client.record("page", "a") is Outcome.QUEUED
        assert client.record("other", "a") is Outcome.QUEUED  # the stop is in the database
    assert client.flush().sent == 1


def test_withdrawal_reaches_a_client_that_opened_beside_a_lock(
    open_client: Opener, tmp_path: Path
) -> None:
    """What it has prepared goes nowhere, and it does not begin again by itself."""
    folder, transport = tmp_path / "device", MemoryTransport()
    other = open_client()
    with locked(folder):
        client = open_client(transport=transport)
        assert client.record("page", "a") is Outcome.QUEUED
    assert other.withdraw()
    assert client.record("page", "a") is Outcome.NO_CONSENT
    client.flush()
    assert transport.bodies == []
    assert not list(folder.iterdir())


def test_record_in_the_middle_of_a_record_waits_in_memory(open_client: Opener) -> None:
    """As from a signal's handler; here a coin records, before and in a transaction."""
    outcomes: list[Outcome] = []
    is_quiet = [True]

    def coins(n: int) -> Sequence[int]:
        if not is_quiet[0]:
            is_quiet[0] = True
            outcomes.append(client.record("page", "a"))
            is_quiet[0] = False
        return system_coins(n)

    client = open_client(coins=coins)
    assert client.record("page", "a") is Outcome.RECORDED
    is_quiet[0] = False
    assert client.record("page", "b") is Outcome.REPEATED  # its coins fall in the transaction
    assert outcomes == [Outcome.RECORDED, Outcome.QUEUED]
    is_quiet[0] = True
    assert client.record("page", "a") is Outcome.RECORDED
    assert client.waiting() == 5
    assert client.counters() == {"recorded": 5}


def test_no_thread_waits_behind_one_that_another_process_locks_out(tmp_path: Path) -> None:
    """Each has its own patience, however long the one before it waits."""
    store = Store(tmp_path)
    store.begin()
    with store.transaction():
        pass
    outcomes: list[str] = []

    def wait_long() -> None:
        with store.transaction(patience=300):
            outcomes.append("let in")

    waiting = threading.Thread(target=wait_long)
    with locked(tmp_path):
        waiting.start()
        while not store._is_locked_out:
            time.sleep(0.001)
        with pytest.raises(BusyError), store.transaction(patience=0.05):
            pass
        assert outcomes == []
    waiting.join()
    assert outcomes == ["let in"]
    store.close()


def test_memory_is_bounded(open_client: Opener, clock: FixedClock) -> None:
    """A hundred reports wait in it; the oldest go and are counted."""
    client, secret = open_client(), Secret(bytes(32))
    metric = client.registry.metric("page")
    prepared = prepare(secret, metric, "x", epoch="", coins=system_coins)
    unstored = Unstored()
    assert not unstored
    for i in range(103):
        unstored.add(Late(secret=secret, answers=((metric, prepared),), now=clock() + i, fits=True))
    assert unstored.n_dropped == 3
    taken = unstored.take()
    assert [late.now - clock() for late in taken] == list(range(3, 103))
    unstored.put_back(taken)
    assert unstored.take() == taken


def test_reports_dropped_from_memory_are_counted(open_client: Opener, tmp_path: Path) -> None:
    """With those that the disk had no room for, once the lock is free."""
    client = open_client()
    client.record("page", "a")
    client._unstored.n_dropped = 3
    assert client.record("page", "a") is Outcome.RECORDED
    assert client.counters() == {"dropped_full": 3, "recorded": 2}
    assert len(peek(tmp_path / "device").waiting) == 2


def test_withdrawal_and_refusal_forget_what_waits_in_memory(
    open_client: Opener, tmp_path: Path
) -> None:
    """Neither comes back when the lock is free."""
    client = open_client(metric_of(), metric_of("other"))
    client.record("page", "a")
    with locked(tmp_path / "device"):
        client.record("other", "a")
    client.opt_out("other")
    client.close()
    assert [report.metric for report in peek(tmp_path / "device").waiting] == ["page"]
    again = open_client(metric_of(), metric_of("other"))
    with locked(tmp_path / "device"):
        again.record("page", "a")
    again.withdraw()
    again.close()
    assert peek(tmp_path / "device").waiting == ()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_fork_does_not_double_what_waits_in_memory(open_client: Opener, tmp_path: Path) -> None:
    """It stays with the process that recorded it."""
    client = open_client()
    client.record("page", "a")
    with locked(tmp_path / "device"):
        client.record("page", "a")
    child = os.fork()
    if child == 0:
        client.record("page", "a")
        client.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert client.record("page", "a")
    assert client.waiting() == 4


def test_upload_waits_for_the_disk_while_no_lock_is_held(
    open_client: Opener, tmp_path: Path
) -> None:
    """The disk is waited for before an upload leaves; meanwhile whoever records is let in."""
    steps: list[str] = []

    class SlowDisk(Store):
        def sync(self) -> None:
            with self.transaction(patience=0.05):
                steps.append("let in")
            super().sync()
            steps.append("on the disk")

    class Noting(MemoryTransport):
        def send(self, body: bytes, *, timeout: float) -> Answer:
            steps.append("sent")
            return super().send(body, timeout=timeout)

    client = open_client()
    client.record("page", "a")
    store = SlowDisk(tmp_path / "device")
    stops = Stops(client.registry.together)
    uploader = Uploader(store, Noting(), client._settings, lambda _: None, stops)
    step = threading.Thread(target=uploader.step)  # as the sender does
    step.start()
    step.join()
    store.close()
    assert steps == ["let in", "on the disk"] * 2 + ["sent"]  # before the copy, and after the claim


def test_upload_takes_two_transactions_that_let_a_record_go_first(
    open_client: Opener, tmp_path: Path
) -> None:
    """One before it leaves and one after, where the budget's file needs no change."""
    steps: list[str] = []

    class Noting(Store):
        def give_way(self) -> None:
            steps.append("give way")

        @contextlib.contextmanager
        def transaction(
            self, *, durable: bool = False, patience: float = 2.0
        ) -> Iterator[sqlite3.Connection]:
            steps.append("transaction")
            with super().transaction(durable=durable, patience=patience) as db:
                yield db

        def sync(self) -> None:
            steps.append("disk")
            super().sync()

    transport = MemoryTransport()
    client = open_client(transport=transport)
    client.record("page", "a")
    assert client.flush()
    client.record("page", "a")
    store = Noting(tmp_path / "device")
    stops = Stops(client.registry.together)
    step = Uploader(store, transport, client._settings, lambda _: None, stops).step()
    store.close()
    assert step.is_attempt
    assert steps == ["give way", "transaction", "disk", "give way", "transaction"]


def test_each_transaction_is_as_durable_as_it_asks_for(tmp_path: Path) -> None:
    """SQLite waits for the disk where it is told to, on a new connection too."""
    full, normal = 2, 1
    found: list[tuple[bool, int]] = []
    store = Store(tmp_path)
    store.begin()
    for durable in (False, True, True, False, True, False, False):
        for _ in range(2):
            with store.transaction(durable=durable) as db:
                found.append((durable, db.execute("PRAGMA synchronous").fetchone()[0]))
            if durable:
                store.close()
    assert set(found) == {(False, normal), (True, full)}
    store.close()


def test_sender_gives_way_to_a_record_under_way(open_client: Opener) -> None:
    """It waits for five milliseconds before it takes the lock."""
    waits: list[float] = []
    is_open: list[bool] = []

    def send() -> None:
        start = time.monotonic()
        client._store.give_way()
        waits.append(time.monotonic() - start)

    def coins(n: int) -> Sequence[int]:
        if is_open:
            sender = threading.Thread(target=send)
            sender.start()
            sender.join()
        return system_coins(n)

    client = open_client(coins=coins)
    is_open.append(True)
    client.record("page", "a")
    assert waits
    assert min(waits) >= 0.005
    assert not client._store.hurried  # afterwards nobody waits


def test_record_does_not_wait_for_an_upload(open_client: Opener) -> None:
    """The transport blocks until a record() has returned: it returns, or this test never ends."""
    has_recorded, is_sending = threading.Event(), threading.Event()

    class Blocking(MemoryTransport):
        def send(self, body: bytes, *, timeout: float) -> Answer:
            is_sending.set()
            assert has_recorded.wait(300)
            return super().send(body, timeout=timeout)

    client = open_client(transport=Blocking())
    client.record("page", "x")
    flush = threading.Thread(target=client.flush)
    flush.start()
    assert is_sending.wait(300)
    assert client.record("page", "x") is Outcome.RECORDED
    has_recorded.set()
    flush.join()
    assert client.waiting() == 0


def test_handler_of_a_signal_in_the_hooks_of_a_fork_is_kept_out(tmp_path: Path) -> None:
    """It would hand a new connection to the child."""
    store = Store(tmp_path)
    store.begin()
    store.before_fork()
    with pytest.raises(BusyError), store.transaction():
        pass
    store.after_fork_in_parent()
    with store.transaction():
        pass
    store.close()


def test_failure_of_one_client_ends_no_lock_of_another(open_client: Opener, tmp_path: Path) -> None:
    """A file that is closed beside SQLite would: a third process then takes itself for the last."""
    busy, job = open_client(), open_client()
    busy.record("page", "a")
    refused = sqlite3.OperationalError("attempt to write a readonly database")
    refused.sqlite_errorcode = sqlite3.SQLITE_READONLY
    for error in (refused, OSError(28, "full"), ZeroDivisionError()):
        with pytest.raises((type(error), DamagedError)), job._store.transaction():
            raise error
    look = (
        "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT * FROM report').close()"
    )
    database = tmp_path / "device" / DATABASE
    subprocess.run([sys.executable, "-c", look, str(database)], check=True)
    assert database.with_name(f"{DATABASE}-wal").exists()
    busy.record("page", "a")
    assert len(peek(tmp_path / "device").waiting) == 2


def test_secret_of_another_device_prepares_nothing_beside_a_lock(
    open_client: Opener, tmp_path: Path
) -> None:
    """It is compared with the mark in the database, which may be read though it is locked."""
    client = open_client()
    open_client(folder="other").close()
    (tmp_path / "other" / "identity").replace(tmp_path / "device" / "identity")
    with locked(tmp_path / "device"):
        assert client.record("page", "a") is Outcome.FAILED


@pytest.mark.parametrize("how", [Client.close, Client.flush])
def test_secret_that_is_exchanged_while_reports_are_late_ends_nothing(
    how: Callable[[Client], object], open_client: Opener, tmp_path: Path
) -> None:
    """They belong to a secret that is gone; the host hears nothing of it."""
    client = open_client(transport=MemoryTransport())
    open_client(folder="other").close()
    client.record("page", "a")
    with locked(tmp_path / "device"):
        assert client.record("page", "b") is Outcome.QUEUED
    (tmp_path / "other" / "identity").replace(tmp_path / "device" / "identity")
    how(client)
    assert client.record("page", "b") is Outcome.DISABLED
