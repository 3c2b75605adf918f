"""The open folder of one identity, its files and its lock.

Where the system has handles of folders, files are named relative to the handle, not by their path.
This matters after a withdrawal of consent, which renames the folder, empties it and removes it:

    process A                              process B
    opens device/ (inode 7)
    is paused                              withdraws: renames device/, empties and removes it
                                           consent again: creates device/ (inode 9)
    resumes and writes state.1             state.1 of inode 9 is not touched: A writes into the
                                           removed folder, and the write fails

`check` compares the inode of the path with the inode of the handle, and raises GoneError here.

The lock belongs to the handle, too. It excludes other processes. Threads of one process exclude
each other by a `Turn` (see `forking`).
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rappor_client.folder import system
from rappor_client.folder.system import BINARY, NO_LINK, PRIVATE, read_file

NAME: Final = "device"
BUSY_SECONDS: Final = 2.0
"""Longest wait for a lock or for the disk, in seconds, unless a caller has another limit. A larger
value holds up the host longer."""
RETRY_SECONDS: Final = 0.01
"""Time between two attempts to lock the folder, in seconds. A smaller value takes more CPU."""
_CLOSED: Final = -1
"""Stands for the handle of a folder that was closed."""
_GRACE_SECONDS: Final = 0.5
"""Shortest wait of a flush for a lock or the disk, in seconds. With a smaller value
`flush(timeout=0)` fails more often, because the client's own thread is writing."""


class GoneError(Exception):
    """The folder was renamed or removed, because consent was withdrawn."""


class BusyError(Exception):
    """A lock is held by another process, another thread, or an interrupted call of this thread."""


class HungError(BusyError):
    """The disk has not answered within the time that the caller had."""


Stamp = tuple[int, int, int]
"""Inode, modification time in ns and size of a file: a replaced file has another stamp."""


def compute_lock_seconds(deadline: float) -> float:
    """Return the seconds that a flush waits for a lock: until its deadline, within [0.5, 2]."""
    return min(BUSY_SECONDS, max(deadline - time.monotonic(), _GRACE_SECONDS))


