"""Void logs of SQLite, which have no valid frame: no memory of the process reaches their index.

A database `spool.sqlite3` has its write-ahead log in `spool.sqlite3-wal`, and an index of the log
in `spool.sqlite3-shm`. For a log without a valid frame SQLite writes an index whose memory it has
not cleared. That memory may contain the secret. So the client removes such a log before it opens
the database. The format of the log: https://www.sqlite.org/fileformat2.html#walformat
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from devices import Home, find_spool, get_identity_folder, read_secret, write_events
from rappor_client.folder import copies, spool
from rappor_client.folder.failures import DamagedError
from rappor_client.folder.store import Store
from rappor_client.folder.void_log import _is_void, remove_void_log

HEADER_BYTES, FRAME_BYTES = 32, 24 + 4096
"""A log is a header and frames, and a frame is a header and a page. The lengths are in bytes."""
INDEX_HEAD_BYTES = 136
"""Length of the two headers and of the checkpoint's fields at the start of an index."""
TELLTALE = b"telltale memory "
"""Bytes that the tests write to the memory of the process and search in the index."""

Damage = Callable[[bytearray], None]
"""Function that damages the bytes of a log."""


def flip(position: int) -> Damage:
    """Return a function that flips a bit of the byte at a position."""

    def damage(log: bytearray) -> None:
        log[position] ^= 1

    return damage


def truncate(length: int) -> Damage:
    """Return a function that truncates a log."""

    def damage(log: bytearray) -> None:
        del log[length:]

    return damage


def begin_next_log(log: bytearray) -> None:
    """Give a log the header that SQLite writes after a checkpoint, as if its frames were lost.

    The header has the next salt and a valid checksum. The old frames have the old salt, so they are
    not valid any more.
    """
    log[16:20] = (int.from_bytes(log[16:20], "big") + 1).to_bytes(4, "big")
    first_sum = second_sum = 0
    order = ">" if log[3] & 1 else "<"  # the magic number has the byte order of the checksums
    for first, second in struct.iter_unpack(f"{order}2I", log[:24]):
        first_sum = (first_sum + first + second_sum) % 2**32
        second_sum = (second_sum + second + first_sum) % 2**32
    log[24:32] = struct.pack(">2I", first_sum, second_sum)


def empty_first_page_number(log: bytearray) -> None:
    """Let the first frame name page 0, which does not exist."""
    log[HEADER_BYTES : HEADER_BYTES + 4] = bytes(4)


FRAME_DAMAGE: dict[str, Damage] = {
    "page": flip(HEADER_BYTES + 1000),
    "frame checksum": flip(HEADER_BYTES + 23),
    "frame salt": flip(HEADER_BYTES + 8),
    "page number": empty_first_page_number,
    "no complete frame": truncate(HEADER_BYTES + FRAME_BYTES - 1),
    "part of a frame": truncate(HEADER_BYTES + 8),
    "new header": begin_next_log,
}
"""Changes of a log after which its first frame is invalid, by what they change."""
HEADER_DAMAGE: dict[str, Damage] = {
    "part of a header": truncate(HEADER_BYTES - 1),
    "magic number": flip(0),
    "page size": flip(9),
    "header checksum": flip(HEADER_BYTES - 1),
}
"""Changes of a log after which its header is invalid, by what they change."""


