"""Access to the host's folder: its path, its owner, and the permissions of other users.

A user who owns the folder, or may write to it, could put another secret into it, or a symbolic link
in the place of a file. So the client takes the permissions of other users away where the folder
belongs to the user of the program. Otherwise the device is disabled, with a reason (UnusableError).
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from rappor.base.errors import ParamsError
from rappor_client.folder import system

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
"""These permissions allow the group and all other users to write."""
_ALL_OF_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
"""These permissions allow the group and all other users any access."""
_MAX_PATH_BYTES: Final = 400
"""Largest length of the folder's path, in bytes. SQLite opens no path of more than 512 bytes, and
the name of the spool follows."""


class UnusableError(Exception):
    """The device cannot work in its folder; the message is the reason, for the program's user."""


class ForeignError(UnusableError):
    """A valid file in the format of another version of this library.

    Such a file is not treated as damaged. Otherwise the device would draw a new secret, and would
    record nothing for the rest of the year, because it would not know how much budget was used.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the file {name} has the format of another version of rappor-client: use that "
            "version, or withdraw consent and ask again"
        )


def resolve_folder(folder: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a folder.

    A relative path must not follow `os.chdir`: a daemon that changed its folder once withdrew the
    consent of another device. If the home or the working folder is unknown, the result is a path
    that exists on no disk, so the client is disabled.

    Raises
    ------
    ParamsError
        `folder` is no path, or an empty text.
    """
    # Bad case: a program took its folder from an environment variable that was not set. The empty
    # text named the working folder, so each folder in which a person worked had its own device.
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        got = "an empty text" if isinstance(folder, str) else type(folder).__name__
        raise ParamsError(f"folder must be the path of a folder, got {got}")
    try:
        return Path(folder).expanduser().absolute()
    except (RuntimeError, OSError):
        return Path(os.devnull, "no home")


def revoke_access(folder: Path, *, mode: int = _OTHERS_WRITE) -> None:
    """Take permissions on a folder from other users.

    Parameters
    ----------
    folder
        The folder.
    mode
        Permissions to take. The default is to write.

    Raises
    ------
    UnusableError
        The folder is a symbolic link, belongs to another user, or has a path that SQLite cannot
        open.
    """
    # SQLite would fail later, at the first report.
    if len(os.fsencode(folder)) > _MAX_PATH_BYTES:
        raise UnusableError(f"its path is too long: it must have at most {_MAX_PATH_BYTES} bytes")
    if folder.is_symlink():
        raise UnusableError("the folder is a symbolic link: name the folder itself")
    # The folder does not exist yet, or the permissions of the system mean nothing (Windows).
    if not folder.is_dir() or not system.SYSTEM.has_owners:
        return
    _revoke(folder, folder.lstat(), mode)


def revoke_all_access(folder: Path) -> None:
    """Take all permissions on the folder of an identity, and on its files, from other users."""
    revoke_access(folder, mode=_ALL_OF_OTHERS)
    if folder.is_dir() and system.SYSTEM.has_owners:
        for path in folder.iterdir():
            # Another process may remove its draft between `iterdir` and `lstat`.
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISLNK(status.st_mode):
                    raise UnusableError(f"{path.name} is a symbolic link: remove it")
                _revoke(path, status, _ALL_OF_OTHERS)


def _revoke(path: Path, status: os.stat_result, mode: int) -> None:
    """Take permissions from other users; UnusableError for a file of another user."""
    if status.st_uid != os.geteuid():
        raise UnusableError(
            f"{path.name} belongs to another user: run the program as that user, or name another "
            "folder"
        )
    if status.st_mode & mode:
        path.chmod(stat.S_IMODE(status.st_mode) & ~mode)
