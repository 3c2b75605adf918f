"""System calls that differ between platforms, and a device on a substitute for Windows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from devices import Home, get_identity_folder
from rappor_client.folder.identity_folder import IdentityFolder
from rappor_client.folder.system import SYSTEM, Posix, Windows
from rappor_client.testing import peek
from registries import format_entry, format_registry

STAND_IN = """
import fcntl

class StandIn:
    LK_NBLCK = 1

    def locking(self, handle, mode, n_bytes):
        assert (mode, n_bytes) == (self.LK_NBLCK, 1)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""
"""Source of a substitute for the module `msvcrt`. It locks with `flock`, a call of POSIX."""
DEVICE = """
import json, os, sys
from rappor_client.folder import system

system.SYSTEM = system.Windows(StandIn())
sys.addaudithook(lambda event, _: event == "fcntl.flock" and locks.append(event))
locks = []
os.fchdir = None  # Windows has no such function

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
"""Source of a program that records on the substitute for Windows and prints the ids of its uploads.
Its arguments are an action, `sends` or `withdraws`, and a letter of the names of its metrics."""


def start_device(folder: Path, action: str, letter: str = "a") -> subprocess.Popen[str]:
    """Start the program `DEVICE` in a folder."""
    command = [sys.executable, "-c", STAND_IN + DEVICE, action, letter]
    return subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the stand-in locks as POSIX does")
def test_device_works_where_folders_have_no_handles(tmp_path: Path) -> None:
    """Two processes share a folder without handles, lose no event, and a withdrawal is complete.

    An upload whose claim has ended may leave twice under one id. A collector counts it once.
    """
    first_name, *names = (f"page{letter}{i}" for letter in "ab" for i in range(20))
    (tmp_path / "m.toml").write_text(
        format_registry(first_name) + "".join(map(format_entry, names))
    )
    processes = [start_device(tmp_path, "sends", letter) for letter in "ab"]
    ids = {upload_id for process in processes for upload_id in process.communicate()[0].split()}
    assert [process.returncode for process in processes] == [0, 0]
    contents = peek(tmp_path / "d")
    assert contents.counters["recorded"] == 40
    assert len(ids) <= 40 <= len(ids) + len(contents.queued_reports)
    assert (tmp_path / "d" / "device" / "lock").exists()
    process = start_device(tmp_path, "withdraws")
    process.communicate()
    assert process.returncode == 0
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
    """A lock of another process is not acquired, and no handle stays open.

    On POSIX another handle of the same process stands for the process. On Windows the substitute
    refuses every lock, so the first lock is None, too.
    """
    handle, other_handle = (system.open_folder(str(tmp_path)) for _ in range(2))
    other_lock = system.lock(str(tmp_path), other_handle)
    before = os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd") else []  # noqa: PTH110, PTH208
    assert system.lock(str(tmp_path), handle) is None
    after = os.listdir("/proc/self/fd") if before else []  # noqa: PTH208
    assert len(after) == len(before)
    if other_lock is not None:
        system.unlock(other_lock)
        assert system.lock(str(tmp_path), handle) is not None


def test_one_module_contains_the_calls_of_platforms() -> None:
    """Only `folder/system.py` contains `os.name` and the modules and flags of one platform."""
    import rappor_client.folder.system as system_module  # noqa: PLC0415 - the test reads its path

    assert system_module.__file__ is not None
    for path in Path(system_module.__file__).parents[1].rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        words = [word for word in ("os.name", "fcntl", "msvcrt", "O_NOFOLLOW") if word in text]
        assert not words or path == Path(system_module.__file__), (path, words)


@pytest.mark.skipif(os.name != "posix", reason="the system does not flush folders")
def test_new_device_is_flushed_under_its_name(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rename that completes a new device is flushed, so a loss of power cannot undo it.

    Otherwise the next run would begin another device, which would use the budget again.
    """
    home.folder.mkdir()
    fsync, flushed_names = os.fsync, list[set[str]]()

    def note_names(handle: int) -> None:
        fsync(handle)
        if os.path.sameopenfile(handle, folder):
            flushed_names.append(set(os.listdir(handle)))

    folder = os.open(home.folder, os.O_RDONLY)
    monkeypatch.setattr(os, "fsync", note_names)
    home.open()
    os.close(folder)
    assert flushed_names[-1] == {"budget", "device"}


def test_old_drafts_are_removed(home: Home) -> None:
    """Opening removes the drafts of killed processes, also beside drafts that it cannot remove.

    A draft contains the secret. A fresh draft may belong to a process that is writing. The folders
    of this test stand for drafts that cannot be removed.
    """
    home.open().close()
    identity = get_identity_folder(home.folder)
    fresh, old = identity / ".state.1.fresh.tmp", identity / ".state.1.old.tmp"
    stuck = [identity / f".state.2.{i}.tmp" for i in range(20)]
    for path in (fresh, old):
        path.write_bytes(b"")
    for path in stuck:
        path.mkdir()
    for path in (old, *stuck):
        os.utime(path, (0.0, 0.0))
    home.open()
    assert set(identity.glob("*.tmp")) == {fresh, *stuck}


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


@pytest.mark.skipif(os.name != "posix", reason="the system has no handles of folders")
def test_next_lock_releases_a_lock_that_an_exception_has_left(tmp_path: Path) -> None:
    """The next lock of the same folder releases a lock that Ctrl-C has left."""
    folder, other_folder = IdentityFolder(tmp_path), IdentityFolder(tmp_path)
    lock = SYSTEM.lock(str(tmp_path), folder._handle)
    assert lock is not None
    with other_folder.try_lock() as is_locked:
        assert not is_locked
    with folder.try_lock() as is_locked:
        assert is_locked
    with other_folder.try_lock() as is_locked:
        assert is_locked


@pytest.mark.skipif(os.name != "posix", reason="the system has no handles of folders")
def test_closed_handle_is_not_used_for_another_folder(tmp_path: Path) -> None:
    """A folder whose handle the host has closed does not write to the handle's next folder.

    A program that becomes a daemon closes all handles. The system gives their numbers to files that
    are opened later.
    """
    original, foreign = tmp_path / "original", tmp_path / "foreign"
    original.mkdir()
    foreign.mkdir()
    folder = IdentityFolder(original)
    assert folder._handle is not None
    os.close(folder._handle)
    reused_handle = os.open(foreign, os.O_RDONLY)
    try:
        assert reused_handle == folder._handle
        with folder.try_lock() as is_locked:
            assert is_locked
            folder.replace("state", b"text")
        assert folder.read("state") == b"text"
        assert not list(foreign.iterdir())
    finally:
        os.close(reused_handle)
