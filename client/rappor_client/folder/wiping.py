"""Overwriting and removal of files, as far as the system allows. Nothing here raises OSError.

`wipe` removes the name first and overwrites the bytes at once after it. In this order no other
process opens the file after its bytes were checked, and a process that has the file open reads
zeros.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rappor_client.folder.system import NO_LINK, NO_WAIT

_CHUNK_BYTES: Final = 1 << 20
"""Number of zeros that one call writes. The value bounds the memory of an erasure."""
_SHARED_MEMORY: Final = "-shm"
"""Ending of SQLite's index of a log, which processes map into their memory. It contains no row, and
a process that reads it while it is overwritten would fail."""
_OVERWRITING: Final = os.O_WRONLY | NO_LINK | NO_WAIT
"""Flags for overwriting. A symbolic link in the place of a file is not followed, and a pipe in its
place does not hold the caller."""


def overwrite(path: Path, data: bytes) -> None:
    """Replace the bytes of a file in place, and flush the file to the disk.

    The file is filled with zeros behind the data before it is cut to its new length, because the
    disk may keep the bytes that were cut off.
    """
    with _open_for_overwriting(path) as file, contextlib.suppress(OSError):
        if file is not None:
            size = os.fstat(file).st_size
            os.write(file, data.ljust(size, b"\0"))
            os.truncate(file, len(data))
            os.fsync(file)


def wipe(path: Path) -> None:
    """Remove a file and overwrite its bytes."""
    with _open_for_overwriting(path) as file, contextlib.suppress(OSError):
        # Windows refuses to remove an open file. It is removed below.
        with contextlib.suppress(OSError):
            path.unlink()
        _fill_with_zeros(file)
    with contextlib.suppress(OSError):
        path.unlink()


@contextlib.contextmanager
def _open_for_overwriting(path: Path) -> Iterator[int | None]:
    """Open a file; None if the system refuses or the file must not be overwritten.

    The handle stays valid after the file has lost its name.
    """
    try:
        file = None if path.name.endswith(_SHARED_MEMORY) else os.open(path, _OVERWRITING)
    except OSError:
        file = None
    try:
        yield file
    finally:
        if file is not None:
            os.close(file)


def _fill_with_zeros(file: int | None) -> None:
    """Overwrite all bytes of an open file, and flush the file to the disk."""
    if file is None:
        return
    remaining = os.fstat(file).st_size
    while remaining:
        remaining -= os.write(file, bytes(min(_CHUNK_BYTES, remaining)))
    os.fsync(file)
