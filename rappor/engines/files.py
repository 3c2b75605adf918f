"""Files of stored reports: which ones there are, of what kind, and what their folders say.

Parquet, CSV with a header, and JSON lines, the last two also compressed by gzip. A folder is
searched for them; in it, names that begin with a dot or an underscore are left out, as other
engines do, but for _column=value, and drafts of Hadoop, which end in ._COPYING_. A folder named
column=value gives that column to files that do not have it.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NoReturn, cast

from rappor.base.errors import FileError
from rappor.engines.labels import Labels, folder_labels

_KINDS: Final = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".jsonl": "json",
    ".jsonl.gz": "json",
    ".json": "json",
    ".json.gz": "json",
    ".ndjson": "json",
    ".ndjson.gz": "json",
}

TABLES: Final = {
    "_delta_log/*": "Delta Lake",
    ".hoodie/*": "Hudi",
    "metadata/*.metadata.json": "Iceberg",
}
"""What tables have beside their files."""

_UPLOAD_KEY: Final = b'"reports"'
_GLANCE: Final = 1 << 20
"""Bytes of a line that tell what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFile:
    """A file of reports, as it was when it was found; `labels` are what its folders say."""

    path: str
    kind: str
    size: int
    mtime_ns: int
    labels: Labels

    @classmethod
    def of(cls, path: Path, kind: str, status: os.stat_result) -> ReportFile:
        """Return a file as it is."""
        return cls(
            path=str(path),
            kind=kind,
            size=status.st_size,
            mtime_ns=status.st_mtime_ns,
            labels=folder_labels(path),
        )

    @property
    def identity(self) -> tuple[str, int, int]:
        """What tells a file, and whether it is still the same."""
        return os.path.realpath(self.path), self.size, self.mtime_ns

    def is_like(self, size: int, millis: int) -> bool:
        """Return whether a list that tells milliseconds names the same state of the file."""
        return (self.size, self.mtime_ns // 1_000_000) == (size, millis)

    def check_unchanged(self) -> None:
        """Raise FileError if the file has changed since it was found."""
        status = status_of(Path(self.path))
        if (status.st_size, status.st_mtime_ns) != (self.size, self.mtime_ns):
            raise FileError(self.path, "it changed while it was read")


def find_files(paths: Iterable[str | os.PathLike[str]]) -> list[ReportFile]:
    """Return the files that some paths name, in order, each once however often it is named.

    Raises FileError where a path is missing or unreadable, a file is of no known kind or is a pipe
    or a device, and where the folders of a file's names give it other columns.
    """
    found: dict[tuple[int, int], ReportFile] = {}
    for given in paths:
        root = Path(given)
        for path in sorted(walk(root)) if root.is_dir() else [root]:
            status = status_of(path)
            file = ReportFile.of(path, kind_of(path), status)
            first = found.setdefault((status.st_dev, status.st_ino), file)
            if first is not file:
                check_labels(first.path, file.path)
    return list(found.values())


def status_of(path: Path) -> os.stat_result:
    """Look at a file; FileError if there is none, or a pipe or a device, read only once."""
    try:
        status = path.stat()
    except OSError as error:
        raise FileError(path, error.strerror or "unreadable") from None
    if not stat.S_ISREG(status.st_mode):
        raise FileError(path, "it must be a file, not a pipe or a device")
    return status


def check_labels(first: str, second: str) -> None:
    """Raise FileError where two names of one file give it different columns."""
    if folder_labels(first) != folder_labels(second):
        raise FileError(second, f"it is {first}, whose folders give it other columns: name it once")


def check_no_table(files: Iterable[ReportFile]) -> None:
    """Raise FileError where files lie in a table: some are deleted, or of older versions."""
    folders = {Path(os.path.abspath(file.path)).parent for file in files}  # noqa: PTH100  # with its links
    for folder in sorted({above for each in folders for above in (each, *each.parents)}):
        for sign, kind in TABLES.items():
            if "=" not in folder.name and any(folder.glob(sign)):
                refuse_table(folder, kind)


def refuse_table(folder: str | os.PathLike[str], kind: str) -> NoReturn:
    """Raise the FileError of a table."""
    raise FileError(
        folder,
        f"it is a table of {kind}, whose files are not its rows: give spark.aggregate the data "
        "frame of the table",
    )


def kind_of(path: str | os.PathLike[str]) -> str:
    """Return "parquet", "csv" or "json", by a file's name; FileError for any other."""
    name = Path(path).name.lower()
    for suffix, kind in _KINDS.items():
        if name.endswith(suffix):
            return kind
    raise FileError(path, f"its name must end in one of {', '.join(_KINDS)}")


def is_of_rows(path: str | os.PathLike[str]) -> bool:
    """Return whether a file's name is of a kind that is read here."""
    return Path(path).name.lower().endswith(tuple(_KINDS))


def is_hidden(name: str) -> bool:
    """Return whether a name in a folder is that of no data: a mark of an engine, or a draft."""
    is_mark = name.startswith("_") and "=" not in name
    return is_mark or name.startswith(".") or name.endswith("._COPYING_")


def is_packed(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is packed by gzip, by its name."""
    return os.fspath(path).lower().endswith(".gz")


def holds_uploads(path: str | os.PathLike[str]) -> bool:
    """Return whether a file of JSON lines has uploads, not rows."""
    if kind_of(path) != "json":
        return False
    try:
        with open_text(path) as file:
            return _are_uploads(iter(lambda: file.readline(_GLANCE), b""))
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(path, f"it cannot be read as json: {reason}") from None


def _are_uploads(lines: Iterator[bytes]) -> bool:
    """Judge by the first line that is an object, or by none at all; rows may have any column."""
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = {"reports": []} if _UPLOAD_KEY in line else None
        if isinstance(row, dict):
            return "reports" in row and "bits" not in row
    return True


def walk(root: Path, loops: list[Path] | None = None) -> Iterator[Path]:
    """Yield the files below a folder that are not hidden; FileError for an unreadable folder.

    Links to folders that they are in are not followed, and noted in `loops`.
    """

    def fail(error: OSError) -> None:
        raise FileError(error.filename, error.strerror or "unreadable")

    for folder, folders, names in os.walk(root, onerror=fail, followlinks=True):
        shown = [Path(folder, name) for name in folders if not is_hidden(name)]
        around = list(filter(_is_loop, shown))
        folders[:] = [path.name for path in shown if path not in around]
        if loops is not None:
            loops += around
        yield from (Path(folder, name) for name in names if not is_hidden(name))


def _is_loop(folder: Path) -> bool:
    """Return whether a folder is a link to one that it is in."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def open_text(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a text, through gzip where its name says so; FileError if it is unreadable."""
    opener = gzip.open if is_packed(path) else open
    try:
        return cast("BinaryIO", opener(path, "rb"))
    except OSError as error:
        raise FileError(path, error.strerror or "unreadable") from None
