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
    """Another process finds the result, too. Only the owner of the process may read its files."""
    results = ResultFiles(tmp_path / "a" / "b")
    assert results.find(KEYS[0]) is None
    assert results.read_files(KEYS[0]) == {}
    results.save(KEYS[0], RESULT)
    other = ResultFiles(tmp_path / "a" / "b")
    assert (other.find(KEYS[0]), other.read_files(KEYS[0])) == (RESULT.page, RESULT.files)
    assert other.find(KEYS[1]) is None
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a" / "b").iterdir()} == {
        0o600
    }


def test_results_are_bounded(tmp_path: Path) -> None:
    """The least recently used results are deleted, both files of each. The newest result stays."""
    results = ResultFiles(tmp_path, n_bytes=2 * 1200)
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
    """The file is deleted, and the next result of the same key is stored."""
    results = ResultFiles(tmp_path)
    results.save(KEYS[0], RESULT)
    (tmp_path / f"{KEYS[0].hex()}.{kind}").write_bytes(damage)
    assert (results.find(KEYS[0]) is None) == (kind == "page")
    assert (results.read_files(KEYS[0]) == {}) == (kind == "files")
    assert not (tmp_path / f"{KEYS[0].hex()}.{kind}").exists()
    results.save(KEYS[0], RESULT)
    assert (results.find(KEYS[0]), results.read_files(KEYS[0])) == (RESULT.page, RESULT.files)


def test_a_folder_that_cannot_be_written_is_a_store_error(tmp_path: Path) -> None:
    """The message contains the reason, and not the path."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="the result cannot be kept: ") as caught:
        ResultFiles(tmp_path / "file").save(KEYS[0], RESULT)
    assert str(tmp_path) not in str(caught.value)
