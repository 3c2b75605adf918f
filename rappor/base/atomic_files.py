"""Files and folders that appear whole or not at all, and text that is UTF-8 or refused."""

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


@contextlib.contextmanager
def replace_file(path: str | os.PathLike[str], *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a new binary file that takes the path's name only when the block ends well.

    It is written beside the path, flushed to the disk and renamed; whatever had the name
    before stays until then, and stays for good when the block raises. `mode` are the
    permissions that the process's mask is taken from.
    """
    with open_draft(path, mode=mode) as file:
        yield file
        flush_and_close(file)
        Path(file.name).replace(path)
    sync_folder(Path(path).parent)


@contextlib.contextmanager
def create_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Create a folder that takes its name only when the block ends well.

    It is filled beside its place and renamed. Nothing may have the name before but an empty
    folder. When the block raises, what is in it is gone.

    Raises FileError if the name is taken.
    """
    import shutil  # noqa: PLC0415 - a device, which makes no such folder, starts sooner

    target = Path(folder).absolute()
    _check_vacant(target)
    fresh = target.with_name(f".{target.name}.{os.urandom(8).hex()}.tmp")
    fresh.mkdir()
    try:
        yield fresh
        sync_folder(fresh)
        _check_vacant(target)
        if target.exists():
            target.rmdir()
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    sync_folder(target.parent)


@contextlib.contextmanager
def lock_folder(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Wait until no other process holds a folder in this way, and hold it, where POSIX has locks.

    It is released when the process ends, however it ends.
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
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists() or target.is_symlink():
        raise FileError(target, "it is there already: give a new folder, or an empty one")


@contextlib.contextmanager
def open_draft(path: str | os.PathLike[str], *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a new binary file beside a path; after the block it is gone, unless it was renamed.

    Raises FileExistsError for what no file may replace: a folder, a device, a pipe, any name in
    /dev. What an OSError of this file, or of a full disk, names is the path.
    """
    target = Path(path)
    if (target.exists() and not target.is_file()) or target.absolute().parent == Path("/dev"):
        reason = "it must be a file, or the name of a new one"
        raise FileExistsError(errno.EEXIST, reason, os.fspath(path))
    fresh = target.with_name(f".{target.name}.{os.urandom(8).hex()}.tmp")
    try:
        with open(fresh, "xb", opener=functools.partial(os.open, mode=mode)) as file:
            yield file
    except OSError as error:
        if error.filename == str(fresh) or (error.filename is None and error.errno in _FULL):
            error.filename = os.fspath(path)
        raise
    finally:
        fresh.unlink(missing_ok=True)


def flush_and_close(file: BinaryIO) -> None:
    """Flush a file to the disk and close it."""
    file.flush()
    os.fsync(file.fileno())
    file.close()


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system lets folders be opened."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def hash_file(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's bytes, in hex digits. Raises FileError if it is unreadable."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FileError(path, error.strerror or "unreadable") from None


def save_text(text: str, path: str | os.PathLike[str] | None) -> str:
    """Return a text, and write it to `path` if there is one, its line ends as they are."""
    if path is not None:
        Path(path).write_text(text, encoding="utf-8", newline="")
    return text


def read_text(path: str | os.PathLike[str]) -> str:
    """Read a whole text file in UTF-8, with or without a byte-order mark.

    Raises FileError where it cannot be read, and with the line where it is not UTF-8.
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
    """Return whether bytes are UTF-16: by their mark, or by a zero beside each plain letter.

    Without the mark they are UTF-8 as well, where a zero byte is a character that hardly anybody
    writes.
    """
    has_mark = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return has_mark or data.count(0) * 3 > len(data)


def describe_wrong_encoding(data: bytes) -> str:
    """Say what bytes are that are no text in UTF-8."""
    wide = " but UTF-16, or binary: save it as UTF-8" if is_utf_16(data) else ""
    return f"it is not UTF-8{wide}"
