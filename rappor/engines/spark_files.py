"""Files of reports on a cluster: which ones there are, and how its workers come to read them.

Spark lists the files, under its own credentials. Where its workers see all of them by their paths,
as in a folder that is mounted everywhere, each task opens its part of a file itself. Elsewhere
Spark hands whole files over, as bytes, under its own credentials again. Both are read by the code
of one machine. The files of a table are more than its rows: some are deleted, or of older versions.
"""

from __future__ import annotations

import functools
import os
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn
from urllib.parse import unquote

import pyspark.sql.functions as F  # noqa: N812  # as everybody imports it
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from rappor.engines.files import (
    TABLES,
    ReportFile,
    check_labels,
    is_hidden,
    is_of_rows,
    kind_of,
    refuse_table,
)
from rappor.engines.rows import parts_of
from rappor.engines.workers import (
    LISTED,
    ROOTS,
    SEEN,
    TASKS,
    WALKED,
    path_of,
    run_task,
    see_files,
    sum_contents,
    sum_parts,
    walk_folders,
)
from rappor.ground.errors import FileError

BY_PATH: Final = "the workers open them by their paths"
AS_BYTES: Final = "Spark hands them to its workers, which do not see their paths"

_LARGEST: Final = 1 << 28
"""Bytes of a file that Spark hands over whole: Java and the worker hold it twice each."""

_TASK: Final = 1 << 28
"""Bytes that a task reads at least: a second, beside the quarter that any task costs."""

_MOST_TASKS: Final = 10_000
_CHECKED: Final = 8
"""Tasks that look whether the files are there, each on a worker: more cost more than reading."""

