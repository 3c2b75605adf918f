"""The host's folder: where it is, whether it is the user's alone, and mending it if not.

Whoever owns a folder, or may write to it, may put another secret into it, or a link in the place of
one. What others may write to is closed to them, where the folder is ours; else the device is
disabled, which `UnusableError` says in words.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from rappor_client.folder import system

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_LONGEST_BYTES: Final = 400
"""SQLite opens no path of more than 512, and the spool's name follows."""


class UnusableError(Exception):
    """The device cannot work in its folder; the message says why, for the person who runs it."""


class ForeignError(UnusableError):
    """A file is whole, but another version of this library wrote it in a format of its own.

    To take such a file for a damaged one would cost the device its secret and its year.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the file {name} has the format of another version of rappor-client: use that "
            "version, or withdraw consent and ask again"
        )


def place_of(folder: str | os.PathLike[str]) -> Path:
    """Return the folder's path from the root, for a daemon goes elsewhere.

    Where the home or the working folder is unknown, it is one that no disk has.
    """
    try:
        return Path(folder).expanduser().absolute()
    except (RuntimeError, OSError):
        return Path(os.devnull, "no home")


def close_to_others(folder: Path, *, mode: int = _OTHERS_WRITE) -> None:
    """Take a folder's permissions from others, and those of the files in it.

    `mode` are the permissions that others lose of the folder itself. Raises UnusableError for a
    link in its place, for what belongs to another user, and for a path that SQLite cannot open.
    """
    if len(os.fsencode(folder)) > _LONGEST_BYTES:
        raise UnusableError(f"its path is too long: it must have at most {_LONGEST_BYTES} bytes")
    if folder.is_symlink():
        raise UnusableError("the folder is a symbolic link: name the folder itself")
    if not folder.is_dir() or not system.SYSTEM.has_owners:  # elsewhere these bits mean nothing
        return
    _close(folder, folder.lstat(), mode)


def close_all(folder: Path) -> None:
    """Take all permissions of a folder of the device's own, and of its files, from others."""
    close_to_others(folder, mode=_OTHERS)
    if folder.is_dir() and system.SYSTEM.has_owners:
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process may remove its own
                status = path.lstat()
                if stat.S_ISLNK(status.st_mode):
                    raise UnusableError(f"{path.name} is a symbolic link: remove it")
                _close(path, status, _OTHERS)


def _close(path: Path, status: os.stat_result, mode: int) -> None:
    if status.st_uid != os.geteuid():
        raise UnusableError(
            f"{path.name} belongs to another user: run the program as that user, or name another "
            "folder"
        )
    if status.st_mode & mode:
        path.chmod(stat.S_IMODE(status.st_mode) & ~mode)
