"""Removal of a write-ahead log of SQLite without a valid frame, before SQLite builds its index.

A log (`-wal`) is a header and frames. A frame is a page of the database with a checksum. SQLite
keeps an index of the log in a second file (`-shm`). The first process that opens a log reads the
frames and builds the index in a block of its heap. It clears the block when it adds the first valid
frame, and then copies the block to the file. If the first frame is invalid, nothing clears the
block: SQLite (3.40) copies 32 KB of old heap memory to the file. This memory once contained the
device's secret, in the text of a state that had been freed, and it may contain values.

Such a void log has three causes:

- A loss of power. SQLite begins the log again after a checkpoint. It flushes the new header to the
  disk, but not the new frames. The frames on the disk have the salt of the old header.
- A kill between the writes of the header and of the first frame.
- Damage of the header or of the first frame.

A void log contains no transaction that SQLite would restore. So `remove_void_log` opens the
database with an exclusive lock first. In this mode SQLite keeps the index in memory, without the
second file, and removes the log when it closes the database. The next connection finds no log.

SQLite decides under its lock which frames are valid. So the check of this module may be wrong
while another process writes, and no transaction is lost.

The lock is refused while another connection has the database open. Then the index exists, and
nobody builds it anew, unless a program overwrites the index of an open database.
"""

from __future__ import annotations

import contextlib
import sqlite3
import struct
import time
from pathlib import Path
from typing import Final

from rappor_client.folder.identity_folder import RETRY_SECONDS
from rappor_client.folder.system import read_file

_HEADER: Final = struct.Struct(">4I8s2I")
"""The header of a log contains the magic number, the version of the format, the page size in bytes,
the number of the checkpoint, the salt, and the checksum of the fields before it."""
_FRAME: Final = struct.Struct(">2I8s2I")
"""The header of a frame contains the page number, the size of the database in pages, the salt, and
the checksum of the log's header, of the first two fields and of the page."""
_HEADER_CHECKED: Final = 24
_FRAME_CHECKED: Final = 8
"""Numbers of bytes, from the start of the header, that the checksum includes."""
_BYTE_ORDERS: Final = {0x377F0682: "<", 0x377F0683: ">"}
"""The magic number of the log determines the byte order of the checksums, as `struct` spells it."""
_PAGE_SIZES: Final = tuple(2**power for power in range(9, 17))
"""Page sizes that SQLite allows, in bytes."""
_WORD: Final = 2**32 - 1
"""Mask of the lowest 32 bits. SQLite adds the words of a checksum modulo 2^32. Integers of Python
do not overflow, so the code applies the mask after each sum."""
_ATTEMPTS: Final = 10
"""Number of attempts to get the exclusive lock, 10 ms apart. If all attempts fail, another
connection has had the database open all the time, so the index exists. A larger number delays the
opening beside such a connection."""


def remove_void_log(database: Path) -> None:
    """Remove the log of a database if its first frame is invalid.

    The function does nothing if another connection uses the database. It raises no error of SQLite,
    because the connection that is opened next raises the same error.
    """
    log = database.with_name(f"{database.name}-wal")
    for _ in range(_ATTEMPTS):
        if not _is_void(log):
            return
        # The error is a lock, or damage of the database. In the second case the log was removed.
        with contextlib.suppress(sqlite3.Error):
            _open_exclusively(database)
            return
        # Another process may be writing the first frame, or may be inside of this function.
        time.sleep(RETRY_SECONDS)


def _open_exclusively(database: Path) -> None:
    """Open a database with an exclusive lock, read its first page, and close it.

    Raises sqlite3.Error if another connection has the database open, or the database is damaged.
    """
    uri = f"{database.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(uri, uri=True, timeout=0.0, isolation_level=None)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA user_version").fetchone()
    finally:
        connection.close()


def _is_void(log: Path) -> bool:
    """Return whether a log has bytes and its first frame is invalid.

    A log that does not exist or cannot be read is not void.
    """
    try:
        data = read_file(log, n_bytes=_HEADER.size + _FRAME.size + max(_PAGE_SIZES))
    except OSError:
        return False
    return bool(data) and not _has_valid_frame(data)


def _has_valid_frame(data: bytes) -> bool:
    """Return whether the first bytes of a log contain a valid header and a valid first frame."""
    if len(data) < _HEADER.size:
        return False
    magic, _, page_size, _, salt, *checksum = _HEADER.unpack_from(data)
    frame = data[_HEADER.size :][: _FRAME.size + page_size]
    is_complete = len(frame) == _FRAME.size + page_size
    if magic not in _BYTE_ORDERS or page_size not in _PAGE_SIZES or not is_complete:
        return False
    page_number, _, frame_salt, *frame_checksum = _FRAME.unpack_from(frame)
    order = _BYTE_ORDERS[magic]
    of_header = _add_to_checksum([0, 0], data[:_HEADER_CHECKED], order)
    checked = frame[:_FRAME_CHECKED] + frame[_FRAME.size :]
    of_frame = _add_to_checksum(checksum, checked, order)
    # Page 0 does not exist. A frame with another salt is older than the header.
    is_current = page_number != 0 and frame_salt == salt
    return is_current and of_header == checksum and of_frame == frame_checksum


def _add_to_checksum(checksum: list[int], data: bytes, order: str) -> list[int]:
    """Return a checksum of SQLite's log, continued by further bytes.

    A checksum is two 32-bit sums s and t. Each pair of 32-bit words (x, y) of the data changes s to
    s + x + t, and then t to t + y + s with the new s.
    """
    first_sum, second_sum = checksum
    for first_word, second_word in struct.iter_unpack(f"{order}2I", data):
        first_sum = (first_sum + first_word + second_sum) & _WORD
        second_sum = (second_sum + second_word + first_sum) & _WORD
    return [first_sum, second_sum]
