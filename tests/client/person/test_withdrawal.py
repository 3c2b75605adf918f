"""The end of consent: what is verified, in every state of the disk, and what must stay."""

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
    find_spool,
    full_disk,
    hold_folder_lock,
    identity_path,
    metric_of,
    peek,
    read_device_state,
)
from forks import in_child, is_killed
from rappor_client import Client, Outcome, TransportResponse
from rappor_client.folder import copies
from rappor_client.person.withdrawal import UNDER_WAY, Withdrawal, erase
from rappor_client.testing import MemoryTransport

from rappor import Registry
from rappor.base.errors import FileError, MetricError, ParamsError

METRICS = (metric_of(), metric_of("daily", interval="day"))
GONE = Withdrawal(secret_gone=True)
RESERVED = {2026: pytest.approx(8, abs=0.01)}
NOBODY = 65_534


def lived_in(opener: Opener, folder: str = "device", **chosen: Any) -> Client:
    """Return a device that has sent, waits, holds and remembers."""
    client = opener(*METRICS, folder=folder, collector=MemoryTransport(), **chosen)
    record_days(client, "page", ["telltale"])
    assert client.flush().sent == 1
    record_days(client, "page", ["telltale"])
    client.record("daily", "telltale")
    assert client.queued_count() == 1
    return client


def traces_of(folder: Path) -> list[bytes]:
    """Return what must not be found afterwards: the secret and what was drawn under it.

    A response that has no bit is left out: what was wiped looks the same.
    """
    state = read_device_state(folder)
    secret = state.sealed_secret.bytes
    responses = [each.permanent for each in state.scopes.values() if any(each.permanent)]
    return [each for data in (secret, *responses) for each in (data, data.hex().encode())]


def files_of(folder: Path) -> bytes:
    """Return all bytes of a folder's files."""
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def damage(path: Path) -> None:
    """Overwrite the middle of a file."""
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes(len(data) - 100))


def put_pipe(path: Path) -> None:
    """Put a pipe in the place of a file: who reads or writes it waits for another process."""
    path.unlink()
    os.mkfifo(path)


DISKS: dict[str, Callable[[Path], object]] = {
    "sound": Path.exists,
    "no spool": lambda folder: find_spool(folder).unlink(),
    "damaged spool": lambda folder: damage(find_spool(folder)),
    "damaged copy": lambda folder: damage(identity_path(folder) / copies.NAMES[0]),
    "one copy": lambda folder: (identity_path(folder) / copies.NAMES[1]).unlink(),
    "pipe for a copy": lambda folder: put_pipe(identity_path(folder) / copies.NAMES[0]),
    "pipe for the spool": lambda folder: put_pipe(find_spool(folder)),
    "half a copy": lambda folder: shutil.copy(
        identity_path(folder) / copies.NAMES[0],
        identity_path(folder) / ".state.1.0123456789abcdef.tmp",
    ),
}


@pytest.mark.parametrize("disk", DISKS)
@pytest.mark.parametrize("way", ["withdraw", "open", "erase"])
def test_withdrawal_leaves_one_line(way: str, disk: str, home: Home) -> None:
    """By the client, by the next start, and by the command; the budget is not renewed."""
    client = lived_in(home.open)
    traces = traces_of(home.folder)
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
    left = files_of(home.folder)
    assert not any(trace in left for trace in traces)
    assert peek(home.folder).spent.reserved == RESERVED
    again = home.open(*METRICS)
    assert again.privacy_spent().reserved == RESERVED
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
    """Nothing tells any more what was reserved; the next year has its own budget."""
    client = lived_in(home.open)
    client.close()
    lose(identity_path(home.folder))
    assert not is_withdrawn or client.withdraw() == GONE
    again = home.open(*METRICS, metric_of("yearly", epoch="year"))
    assert again.privacy_spent().reserved == {2026: float("inf")}
    for name in ("page", "yearly"):
        assert again.record(name, "a") == Outcome.SKIPPED
    home.clock.set("2027-01-01T00:00:00")
    assert again.record("yearly", "a") == Outcome.RECORDED


@pytest.mark.parametrize("keeping", [hold_folder_lock, full_disk], ids=["locked", "full"])
def test_nothing_keeps_a_withdrawal_from_its_end(keeping: Any, home: Home) -> None:
    """A stopped process that keeps the lock, and a disk that takes no more."""
    client = lived_in(home.open)
    traces = traces_of(home.folder)
    with keeping(home.folder):
        assert client.withdraw() == GONE
    assert not any(trace in files_of(home.folder) for trace in traces)


