"""Search for files of reports on a cluster, and the choice how workers read them.

`rappor.engines.spark` calls `list_files` with the paths of the caller, such as `lake/day=*` or
`s3://bucket/reports`. The result is a `Listing`. Its method `tasks` returns a data frame with the
work of all tasks, and the function that a worker applies to it.

Spark lists the files with its own credentials. A listed file is an address (a scheme and a path,
for example file:/lake/a.csv), a size, and a time of modification in milliseconds. There are two
ways to read the files:

- by path: all workers see the files, for example in a folder that is mounted on all hosts. Each
  task opens its part of a file.
- as bytes: Spark passes whole files with its own credentials, for example from s3://.

In both cases the readers of one machine parse the contents (`rappor.engines.rows`).

Spark's list has several faults, and each of them would count reports twice or lose reports without
an error. The checks of this module raise a FileError instead:

    fault of Spark's list                                          check
    it does not end if a link leads to a folder above itself       `_walk`, before Spark's list
    it omits files that Java cannot read                           `_check_walked`
    it omits hidden files that the caller has named                `_check_not_hidden`
    it has one file under two addresses, such as s3: and s3a:      `_check_addresses`
    it has the files of a table of Delta Lake, Hudi or Iceberg,    `_check_no_table`
    among which are deleted rows and earlier versions
    its rows omit empty files                                      `_find_empty_files`
    it has a file once for each link, if workers see the file      `_find_distinct_files`
    it has a file once for each link, if they do not               `_check_possible_links`

`_walk` lets one worker search the same paths as a single machine does, and `_check_walked` compares
its files with Spark's list.
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
    IDENTIFIED,
    LISTED,
    ROOTS,
    TASKS,
    WALKED,
    add_identities,
    digest_contents,
    path_of,
    run_task,
    sum_contents,
    sum_parts,
    walk_folders,
)

BY_PATH: Final = "the workers open them by their paths"
"""Value of `Listing.access` if workers open the files. The output of `rappor aggregate` contains
the value as it is."""

AS_BYTES: Final = "Spark passes them to its workers, which do not see their paths"
"""`Listing.access` has this value if Spark passes the files as bytes."""

_MAX_FILE_BYTES: Final = 1 << 28
"""Largest size in bytes of a file that Spark passes to a worker as a whole.

The limit bounds memory: Java and the worker each have two copies of the contents.
"""

_TASK_BYTES: Final = 1 << 28
"""Number of bytes that a task reads. A job with fewer bytes has one task.

Reading so many bytes takes a second, and the start of a task takes a quarter of a second. With
smaller tasks, the starts take a larger part of the time. With larger tasks, a job may have fewer
tasks than workers, and some workers have no work.
"""

_MAX_TASKS: Final = 10_000
"""Largest number of tasks of a job. Spark's driver becomes slow with more."""

_MAX_CHECK_TASKS: Final = 8
"""Largest number of tasks that test whether workers see the files.

More tasks would test more workers, and take longer than reading the files.
"""

