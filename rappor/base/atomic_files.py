"""Files and folders that are written completely or not at all, and text in UTF-8.

How to think about it
---------------------
A program may be killed, or a disk may be full, in the middle of a write. A file is therefore
written under a temporary name in the same folder, flushed to the disk, and renamed. The rename is
atomic: another process sees the old content or the new content, never a part. At last the folder is
flushed, because a rename that is not on the disk is lost in a power failure.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from rappor.base.errors import FileError

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk, a used quota and a file that exceeds the limit. They name no file."""


@contextlib.contextmanager
def replace_file(path: str | os.PathLike[str], *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a new binary file that replaces `path` at the end of the block.

    If the block raises, the old file stays as it was.

    Parameters
    ----------
    path : path of the file.
    mode : permissions of the file, before the process's mask is applied.

    Raises
    ------
    FileExistsError
        A folder, a device or a pipe has the path.
    """
    with open_draft(path, mode=mode) as file:
        yield file
        # Without the flush, a power failure after the rename could leave an empty file.
        flush_and_close(file)
        Path(file.name).replace(path)
    sync_folder(Path(path).parent)


@contextlib.contextmanager
def create_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Create a folder under a temporary name, and rename it at the end of the block.

    If the block raises, the folder and its content are deleted.

    Parameters
    ----------
    folder : path of the new folder. An empty folder may have the path before.

    Yields
    ------
    Path of the folder under its temporary name.

    Raises
    ------
    FileError
        A file, or a folder that is not empty, has the path.
    """
    import shutil  # noqa: PLC0415 - a device creates no such folder, and starts faster without it

    target = Path(folder).absolute()
    _check_vacant(target)
    draft = target.with_name(f".{target.name}.{os.urandom(8).hex()}.tmp")
    draft.mkdir()
    try:
        yield draft
        sync_folder(draft)
        # Another process may have created the folder while the block ran.
        _check_vacant(target)
        if target.exists():
            target.rmdir()
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    sync_folder(target.parent)


@contextlib.contextmanager
def lock_folder(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Wait for the exclusive lock of a folder, and release the lock at the end of the block.

    The lock excludes only processes that use this function. The system releases it when the process
    ends, also by a kill. Without POSIX locks the function does nothing.
    """
    if os.name != "posix":
        yield
        return
    import fcntl  # noqa: PLC0415 - POSIX only

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _check_vacant(target: Path) -> None:
    """Raise FileError unless the path is free or an empty folder."""
    if target.is_dir() and not any(target.iterdir()):
        return
    # `exists` is false for a symbolic link to nothing.
    if target.exists() or target.is_symlink():
        raise FileError(target, "it is there already: give a new folder, or an empty one")


@contextlib.contextmanager
def open_draft(path: str | os.PathLike[str], *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a new binary file with a temporary name in the folder of `path`.

    The draft is deleted at the end of the block, unless the block renamed it.

    Raises
    ------
    FileExistsError
        A folder, a device or a pipe has the path, or the path is in /dev.
    OSError
        The draft cannot be written. The error names `path`, not the draft, which the user never
        chose.
    """
    target = Path(path)
    # Renaming a draft to /dev/null would replace the device for the whole system.
    if (target.exists() and not target.is_file()) or target.absolute().parent == Path("/dev"):
        reason = "it must be a file, or the name of a new one"
        raise FileExistsError(errno.EEXIST, reason, os.fspath(path))
    draft = target.with_name(f".{target.name}.{os.urandom(8).hex()}.tmp")
    try:
        with open(draft, "xb", opener=functools.partial(os.open, mode=mode)) as file:
            yield file
    except OSError as error:
        if error.filename == str(draft) or (error.filename is None and error.errno in _FULL):
            error.filename = os.fspath(path)
        raise
    finally:
        draft.unlink(missing_ok=True)


def flush_and_close(file: BinaryIO) -> None:
    """Write a file to the disk, and close it."""
    file.flush()
    os.fsync(file.fileno())
    file.close()


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk. Windows cannot open folders, and does nothing."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def hash_file(path: str | os.PathLike[str]) -> str:
    """Compute the SHA-256 of a file's bytes, in hexadecimal digits.

    Raises FileError if the file cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FileError(path, error.strerror or "unreadable") from None


def save_text(text: str, path: str | os.PathLike[str] | None) -> str:
    """Write a text to a file if `path` is not None, and return the text.

    Line ends are written as they are, also on Windows.
    """
    if path is not None:
        Path(path).write_text(text, encoding="utf-8", newline="")
    return text


def read_text(path: str | os.PathLike[str]) -> str:
    """Read a text file in UTF-8, with or without a byte-order mark.

    Raises
    ------
    FileError
        The file cannot be read, or is not UTF-8. For the latter the error contains the line.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise FileError(path, error.strerror or "unreadable") from None
    if is_utf_16(data):
        raise FileError(path, describe_wrong_encoding(data), line=1)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FileError(path, describe_wrong_encoding(data), line=line) from None


def is_utf_16(data: bytes) -> bool:
    """Return whether bytes are probably UTF-16, by the byte-order mark or by many zero bytes.

    In UTF-16 every Latin letter has a zero byte beside it. Without a mark, such bytes are valid
    UTF-8, too, in which a zero byte is a character that almost no text contains. Windows programs
    save "Unicode" as UTF-16.
    """
    has_mark = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return has_mark or data.count(0) * 3 > len(data)


def describe_wrong_encoding(data: bytes) -> str:
    """Write the reason why bytes are not text in UTF-8, for a FileError."""
    hint = " but UTF-16, or binary: save it as UTF-8" if is_utf_16(data) else ""
    return f"it is not UTF-8{hint}"
