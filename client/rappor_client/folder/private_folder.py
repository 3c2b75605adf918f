"""The folder on the disk: where it is, and whether it is the user's alone.

Whoever owns a folder, or may write to it, may put another secret into it, or a link in the place of
one. Such a folder is refused with a sentence, and so is another user's file in it. Files that
others may read are closed to them.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rappor.ground.errors import FileError

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def place_of(folder: str | os.PathLike[str]) -> Path:
    """Return the folder's path; where the home is unknown, one that no disk has."""
    try:
        return Path(folder).expanduser()
    except RuntimeError:
        return Path(os.devnull, "no home")


def check_private(folder: Path, names: Iterable[str]) -> None:
    """Raise FileError for what others own or may write to, and for links; close its files.

    `names` are those of the device's files. Others in the folder are the host's business.
    """
    if folder.is_symlink():
        raise FileError(folder, "it must be a folder, got a symbolic link; name the folder itself")
    if not folder.is_dir() or os.name != "posix":  # elsewhere these bits mean nothing
        return
    status = folder.stat()
    _check_owner(folder, status)
    if status.st_mode & _OTHERS_WRITE:
        raise FileError(folder, "no one else may write to it; run chmod 700 on it")
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # another process may be removing its own
            _check_file(folder / name)


def _check_file(path: Path) -> None:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise FileError(path, "it must be a file, got a symbolic link; remove it")
    _check_owner(path, status)
    if stat.S_ISREG(status.st_mode) and status.st_mode & _OTHERS:
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise FileError(
            path,
            "it must belong to the user who runs the program, got another user's; "
            "run the program as that user, or name another folder",
        )