_SPECIAL: Final = "{}[]*?,\\"


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a job, by their addresses, and the road to them."""

    files: tuple[ReportFile, ...]
    road: str

    def tasks(self, session: SparkSession) -> tuple[DataFrame, Callable[..., Iterator[Any]]]:
        """Return what the workers are to read, and the function that turns it into sums."""
        if self.road == AS_BYTES:
            listed = {file.path: (file.mtime_ns, file.size) for file in self.files if file.size}
            frame = _bytes_of(session, [_escaped(path) for path in listed])
            columns = frame.select("path", _millis(), "content")
            return columns, functools.partial(sum_contents, listed=listed)
        parts = [part for file in self.files if file.size for part in parts_of(file)]
        rows = [
            (part.file.path, part.file.mtime_ns, part.file.size, part.start, part.end)
            for part in parts
        ]
        n_tasks = -(-sum(part.size for part in parts) // _TASK)
        return _spread(session, rows, TASKS, min(n_tasks, len(parts), _MOST_TASKS)), sum_parts


def list_files(session: SparkSession, paths: Sequence[str]) -> Listing:
    """Return the files below some paths, in order, each once.

    Raises FileError as `spark.sum_files` says.
    """
    walked = _walk(session, paths)
    found = _bytes_of(session, paths).select("path", _millis(), "length")
    named = [_root(path) for path in paths]
    rows = [row for row in sorted(set(map(tuple, found.collect()))) if not _is_apart(row[0], named)]
    every: dict[str, ReportFile] = {}
    for path, millis, size in rows:
        if path in every:
            raise FileError(path, "it changed while it was listed")
        # Milliseconds are all that Spark tells.
        every[path] = ReportFile(
            path=path, kind=kind_of(path), size=size, mtime_ns=millis, labels={}
        )
    _check_not_hidden(paths, every)
    _check_addresses(every)
    _check_no_table(session, list(every))
    empty = list(_empty_files(found.inputFiles(), every, named))
    _check_walked(walked, [*every, *(file.path for file in empty)], paths)
    local = [row for row in rows if row[0].startswith("file:")]
    seen = _seen(session, local) if local or not rows else None
    dropped = set() if seen is None else {path for path, *_ in local}.difference(seen)
    files = (*(file for path, file in every.items() if path not in dropped), *empty)
    if seen is not None and len(local) == len(rows):
        return Listing(files, BY_PATH)
    for file in files:
        if file.size > _LARGEST:
            raise FileError(
                file.path,
                f"it has {file.size:,} bytes: workers that do not see its path get at most "
                f"{_LARGEST:,}. Mount the folder on them, write smaller files, or give "
                "spark.aggregate a data frame",
            )
    return Listing(files, AS_BYTES)


def _empty_files(
    addresses: Sequence[str], known: Container[str], named: Sequence[str]
) -> Iterator[ReportFile]:
    """Yield the files without a byte, which Spark finds and reads as no rows.

    FileError where such a file is no report file of its kind, as one that broke off.
    """
    for address in sorted(addresses):
        path = unquote(address).replace("file:///", "file:/", 1)
        if path in known or is_hidden(path.rpartition("/")[2]) or _is_apart(path, named):
            continue
        if (kind := kind_of(path)) != "json":
            raise FileError(path, f"it cannot be read as {kind}: it is empty")
        yield ReportFile(path=path, kind=kind, size=0, mtime_ns=0, labels={})


def _root(path: str) -> str:
    """Return the path that was given, without its scheme, as Spark writes those of its files.

    What a path that is not absolute means, only Spark knows for certain.
    """
    return os.path.abspath(path_of(path) or "/")  # noqa: PTH100  # with its links, as Spark lists files


def _is_apart(address: str, named: Sequence[str]) -> bool:
    """Return whether a file lies in a hidden folder below the paths that were named.

    Spark leaves out most such folders, but not _metadata and others that begin alike.
    """
    path = path_of(address)
    if not any(map(is_hidden, path.split("/")[:-1])) or path in named:
        return False
    folders = [f"{root.rstrip('/')}/" for root in named]
    inner = [path.removeprefix(folder) for folder in folders if path.startswith(folder)]
    return bool(inner) and all(any(map(is_hidden, each.split("/")[:-1])) for each in inner)


def _check_not_hidden(paths: Sequence[str], found: Iterable[str]) -> None:
    """Raise FileError for a hidden file that is named itself: Spark passes it by in silence."""
    for path in paths:
        root = _root(path)
        name = root.rpartition("/")[2]
        inside = f"{root}/" if path_of(path).startswith("/") else f"/{name}/"
        is_one = is_of_rows(name) or not set(name) & set(_SPECIAL)
        if is_hidden(name) and is_one and not any(inside in each for each in found):
            raise FileError(path, "its name begins with a dot or an underscore: Spark ignores it")


def _check_addresses(files: Mapping[str, ReportFile]) -> None:
    """Raise FileError for one file under two addresses, such as s3:// and s3a://."""
    firsts: dict[tuple[str, int, int], str] = {}
    for address, file in files.items():
        first = firsts.setdefault((path_of(address), file.size, file.mtime_ns), address)
        if first != address:
            raise FileError(address, f"it is {first} under another address: name it once")


def _seen(session: SparkSession, rows: Sequence[tuple[Any, ...]]) -> list[str] | None:
    """Return the paths of local files but for links to others; None if a worker misses one."""
    frame = _spread(session, rows, LISTED, min(len(rows), _CHECKED))
    found = map_batches(frame, see_files, SEEN).select("path", "identity")
    firsts: dict[str | None, str] = {}
    for path, identity in sorted(found.collect()):
        first = firsts.setdefault(identity, path)
        if identity is not None and first != path:
            check_labels(path_of(first), path_of(path))
    return None if None in firsts else list(firsts.values())


def _walk(session: SparkSession, paths: Sequence[str]) -> list[Any]:
    """Return what a worker finds below those paths that are local folders to it.

    This comes before Spark's own list, which ends at no link that leads around.
    """
    local = [path for path in paths if path.startswith("file:") or path_of(path) == path]
    if not local:
        return []
    frame = _spread(session, [(_root(path),) for path in local], ROOTS, 1)
    walked = map_batches(frame, walk_folders, WALKED).collect()
    absolute = {_root(path) for path in local if path_of(path).startswith("/")}
    _check_faults(row for row in walked if row.root in absolute)
    return walked


