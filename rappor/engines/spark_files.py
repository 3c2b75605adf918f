"""Files of reports on a cluster: which ones there are, and how its workers come to read them.

Spark lists the files, under its own credentials. Where its workers see all of them by their paths,
as in a folder that is mounted everywhere, each task opens its part of a file itself. Elsewhere
Spark hands whole files over, as bytes, under its own credentials again. Both are read by the code
of one machine. The files of a table are more than its rows: some are deleted, or of older versions.
"""

from __future__ import annotations

import functools
import glob
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

from rappor.base.errors import FileError
from rappor.engines.files import (
    TABLES,
    ReportFile,
    check_labels,
    is_hidden,
    kind_of,
    refuse_table,
)
from rappor.engines.rows import parts_of
from rappor.engines.wildcards import SPECIAL, is_left_out, lies_in, spell_out
from rappor.engines.workers import (
    DIGESTS,
    LISTED,
    ROOTS,
    SEEN,
    TASKS,
    WALKED,
    digest_contents,
    path_of,
    run_task,
    see_files,
    sum_contents,
    sum_parts,
    walk_folders,
)

BY_PATH: Final = "the workers open them by their paths"
AS_BYTES: Final = "Spark hands them to its workers, which do not see their paths"

_LARGEST: Final = 1 << 28
"""Bytes of a file that Spark hands over whole: Java and the worker hold it twice each."""

_TASK: Final = 1 << 28
"""Bytes that a task reads at least: a second, beside the quarter that any task costs."""

_MOST_TASKS: Final = 10_000
_CHECKED: Final = 8
"""Tasks that look whether the files are there, each on a worker: more cost more than reading."""

_SIGNS: Final = r"/(_delta_log|\.hoodie)/|/metadata/[^/]*\.metadata\.json$"
"""What the path of a sign of a table has."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a job, by their addresses, and the road to them."""

    files: tuple[ReportFile, ...]
    road: str

    def tasks(self, session: SparkSession) -> tuple[DataFrame, Callable[..., Iterator[Any]]]:
        """Return what the workers are to read, and the function that turns it into sums."""
        if self.road == AS_BYTES:
            frame, listed = _contents(session, self.files)
            return frame, functools.partial(sum_contents, listed=listed)
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
    named = [root for path in paths for root in spell_out(_root(path))]
    found, addresses = _listed(session, paths)
    rows = [row for row in found if not is_left_out(path_of(row[0]), named)]
    every: dict[str, ReportFile] = {}
    for path, millis, size in rows:
        if path in every:
            raise FileError(path, "it changed while it was listed")
        if ":" in path_of(path) and set(path_of(path)) & set(SPECIAL):
            raise FileError(
                path, f"its path has a colon and one of {SPECIAL}, which Java cannot read"
            )
        # Milliseconds are all that Spark tells.
        every[path] = ReportFile(
            path=path, kind=kind_of(path), size=size, mtime_ns=millis, labels={}
        )
    _check_not_hidden(paths, every)
    _check_addresses(every)
    _check_no_table(session, list(every))
    empty = list(_empty_files(addresses, every, named))
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
    _check_twins(session, files)
    return Listing(files, AS_BYTES)


def _listed(
    session: SparkSession, paths: Sequence[str]
) -> tuple[list[tuple[Any, ...]], Sequence[str]]:
    """Return the files that Spark finds, and the addresses of these and of empty ones."""
    try:
        found = _bytes_of(session, paths)
        rows = found.select("path", _millis(), "length").collect()
        return sorted(set(map(tuple, rows))), found.inputFiles()
    except PySparkException as error:
        _, has_colon, name = str(error).partition("Relative path in absolute URI: ")
        if not has_colon:
            raise
        reason = "Java cannot read a colon behind a wildcard: name the folder that this is in"
        raise FileError(name.partition("\n")[0], reason) from None


