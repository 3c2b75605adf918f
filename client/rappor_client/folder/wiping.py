"""Overwrites files and removes them, as far as the system lets it; nothing here raises OSError.

A name goes first, and the bytes at once after it, so that a reader elsewhere keeps nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rappor_client.folder.system import NO_LINK, NO_WAIT

_CHUNK: Final = 1 << 20
_SHARED: Final = "-shm"
"""Memory that other processes share: it holds no row, and they would stumble."""
_OVERWRITING: Final = os.O_WRONLY | NO_LINK | NO_WAIT
"""A link that somebody has put in a file's place leads nowhere, and a pipe keeps nobody waiting."""


def overwrite(path: Path, data: bytes) -> None:
    """Put other bytes in the place of a file's own, and zeros behind them."""
    with _opened(path) as file, contextlib.suppress(OSError):
        if file is not None:
            size = os.fstat(file).st_size
            os.write(file, data.ljust(size, b"\0"))
            os.truncate(file, len(data))
            os.fsync(file)


def wipe(path: Path) -> None:
    """Remove a file and overwrite its bytes."""
    with _opened(path) as file, contextlib.suppress(OSError):
        with contextlib.suppress(OSError):
            path.unlink()
        _fill_with_zeros(file)
    with contextlib.suppress(OSError):
        path.unlink()  # Windows removes no file that is open


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    """Open a file for overwriting, also when it has lost its name; None where that is refused."""
    try:
        file = None if path.name.endswith(_SHARED) else os.open(path, _OVERWRITING)
    except OSError:
        file = None
    try:
        yield file
    finally:
        if file is not None:
            os.close(file)


def _fill_with_zeros(file: int | None) -> None:
    if file is None:
        return
    left = os.fstat(file).st_size
    while left:
        left -= os.write(file, bytes(min(_CHUNK, left)))
    os.fsync(file)
