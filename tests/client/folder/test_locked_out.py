"""A client whose folder another process keeps locked while it opens.

The client is disabled then. Once the other process has created the device, `flush` and `record`
open it. They never create a device, because consent may have been withdrawn meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from devices import Home, read_secret, write_events
from forks import run_in_child
from programs import wait_until
from rappor_client import Client, FlushReason, Outcome
from rappor_client.budget.identity import create_identity
from rappor_client.folder.identity_folder import NAME, lock_host_folder
from rappor_client.person import opening
from rappor_client.person.erasure import erase

LOCKED = "another process keeps the folder locked"
"""Tells why a client is disabled that was locked out."""

History = Callable[[Path, Client], object]
"""Changes the folder, or uses the client, after the client was locked out."""


@pytest.fixture
def client(home: Home, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Return a client that was locked out while it opened. The lock is free again."""
    home.folder.mkdir(mode=0o700)
    with lock_host_folder(home.folder), monkeypatch.context() as shorter:
        # The opening waits for the lock for two seconds, and every test here would wait with it.
        shorter.setattr(opening, "BUSY_SECONDS", 0.05)
        locked_out = home.open(collector=home.transport)
    assert locked_out.disabled_reason == LOCKED
    assert locked_out.record("page", "a") == Outcome.SKIPPED
    # The record lets the folder's thread try to open the device. The attempt ends before this job,
    # so it does not meet a device that a test creates.
    locked_out._thread.run_within(lambda: None, seconds=30.0)
    return locked_out


def create(folder: Path, _: Client) -> None:
    """Create the device, as the process does that has the lock."""
    assert run_in_child(lambda: create_identity(folder, {})) == 0


def withdraw(folder: Path, client: Client) -> None:
    """Create the device, and withdraw consent in another process."""
    create(folder, client)
    assert run_in_child(lambda: not erase(folder, now=0.0)) == 0


def interrupt_withdrawal(folder: Path, client: Client) -> None:
    """Leave the folder as a killed withdrawal leaves it, with a new device beside it."""
    create(folder, client)
    (folder / NAME).rename(folder / f"{NAME}.withdrawn.0123456789abcdef")
    create(folder, client)


def withdraw_here(folder: Path, client: Client) -> None:
    """Withdraw consent by the client itself, after another process has created the device."""
    create(folder, client)
    assert client.withdraw()
    create(folder, client)


def close(folder: Path, client: Client) -> None:
    """Close the client, after another process has created the device."""
    create(folder, client)
    client.close()


def test_a_flush_opens_the_device_that_another_process_has_created(
    home: Home, client: Client
) -> None:
    """A flush opens the device, whose budget and secret are those of the other process.

    The lock is kept for a moment at the start of many processes, on a slow disk. A worker of a web
    server would otherwise record nothing for days.
    """
    create(home.folder, client)
    secret = read_secret(home.folder)
    assert client.flush(timeout=0).reason is FlushReason.NOTHING_WAITING
    assert (client.disabled_reason, client.record("page", "a")) == ("", Outcome.RECORDED)
    write_events(client)
    home.clock.advance(days=1)
    assert client.flush().sent == 1
    assert read_secret(home.folder) == secret


def test_a_record_opens_the_device_without_a_wait(home: Home, client: Client) -> None:
    """`record` lets the folder's thread open the device, at most once in ten seconds.

    A program with a background sender never calls `flush`.
    """
    create(home.folder, client)
    # The fixture has recorded a moment ago, when there was no device.
    assert client.record("page", "a") == Outcome.SKIPPED
    # If the record had queued an opening of the device, the opening would end before this job.
    client._thread.run_within(lambda: None, seconds=30.0)
    assert client.disabled_reason == LOCKED
    client._reopen_at = 0.0
    started = time.monotonic()
    assert client.record("page", "a") == Outcome.SKIPPED
    assert time.monotonic() - started < 1
    wait_until(lambda: not client.disabled_reason)
    assert client.record("page", "a") == Outcome.RECORDED


@pytest.mark.parametrize(
    "change", [lambda *_: None, withdraw, interrupt_withdrawal, withdraw_here, close]
)
def test_no_other_folder_is_opened(change: History, home: Home, client: Client) -> None:
    """Without a device that is in use, the client stays disabled and creates nothing.

    Bad case: a person has withdrawn consent while the client was disabled. A client that created a
    device would go on recording.
    """
    change(home.folder, client)
    before = sorted(path.name for path in home.folder.iterdir())
    client._reopen_at = 0.0
    for _ in range(2):
        assert client.record("page", "a") == Outcome.SKIPPED
        client.flush(timeout=0)
    assert client._writer is None
    assert sorted(path.name for path in home.folder.iterdir()) == before
    assert not home.transport.reports


def test_parent_and_child_of_a_fork_open_the_device(home: Home, client: Client) -> None:
    """A client that was locked out before a fork opens the device in parent and child.

    Web servers fork their workers. Both processes then use one device, with one secret.
    """
    create(home.folder, client)

    def open_in_child() -> bool:
        client.flush(timeout=0)
        return client.disabled_reason != "" or client.record("page", "a") != Outcome.RECORDED

    assert run_in_child(open_in_child) == 0
    assert client.disabled_reason == LOCKED
    client.flush(timeout=0)
    assert (client.disabled_reason, client.record("page", "a")) == ("", Outcome.RECORDED)


def test_a_withdrawal_after_the_late_opening_ends_the_client(home: Home, client: Client) -> None:
    """Once open, the client notices a withdrawal of another process, as any other client does."""
    create(home.folder, client)
    client.flush(timeout=0)
    assert run_in_child(lambda: not erase(home.folder, now=home.clock.now)) == 0
    client.record("page", "a")
    client.flush(timeout=0)
    assert client.record("page", "a") == Outcome.SKIPPED
    assert not (home.folder / NAME).exists()
