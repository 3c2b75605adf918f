"""Results of queries as files, named by the key of the query.

A result is two files: the page, and the downloads. The page is written last, so that a result with
a page is complete. Each file begins with a digest of its content. A file that is damaged, or that
another version wrote, is deleted, and its result is computed again.
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

MOST_BYTES: Final = 256_000_000
"""Largest total size of the kept results. Beyond it those read longest ago are deleted."""

_DIGEST_BYTES: Final = 32
_PAGE: Final = "page"
_FILES: Final = "files"


class ResultFiles:
    """The results in one folder; any thread and any process may use it."""

    def __init__(self, folder: Path, *, n_bytes: int = MOST_BYTES) -> None:
        """Use a folder, which is created with the first result."""
        self._folder = folder
        self._n_bytes = n_bytes

    def find(self, key: bytes) -> bytes | None:
        """Return the page of a result, empty without one; None if the result is not kept."""
        return self._read(self._path(key, _PAGE))

    def files(self, key: bytes) -> dict[str, bytes]:
        """Return the downloads of a result by name, none if the result is not kept."""
        content = self._read(self._path(key, _FILES))
        return {} if content is None else msgspec.msgpack.decode(content, type=dict[str, bytes])

    def keep(self, key: bytes, result: QueryResult) -> None:
        """Write a result, and delete older ones beyond the largest size; StoreError if it fails."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(self._path(key, _FILES), msgspec.msgpack.encode(result.files))
            self._write(self._path(key, _PAGE), result.page)
            self._delete_oldest()
        except OSError as error:
            raise StoreError(f"the result cannot be kept: {error.strerror}") from None

    def _path(self, key: bytes, kind: str) -> Path:
        return self._folder / f"{key.hex()}.{kind}"

    def _read(self, path: Path) -> bytes | None:
        try:
            data = path.read_bytes()
            os.utime(path)  # its last use
        except OSError:
            return None
        digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if hashlib.sha256(content).digest() == digest:
            return content
        path.unlink(missing_ok=True)
        return None

    def _write(self, path: Path, content: bytes) -> None:
        """Write a file under another name first: a half of one has never the name of a result."""
        part = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        try:
            part.touch(mode=0o600)
            part.write_bytes(hashlib.sha256(content).digest() + content)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def _delete_oldest(self) -> None:
        sizes: dict[str, int] = {}
        used: dict[str, float] = {}
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process has deleted it
                status, stem = path.stat(), path.name.partition(".")[0]
                sizes[stem] = sizes.get(stem, 0) + status.st_size
                used[stem] = max(used.get(stem, 0.0), status.st_mtime)
        newest = max(used, key=used.__getitem__)
        left = self._n_bytes
        for stem in sorted(used, key=used.__getitem__, reverse=True):
            left -= sizes[stem]
            if left < 0 and stem != newest:
                for path in self._folder.glob(f"{stem}.*"):
                    path.unlink(missing_ok=True)
