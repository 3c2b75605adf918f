"""Withdrawal of consent erases a device, and reports what it has verified.

The result `Withdrawal` says whether the secret is gone from the disk. The tests withdraw in many
states of the disk: lost, damaged and unreadable files, killed processes. Only a record of the
reserved nats may stay, so that a second consent does not renew the budget of the year.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from days import record_days
from devices import (
    Home,
    Opener,
    build_metric,
    find_spool,
    get_identity_folder,
    hold_folder_lock,
    peek,
    read_device_state,
    simulate_full_disk,
)
from forks import run_in_child, run_until_killed
from rappor_client import Client, Outcome, TransportResponse
from rappor_client.folder import copies
from rappor_client.person.erasure import erase
from rappor_client.person.withdrawal import UNDER_WAY, Withdrawal
from rappor_client.testing import MemoryTransport

from rappor import Registry
from rappor.base.errors import FileError, MetricError, ParamsError

METRICS = (build_metric(), build_metric("daily", interval="day"))
GONE = Withdrawal(secret_gone=True)
RESERVED = {2026: pytest.approx(8, abs=0.01)}
"""Each of the two metrics has reserved 4 nats, the cost of the profile "balanced"."""
NOBODY = 65_534
"""Number of a user who has no rights."""


def open_used_device(opener: Opener, folder: str = "device", **chosen: Any) -> Client:
    """Return a client whose device has sent, queued, pending and memoized reports."""
    client = opener(*METRICS, folder=folder, collector=MemoryTransport(), **chosen)
    record_days(client, "page", ["telltale"])
    assert client.flush().sent == 1
    record_days(client, "page", ["telltale"])
    client.record("daily", "telltale")
    assert client.queued_count() == 1
    return client


def find_traces(folder: Path) -> list[bytes]:
    """Return the bytes that must not be on the disk afterwards: secret and permanent responses.

    A permanent response of zeros is left out, because wiped bytes look the same.
    """
    state = read_device_state(folder)
    secret = state.sealed_secret.bytes
    responses = [scope.permanent for scope in state.scopes.values() if any(scope.permanent)]
    return [trace for data in (secret, *responses) for trace in (data, data.hex().encode())]


def read_all_files(folder: Path) -> bytes:
    """Return the bytes of all files of a folder."""
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def damage(path: Path) -> None:
    """Overwrite the end of a file with zeros."""
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes(len(data) - 100))


def put_pipe(path: Path) -> None:
    """Put a pipe in place of a file. Reading or writing a pipe waits for another process."""
    path.unlink()
    os.mkfifo(path)


DISKS: dict[str, Callable[[Path], object]] = {
    "sound": Path.exists,
    "no spool": lambda folder: find_spool(folder).unlink(),
    "damaged spool": lambda folder: damage(find_spool(folder)),
    "damaged copy": lambda folder: damage(get_identity_folder(folder) / copies.NAMES[0]),
    "one copy": lambda folder: (get_identity_folder(folder) / copies.NAMES[1]).unlink(),
    "pipe for a copy": lambda folder: put_pipe(get_identity_folder(folder) / copies.NAMES[0]),
    "pipe for the spool": lambda folder: put_pipe(find_spool(folder)),
    "half a copy": lambda folder: shutil.copy(
        get_identity_folder(folder) / copies.NAMES[0],
        get_identity_folder(folder) / ".state.1.0123456789abcdef.tmp",
    ),
}
"""Contains changes of a folder by description."""


@pytest.mark.parametrize("disk", DISKS)
@pytest.mark.parametrize("way", ["withdraw", "open", "erase"])
def test_withdrawal_leaves_the_record(way: str, disk: str, home: Home) -> None:
    """A withdrawal leaves only the record of the reserved nats, in every state of the disk.

    `way` is the way to withdraw: by the client, by the next opening without consent, or by the
    function of the command. The record does not let a second consent renew the budget.
    """
    client = open_used_device(home.open)
    traces = find_traces(home.folder)
    if way != "withdraw":
        client.close()
    DISKS[disk](home.folder)
    if way == "open":
        home.open(*METRICS, consent=False)
    else:
        assert (
            client.withdraw() if way == "withdraw" else erase(home.folder, now=home.clock())
        ) == GONE
    assert [path.name for path in home.folder.iterdir()] == ["budget"]
    remaining_bytes = read_all_files(home.folder)
    assert not any(trace in remaining_bytes for trace in traces)
    assert peek(home.folder).spent.reserved == RESERVED
    reopened_client = home.open(*METRICS)
    assert reopened_client.privacy_spent().reserved == RESERVED
    assert read_device_state(home.folder).sealed_secret.bytes not in traces
    assert client.record("page", "a") == Outcome.SKIPPED or way != "withdraw"


@pytest.mark.parametrize("is_withdrawn", [False, True])
@pytest.mark.parametrize(
    "lose",
    [
        lambda folder: [(folder / name).write_bytes(b"damaged") for name in copies.NAMES],
        lambda folder: [(folder / name).unlink() for name in copies.NAMES],
        lambda folder: [path.unlink() for path in folder.iterdir()],
    ],
    ids=["damaged", "deleted", "emptied"],
)
def test_lost_state_uses_the_year_up(
    lose: Callable[[Path], object], is_withdrawn: bool, home: Home
) -> None:
    """A lost state makes the reservations unknown, so no metric reports until the year is over."""
    client = open_used_device(home.open)
    client.close()
    lose(get_identity_folder(home.folder))
    assert not is_withdrawn or client.withdraw() == GONE
    reopened_client = home.open(*METRICS, build_metric("yearly", epoch="year"))
    assert reopened_client.privacy_spent().reserved == {2026: float("inf")}
    for name in ("page", "yearly"):
        assert reopened_client.record(name, "a") == Outcome.SKIPPED
    home.clock.set("2027-01-01T00:00:00")
    assert reopened_client.record("yearly", "a") == Outcome.RECORDED


@pytest.mark.parametrize("obstacle", [hold_folder_lock, simulate_full_disk], ids=["locked", "full"])
def test_withdrawal_is_complete_beside_a_lock_and_on_a_full_disk(obstacle: Any, home: Home) -> None:
    """A stopped process with the lock, and a full disk, do not prevent a withdrawal."""
    client = open_used_device(home.open)
    traces = find_traces(home.folder)
    with obstacle(home.folder):
        assert client.withdraw() == GONE
    assert not any(trace in read_all_files(home.folder) for trace in traces)


def test_withdrawal_is_complete_beside_a_reader_of_the_spool(home: Home) -> None:
    """A withdrawal is complete while another process reads the spool."""
    client = open_used_device(home.open)
    reader = sqlite3.connect(find_spool(home.folder), isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM report").fetchall()
    assert client.withdraw() == GONE
    reader.close()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_next_opening_finishes_a_killed_withdrawal(home: Home) -> None:
    """The next opening finishes a withdrawal that was killed at any system call on the disk.

    No secret is left, and no budget is renewed.
    """
    open_used_device(home.open).close()
    traces = find_traces(home.folder)
    functions = {"write", "fsync", "truncate", "replace", "rename", "unlink", "rmdir", "open"}
    for kill_point in itertools.count():
        folder = home.parent / f"killed{kill_point}"
        shutil.copytree(home.folder, folder)
        is_over = not run_until_killed(
            kill_point, functions, partial(erase, folder, now=home.clock())
        )
        is_begun = not get_identity_folder(folder).exists()
        client = home.open(*METRICS, folder=folder.name)
        assert client.privacy_spent().reserved == RESERVED
        assert sorted(path.name for path in folder.iterdir()) == ["budget", "device"]
        data = read_all_files(folder)
        assert not (is_begun and any(trace in data for trace in traces))
        client.close()
        if is_over:
            break
    assert kill_point > 15


@pytest.mark.skipif(not hasattr(os, "setuid") or os.getuid() != 0, reason="needs another user")
def test_secret_in_a_read_only_folder_is_overwritten(home: Home) -> None:
    """In a read-only folder the secret is overwritten, and the result lists the files that stay."""
    open_used_device(home.open).close()
    traces = find_traces(home.folder)
    for path in (home.folder, *home.folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    for path in (get_identity_folder(home.folder), home.folder):
        path.chmod(0o500)
    for path in [home.parent, *home.parent.parents][:3]:
        path.chmod(path.stat().st_mode | 0o011)

    def erase_as_nobody() -> None:
        os.chdir(home.parent)
        os.setuid(NOBODY)
        withdrawal = erase(Path("device"), now=home.clock())
        assert withdrawal.secret_gone
        assert f"device/{copies.NAMES[0]}" in withdrawal.left

    assert run_in_child(erase_as_nobody) == 0
    data = read_all_files(home.folder)
    assert not any(trace in data for trace in traces)


@pytest.mark.parametrize("mode", [0o000, 0o111, 0o444], ids=oct)
@pytest.mark.parametrize("folder", ["device", "device/device"])
def test_a_secret_in_a_folder_without_access_is_not_reported_as_gone(
    folder: str, mode: int, home: Home
) -> None:
    """The result is false if the system does not let the process look into the folder.

    Bad case: nothing was seen in a folder of another user, and the result was "The secret is gone".
    """
    open_used_device(home.open).close()
    home.folder.chmod(0o755)
    locked = home.parent / folder
    locked.chmod(mode)
    for path in [home.parent, *home.parent.parents][:3]:
        path.chmod(path.stat().st_mode | 0o011)

    def erase_without_access() -> None:
        os.chdir(home.parent)
        if os.getuid() == 0:  # root has access to every folder
            os.setuid(NOBODY)
        withdrawal = erase(Path("device"), now=home.clock())
        assert not withdrawal.secret_gone
        assert withdrawal.left

    try:
        assert run_in_child(erase_without_access) == 0
    finally:
        home.folder.chmod(0o700)
        locked.chmod(0o700)
    assert peek(home.folder).has_secret


def test_withdrawal_comes_before_the_checks_of_other_arguments(home: Home) -> None:
    """A registry, an address and names that are wrong do not prevent an erasure."""
    wrong, right = home.parent / "wrong.toml", Registry(METRICS, total=1e9)
    wrong.write_text("[budget]\n")
    cases: list[tuple[type[Exception], dict[str, Any]]] = [
        (FileError, {"registry": home.parent / "absent.toml"}),
        (MetricError, {"registry": wrong}),
        (ParamsError, {"registry": right, "collector": "ftp://example.org"}),
        (ParamsError, {"registry": right, "opted_out": "page"}),
    ]
    for number, (kind, arguments) in enumerate(cases):
        open_used_device(home.open, folder=str(number)).close()
        with pytest.raises(kind):
            Client.open(home.parent / str(number), consent=False, **arguments)
        assert [path.name for path in (home.parent / str(number)).iterdir()] == ["budget"]


def test_withdrawal_of_an_unused_device_leaves_nothing(home: Home) -> None:
    """A withdrawal of an unused device leaves no record. It may be repeated."""
    client = home.open()
    assert client.withdraw() == client.withdraw() == GONE
    assert list(home.folder.iterdir()) == []
    assert home.open(folder="other", consent=False).withdraw() == GONE
    assert not (home.parent / "other").exists()


def test_files_of_the_host_and_behind_links_are_left_alone(home: Home) -> None:
    """Other files in the folder, and the targets of links, stay."""
    home.folder.mkdir(mode=0o700)
    (home.folder / "settings.ini").write_text("mine")
    (home.parent / "precious").write_text("mine")
    client = open_used_device(home.open)
    (get_identity_folder(home.folder) / "link").symlink_to(home.parent / "precious")
    assert client.withdraw() == GONE
    assert sorted(path.name for path in home.folder.iterdir()) == ["budget", "settings.ini"]
    assert (
        (home.folder / "settings.ini").read_text()
        == (home.parent / "precious").read_text()
        == "mine"
    )


@pytest.mark.parametrize("is_own", [True, False], ids=["own", "another"])
def test_result_contains_an_upload_under_way(is_own: bool, home: Home) -> None:
    """The result contains an upload that is being sent.

    The transport of this client ignores `close`, or another client has begun the upload.
    """
    is_over, is_sending = threading.Event(), threading.Event()

    class UnclosableTransport(MemoryTransport):
        def send(self, body: bytes, *, timeout: float) -> TransportResponse:
            is_sending.set()
            is_over.wait(60)
            return super().send(body, timeout=timeout)

    sending = home.open(collector=UnclosableTransport())
    record_days(sending, "page", "a")
    flushing = threading.Thread(target=sending.flush)
    flushing.start()
    assert is_sending.wait(60)
    withdrawing = sending if is_own else home.open()
    assert withdrawing.withdraw() == Withdrawal(secret_gone=True, left=(UNDER_WAY,))
    is_over.set()
    flushing.join()


def test_result_is_a_sentence() -> None:
    """The result is a sentence for the person."""
    assert str(GONE) == "The secret is gone; everything else is erased."
    sentence = str(Withdrawal(secret_gone=False, left=("device/state.1",)))
    assert sentence == "The secret could not be erased; still there: device/state.1."