def _empty_files(
    addresses: Sequence[str], known: Container[str], named: Sequence[str]
) -> Iterator[ReportFile]:
    """Yield the files without a byte, which Spark finds and reads as no rows.

    FileError where such a file is no report file of its kind, as one that broke off.
    """
    for address in sorted(addresses):
        path = unquote(address).replace("file:///", "file:/", 1)
        if path in known or is_left_out(path_of(path), named):
            continue
        if (kind := kind_of(path)) != "json":
            raise FileError(path, f"it cannot be read as {kind}: it is empty")
        yield ReportFile(path=path, kind=kind, size=0, mtime_ns=0, labels={})


def _root(path: str) -> str:
    """Return the path that was given, without its scheme, as Spark writes those of its files.

    What a path that is not absolute means, only Spark knows for certain.
    """
    return os.path.abspath(path_of(path) or "/")  # noqa: PTH100  # with its links, as Spark lists files


def _check_not_hidden(paths: Sequence[str], found: Iterable[str]) -> None:
    """Raise FileError for a hidden file that is named itself: Spark passes it by in silence."""
    for path in paths:
        is_absolute = path_of(path).startswith("/")
        for root in spell_out(_root(path)):
            name = root.rpartition("/")[2]
            if not is_hidden(name):
                continue
            is_read = any(
                lies_in(path_of(each), root) if is_absolute else f"/{name}/" in each
                for each in found
            )
            if glob.has_magic(name) or not is_read:
                reason = "its name begins with a dot or _, or ends in ._COPYING_: Spark ignores it"
                raise FileError(path, reason)


def _check_addresses(files: Mapping[str, ReportFile]) -> None:
    """Raise FileError for one file under two addresses, such as s3:// and s3a://."""
    firsts: dict[tuple[str, int, int], str] = {}
    for address, file in files.items():
        first = firsts.setdefault((path_of(address), file.size, file.mtime_ns), address)
        if first != address:
            raise FileError(address, f"it is {first} under another address: name it once")


def _check_twins(session: SparkSession, files: Iterable[ReportFile]) -> None:
    """Raise FileError where one of two files may be a link to the other, which Spark hides."""
    alike: dict[tuple[int, int], list[ReportFile]] = defaultdict(list)
    for file in files:
        alike[file.size, file.mtime_ns].append(file)
    suspects = [file for each in alike.values() if len(each) > 1 for file in each if file.size]
    if not suspects:
        return
    times = {file.path: file.mtime_ns for file in suspects}
    frame, listed = _contents(session, suspects)
    digests = map_batches(frame, digest_contents, DIGESTS, listed=listed).collect()
    firsts: dict[tuple[str, int], str] = {}
    for path, digest in sorted(map(tuple, digests)):
        first = firsts.setdefault((digest, times[path]), path)
        if first != path:
            raise FileError(
                path, f"it has the rows and the time of {first}: it may be a link to it"
            )


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


def _contents(
    session: SparkSession, files: Iterable[ReportFile]
) -> tuple[DataFrame, dict[str, tuple[int, int]]]:
    """Return a row for each file with its bytes, and the state that each was listed in."""
    listed = {file.path: (file.mtime_ns, file.size) for file in files if file.size}
    frame = _bytes_of(session, [_escaped(path) for path in listed])
    return frame.select("path", _millis(), "content"), listed


def _check_no_table(session: SparkSession, files: Sequence[str]) -> None:
    """Raise FileError where files lie in a table, but for its folders of partitions."""
    signs = ",".join(sign.removesuffix("/*") for sign in TABLES)
    for start, folders in _folders(files).items():
        # Java drops backslashes within braces, and takes no colon behind a wildcard.
        plain = {folder for folder in folders if not set(folder) & {*SPECIAL, ":"}}
        patterns = [f"{start}/{{{','.join(sorted(plain))}}}/{{{signs}}}"] if plain else []
        patterns += [
            f"{start}/{_escaped(folder)}/{sign.partition('/')[0]}"
            for folder in sorted(folders - plain)
            for sign in TABLES
        ]
        for pattern in patterns:
            try:
                paths = _bytes_of(session, [pattern]).select("path")
                found = paths.where(F.col("path").rlike(_SIGNS)).head()
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
    return "".join(f"\\{each}" if each in SPECIAL else each for each in path)