_TABLE_FILE: Final = r"/(_delta_log|\.hoodie)/|/metadata/[^/]*\.metadata\.json$"
"""Pattern of the path of a file that only a table contains (see `rappor.engines.files.TABLES`)."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Files of a job, and how workers read them.

    Attributes
    ----------
    files : the files. `ReportFile.mtime_ns` has milliseconds here, because Spark lists no smaller
        unit.
    access : `BY_PATH` or `AS_BYTES`.
    """

    files: tuple[ReportFile, ...]
    access: str

    def tasks(self, session: SparkSession) -> tuple[DataFrame, Callable[..., Iterator[Any]]]:
        """Return a data frame for the workers, and the function that converts it to sums.

        The rows of the data frame are parts of files by path, or files with their bytes.
        """
        if self.access == AS_BYTES:
            frame, listed = _read_contents(session, self.files)
            return frame, functools.partial(sum_contents, listed=listed)
        parts = [part for file in self.files if file.size for part in parts_of(file)]
        rows = [
            (part.file.path, part.file.mtime_ns, part.file.size, part.start, part.end)
            for part in parts
        ]
        # The quotient is rounded up.
        n_tasks = -(-sum(part.size for part in parts) // _TASK_BYTES)
        return _spread(session, rows, TASKS, min(n_tasks, len(parts), _MAX_TASKS)), sum_parts


def list_files(session: SparkSession, paths: Sequence[str]) -> Listing:
    """Return the files below some paths, in order, each file once.

    Raises FileError as `rappor.engines.spark.sum_files`.
    """
    walked = _walk(session, paths)
    # The paths of the caller without schemes and braces: lake/{a,b} is two roots.
    roots = [root for path in paths for root in spell_out(_spell_root(path))]
    listed_rows, addresses = _list_by_spark(session, paths)
    rows = [row for row in listed_rows if not is_left_out(path_of(row[0]), roots)]
    file_of = _describe_files(rows)
    _check_not_hidden(paths, file_of)
    _check_addresses(file_of)
    _check_no_table(session, list(file_of))
    empty = list(_find_empty_files(addresses, file_of, roots))
    _check_walked(walked, [*file_of, *(file.path for file in empty)], paths)
    return _choose_access(session, rows, file_of, empty)


def _describe_files(rows: Iterable[tuple[Any, ...]]) -> dict[str, ReportFile]:
    """Return the files of rows of Spark's list (address, time in ms, size), by address.

    Raises FileError for a file that has two rows, and for a path that Java cannot read.
    """
    file_of: dict[str, ReportFile] = {}
    for path, millis, size in rows:
        if path in file_of:
            raise FileError(path, "it changed while it was listed")
        if ":" in path_of(path) and set(path_of(path)) & set(SPECIAL):
            raise FileError(
                path, f"its path has a colon and one of {SPECIAL}, which Java cannot read"
            )
        file_of[path] = ReportFile(
            path=path, kind=kind_of(path), size=size, mtime_ns=millis, labels={}
        )
    return file_of


def _choose_access(
    session: SparkSession,
    rows: Sequence[tuple[Any, ...]],
    file_of: Mapping[str, ReportFile],
    empty: Sequence[ReportFile],
) -> Listing:
    """Return the files, each once, with the way in which workers read them.

    A file is local if its address begins with file:.

        all files are local, and all tested workers see them    by path
        no file at all                                          by path: no task has work
        a worker does not see a local file                      as bytes
        some files are local, and others are not                as bytes

    A local file with several links is read once if the workers see the links. If they do not see
    the links, files with equal content are refused (`_check_possible_links`).

    Raises FileError for a file that is too large to be passed as bytes.
    """
    local = [row for row in rows if row[0].startswith("file:")]
    # None if no file is local, or a worker does not see a file. Empty if there are no files at all.
    distinct = _find_distinct_files(session, local) if local or not rows else None
    # A file with several links is read once, by its path in `distinct`.
    dropped = set() if distinct is None else {path for path, *_ in local}.difference(distinct)
    files = (*(file for path, file in file_of.items() if path not in dropped), *empty)
    if distinct is not None and len(local) == len(rows):
        return Listing(files, BY_PATH)
    for file in files:
        if file.size > _MAX_FILE_BYTES:
            raise FileError(
                file.path,
                f"it has {file.size:,} bytes: workers that do not see its path get at most "
                f"{_MAX_FILE_BYTES:,}. Mount the folder on them, write smaller files, or give "
                "spark.aggregate a data frame",
            )
    _check_possible_links(session, files)
    return Listing(files, AS_BYTES)


def _list_by_spark(
    session: SparkSession, paths: Sequence[str]
) -> tuple[list[tuple[Any, ...]], Sequence[str]]:
    """Return address, time (ms) and size (bytes) of the files with bytes, and all addresses.

    Only the second result contains empty files.
    """
    try:
        frame = _read_bytes(session, paths)
        rows = frame.select("path", _select_change_time(), "length").collect()
        return sorted(set(map(tuple, rows))), frame.inputFiles()
    except PySparkException as error:
        _, has_colon, name = str(error).partition("Relative path in absolute URI: ")
        if not has_colon:
            raise
        reason = "Java cannot read a colon behind a wildcard: name the folder that this is in"
        raise FileError(name.partition("\n")[0], reason) from None


def _find_empty_files(
    addresses: Sequence[str], nonempty_paths: Container[str], roots: Sequence[str]
) -> Iterator[ReportFile]:
    """Yield the empty files.

    Raises FileError for an empty file of CSV or Parquet. CSV has a header and Parquet has a footer,
    so an empty file of these kinds is an interrupted copy.

    Parameters
    ----------
    addresses : addresses of all files
    nonempty_paths : addresses of the files that are not empty
    roots : paths of the caller, as `spell_out` returns them
    """
    for address in sorted(addresses):
        path = unquote(address).replace("file:///", "file:/", 1)
        if path in nonempty_paths or is_left_out(path_of(path), roots):
            continue
        if (kind := kind_of(path)) != "json":
            raise FileError(path, f"it cannot be read as {kind}: it is empty")
        yield ReportFile(path=path, kind=kind, size=0, mtime_ns=0, labels={})


def _spell_root(path: str) -> str:
    """Return a path of the caller without its scheme, in the spelling of Spark's list.

    Only Spark knows in which folder a relative path begins. The current folder of this process is
    assumed.
    """
    # The path is made absolute without resolving links, as in Spark's list.
    return os.path.abspath(path_of(path) or "/")  # noqa: PTH100


def _check_not_hidden(paths: Sequence[str], listed: Iterable[str]) -> None:
    """Raise FileError if a path of the caller names a hidden file, which Spark would ignore."""
    for path in paths:
        is_absolute = path_of(path).startswith("/")
        for root in spell_out(_spell_root(path)):
            name = root.rpartition("/")[2]
            if not is_hidden(name):
                continue
            is_read = any(
                lies_in(path_of(address), root) if is_absolute else f"/{name}/" in address
                for address in listed
            )
            if glob.has_magic(name) or not is_read:
                reason = "its name begins with a dot or _, or ends in ._COPYING_: Spark ignores it"
                raise FileError(path, reason)


def _check_addresses(files: Mapping[str, ReportFile]) -> None:
    """Raise FileError if a file is listed under two addresses, such as s3:// and s3a://."""
    firsts: dict[tuple[str, int, int], str] = {}
    for address, file in files.items():
        first = firsts.setdefault((path_of(address), file.size, file.mtime_ns), address)
        if first != address:
            raise FileError(address, f"it is {first} under another address: name it once")


def _check_possible_links(session: SparkSession, files: Iterable[ReportFile]) -> None:
    """Raise FileError if one of two files may be a link to the other.

    Spark does not show links, and workers do not see the files. So two files with equal size, time
    and content are assumed to be one file with two names. Without the error, its reports would be
    counted twice.
    """
    by_size_and_time: dict[tuple[int, int], list[ReportFile]] = defaultdict(list)
    for file in files:
        by_size_and_time[file.size, file.mtime_ns].append(file)
    suspects = [
        file
        for equal_files in by_size_and_time.values()
        if len(equal_files) > 1
        for file in equal_files
        if file.size
    ]
    if not suspects:
        return
    times = {file.path: file.mtime_ns for file in suspects}
    frame, listed = _read_contents(session, suspects)
    digests = map_batches(frame, digest_contents, DIGESTS, listed=listed).collect()
    firsts: dict[tuple[str, int], str] = {}
    for path, digest in sorted(map(tuple, digests)):
        first = firsts.setdefault((digest, times[path]), path)
        if first != path:
            raise FileError(
                path, f"it has the rows and the time of {first}: it may be a link to it"
            )


def _find_distinct_files(
    session: SparkSession, rows: Sequence[tuple[Any, ...]]
) -> list[str] | None:
    """Return the path of each local file. A file with several links has one path in the list.

    Some tasks, on several workers, look at the files. Returns None if a worker does not see a file.
    """
    frame = _spread(session, rows, LISTED, min(len(rows), _MAX_CHECK_TASKS))
    identities = map_batches(frame, add_identities, IDENTIFIED).select("path", "identity")
    firsts: dict[str | None, str] = {}
    for path, identity in sorted(identities.collect()):
        first = firsts.setdefault(identity, path)
        if identity is not None and first != path:
            check_labels(path_of(first), path_of(path))
    return None if None in firsts else list(firsts.values())


def _walk(session: SparkSession, paths: Sequence[str]) -> list[Any]:
    """Return the files that a worker finds below the local paths, as rows of `workers.WALKED`.

    This search runs before Spark's list, because Spark follows a link to a folder above itself
    without end.
    """
    # Paths with the scheme file:, and paths without a scheme.
    local = [path for path in paths if path.startswith("file:") or path_of(path) == path]
    if not local:
        return []
    frame = _spread(session, [(_spell_root(path),) for path in local], ROOTS, 1)
    walked: list[Any] = map_batches(frame, walk_folders, WALKED).collect()
    # A worker may have another current folder than Spark, so faults below relative paths may be of
    # other files. They are not raised here.
    absolute = {_spell_root(path) for path in local if path_of(path).startswith("/")}
    _check_faults(row for row in walked if row.root in absolute)
    return walked


def _check_faults(walked: Iterable[Any]) -> None:
    """Raise FileError for the first file that a worker cannot read."""
    for row in walked:
        if row.fault is not None:
            raise FileError(row.path, row.fault)


def _check_walked(walked: Sequence[Any], listed: Sequence[str], paths: Sequence[str]) -> None:
    """Raise FileError for a file that a worker found and Spark did not list.

    Spark may read a path without a scheme as a folder of HDFS, and the worker reads it as a local
    folder. Then the two lists have no file in common, and they are not compared.

    Parameters
    ----------
    walked : rows of `workers.WALKED`, from `_walk`
    listed : addresses of the files that Spark lists
    paths : paths of the caller
    """
    local = {path_of(address) for address in listed if address.startswith("file:")}
    # Paths that certainly mean local folders: paths with the scheme, paths without a scheme if all
    # listed files are local, and paths below which both lists have a file.
    local_roots = {_spell_root(path) for path in paths if path.startswith("file:")}
    if len(local) == len(listed):
        local_roots |= {_spell_root(path) for path in paths if path.startswith("/")}
    common_roots = {row.root for row in walked if row.path in local}
    rows = [row for row in walked if row.root in local_roots | common_roots]
    _check_faults(rows)
    for row in rows:
        if row.path not in local:
            raise FileError(
                row.path,
                "Spark does not list it: it is new, or Spark or Java cannot read its name (Java's "
                "locale must have UTF-8)",
            )


def map_batches(
    frame: DataFrame, work: Callable[..., Iterator[Any]], schema: Any, **arguments: Any
) -> DataFrame:
    """Apply a function of `rappor.engines.workers` to each partition of a data frame.

    Parameters
    ----------
    frame : the data frame
    work : the function. Its first argument is the batches of a partition
    schema : Arrow schema of the batches that the function yields
    arguments : further arguments of the function
    """
    task = functools.partial(run_task, work=work, **arguments)
    return frame.mapInArrow(task, from_arrow_schema(schema))


def _spread(
    session: SparkSession, rows: Sequence[tuple[Any, ...]], schema: Any, n: int
) -> DataFrame:
    """Return a data frame of some rows. Its n partitions have nearly equal numbers of rows."""
    frame = session.createDataFrame(list(rows), from_arrow_schema(schema))
    return frame.coalesce(1).repartition(max(n, 1))


def _select_change_time() -> Column:
    """Return the column with the time of a file's last change, in milliseconds."""
    return F.unix_millis("modificationTime").alias("millis")


def _read_bytes(session: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return a data frame with a row for each file below some paths, and its bytes.

    The job fails at a file that cannot be read.
    """
    files = session.read.format("binaryFile").option("recursiveFileLookup", "true")
    for name in ("ignoreCorruptFiles", "ignoreMissingFiles"):
        files = files.option(name, "false")
    return files.load(list(paths))


def _read_contents(
    session: SparkSession, files: Iterable[ReportFile]
) -> tuple[DataFrame, dict[str, tuple[int, int]]]:
    """Return a data frame with the bytes of each file, and the listed time and size by address."""
    listed = {file.path: (file.mtime_ns, file.size) for file in files if file.size}
    frame = _read_bytes(session, [_escape_wildcards(path) for path in listed])
    return frame.select("path", _select_change_time(), "content"), listed


def _check_no_table(session: SparkSession, files: Sequence[str]) -> None:
    """Raise FileError if files are part of a table of Delta Lake, Hudi or Iceberg."""
    table_paths = ",".join(pattern.removesuffix("/*") for pattern in TABLES)
    for start, folders in _list_folders(files).items():
        # One pattern in braces covers all folders in one request. Java drops backslashes within
        # braces, and refuses a colon after a wildcard, so such folders need patterns of their own.
        simple = {folder for folder in folders if not set(folder) & {*SPECIAL, ":"}}
        patterns = [f"{start}/{{{','.join(sorted(simple))}}}/{{{table_paths}}}"] if simple else []
        patterns += [
            f"{start}/{_escape_wildcards(folder)}/{table_path.partition('/')[0]}"
            for folder in sorted(folders - simple)
            for table_path in TABLES
        ]
        for pattern in patterns:
            try:
                paths = _read_bytes(session, [pattern]).select("path")
                table_file = paths.where(F.col("path").rlike(_TABLE_FILE)).head()
            except PySparkException as error:
                if error.getCondition() != "PATH_NOT_FOUND":
                    raise
                continue
            if table_file is not None:
                _refuse_table(table_file.path)


def _list_folders(files: Sequence[str]) -> dict[str, set[str]]:
    """Return all folders above some files, up to the root, by the beginning of their addresses.

    Folders named column=value at the end of a path are omitted, because they are partitions of the
    folder above. Example: s3://bucket/lake/table/day=1/a.parquet has the beginning s3://bucket and
    the folders lake/table and lake.
    """
    folders: dict[str, set[str]] = defaultdict(set)
    for parent in {file.rpartition("/")[0] for file in files}:
        folder = path_of(parent).lstrip("/")
        start = parent.removesuffix(folder).rstrip("/")
        while "=" in folder.rpartition("/")[2]:
            folder = folder.rpartition("/")[0]
        while folder:
            folders[start].add(folder)
            folder = folder.rpartition("/")[0]
    return folders


def _refuse_table(path: str) -> NoReturn:
    """Raise the FileError of a table. `path` is the path of a file that only a table has."""
    parts = {kind: path.rpartition(f"/{name.partition('/')[0]}/") for name, kind in TABLES.items()}
    refuse_table(*next((folder, kind) for kind, (folder, inside, _) in parts.items() if inside))


def _escape_wildcards(path: str) -> str:
    """Escape the wildcards of a path, so that it matches only itself."""
    return "".join(f"\\{character}" if character in SPECIAL else character for character in path)
