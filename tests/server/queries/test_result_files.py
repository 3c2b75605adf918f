"""Results as files: kept once, bounded, and never shown when damaged."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from rappor_server.base.errors import StoreError
from rappor_server.queries.query import QueryResult
from rappor_server.queries.result_files import ResultFiles

RESULT = QueryResult(page=b"<p>", files={"a.csv": b"a" * 1000})
"""Result of about a kilobyte. A test has room for two such results, so a third result removes an
older result."""
KEYS = [bytes([number]) * 32 for number in range(4)]
"""Keys of four results, of 32 bytes each. The first byte of a key is its number in this list."""


def use(folder: Path, key: bytes, timestamp: float) -> None:
    """Set the time of the last use of a result."""
    for path in folder.glob(f"{key.hex()}.*"):
        os.utime(path, (timestamp, timestamp))


def test_a_result_is_found_by_its_key(tmp_path: Path) -> None:
    """A stored result is found by its key, also by another process.

    Only the user of the process may read the files.
    """
    results = ResultFiles(tmp_path / "a" / "b")
    assert results.find(KEYS[0]) is None
    assert results.read_files(KEYS[0]) == {}
    results.save(KEYS[0], RESULT)
    reopened = ResultFiles(tmp_path / "a" / "b")
    assert (reopened.find(KEYS[0]), reopened.read_files(KEYS[0])) == (RESULT.page, RESULT.files)
    assert reopened.find(KEYS[1]) is None
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a" / "b").iterdir()} == {
        0o600
    }


def test_results_are_bounded(tmp_path: Path) -> None:
    """The least recently used results are deleted, both files of each. The newest result stays."""
    results = ResultFiles(tmp_path, n_bytes=2 * 1200)  # room for two results of about a kilobyte
    for number, key in enumerate(KEYS[:2]):
        results.save(key, RESULT)
        use(tmp_path, key, number)
    assert results.find(KEYS[0]) is not None  # now the other result is the older one
    results.save(KEYS[2], RESULT)
    assert [bool(results.read_files(key)) for key in KEYS[:3]] == [True, False, True]
    ResultFiles(tmp_path, n_bytes=10).save(KEYS[3], RESULT)
    assert sorted(path.stem for path in tmp_path.iterdir()) == [KEYS[3].hex()] * 2


@pytest.mark.parametrize("kind", ["page", "files"])
@pytest.mark.parametrize("damage", [b"", b"x", b"x" * 2000])
def test_a_damaged_file_is_no_result(tmp_path: Path, kind: str, damage: bytes) -> None:
    """A damaged file is not returned, and its result is deleted and computed again.

    A result has two files, the page and the files for download. If the valid page stayed, the files
    for download would be missing for good.
    """
    results = ResultFiles(tmp_path)
    results.save(KEYS[0], RESULT)
    (tmp_path / f"{KEYS[0].hex()}.{kind}").write_bytes(damage)
    assert (results.find(KEYS[0]) is None) == (kind == "page")
    assert results.read_files(KEYS[0]) == {}
    assert results.find(KEYS[0]) is None
    assert list(tmp_path.iterdir()) == []
    results.save(KEYS[0], RESULT)
    assert (results.find(KEYS[0]), results.read_files(KEYS[0])) == (RESULT.page, RESULT.files)


def test_a_folder_that_cannot_be_written_is_a_store_error(tmp_path: Path) -> None:
    """A folder that cannot be written raises an error with the reason and without the path."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="the result cannot be kept: ") as caught:
        ResultFiles(tmp_path / "file").save(KEYS[0], RESULT)
    assert str(tmp_path) not in str(caught.value)
