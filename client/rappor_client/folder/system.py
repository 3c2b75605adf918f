"""The calls of the operating system that differ between platforms.

On POSIX, a program can open a folder. The system returns a handle (a file descriptor), and the
program opens files by their name relative to this handle. The names still refer to the opened
folder if somebody renames the folder and puts another folder at its path. Windows has no handles of
folders. On Windows, the client opens files by their path, and locks a file in the folder in place
of the folder.
"""

from __future__ import annotations

import os
from typing import Any, Final

if os.name == "posix":
    import fcntl
else:
    import msvcrt

PRIVATE: Final = 0o600
"""Permissions of every file in which the client stores data: the owner may read and write the file,
and other users may not."""
NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)
"""Flag with which `os.open` opens no symbolic link, 0 where the system has no such flag."""
NO_WAIT: Final = getattr(os, "O_NONBLOCK", 0)
"""Flag with which `os.open` does not wait for the other end of a pipe. Without the flag, a pipe in
the place of a file once blocked the host program for ever."""
BINARY: Final = getattr(os, "O_BINARY", 0)
"""Flag with which `os.open` does not translate line ends on Windows, 0 on other systems."""
_FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | NO_LINK
"""Flags for opening a folder. Anything else in its place is refused."""
_LOCK: Final = "lock"
"""Name of the file that is locked on Windows, in place of the folder."""


def read_file(
    path: str | os.PathLike[str], flags: int = 0, *, n_bytes: int = -1, **where: Any
) -> bytes:
    """Return the first `n_bytes` bytes of a file, or all bytes (-1); no bytes for a pipe.

    `flags` are further flags of `os.open`, and `where` may have its argument `dir_fd`. Raises
    OSError as `os.open` does.
    """
    handle = os.open(path, os.O_RDONLY | NO_WAIT | BINARY | flags, **where)
    with os.fdopen(handle, "rb") as file:
        return file.read(n_bytes) or b""  # a pipe without data returns None


class Posix:
    """Linux, macOS and similar systems.

    `has_owners` is whether files have an owner, and permissions that exclude other users.
    """

    has_owners = True

    def open_folder(self, path: str) -> int | None:
        """Return a handle of a folder; OSError for a symbolic link."""
        return os.open(path, _FOLDER)

    def lock(self, path: str, handle: int | None) -> int | None:  # noqa: ARG002 - by its handle
        """Lock the folder of a handle; return the handle, None if another process has the lock."""
        assert handle is not None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        return handle

    def lock_file(self, handle: int) -> bool:
        """Lock an open file; return False if another process has the lock.

        The end of the process, or of the handle, releases the lock.
        """
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # this file system has no locks
            return True
        return True

    def unlock(self, locked: int) -> None:
        """Release the lock, also if the child of a fork has a copy of the handle."""
        fcntl.flock(locked, fcntl.LOCK_UN)


class Windows:
    """Windows. `msvcrt` is Python's module of that name, or a substitute in tests."""

    has_owners = False

    def __init__(self, msvcrt: Any) -> None:
        self._msvcrt = msvcrt

    def open_folder(self, path: str) -> int | None:  # noqa: ARG002 - files are named by their path
        """Return None: Windows has no handles of folders."""
        return None

    def lock(self, path: str, handle: int | None) -> int | None:  # noqa: ARG002 - it is None on Windows
        """Lock the first byte of a file in the folder, and return the handle of the file.

        Return None if another process has the lock.
        """
        locked = os.open(f"{path}{os.sep}{_LOCK}", os.O_RDWR | os.O_CREAT, PRIVATE)
        try:
            self._msvcrt.locking(locked, self._msvcrt.LK_NBLCK, 1)
        except OSError:
            os.close(locked)
            return None
        return locked

    def lock_file(self, handle: int) -> bool:  # noqa: ARG002 - nothing is locked
        """Return True without a lock.

        The lock of `lock_file` keeps processes from waiting for one frozen file system. Windows has
        no frozen file systems, and locks parts of files only.
        """
        return True

    def unlock(self, locked: int) -> None:
        """Close the file, which releases its lock."""
        os.close(locked)


SYSTEM: Posix | Windows = Posix() if os.name == "posix" else Windows(msvcrt)
"""The operating system on which the program runs. A test on Linux may assign a `Windows`."""
