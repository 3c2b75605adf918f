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
KEYS = [bytes([number]) * 32 for number in range(4)]


def use(folder: Path, key: bytes, timestamp: float) -> None:
    """Let a result have been used at a time."""
    for path in folder.glob(f"{key.hex()}.*"):
        os.utime(path, (timestamp, timestamp))


def test_a_result_is_found_by_its_key(tmp_path: Path) -> None:
    """Also by another process; its owner alone may read the files."""
    results = ResultFiles(tmp_path / "a" / "b")
    assert results.find(KEYS[0]) is None
    assert results.files(KEYS[0]) == {}
    results.keep(KEYS[0], RESULT)
    other = ResultFiles(tmp_path / "a" / "b")
    assert (other.find(KEYS[0]), other.files(KEYS[0])) == (RESULT.page, RESULT.files)
    assert other.find(KEYS[1]) is None
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a" / "b").iterdir()} == {
        0o600
    }


def test_results_are_bounded(tmp_path: Path) -> None:
    """Results that were read longest ago go, both files of each; the newest one stays."""
    results = ResultFiles(tmp_path, n_bytes=2 * 1200)
    for number, key in enumerate(KEYS[:2]):
        results.keep(key, RESULT)
        use(tmp_path, key, number)
    assert results.find(KEYS[0]) is not None  # read now, so that the other one is older
    results.keep(KEYS[2], RESULT)
    assert [bool(results.files(key)) for key in KEYS[:3]] == [True, False, True]
    ResultFiles(tmp_path, n_bytes=10).keep(KEYS[3], RESULT)
    assert sorted(path.stem for path in tmp_path.iterdir()) == [KEYS[3].hex()] * 2


@pytest.mark.parametrize("kind", ["page", "files"])
@pytest.mark.parametrize("damage", [b"", b"x", b"x" * 2000])
def test_a_damaged_file_is_no_result(tmp_path: Path, kind: str, damage: bytes) -> None:
    """It is deleted, and the next result of its key is kept."""
    results = ResultFiles(tmp_path)
    results.keep(KEYS[0], RESULT)
    (tmp_path / f"{KEYS[0].hex()}.{kind}").write_bytes(damage)
    assert (results.find(KEYS[0]) is None) == (kind == "page")
    assert (results.files(KEYS[0]) == {}) == (kind == "files")
    assert not (tmp_path / f"{KEYS[0].hex()}.{kind}").exists()
    results.keep(KEYS[0], RESULT)
    assert (results.find(KEYS[0]), results.files(KEYS[0])) == (RESULT.page, RESULT.files)


def test_a_folder_that_cannot_be_written_is_a_store_error(tmp_path: Path) -> None:
    """The message says why, and not where."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="the result cannot be kept: ") as caught:
        ResultFiles(tmp_path / "file").keep(KEYS[0], RESULT)
    assert str(tmp_path) not in str(caught.value)