def _check_faults(walked: Iterable[Any]) -> None:
    for row in walked:
        if row.fault is not None:
            raise FileError(row.path, row.fault)


def _check_walked(walked: Sequence[Any], listed: Sequence[str], paths: Sequence[str]) -> None:
    """Raise FileError for a file that a worker finds and Spark has not listed.

    Where Spark means another folder by the path, such as one of HDFS, nothing can be said.
    """
    local = {path_of(address) for address in listed if address.startswith("file:")}
    meant = {_root(path) for path in paths if path.startswith("file:")}
    if len(local) == len(listed):
        meant |= {_root(path) for path in paths if path.startswith("/")}
    inside = {row.root for row in walked if row.path in local}
    rows = [row for row in walked if row.root in meant | inside]
    _check_faults(rows)
    for row in rows:
        if row.path not in local:
            raise FileError(
                row.path,
                "Spark does not list it: it is new, or Spark or Java cannot read its name (Java's "
                "locale must have UTF-8)",
            )


def map_batches(
    frame: DataFrame, work: Callable[..., Iterator[Any]], schema: Any, **given: Any
) -> DataFrame:
    """Return what a function of `workers` makes of a data frame, in tasks of its partitions."""
    task = functools.partial(run_task, work=work, **given)
    return frame.mapInArrow(task, from_arrow_schema(schema))


def _spread(
    session: SparkSession, rows: Sequence[tuple[Any, ...]], schema: Any, n: int
) -> DataFrame:
    """Return a data frame of some rows, dealt out in turn to n partitions."""
    frame = session.createDataFrame(list(rows), from_arrow_schema(schema))
    return frame.coalesce(1).repartition(max(n, 1))


def _millis() -> Column:
    """Return the time of a file's last change."""
    return F.unix_millis("modificationTime").alias("millis")


def _bytes_of(session: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return a row for each file below some paths; what cannot be read fails the job."""
    files = session.read.format("binaryFile").option("recursiveFileLookup", "true")
    for name in ("ignoreCorruptFiles", "ignoreMissingFiles"):
        files = files.option(name, "false")
    return files.load(list(paths))


def _check_no_table(session: SparkSession, files: Sequence[str]) -> None:
    """Raise FileError where files lie in a table, but for its folders of partitions."""
    signs = ",".join(sign.removesuffix("/*") for sign in TABLES)
    for start, folders in _folders(files).items():
        pattern = f"{start}/{{{','.join(map(_escaped, sorted(folders)))}}}/{{{signs}}}"
        try:
            found = _bytes_of(session, [pattern]).select("path").head()
        except PySparkException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            continue
        if found is not None:
            _refuse_table(found.path)


def _folders(files: Sequence[str]) -> dict[str, set[str]]:
    """Return the folders that files lie in, up to the root, by the beginning of their addresses.

    Folders named column=value are left out: they are parts of what they lie in.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for parent in {file.rpartition("/")[0] for file in files}:
        folder = path_of(parent).lstrip("/")
        start = parent.removesuffix(folder).rstrip("/")
        while "=" in folder.rpartition("/")[2]:
            folder = folder.rpartition("/")[0]
        while folder:
            found[start].add(folder)
            folder = folder.rpartition("/")[0]
    return found


def _refuse_table(sign: str) -> NoReturn:
    parts = {kind: sign.rpartition(f"/{name.partition('/')[0]}/") for name, kind in TABLES.items()}
    refuse_table(*next((folder, kind) for kind, (folder, inside, _) in parts.items() if inside))


def _escaped(path: str) -> str:
    """Return a path in which no character stands for others."""
    return "".join(f"\\{each}" if each in _SPECIAL else each for each in path)
