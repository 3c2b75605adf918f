"""Lists of candidates that analysts upload for a metric, as files.

A candidate is a string whose share is estimated. The registry may list the candidates of a metric.
Analysts may upload other lists on the pages. Each list is a file in the folder `lists` of the
setting `analysis_folder`:

    lists/search_engine/DIGEST.SECONDS.N.SPACED.MARKED.txt

    DIGEST    SHA-256 of the text, 64 hexadecimal digits
    SECONDS   time of the upload in seconds since 1970
    N         number of candidates
    SPACED    number of candidates that begin or end with white space
    MARKED    number of candidates that begin with a byte-order mark

The numbers are in the name, so that a page shows them without reading the lists. The time of
modification of the file is the time of its last use.

A list never changes. The address of a result contains the digest, so the same address shows the
same result to every analyst, although colleagues upload other lists. An analyst cannot delete a
list, because an address of a colleague may need the list. A list is deleted when it has not been
used for `list_days`, or when it is the least recently used of more than `MAX_LISTS`.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rappor.base.errors import FileError, ParamsError
from rappor.base.text_lines import split_filled_lines
from rappor.candidates.candidates import Candidates
from rappor_server.base.errors import StoreError

MAX_LISTS: Final = 50
"""Largest number of lists of one metric. All lists of a metric take at most
MAX_LISTS * MAX_LIST_BYTES = 250 MB of the disk. With a larger number the page of a metric gets
longer."""

MAX_LIST_BYTES: Final = 5_000_000
"""Largest size of one list, in bytes: 300,000 candidates of 16 bytes. A larger value lets one
upload take more memory."""

_DAY_SECONDS: Final = 86_400.0
"""Converts days to seconds."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
"""Pattern that the digest of a list matches."""
_NAME: Final = re.compile(r"([0-9a-f]{64})\.([0-9]+)\.([0-9]+)\.([0-9]+)\.([0-9]+)\.txt")
"""Pattern of the name of a file, whose groups are DIGEST, SECONDS, N, SPACED and MARKED."""
_SHOWN_CANDIDATES: Final = 3
"""Number of candidates that a page shows of each list, so that people recognise the list. A larger
number makes the page longer."""
_SHOWN_BYTES: Final = 200
"""Number of bytes of a list that are read for these candidates. A longer candidate is shown cut. A
larger number reads more of each list when the page is opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateList:
    """Description of a list.

    Hardly any device reports a candidate that begins or ends with white space, or that begins with
    a byte-order mark (an invisible character that some editors write). Such a candidate is probably
    a mistake of the list, and a page warns of it.

    Attributes
    ----------
    digest : SHA-256 of the text, in hex
    candidates : number of candidates
    spaced : number of candidates that begin or end with white space
    marked : number of candidates that begin with a byte-order mark
    first : the first candidates, for people to recognise the list
    uploaded : day of the upload (UTC)
    """

    digest: str
    candidates: int
    spaced: int
    marked: int
    first: tuple[str, ...]
    uploaded: datetime.date


class CandidateLists:
    """The lists in one folder. Any thread and any process may use the folder at the same time."""

    def __init__(self, folder: Path, *, days: int) -> None:
        """Use a folder, which is created with the first list.

        Parameters
        ----------
        folder : the folder, with a folder in it for each metric
        days : number of days after its last use on which a list is deleted (setting `list_days`)
        """
        self._folder = folder
        self._days = days

    def save(
        self,
        metric: str,
        text: bytes,
        *,
        max_candidates: int,
        field_names: Sequence[str] = (),
        now: float | None = None,
    ) -> str:
        """Save a list and return its digest.

        Parameters
        ----------
        metric : name of a metric of the registry, which is also a safe name of a folder
        text : the candidates in UTF-8, one a line
        max_candidates : largest number of candidates
        field_names : names of the fields of a metric of tuples, which tabs separate in a line
        now : the time of the upload, in seconds since 1970; None reads the clock

        Raises
        ------
        ParamsError
            The text is not UTF-8, it has no candidate or too many, a line has another number of
            fields than the metric, or the text is a result and no list.
        StoreError
            The list cannot be written.
        """
        now = time.time() if now is None else now
        lines = split_lines(text)
        if not 0 < len(lines) <= max_candidates:
            raise ParamsError(
                f"a list must have 1 to {max_candidates:,} candidates, got {len(lines):,}"
            )
        content = "".join(f"{line}\n" for line in lines).encode()
        digest = hashlib.sha256(content).hexdigest()
        folder = self._folder / metric
        try:
            candidates = Candidates.from_lines(lines, field_names=field_names)
        except FileError as error:
            name = "the list" if error.line is None else f"candidate {error.line}"
            raise ParamsError(f"{name} is not valid: {error.reason}") from None
        numbers = f"{len(lines)}.{candidates.n_spaced}.{candidates.n_marked}"
        path = folder / f"{digest}.{now:.0f}.{numbers}.txt"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # The list is written under another name and then renamed. A reader never finds half of
            # a list, also if the disk is full or the process is killed.
            part = folder / f"{secrets.token_hex(8)}.part"
            part.touch(mode=0o600)
            part.write_bytes(content)
            os.utime(part, (now, now))
            part.replace(path)
            # If the same text was uploaded before, its earlier file is deleted, so that the list is
            # the newest list again. The earlier file is deleted last, and a later one never. Bad
            # cases: a reader found no file between the deletion and the new file, and two processes
            # that saved the same text deleted the files of each other.
            for other, (_, seconds, *_) in self._match_names(folder.glob(f"{digest}.*")):
                if other != path and int(seconds) <= round(now):
                    other.unlink(missing_ok=True)
            self._delete_unused(folder, now)
        except OSError as error:
            raise StoreError(f"the list cannot be kept: {error.strerror}") from None
        return digest

    def list_all(self, metric: str) -> list[CandidateList]:
        """Return the lists of a metric, the newest first."""
        lists = []
        for path, (digest, seconds, *numbers) in self._find_paths(metric):
            try:
                with path.open("rb") as file:
                    head = file.read(_SHOWN_BYTES).decode(errors="replace")
            except OSError:  # another process has deleted the list
                continue
            day = datetime.datetime.fromtimestamp(int(seconds), datetime.UTC).date()
            first = tuple(head.splitlines()[:_SHOWN_CANDIDATES])
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

    def find_newest(self, metric: str) -> str | None:
        """Return the digest of the list that was uploaded last; None if the metric has no list."""
        return next((digest for _, (digest, *_) in self._find_paths(metric)), None)

    def find(self, metric: str, digest: str) -> Path | None:
        """Return the file of a list and record its use; None if the metric has no such list."""
        # The digest comes from the address of a request. `../` would leave the folder, and `*`
        # would match any list.
        if not _DIGEST.fullmatch(digest):
            return None
        for path in (self._folder / metric).glob(f"{digest}.*"):
            with contextlib.suppress(OSError):  # another process has deleted the list just now
                os.utime(path)
            return path
        return None

    def read(self, metric: str, digest: str) -> bytes | None:
        """Return the text of a list; None if the metric has no such list."""
        path = self.find(metric, digest)
        try:
            return None if path is None else path.read_bytes()
        except FileNotFoundError:  # another process has deleted the list
            return None

    def delete_unused(self, *, now: float | None = None) -> None:
        """Delete the lists of all metrics whose last use was too many days ago."""
        now = time.time() if now is None else now
        folders: list[Path] = []
        with contextlib.suppress(OSError):  # nobody has uploaded a list yet, or the disk fails
            folders += self._folder.iterdir()
        for folder in folders:
            # Case: a file that is no folder, such as .DS_Store. It must not protect the lists of
            # all metrics after it.
            with contextlib.suppress(OSError):
                self._delete_unused(folder, now)

    def _find_paths(self, metric: str) -> list[tuple[Path, tuple[str, ...]]]:
        """Return the files of a metric with the fields of their names, the newest first."""
        folder = self._folder / metric
        lists = self._match_names(folder.iterdir() if folder.is_dir() else ())
        # Two lists of the same second are ordered by their digests, so that every process has the
        # same newest list.
        lists.sort(key=lambda row: (-int(row[1][1]), row[1][0]))
        # Two processes that save the same text at the same time have two files for a moment. Two
        # files stay if the clock was set back between two uploads of the text.
        newest: dict[str, tuple[Path, tuple[str, ...]]] = {}
        for path, fields in lists:
            newest.setdefault(fields[0], (path, fields))  # the first field is the digest
        return list(newest.values())

    @staticmethod
    def _match_names(paths: Iterable[Path]) -> list[tuple[Path, tuple[str, ...]]]:
        """Return those paths that are lists, each with the fields of its name."""
        return [(path, match.groups()) for path in paths if (match := _NAME.fullmatch(path.name))]

    def _delete_unused(self, folder: Path, now: float) -> None:
        """Delete the unused lists of a metric, and parts of uploads that were interrupted."""
        files = []
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process has deleted it
                files.append((path.stat().st_mtime, path))
        for number, (last_use, path) in enumerate(sorted(files, reverse=True)):
            if number >= MAX_LISTS or last_use < now - self._days * _DAY_SECONDS:
                path.unlink(missing_ok=True)


def split_lines(text: bytes) -> list[str]:
    """Return the lines of a list that are not blank; ParamsError unless the text is UTF-8."""
    try:
        # Some editors on Windows write a byte-order mark before the first candidate.
        return split_filled_lines(text.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ParamsError("a list must be UTF-8") from None
