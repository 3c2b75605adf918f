"""Lists of candidates that analysts upload for a metric: files named by the digest of their text.

A list never changes, so an address with its digest shows the same results to everybody. The name of
a file is DIGEST.SECONDS.N.SPACED.MARKED.txt: the time of the upload, the number of candidates, and
the numbers of candidates that begin or end with white space, or begin with a byte-order mark.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rappor.base.errors import ParamsError
from rappor.base.text_lines import split_filled_lines
from rappor.candidates.candidates import Candidates
from rappor_server.base.errors import StoreError

MOST_LISTS: Final = 50
"""Lists of one metric. Beyond it the list that was used longest ago is deleted."""

MOST_BYTES: Final = 5_000_000
"""Limits the size of one list, in bytes."""

_DAY_SECONDS: Final = 86_400.0
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r"([0-9a-f]{64})\.([0-9]+)\.([0-9]+)\.([0-9]+)\.([0-9]+)\.txt")
_SHOWN: Final = 3
_SHOWN_BYTES: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateList:
    """A list: its digest, the number and the first of its candidates, the day of its upload.

    `spaced` and `marked` are the numbers of candidates that begin or end with white space, or begin
    with a byte-order mark. Such candidates are strings that hardly any device reports.
    """

    digest: str
    candidates: int
    spaced: int
    marked: int
    first: tuple[str, ...]
    uploaded: datetime.date


class CandidateLists:
    """The lists in one folder; any thread and any process may use it."""

    def __init__(self, folder: Path, *, days: int) -> None:
        """Use a folder, which is created with the first list; keep lists `days` after their use."""
        self._folder = folder
        self._days = days

    def keep(self, metric: str, text: bytes, *, most: int, now: float | None = None) -> str:
        """Keep a list of at most `most` candidates, one a line; return its digest.

        Raises ParamsError for a text that is no list, StoreError if it cannot be written.
        """
        now = time.time() if now is None else now
        lines = lines_of(text)
        if not 0 < len(lines) <= most:
            raise ParamsError(f"a list must have 1 to {most:,} candidates, got {len(lines):,}")
        content = "".join(f"{line}\n" for line in lines).encode()
        digest = hashlib.sha256(content).hexdigest()
        folder = self._folder / metric
        counted = Candidates.from_lines(lines)
        numbers = f"{len(lines)}.{counted.n_spaced}.{counted.n_marked}"
        path = folder / f"{digest}.{now:.0f}.{numbers}.txt"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = folder / f"{secrets.token_hex(8)}.part"
            part.touch(mode=0o600)
            part.write_bytes(content)
            os.utime(part, (now, now))
            for earlier in folder.glob(f"{digest}.*"):
                earlier.unlink(missing_ok=True)
            part.replace(path)
            self._delete_unused(folder, now)
        except OSError as error:
            raise StoreError(f"the list cannot be kept: {error.strerror}") from None
        return digest

    def list_all(self, metric: str) -> list[CandidateList]:
        """Return the lists of a metric, the newest first."""
        lists = []
        for path, (digest, seconds, *numbers) in self._find_all(metric):
            try:
                with path.open("rb") as file:
                    head = file.read(_SHOWN_BYTES).decode(errors="replace")
            except OSError:
                continue
            day = datetime.datetime.fromtimestamp(int(seconds), datetime.UTC).date()
            first = tuple(head.splitlines()[:_SHOWN])
            candidates, spaced, marked = map(int, numbers)
            lists.append(
                CandidateList(
                    digest=digest,
                    candidates=candidates,
                    spaced=spaced,
                    marked=marked,
                    first=first,
                    uploaded=day,
                )
            )
        return lists

    def newest(self, metric: str) -> str | None:
        """Return the digest of the list that was uploaded last, None if the metric has none."""
        return next((digest for _, (digest, *_) in self._find_all(metric)), None)

    def find(self, metric: str, digest: str) -> Path | None:
        """Return the file of a list, which is used now; None if the metric has no such list."""
        if not _DIGEST.fullmatch(digest):
            return None
        for path in (self._folder / metric).glob(f"{digest}.*"):
            with contextlib.suppress(OSError):
                os.utime(path)
            return path
        return None

    def read(self, metric: str, digest: str) -> bytes | None:
        """Return the text of a list; None if the metric has no such list."""
        path = self.find(metric, digest)
        try:
            return None if path is None else path.read_bytes()
        except FileNotFoundError:  # deleted since
            return None

    def delete_unused(self, *, now: float | None = None) -> None:
        """Delete the lists that nobody has used for some days."""
        now = time.time() if now is None else now
        with contextlib.suppress(OSError):
            for folder in self._folder.iterdir():
                self._delete_unused(folder, now)

    def _find_all(self, metric: str) -> list[tuple[Path, tuple[str, ...]]]:
        folder = self._folder / metric
        paths = folder.iterdir() if folder.is_dir() else ()
        lists = [(path, match.groups()) for path in paths if (match := _NAME.fullmatch(path.name))]
        return sorted(lists, key=lambda row: (-int(row[1][1]), row[1][0]))

    def _delete_unused(self, folder: Path, now: float) -> None:
        used = []
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process has deleted it
                used.append((path.stat().st_mtime, path))
        for number, (last, path) in enumerate(sorted(used, reverse=True)):
            if number >= MOST_LISTS or last < now - self._days * _DAY_SECONDS:
                path.unlink(missing_ok=True)


def lines_of(text: bytes) -> list[str]:
    """Return the lines of a list that are not blank; ParamsError unless it is UTF-8."""
    try:
        return split_filled_lines(text.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ParamsError("a list must be UTF-8") from None