def test_withdrawal_beside_one_who_reads_the_spool(home: Home) -> None:
    """Who has the file open sees zeros, or nothing."""
    client = lived_in(home.open)
    reader = sqlite3.connect(find_spool(home.folder), isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM report").fetchall()
    assert client.withdraw() == GONE
    reader.close()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_wherever_a_withdrawal_is_killed_the_next_start_finishes_it(home: Home) -> None:
    """At each touch of the disk: nothing true is left, and nothing is renewed."""
    lived_in(home.open).close()
    traces = traces_of(home.folder)
    touching = {"write", "fsync", "truncate", "replace", "rename", "unlink", "rmdir", "open"}
    for moment in itertools.count():
        folder = home.place / f"killed{moment}"
        shutil.copytree(home.folder, folder)
        is_over = not is_killed(moment, touching, partial(erase, folder, now=home.clock()))
        is_begun = not identity_path(folder).exists()
        client = home.open(*METRICS, folder=folder.name)
        assert client.privacy_spent().reserved == RESERVED
        assert sorted(path.name for path in folder.iterdir()) == ["budget", "device"]
        left = files_of(folder)
        assert not (is_begun and any(trace in left for trace in traces))
        client.close()
        if is_over:
            break
    assert moment > 15


@pytest.mark.skipif(not hasattr(os, "setuid") or os.getuid() != 0, reason="needs another user")
def test_read_only_folder_is_overwritten_as_far_as_it_lets_itself(home: Home) -> None:
    """The names stay and are told, the secret's bytes do not."""
    lived_in(home.open).close()
    traces = traces_of(home.folder)
    for path in (home.folder, *home.folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    for path in (identity_path(home.folder), home.folder):
        path.chmod(0o500)
    for path in [home.place, *home.place.parents][:3]:
        path.chmod(path.stat().st_mode | 0o011)

    def erase_as_nobody() -> None:
        os.chdir(home.place)
        os.setuid(NOBODY)
        told = erase(Path("device"), now=home.clock())
        assert told.secret_gone
        assert f"device/{copies.NAMES[0]}" in told.left

    assert in_child(erase_as_nobody) == 0
    left = files_of(home.folder)
    assert not any(trace in left for trace in traces)


def test_withdrawal_comes_before_all_that_may_be_wrong_with_the_program(home: Home) -> None:
    """A registry that is gone or wrong, and an address that is none, keep nothing alive."""
    wrong = home.place / "wrong.toml"
    wrong.write_text("[budget]\n")
    cases: list[tuple[Any, str | None, type[Exception]]] = [
        (home.place / "absent.toml", None, FileError),
        (wrong, None, MetricError),
        (Registry(METRICS, total=1e9), "ftp://example.org", ParamsError),
    ]
    for number, (registry, collector, kind) in enumerate(cases):
        lived_in(home.open, folder=str(number)).close()
        with pytest.raises(kind):
            Client.open(
                home.place / str(number), registry=registry, consent=False, collector=collector
            )
        assert [path.name for path in (home.place / str(number)).iterdir()] == ["budget"]


def test_what_was_never_used_leaves_nothing(home: Home) -> None:
    """Not even the line; withdrawing twice, or without ever consenting, is fine."""
    client = home.open()
    assert client.withdraw() == client.withdraw() == GONE
    assert list((home.folder).iterdir()) == []
    assert home.open(folder="other", consent=False).withdraw() == GONE
    assert not (home.place / "other").exists()


def test_files_of_the_host_and_behind_links_are_left_alone(home: Home) -> None:
    """A folder may hold more than the device, and a link leads nowhere."""
    home.folder.mkdir(mode=0o700)
    (home.folder / "settings.ini").write_text("mine")
    (home.place / "precious").write_text("mine")
    client = lived_in(home.open)
    (identity_path(home.folder) / "link").symlink_to(home.place / "precious")
    assert client.withdraw() == GONE
    assert sorted(path.name for path in home.folder.iterdir()) == ["budget", "settings.ini"]
    assert (
        (home.folder / "settings.ini").read_text()
        == (home.place / "precious").read_text()
        == "mine"
    )


@pytest.mark.parametrize("is_own", [True, False], ids=["own", "another"])
def test_upload_under_way_is_told(is_own: bool, home: Home) -> None:
    """A transport that heeds no closing, and another client's upload of a moment ago."""
    is_over, is_sending = threading.Event(), threading.Event()

    class Deaf(MemoryTransport):
        def send(self, body: bytes, *, timeout: float) -> TransportResponse:
            is_sending.set()
            is_over.wait(60)
            return super().send(body, timeout=timeout)

    sending = home.open(collector=Deaf())
    record_days(sending, "page", "a")
    flushing = threading.Thread(target=sending.flush)
    flushing.start()
    assert is_sending.wait(60)
    withdrawing = sending if is_own else home.open()
    assert withdrawing.withdraw() == Withdrawal(secret_gone=True, left=(UNDER_WAY,))
    is_over.set()
    flushing.join()


def test_withdrawal_is_told_in_words() -> None:
    """For the person who asked for it."""
    assert str(GONE) == "The secret is gone; everything else is erased."
    told = str(Withdrawal(secret_gone=False, left=("device/state.1",)))
    assert told == "The secret could not be erased; still there: device/state.1."
