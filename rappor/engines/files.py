"""Search for files of stored reports, their kinds, and the tables that are refused.

Three kinds of files are read: Parquet, CSV with a header, and JSON lines. CSV and JSON lines may be
compressed by gzip. A folder is searched for such files. Names in a folder that begin with a dot or
an underscore are left out, because engines mark unfinished and internal files in this way. Names
such as `_column=value` are partitions and are read. Drafts of Hadoop end in `._COPYING_` and are
left out. A folder named `column=value` gives that column to its files (`rappor.engines.labels`).
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
"""Kind of a file ("parquet", "csv" or "json"), by the suffix of its name. A file with another
suffix is refused, and the error message lists the suffixes of this mapping."""

TABLES: Final = {
    "_delta_log/*": "Delta Lake",
    ".hoodie/*": "Hudi",
    "metadata/*.metadata.json": "Iceberg",
}
"""Kind of a table, by the pattern of a file in its folder that only such a table has."""

_UPLOAD_KEY: Final = b'"reports"'
"""Key of an upload. A line that is too long to parse is recognised as an upload by this key."""

_LINE_BYTES: Final = 1 << 20
"""Largest number of bytes of a line that are read to distinguish uploads from rows.

The limit bounds the memory for a file without line ends.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFile:
    """File of reports, with its size and time of modification at the search.

    Attributes
    ----------
    path : path of the file.
    kind : "parquet", "csv" or "json".
    size : number of bytes.
    mtime_ns : time of the last modification, in nanoseconds.
    labels : columns that the names of its folders give.
    """

    path: str
    kind: str
    size: int
    mtime_ns: int
    labels: Labels

    @classmethod
    def of(cls, path: Path, kind: str, status: os.stat_result) -> ReportFile:
        """Create the record of a file from its status."""
        return cls(
            path=str(path),
            kind=kind,
            size=status.st_size,
            mtime_ns=status.st_mtime_ns,
            labels=folder_labels(path),
        )

    @property
    def identity(self) -> tuple[str, int, int]:
        """Real path, size and time of modification: equal only for an unchanged file."""
        return os.path.realpath(self.path), self.size, self.mtime_ns

    def is_like(self, size: int, millis: int) -> bool:
        """Return whether this file has a size and a time of modification in milliseconds.

        Spark lists files with a time in milliseconds.
        """
        return (self.size, self.mtime_ns // 1_000_000) == (size, millis)

    def check_unchanged(self) -> None:
        """Raise FileError if the file has changed since the search."""
        status = status_of(Path(self.path))
        if (status.st_size, status.st_mtime_ns) != (self.size, self.mtime_ns):
            raise FileError(self.path, "it changed while it was read")


def find_files(paths: Iterable[str | os.PathLike[str]]) -> list[ReportFile]:
    """Return the files at or below some paths, in order, each file once.

    Raises
    ------
    FileError
        A path is missing or unreadable, a file has an unknown suffix, or is a pipe or a device, or
        two names of one file give the file different columns.
    """
    files: dict[tuple[int, int], ReportFile] = {}
    for named_path in paths:
        root = Path(named_path)
        for path in sorted(walk(root)) if root.is_dir() else [root]:
            status = status_of(path)
            file = ReportFile.of(path, kind_of(path), status)
            first = files.setdefault((status.st_dev, status.st_ino), file)
            if first is not file:
                check_labels(first.path, file.path)
    return list(files.values())


def status_of(path: Path) -> os.stat_result:
    """Return the status of a file.

    Raises FileError if the file is missing, or if it is a pipe or a device. Pipes and devices can
    be read only once, and a checkpoint could not decide whether they have changed.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise FileError(path, error.strerror or "unreadable") from None
    if not stat.S_ISREG(status.st_mode):
        raise FileError(path, "it must be a file, not a pipe or a device")
    return status


def check_labels(first: str, second: str) -> None:
    """Raise FileError if two names of one file give the file different columns."""
    if folder_labels(first) != folder_labels(second):
        raise FileError(second, f"it is {first}, whose folders give it other columns: name it once")


def check_no_table(files: Iterable[ReportFile]) -> None:
    """Raise FileError if files are part of a table of Delta Lake, Hudi or Iceberg.

    The folder of such a table also contains deleted rows and rows of earlier versions.
    """
    # The path is made absolute without resolving links, as in `folder_labels`.
    parents = {Path(os.path.abspath(file.path)).parent for file in files}  # noqa: PTH100
    for folder in sorted({above for parent in parents for above in (parent, *parent.parents)}):
        for pattern, kind in TABLES.items():
            # A folder column=value is a partition of the folder above, and never a whole table.
            if "=" not in folder.name and any(folder.glob(pattern)):
                refuse_table(folder, kind)


def refuse_table(folder: str | os.PathLike[str], kind: str) -> NoReturn:
    """Raise the FileError that explains how to read a table."""
    raise FileError(
        folder,
        f"it is a table of {kind}, whose files are not its rows: give spark.aggregate the data "
        "frame of the table",
    )


def kind_of(path: str | os.PathLike[str]) -> str:
    """Return the kind of a file, by the suffix of its name; raise FileError if it is unknown."""
    name = Path(path).name.lower()
    for suffix, kind in _KINDS.items():
        if name.endswith(suffix):
            return kind
    raise FileError(path, f"its name must end in one of {', '.join(_KINDS)}")


def is_of_rows(path: str | os.PathLike[str]) -> bool:
    """Return whether the suffix of a file's name is the suffix of a file of rows."""
    return Path(path).name.lower().endswith(tuple(_KINDS))


def is_hidden(name: str) -> bool:
    """Return whether a name in a folder marks an internal file of an engine, or a draft."""
    # A name such as `_column=value` is a partition, which contains rows.
    is_internal = name.startswith("_") and "=" not in name
    return is_internal or name.startswith(".") or name.endswith("._COPYING_")


def is_packed(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is compressed by gzip, by the suffix of its name."""
    return os.fspath(path).lower().endswith(".gz")


def contains_uploads(path: str | os.PathLike[str]) -> bool:
    """Return whether a file of JSON lines contains uploads of devices instead of rows."""
    if kind_of(path) != "json":
        return False
    try:
        with open_text(path) as file:
            return _are_uploads(iter(lambda: file.readline(_LINE_BYTES), b""))
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(path, f"it cannot be read as json: {reason}") from None


def _are_uploads(lines: Iterator[bytes]) -> bool:
    """Return whether the first line that is a JSON object is an upload.

    An upload has the key `reports`. A row may also have a column of this name, but then it has
    `bits`. A file without any object is read as uploads, because the reader of uploads counts each
    of its lines as refused, with a reason.
    """
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            # The line may be cut after `_LINE_BYTES` bytes, so that it is no JSON.
            row = {"reports": []} if _UPLOAD_KEY in line else None
        if isinstance(row, dict):
            return "reports" in row and "bits" not in row
    return True


def walk(root: Path, loops: list[Path] | None = None) -> Iterator[Path]:
    """Yield the files below a folder that are not hidden, each folder in the order of the names.

    Parameters
    ----------
    root : the folder
    loops : list to which the search adds links to a folder above themselves. The search does not
        follow such a link, because it would never end. None to omit the list.

    Raises
    ------
    FileError
        A folder is unreadable.
    """

    def fail(error: OSError) -> None:
        raise FileError(error.filename, error.strerror or "unreadable")

    for folder, folders, names in os.walk(root, onerror=fail, followlinks=True):
        # File systems list names in different orders. With sorted names, the error of a search
        # names the same file on each of them.
        visible_folders = [Path(folder, name) for name in sorted(folders) if not is_hidden(name)]
        looping_links = list(filter(_is_loop, visible_folders))
        # `os.walk` enters the folders that stay in the list `folders`.
        folders[:] = [path.name for path in visible_folders if path not in looping_links]
        if loops is not None:
            loops += looping_links
        yield from (Path(folder, name) for name in sorted(names) if not is_hidden(name))


def _is_loop(folder: Path) -> bool:
    """Return whether a folder is a link to a folder above itself."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def open_text(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a text file, with gzip if its name ends in .gz; raise FileError if it is unreadable."""
    opener = gzip.open if is_packed(path) else open
    try:
        return cast("BinaryIO", opener(path, "rb"))
    except OSError as error:
        raise FileError(path, error.strerror or "unreadable") from None
