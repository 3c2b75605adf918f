"""Another process, or another thread, holds the database's lock: record() goes on."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from devices import DATABASE, Opener, metric_of
from rappor_client import Answer, Outcome
from rappor_client.prepared import prepare
from rappor_client.testing import FixedClock, MemoryTransport, peek
from rappor_client.unstored import Late, Unstored

from rappor.protocol.randomizer import Secret, system_coins


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the database's write lock, as another process would, while the block runs."""
    other = sqlite3.connect(folder / DATABASE, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
    finally:
        other.close()


def test_record_waits_in_memory_for_a_lock(open_client: Opener, tmp_path: Path) -> None:
    """While the lock is held, record() returns; afterwards the report is stored with the next."""
    client = open_client(metric_of(patterns=8))
    client.record("page", "a")
    with locked(tmp_path / "device"):
        assert client.record("page", "b") is Outcome.FAILED
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
        assert client.record("page", "a") is Outcome.FAILED
    if how == "flush":
        assert client.flush().sent == 1
    elif how == "close":
        client.close()
        assert len(peek(tmp_path / "device").waiting) == 1
    else:
        while not transport.reports:
            client.record("page", "a")  # its first step may have met the lock, too


def test_memory_is_bounded(open_client: Opener, clock: FixedClock) -> None:
    """A hundred reports wait in it; the oldest go and are counted."""
    client, secret = open_client(), Secret(bytes(32))
    metric = client.registry.metric("page")
    prepared = prepare(secret, metric, "x", epoch="", coins=system_coins)
    unstored = Unstored()
    assert not unstored
    for i in range(103):
        unstored.add(
            Late(secret=secret, metric=metric, prepared=prepared, now=clock() + i, fits=True)
        )
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
