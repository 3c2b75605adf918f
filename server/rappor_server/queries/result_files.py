"""Results of queries as files, named by the key of the query.

A result is two files in the folder `results` of the setting `analysis_folder`:

    KEY.files   SHA-256 of the content, 32 bytes; then the content: MessagePack of the files to
                download, a dict from name to bytes
    KEY.page    SHA-256 of the content, 32 bytes; then the content: the page as MessagePack. The
                content is empty for a query of the API, whose result has no page

KEY is the key in hexadecimal digits. The page is written last, so a result with a page is complete.
A file whose SHA-256 is wrong was damaged on the disk, or another version of the server wrote it in
another format. Both files of the result are deleted, and the result is computed again. The folder
is a cache: an operator may delete it at any time.

The time of modification of a file is the time of its last use. The least recently used results are
deleted first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path
from typing import Final

import msgspec

from rappor_server.base.errors import StoreError
from rappor_server.queries.query import QueryResult

MAX_STORED_BYTES: Final = 256_000_000
"""Largest total size of the stored results, in bytes. Beyond it, the least recently used results
are deleted. The result of one page with a year of data has up to 0.8 MB, so about 300 of the
largest results are stored. With a smaller value, an analyst waits more often for a result that was
computed before and deleted."""

_DIGEST_BYTES: Final = 32
"""Size of a SHA-256 digest in bytes, with which each file begins."""
_PAGE: Final = "page"
"""Extension of the file that contains the page."""
_FILES: Final = "files"
"""Extension of the file that contains the files to download."""


class ResultFiles:
    """The results in one folder. Any thread and any process may use the folder at the same time."""

    def __init__(self, folder: Path, *, n_bytes: int = MAX_STORED_BYTES) -> None:
        """Use a folder for at most `n_bytes` of results. The first result creates the folder."""
        self._folder = folder
        self._n_bytes = n_bytes

    def find(self, key: bytes) -> bytes | None:
        """Return the page of a result as MessagePack; None if the result is not stored.

        The result of a query of the API has no page. The method returns empty bytes for it.
        """
        return self._read(key, _PAGE)

    def read_files(self, key: bytes) -> dict[str, bytes]:
        """Return the files of a result by name; an empty dictionary if the result is not stored."""
        content = self._read(key, _FILES)
        return {} if content is None else msgspec.msgpack.decode(content, type=dict[str, bytes])

    def save(self, key: bytes, result: QueryResult) -> None:
        """Store a result, and delete the least recently used results beyond the largest size.

        Raises StoreError if the files cannot be written.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(self._build_path(key, _FILES), msgspec.msgpack.encode(result.files))
            self._write(self._build_path(key, _PAGE), result.page)
            self._delete_oldest()
        except OSError as error:
            raise StoreError(f"the result cannot be kept: {error.strerror}") from None

    def _build_path(self, key: bytes, kind: str) -> Path:
        """Return the path of a file; `kind` is `_PAGE` or `_FILES`."""
        return self._folder / f"{key.hex()}.{kind}"

    def _read(self, key: bytes, kind: str) -> bytes | None:
        """Return the content of a file and record its use; None if it is missing or damaged."""
        path = self._build_path(key, kind)
        try:
            data = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if hashlib.sha256(content).digest() == digest:
            return content
        # Bad case: only the files to download were damaged and deleted. The page stayed, so the
        # result was not computed again, and its files were missing for good.
        for damaged_kind in (_PAGE, _FILES):
            self._build_path(key, damaged_kind).unlink(missing_ok=True)
        return None

    def _write(self, path: Path, content: bytes) -> None:
        """Write a file under another name, then rename it, so that no reader finds half of it."""
        part = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        try:
            part.touch(mode=0o600)
            part.write_bytes(hashlib.sha256(content).digest() + content)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)  # still there if the disk was full

    def _delete_oldest(self) -> None:
        """Delete the least recently used results, both files of each, beyond the largest size."""
        sizes: dict[str, int] = {}  # bytes of each result, by key
        used: dict[str, float] = {}  # last use of each result in seconds since 1970, by key
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process has deleted it
                status, stem = path.stat(), path.name.partition(".")[0]
                sizes[stem] = sizes.get(stem, 0) + status.st_size
                used[stem] = max(used.get(stem, 0.0), status.st_mtime)
        # The newest result stays even if it alone is larger than the limit. Otherwise its page
        # would be computed again each time that it is opened.
        newest = max(used, key=used.__getitem__, default=None)
        bytes_left = self._n_bytes
        for stem in sorted(used, key=used.__getitem__, reverse=True):
            bytes_left -= sizes[stem]
            if bytes_left < 0 and stem != newest:
                for path in self._folder.glob(f"{stem}.*"):
                    path.unlink(missing_ok=True)
