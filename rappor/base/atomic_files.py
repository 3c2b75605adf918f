"""Atomic files and folders: a write is complete or has no effect. Also text files in UTF-8.

How to think about it
---------------------
A program may be killed, or a disk may be full, in the middle of a write. A file is therefore
written in four steps, whose order matters:

1. Write the content under a temporary name in the same folder (the draft).
2. Flush the draft to the disk. Otherwise a power failure could leave an empty file after step 3.
3. Rename the draft. The rename is atomic: another process sees the old content or the new content,
   and never a part.
4. Flush the folder to the disk. Otherwise a power failure could undo the rename.

If a step fails, the old file stays, and the draft is deleted.
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
"""Error numbers of a full disk, a used quota and a file that is too large. The system reports these
errors without the name of the file, so the module adds it."""


@contextlib.contextmanager
def replace_file(path: str | os.PathLike[str], *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a new binary file that replaces `path` at the end of a `with` block.

    If the block raises an error, the old file stays unchanged.

    Parameters
    ----------
    path : path of the file.
    mode : permissions of the file, from which the process's umask removes some.

    Raises
    ------
    FileExistsError
        A folder, a device or a pipe has the path.
    """
    with open_draft(path, mode=mode) as file:
        yield file
        # The flush must precede the rename (step 2 of the module).
        flush_and_close(file)
        Path(file.name).replace(path)
    sync_folder(Path(path).parent)


@contextlib.contextmanager
def create_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Create a folder under a temporary name, and rename it at the end of a `with` block.

    If the block raises an error, the folder and its content are deleted.

    Parameters
    ----------
    folder : path of the new folder. An existing empty folder with this path is replaced.

    Yields
    ------
    Path of the folder under its temporary name.

    Raises
    ------
    FileError
        A file, or a folder that is not empty, has the path.
    """
    # The client on a device creates no such folder, and starts faster without this import.
    import shutil  # noqa: PLC0415

    target = Path(folder).absolute()
    _check_vacant(target)
    draft = target.with_name(f".{target.name}.{os.urandom(8).hex()}.tmp")
    draft.mkdir()
    try:
        yield draft
        sync_folder(draft)
        # Case: another process has created the folder while the block ran.
        _check_vacant(target)
        if target.exists():
            target.rmdir()
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    sync_folder(target.parent)


@contextlib.contextmanager
def lock_folder(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Wait for the exclusive lock of a folder, and release the lock at the end of a `with` block.

    The lock excludes only processes that use this function. The operating system releases it when
    the process ends, also after a kill. On Windows, which has no POSIX locks, the function does
    nothing.
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
    """Raise FileError unless nothing or an empty folder has the path."""
    if target.is_dir() and not any(target.iterdir()):
        return
    # Case: a symbolic link whose target does not exist. `exists` returns False for it.
    if target.exists() or target.is_symlink():
        raise FileError(target, "it is there already: give a new folder, or an empty one")


@contextlib.contextmanager
def open_draft(path: str | os.PathLike[str], *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a new binary file with a temporary name in the folder of `path`, the draft.

    The draft is deleted at the end of the `with` block, unless the block has renamed it.

    Raises
    ------
    FileExistsError
        A folder, a device or a pipe has the path, or the path is in /dev.
    OSError
        The draft cannot be written. The error contains `path` and not the name of the draft, which
        the user never chose.
    """
    target = Path(path)
    # Case: the user passes /dev/null. Renaming a draft would replace the device for the whole
    # system.
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
    """Write the buffers of a file to the disk, and close the file."""
    file.flush()
    os.fsync(file.fileno())
    file.close()


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk. Windows cannot open folders, so it is left out."""
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

    Methods such as `to_json(path=None)` return this result: the caller gets the text in any case.
    The file is written in place and is not atomic. A killed program may leave a part of the text,
    which can be computed again. Line ends are written unchanged, also on Windows.
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


def read_upload_key(path: str | os.PathLike[str]) -> str:
    """Read the upload key of a program from a file that contains nothing else.

    Raises
    ------
    FileError
        The file cannot be read, or does not have one word. Case: it is the file of the collector,
        whose lines have the name of a key, the key and its last day. The error contains no key.
    """
    words = read_text(path).split()
    if len(words) != 1:
        raise FileError(
            path, "it must contain the upload key alone, without its name and its last day"
        )
    return words[0]


def is_utf_16(data: bytes) -> bool:
    """Return whether bytes are probably UTF-16, by the byte-order mark or by many zero bytes.

    Case: a Windows program saved a text as "Unicode", which is UTF-16. Every Latin letter then has
    a zero byte beside it. Without a byte-order mark, such bytes are also valid UTF-8, in which a
    zero byte is a character that almost no text contains.
    """
    has_mark = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    # A third of zero bytes, because some letters of a text may not be Latin.
    return has_mark or data.count(0) * 3 > len(data)


def describe_wrong_encoding(data: bytes) -> str:
    """Write the reason why bytes are not text in UTF-8, for a FileError."""
    hint = " but UTF-16, or binary: save it as UTF-8" if is_utf_16(data) else ""
    return f"it is not UTF-8{hint}"