class IdentityFolder:
    """The open folder of one identity.

    Every method that names a file takes the file's name without a path. Methods raise OSError if
    the disk fails.

    Parameters
    ----------
    path
        Path of the folder. A path without a folder raises FileNotFoundError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # What `system.lock` returned, while this process has the lock.
        self._locked: int | None = None
        # Handle of the open folder; None on a system without such handles, `_CLOSED` after `close`.
        self._handle: int | None = None
        self._open()
        self._inode = _identify(path.stat() if self._handle is None else os.fstat(self._handle))

    def is_current(self) -> bool:
        """Return whether the folder still has its name."""
        try:
            return _identify(self.path.lstat()) == self._inode
        except (FileNotFoundError, NotADirectoryError):
            return False

    def check(self) -> None:
        """Raise GoneError unless the folder still has its name."""
        if not self.is_current():
            raise GoneError

    def stamp(self, name: str) -> Stamp | None:
        """Return the stamp of a file, None without such a file. A replaced file has another one."""
        try:
            status = os.stat(self._resolve(name), **self._make_relative())  # noqa: PTH116 - by its handle
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file, None without such a file. A symbolic link is not followed."""
        try:
            return read_file(self._resolve(name), NO_LINK, **self._make_relative())
        except FileNotFoundError:
            return None

    def replace(self, name: str, data: bytes) -> None:
        """Replace the bytes of a file in one step. `sync` makes the new name durable."""
        with self._draft(name, data) as draft:
            os.replace(self._resolve(draft), self._resolve(name), **self._make_both_relative())  # noqa: PTH105 - likewise

    def create(self, name: str, data: bytes) -> bool:
        """Create a file in one step; return False if a file of this name exists."""
        with self._draft(name, data) as draft:
            # Two processes may create the secret at the same time. A link fails if the name exists.
            # A rename would replace the secret of the first process.
            try:
                os.link(self._resolve(draft), self._resolve(name), **self._make_both_relative())
            except FileExistsError:
                return False
        return True

    def touch(self, name: str) -> None:
        """Create an empty file, unless a file has this name."""
        flags = os.O_WRONLY | os.O_CREAT | NO_LINK
        os.close(os.open(self._resolve(name), flags, PRIVATE, **self._make_relative()))

    def sync(self) -> None:
        """Flush the names of the folder to the disk."""
        if self._handle is not None:
            os.fsync(self._handle)

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._resolve(name), **self._make_relative())

    @contextlib.contextmanager
    def try_lock(self) -> Iterator[bool]:
        """Lock the folder against other processes while the block runs; do not wait.

        Yields False if another process holds the lock. Only one thread of a process may call this
        method at a time. If this process holds the lock already, the method yields True: the
        handler of a signal has raised before an earlier lock was released, and the end of this
        block releases it.
        """
        self._renew()
        try:
            self._locked = system.SYSTEM.lock(os.fspath(self.path), self._handle)
            yield self._locked is not None
        finally:
            locked, self._locked = self._locked, None
            if locked is not None:
                system.SYSTEM.unlock(locked)

    @contextlib.contextmanager
    def lock(self, seconds: float) -> Iterator[bool]:
        """Lock the folder as `try_lock` does, and wait for the lock up to `seconds`."""
        deadline = time.monotonic() + seconds
        # The lock of the system has no timeout, so it is tried again and again.
        while True:
            with self.try_lock() as is_locked:
                if is_locked or time.monotonic() >= deadline:
                    yield is_locked
                    return
            time.sleep(RETRY_SECONDS)

    def leave_to_parent(self) -> None:
        """Close, in the child of a fork, the handle that it shares with its parent.

        The handle also shares the parent's lock, which the child must not release.
        """
        self._locked = None
        self.close()

    def close(self) -> None:
        """Close the folder. The next `try_lock` opens it again."""
        if self._handle is not None:
            self._handle = _CLOSED
            self._at_end()

    def _open(self) -> None:
        """Open a handle of the folder, where the system has handles of folders."""
        self._handle = system.SYSTEM.open_folder(os.fspath(self.path))
        # A host may never close its clients. The collector of garbage then closes the handle;
        # without the finalizer, a host with thirty devices had thirty open handles.
        if self._handle is not None:
            self._at_end = weakref.finalize(self, os.close, self._handle)
            self._at_end.atexit = False

    def _renew(self) -> None:
        """Open the folder again if it was closed.

        A daemon closes all handles of its process at its start, also this one. The system may have
        given the number of the handle to another file since, so the inode behind the number is
        compared with the inode of the folder.
        """
        with contextlib.suppress(OSError):
            if self._handle is None or _identify(os.fstat(self._handle)) == self._inode:
                return
        self.check()
        self._at_end.detach()  # the finalizer would close the handle of another file
        self._open()

    @contextlib.contextmanager
    def _draft(self, name: str, data: bytes) -> Iterator[str]:
        """Write bytes to a temporary file and yield its name; remove the file after the block."""
        # On some network disks locks do not work, and two processes may write at the same time.
        # With random names neither of them writes into the draft of the other.
        draft = f".{name}.{os.urandom(8).hex()}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY
        handle = os.open(self._resolve(draft), flags, PRIVATE, **self._make_relative())
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield draft
        finally:
            self.remove(draft)

    def _resolve(self, name: str) -> str:
        """Return the name for a system call: relative to the handle, or a path without one."""
        return name if self._handle is not None else str(self.path / name)

    def _make_relative(self) -> dict[str, Any]:
        """Return the argument that makes a name relative to the folder's handle."""
        return {} if self._handle is None else {"dir_fd": self._handle}

    def _make_both_relative(self) -> dict[str, Any]:
        """Return the arguments that make two names relative to the folder's handle."""
        if self._handle is None:
            return {}
        return {"src_dir_fd": self._handle, "dst_dir_fd": self._handle}


@contextlib.contextmanager
def lock_host_folder(host: Path, seconds: float = BUSY_SECONDS) -> Iterator[bool]:
    """Lock a host's folder against other processes that create or erase an identity.

    Yields False if the lock is not free within `seconds`, or the folder cannot be opened.
    """
    try:
        folder = IdentityFolder(host)
    except OSError:  # the system does not allow the access
        yield False
        return
    try:
        with folder.lock(seconds) as is_locked:
            yield is_locked
    finally:
        folder.close()


def _identify(status: os.stat_result) -> tuple[int, int]:
    """Return device and inode, which identify a folder under any name."""
    return status.st_dev, status.st_ino
