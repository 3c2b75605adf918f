"""What differs between platforms: a whole device where the system has no handles of folders."""

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


def begin(folder: Path, what: str, letter: str = "a") -> subprocess.Popen[str]:
    """Start a device on a system that stands in for Windows; it records metrics of a letter."""
    command = [sys.executable, "-c", STAND_IN + DEVICE, what, letter]
    return subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE)


@pytest.mark.skipif(os.name != "posix", reason="the stand-in locks as POSIX does")
def test_device_works_where_folders_have_no_handles(tmp_path: Path) -> None:
    """Two processes share the folder, nothing is lost, and a withdrawal is complete.

    An upload whose claim was over may leave twice, with the same id: a collector counts it once.
    """
    first, *others = (f"page{letter}{i}" for letter in "ab" for i in range(20))
    (tmp_path / "m.toml").write_text(toml_of(first) + "".join(map(entry_of, others)))
    both = [begin(tmp_path, "sends", letter) for letter in "ab"]
    ids = {upload for device in both for upload in device.communicate()[0].split()}
    assert [device.returncode for device in both] == [0, 0]
    contents = peek(tmp_path / "d")
    assert contents.counters["recorded"] == 40
    assert len(ids) <= 40 <= len(ids) + len(contents.queued_reports)
    assert (tmp_path / "d" / "device" / "lock").exists()
    ended = begin(tmp_path, "withdraws")
    ended.communicate()
    assert ended.returncode == 0
    assert not peek(tmp_path / "d").has_secret
    assert {path.name for path in (tmp_path / "d").iterdir()} <= {"budget", "lock"}


class Taken:
    """A module of locks, all of which another process has."""

    LK_NBLCK = 1

    def locking(self, *_: int) -> None:
        """Refuse."""
        raise PermissionError


@pytest.mark.parametrize("system", [Posix(), Windows(Taken())], ids=["posix", "windows"])
def test_lock_of_another_process_is_not_taken(system: Posix | Windows, tmp_path: Path) -> None:
    """No handle is left open."""
    handle, other = (system.open_folder(str(tmp_path)) for _ in range(2))
    held = system.lock(str(tmp_path), other)
    before = os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd") else []  # noqa: PTH110, PTH208
    assert system.lock(str(tmp_path), handle) is None
    after = os.listdir("/proc/self/fd") if before else []  # noqa: PTH208
    assert len(after) == len(before)
    if held is not None:
        system.unlock(held)
        assert system.lock(str(tmp_path), handle) is not None


def test_only_one_module_asks_which_system_it_is() -> None:
    """Neither `os.name` nor a module of one platform is anywhere else in the device."""
    import rappor_client.folder.system as own  # noqa: PLC0415 - its place is asked for

    assert own.__file__ is not None
    for path in Path(own.__file__).parents[1].rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        words = [word for word in ("os.name", "fcntl", "msvcrt", "O_NOFOLLOW") if word in text]
        assert not words or path == Path(own.__file__), (path, words)


def test_a_folder_that_nobody_needs_any_more_is_closed(tmp_path: Path) -> None:
    """A host may open one device after another and close none."""
    folder = IdentityFolder(tmp_path)
    handle = folder._handle
    assert handle is not None
    os.fstat(handle)
    del folder
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


@pytest.mark.skipif(os.name != "posix", reason="it has no handles of folders")
def test_a_lock_that_an_exception_has_left_is_given_back_by_the_next_one(tmp_path: Path) -> None:
    """Ctrl-C comes between any two steps; another process is kept out until then only."""
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
def test_a_handle_that_the_host_has_closed_is_of_no_other_folder(tmp_path: Path) -> None:
    """As daemons do, which close every handle: its number may soon be that of another folder."""
    own, strange = tmp_path / "own", tmp_path / "strange"
    own.mkdir()
    strange.mkdir()
    folder = IdentityFolder(own)
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
