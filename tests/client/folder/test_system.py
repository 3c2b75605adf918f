"""System calls that differ between platforms, with a whole device on a substitute for Windows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rappor_client.folder.identity_folder import IdentityFolder
from rappor_client.folder.system import SYSTEM, Posix, Windows
from rappor_client.testing import peek
from registries import entry_of, toml_of

STAND_IN = """
import fcntl

class StandIn:
    LK_NBLCK = 1

    def locking(self, handle, mode, n_bytes):
        assert (mode, n_bytes) == (self.LK_NBLCK, 1)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""
"""Substitute for `msvcrt`, which locks as POSIX does."""
DEVICE = """
import json, os, sys
from rappor_client.folder import system

system.SYSTEM = system.Windows(StandIn())
sys.addaudithook(lambda event, _: event == "fcntl.flock" and locks.append(event))
locks = []
os.fchdir = None  # Windows has none

from rappor_client import Client, ClientOptions, Outcome
from rappor_client.testing import FixedClock, MemoryTransport

clock = FixedClock("2026-11-18T12:00:00")
transport = MemoryTransport()
options = ClientOptions(clock=clock, background=False, raise_errors=True)
device = Client.open("d", registry="m.toml", consent=True, collector=transport, options=options)
assert not device.disabled_reason, device.disabled_reason
for i in range(20):
    assert device.record(f"page{sys.argv[2]}{i}", "x") == Outcome.RECORDED
    clock.advance(days=1)
    if sys.argv[1] == "sends":
        device.flush()
device.close()
assert locks
if sys.argv[1] == "withdraws":
    again = Client.open("d", registry="m.toml", consent=True, options=options)
    assert again.withdraw()
print(*(json.loads(body)["id"] for body in transport.bodies))
"""
"""Program with a device on the substitute. Its arguments are an action and a letter."""


def start_device(folder: Path, what: str, letter: str = "a") -> subprocess.Popen[str]:
    """Start the program with the device. The letter is part of the names of its metrics."""
    command = [sys.executable, "-c", STAND_IN + DEVICE, what, letter]
    return subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the stand-in locks as POSIX does")
def test_device_works_where_folders_have_no_handles(tmp_path: Path) -> None:
    """Two processes share a folder without handles, lose nothing, and withdraw completely.

    An upload whose claim has ended may leave twice under one id. A collector counts it once.
    """
    first, *others = (f"page{letter}{i}" for letter in "ab" for i in range(20))
    (tmp_path / "m.toml").write_text(toml_of(first) + "".join(map(entry_of, others)))
    both = [start_device(tmp_path, "sends", letter) for letter in "ab"]
    ids = {upload for device in both for upload in device.communicate()[0].split()}
    assert [device.returncode for device in both] == [0, 0]
    contents = peek(tmp_path / "d")
    assert contents.counters["recorded"] == 40
    assert len(ids) <= 40 <= len(ids) + len(contents.queued_reports)
    assert (tmp_path / "d" / "device" / "lock").exists()
    ended = start_device(tmp_path, "withdraws")
    ended.communicate()
    assert ended.returncode == 0
    assert not peek(tmp_path / "d").has_secret
    assert {path.name for path in (tmp_path / "d").iterdir()} <= {"budget", "lock"}


class LockedModule:
    """A substitute for `msvcrt` in which another process has every lock."""

    LK_NBLCK = 1

    def locking(self, *_: int) -> None:
        """Refuse the lock."""
        raise PermissionError


@pytest.mark.parametrize("system", [Posix(), Windows(LockedModule())], ids=["posix", "windows"])
def test_lock_of_another_process_is_not_taken(system: Posix | Windows, tmp_path: Path) -> None:
    """A lock of another process is not acquired, and no handle stays open."""
    handle, other = (system.open_folder(str(tmp_path)) for _ in range(2))
    lock = system.lock(str(tmp_path), other)
    before = os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd") else []  # noqa: PTH110, PTH208
    assert system.lock(str(tmp_path), handle) is None
    after = os.listdir("/proc/self/fd") if before else []  # noqa: PTH208
    assert len(after) == len(before)
    if lock is not None:
        system.unlock(lock)
        assert system.lock(str(tmp_path), handle) is not None


def test_one_module_contains_the_calls_of_platforms() -> None:
    """Only `folder/system.py` contains `os.name` and the modules and flags of one platform."""
    import rappor_client.folder.system as system_module  # noqa: PLC0415 - the test reads its path

    assert system_module.__file__ is not None
    for path in Path(system_module.__file__).parents[1].rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        words = [word for word in ("os.name", "fcntl", "msvcrt", "O_NOFOLLOW") if word in text]
        assert not words or path == Path(system_module.__file__), (path, words)


def test_unreferenced_folder_is_closed(tmp_path: Path) -> None:
    """The handle of an unreferenced folder is closed.

    A host may open one device after another and never close them.
    """
    folder = IdentityFolder(tmp_path)
    handle = folder._handle
    assert handle is not None
    os.fstat(handle)
    del folder
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


@pytest.mark.skipif(os.name != "posix", reason="it has no handles of folders")
def test_next_lock_releases_a_lock_that_an_exception_has_left(tmp_path: Path) -> None:
    """The next lock of the same folder releases a lock that Ctrl-C has left."""
    folder, other = IdentityFolder(tmp_path), IdentityFolder(tmp_path)
    lock = SYSTEM.lock(str(tmp_path), folder._handle)
    assert lock is not None
    with other.try_lock() as is_inside:
        assert not is_inside
    with folder.try_lock() as is_inside:
        assert is_inside
    with other.try_lock() as is_inside:
        assert is_inside


@pytest.mark.skipif(os.name != "posix", reason="it has no handles of folders")
def test_closed_handle_is_not_used_for_another_folder(tmp_path: Path) -> None:
    """A folder whose handle was closed by a daemon does not use the handle's new owner."""
    original, strange = tmp_path / "original", tmp_path / "strange"
    original.mkdir()
    strange.mkdir()
    folder = IdentityFolder(original)
    assert folder._handle is not None
    os.close(folder._handle)
    taken = os.open(strange, os.O_RDONLY)
    try:
        assert taken == folder._handle
        with folder.try_lock() as is_inside:
            assert is_inside
            folder.replace("state", b"text")
        assert folder.read("state") == b"text"
        assert not list(strange.iterdir())
    finally:
        os.close(taken)