def write_killed(path: Path) -> None:
    """Write the files that a killed process leaves: a database of two rows, one in the log only.

    The end of a process removes the log, so the files are copied while the database is open.
    """
    before = path.with_name("before.sqlite3")
    connection = sqlite3.connect(before, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE row (value)")
    connection.execute("INSERT INTO row VALUES (1)")
    connection.execute("PRAGMA user_version = 1")  # the version of the client's schema
    connection.execute("PRAGMA wal_checkpoint(RESTART)")
    connection.execute("INSERT INTO row VALUES (2)")
    for ending in ("", "-wal"):
        shutil.copy(f"{before}{ending}", f"{path}{ending}")
    connection.close()


def log_path(path: Path) -> Path:
    """Return the path of a database's log."""
    return path.with_name(f"{path.name}-wal")


def damage_log(path: Path, damage: Damage) -> None:
    """Damage the log of a database."""
    log = bytearray(log_path(path).read_bytes())
    damage(log)
    log_path(path).write_bytes(log)


def fill_heap(content: bytes = TELLTALE) -> None:
    """Fill blocks of the heap with a content, and free them: SQLite may get the same memory."""
    blocks = [content * (size // len(content)) for size in range(600, 60_000, 100)]
    del blocks


def read_index(path: Path) -> bytes:
    """Return the bytes of the index of a database's log, without the head of the index."""
    return path.with_name(f"{path.name}-shm").read_bytes()[INDEX_HEAD_BYTES:]


@contextlib.contextmanager
def open_foreign(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database without the client, as another process does."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


def count_rows(connection: sqlite3.Connection) -> int:
    """Return the number of rows."""
    return int(connection.execute("SELECT count(*) FROM row").fetchone()[0])


@pytest.mark.parametrize("kind", FRAME_DAMAGE)
def test_search_finds_memory_in_the_index_of_a_void_log(tmp_path: Path, kind: str) -> None:
    """Without the client, SQLite copies memory to the index.

    So the next test would find memory if the client did not remove the log.
    """
    path = tmp_path / "spool.sqlite3"
    write_killed(path)
    damage_log(path, FRAME_DAMAGE[kind])
    fill_heap()
    with open_foreign(path) as connection:
        assert count_rows(connection) == 1
        if not any(read_index(path)):
            pytest.skip("this SQLite copies no memory")
        assert TELLTALE in read_index(path)


@pytest.mark.parametrize("kind", FRAME_DAMAGE | HEADER_DAMAGE)
def test_no_memory_is_in_the_index_of_a_void_log(tmp_path: Path, kind: str) -> None:
    """The store removes the log, so the index is empty. The row of the database stays."""
    path = tmp_path / "spool.sqlite3"
    write_killed(path)
    damage_log(path, (FRAME_DAMAGE | HEADER_DAMAGE)[kind])
    assert _is_void(log_path(path))
    fill_heap()
    store = Store(path)
    with store.reading() as db:
        assert count_rows(db) == 1
        assert not any(read_index(path))
    store.close()


def test_a_void_log_beside_a_damaged_database_is_removed(tmp_path: Path) -> None:
    """The client removes the log before it raises the error of the database."""
    path = tmp_path / "spool.sqlite3"
    write_killed(path)
    damage_log(path, FRAME_DAMAGE["page"])
    path.write_bytes(bytes(100) + path.read_bytes()[100:])
    remove_void_log(path)
    assert not log_path(path).exists()
    with pytest.raises(DamagedError), Store(path).reading():
        pass


def test_a_valid_log_stays(tmp_path: Path) -> None:
    """The valid log of a killed process is not removed: it contains transactions."""
    path = tmp_path / "spool.sqlite3"
    write_killed(path)
    before = log_path(path).read_bytes()
    remove_void_log(path)
    assert log_path(path).read_bytes() == before
    store = Store(path)
    with store.reading() as db:
        assert count_rows(db) == 2
    store.close()
    remove_void_log(path)  # there is no log any more


def test_a_log_in_use_stays(tmp_path: Path) -> None:
    """A log that another process uses is not removed.

    The log looks void while the process writes its first frame.
    """
    path = tmp_path / "spool.sqlite3"
    write_killed(path)
    with open_foreign(path) as writer:
        assert count_rows(writer) == 2
        writer.execute("PRAGMA wal_checkpoint(RESTART)")
        damage_log(path, begin_next_log)
        assert _is_void(log_path(path))
        remove_void_log(path)
        assert _is_void(log_path(path))  # the file is still there
        writer.execute("INSERT INTO row VALUES (3)")
        assert not _is_void(log_path(path))
        with open_foreign(path) as reader:
            assert count_rows(reader) == 3


def test_no_memory_is_in_the_index_of_a_spool_whose_year_is_read(tmp_path: Path) -> None:
    """`find_latest_year` removes the log, because a read-only connection writes an index, too."""
    path = tmp_path / "spool.sqlite3"
    write_killed(path)
    damage_log(path, FRAME_DAMAGE["page"])
    fill_heap()
    spool.find_latest_year(path)
    assert not any(read_index(path))


def test_the_secret_is_in_the_state_only_after_a_loss_of_power(home: Home) -> None:
    """A client whose log is void after a loss of power writes no secret outside its state.

    The disk has got the new header of the log, and not the first frame.
    """
    home.open().record("page", "home")
    home.close()  # the tables are in the database, not in the log
    home.clock.advance(days=1)  # a new interval: its first event is always written
    client = home.open()
    client.record("page", "other")
    write_events(client)
    assert client._writer is not None
    path = find_spool(home.folder)
    log = log_path(path).read_bytes()
    client._writer.store.close()
    log_path(path).write_bytes(log)
    damage_log(path, begin_next_log)
    secret = read_secret(home.folder).hex().encode()
    # Each thread has a heap of its own, and the folder's thread opens the spool.
    client._thread.run_within(lambda: fill_heap(secret), seconds=60.0)
    write_events(client)
    assert "failures" not in client.event_counts()
    assert len(read_index(path)) > 0
    for file in get_identity_folder(home.folder).iterdir():
        assert file.name in copies.NAMES or secret not in file.read_bytes()
