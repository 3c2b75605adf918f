"""The calls of the operating system that differ between platforms, and nothing else.

POSIX opens a folder and names its files by that handle, so that they stay those of this folder when
its path becomes another one's. Windows has no such handles: there a path has to do, and a file of
its own is locked.
"""

from __future__ import annotations

import os
from typing import Any, Final

if os.name == "posix":
    import fcntl
else:
    import msvcrt

PRIVATE: Final = 0o600
NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)
"""Opens no symbolic link, where the system can say so."""
NO_WAIT: Final = getattr(os, "O_NONBLOCK", 0)
"""A pipe in the place of a file keeps nobody waiting."""
BINARY: Final = getattr(os, "O_BINARY", 0)
_FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | NO_LINK
_LOCK: Final = "lock"


def read_file(path: str | os.PathLike[str], flags: int = 0, **where: Any) -> bytes:
    """Return what a file holds; a pipe holds nothing. It raises OSError as `os.open` does."""
    handle = os.open(path, os.O_RDONLY | NO_WAIT | BINARY | flags, **where)
    with os.fdopen(handle, "rb") as file:
        return file.read() or b""


class Posix:
    """Linux, macOS and the like.

    `has_owners` is whether files have an owner, and permissions that keep others out.
    """

    has_owners = True

    def open_folder(self, path: str) -> int | None:
        """Return a handle of a folder, not through a link."""
        return os.open(path, _FOLDER)

    def lock(self, path: str, handle: int | None) -> int | None:  # noqa: ARG002 - by its handle
        """Lock the very folder of a handle; return what holds it, None if another process does."""
        assert handle is not None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        return handle

    def unlock(self, held: int) -> None:
        """Release it also where a child of a fork holds a copy."""
        fcntl.flock(held, fcntl.LOCK_UN)


class Windows:
    """The same for Windows; `msvcrt` is Python's module of that name, or what stands in for it."""

    has_owners = False

    def __init__(self, msvcrt: Any) -> None:
        self._msvcrt = msvcrt

    def open_folder(self, path: str) -> int | None:  # noqa: ARG002 - a path has to do
        """Return None."""
        return None

    def lock(self, path: str, handle: int | None) -> int | None:  # noqa: ARG002 - there is none
        """Lock the first byte of a file in the folder."""
        held = os.open(f"{path}{os.sep}{_LOCK}", os.O_RDWR | os.O_CREAT, PRIVATE)
        try:
            self._msvcrt.locking(held, self._msvcrt.LK_NBLCK, 1)
        except OSError:
            os.close(held)
            return None
        return held

    def unlock(self, held: int) -> None:
        """Close the file, which releases its lock."""
        os.close(held)


SYSTEM: Posix | Windows = Posix() if os.name == "posix" else Windows(msvcrt)
"""The operating system that the program runs on."""
