"""Functions that the workers of a cluster run on Arrow batches.

The functions need numpy and pyarrow. With numba they are faster, with equal results. Workers that
run `decode_group` need the extra `analysis`, because the function decodes.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from zipimport import zipimporter

import pyarrow as pa

from rappor.base.atomic_files import hash_file
from rappor.base.errors import DecodeError, FileError, ReportError
from rappor.engines.files import ReportFile, find_files, status_of, walk
from rappor.engines.labels import folder_labels
from rappor.engines.rows import FilePart, read_part
from rappor.engines.sums import Shapes, Sums
from rappor.engines.wildcards import find_matches

_MAX_INTEGERS: Final = 1 << 25
"""Number of integers in the sums of a worker above which the worker sends the sums and begins new
sums. The integers take 256 MB.

A larger number takes more memory. With a smaller number, a worker sends sums of the same key more
often.
"""

SCHEME: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?")
"""Pattern of the beginning of an address before its path: a scheme, and possibly a host. Spark
lists files by address, and `path_of` removes the beginning, because Python opens files by path."""

ESTIMATES: Final = {
    "candidate": pa.string(),
    "count": pa.float64(),
    "std_error": pa.float64(),
    "share": pa.float64(),
    "ci_low": pa.float64(),
    "ci_high": pa.float64(),
    "p_value": pa.float64(),
    "detected": pa.bool_(),
}
"""Columns of a row of estimates, with their types. `Estimates.to_arrow` has the same names."""

TASKS: Final = pa.schema(
    {
        "path": pa.string(),
        "millis": pa.int64(),
        "size": pa.int64(),
        "start": pa.int64(),
        "end": pa.int64(),
    }
)
"""Schema of parts of files (`rows.FilePart`). `millis` is the time of the last change."""

LISTED: Final = pa.schema([TASKS.field(name) for name in ("path", "millis", "size")])
"""Spark lists input files as rows with this schema."""

ROOTS: Final = pa.schema([TASKS.field("path")])
"""Schema of the paths that the caller has passed."""

WALKED: Final = pa.schema({"root": pa.string(), "path": pa.string(), "fault": pa.string()})
"""Schema of the files that a worker finds below a path of the caller, the root. `fault` is a
sentence if a file cannot be read, and null otherwise."""

IDENTIFIED: Final = LISTED.append(pa.field("identity", pa.string()))
"""Schema of listed files with their identity on a worker. Files with equal identities are one file.
The identity is null if the worker does not have the file.
"""

DIGESTS: Final = pa.schema({"path": pa.string(), "digest": pa.string()})
"""Schema of the SHA-256 of files that contain rows."""

_CHANGED: Final = "it changed after it was listed, or a worker has another file of this path"
"""Reason of the error for a file that differs from Spark's list."""


def run_task(
    batches: Iterable[Any], *, work: Callable[..., Iterator[Any]], **arguments: Any
) -> Iterator[Any]:
    """Run a function of this module as a task of Spark.

    Workers import this package from an archive (.zip). Before each task, Spark invalidates Python's
    cache of import paths. A worker then reads again the index of every archive in the cache, which
    takes a fifth of a second. The archives do not change, so this function removes them from the
    cache after the task. Imports still find the archives.

    Parameters
    ----------
    batches : batches of the partition
    work : the function to run
    arguments : further arguments of the function
    """
    yield from work(batches, **arguments)
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


def sum_reports(batches: Iterable[Any], *, shapes: Shapes, by: Sequence[str]) -> Iterator[Any]:
    """Convert batches of reports to batches of sums. A key may occur in several batches of sums."""
    sums = Sums(shapes, by)
    for batch in batches:
        sums.add(batch)
        if sums.n_integers > _MAX_INTEGERS:
            yield from sums.batches()
            sums = Sums(shapes, by)
    yield from sums.batches()


def add_identities(batches: Iterable[Any]) -> Iterator[Any]:
    """Add the identity to listed files. The identity of a file that this worker lacks is null."""
    for batch in batches:
        identities = [_identify(file) for file in batch.to_pylist()]
        yield batch.append_column("identity", pa.array(identities, pa.string()))


def _identify(listed: Mapping[str, Any]) -> str | None:
    """Return the identity of a file, which is equal for all links to the file, on every host.

    A file with one name is identified by its real path. A file with several names (hard links) is
    identified by its inode, size and time. The number of the device is not used, because it differs
    from host to host.
    """
    try:
        status = Path(path_of(listed["path"])).stat()
    except OSError:
        return None
    file = _find_listed_file(listed)
    if status.st_nlink == 1:
        return os.path.realpath(file.path)
    return f"{status.st_ino} {file.size} {file.mtime_ns}"


def walk_folders(batches: Iterable[Any]) -> Iterator[Any]:
    """List the files that this worker finds below some paths, as one machine finds them.

    Spark ignores files that Java cannot read, such as broken links, without an error. This list
    shows such files.
    """
    for batch in batches:
        for root in batch.column("path").to_pylist():
            rows = [
                {"root": root, "path": _decode_path(path), "fault": fault}
                for path, fault in _walk_root(root)
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=WALKED)


def _walk_root(root: str) -> Iterator[tuple[str | os.PathLike[str], str | None]]:
    """Yield each file below a path, with None or with the reason why it cannot be read."""
    loops: list[Path] = []
    try:
        for start in map(Path, find_matches(root)):
            for path in walk(start, loops) if start.is_dir() else [start]:
                status_of(path)
                yield path, None
    except FileError as error:
        yield error.path, error.reason
    for loop in loops:
        yield loop, "it is a link to a folder that it is in: Spark follows it without end"


def _decode_path(path: str | os.PathLike[str]) -> str:
    """Convert a path to text that Arrow can store, even if its bytes are not UTF-8."""
    return os.fsencode(path).decode(errors="replace")


def sum_parts(batches: Iterable[Any], *, shapes: Shapes, by: Sequence[str]) -> Iterator[Any]:
    """Convert parts of files (`TASKS`), which this worker opens, to batches of sums."""
    return _sum_file_parts(_read_parts(batches), shapes, by)


def sum_contents(
    batches: Iterable[Any],
    *,
    listed: Mapping[str, tuple[int, int]],
    shapes: Shapes,
    by: Sequence[str],
) -> Iterator[Any]:
    """Convert whole files to batches of sums.

    Parameters
    ----------
    batches : batches with the path, millis and content of files
    listed : time in milliseconds and size of each file in Spark's list, by path
    shapes, by : as in `Sums`
    """
    return _sum_file_parts(_write_copies(batches, listed), shapes, by)


def digest_contents(
    batches: Iterable[Any], *, listed: Mapping[str, tuple[int, int]]
) -> Iterator[Any]:
    """Compute the SHA-256 of whole files that contain rows, as `DIGESTS`."""
    for path, part in _write_copies(batches, listed):
        # Without accepted parameters every row is refused, so there are sums if there are rows.
        if any(_sum_file_parts([(path, part)], {}, ())):
            row = {"path": path, "digest": hash_file(part.file.path)}
            yield pa.RecordBatch.from_pylist([row], schema=DIGESTS)


def _read_parts(batches: Iterable[Any]) -> Iterator[tuple[str, FilePart]]:
    """Yield the parts of `TASKS`, each with the path of its file."""
    for batch in batches:
        for task in batch.to_pylist():
            yield (
                task["path"],
                FilePart(_find_listed_file(task), task["start"], task["end"], task["size"]),
            )


def _write_copies(
    batches: Iterable[Any], listed: Mapping[str, tuple[int, int]]
) -> Iterator[tuple[str, FilePart]]:
    """Write each file that Spark passed into a temporary file, and yield it as one part."""
    for batch in batches:
        columns = (batch.column(name) for name in ("path", "millis", "content"))
        for address, millis, content in zip(*columns, strict=True):
            path, data = address.as_py(), content.as_buffer()
            if listed[path] != (millis.as_py(), data.size):
                raise FileError(path, _CHANGED)
            name = path_of(path)
            with tempfile.TemporaryDirectory(prefix="rappor-") as folder:
                copy = Path(folder, Path(name).name)
                copy.write_bytes(data)
                (file,) = find_files([copy])
                yield path, FilePart(replace(file, labels=folder_labels(name)), 0, 0, 0)


def _find_listed_file(listed: Mapping[str, Any]) -> ReportFile:
    """Return a listed file; raise FileError if it has changed since the list."""
    (file,) = find_files([path_of(listed["path"])])
    if not file.is_like(listed["size"], listed["millis"]):
        raise FileError(listed["path"], _CHANGED)
    return file


def path_of(address: str) -> str:
    """Return the path of an address. Spark does not escape the characters of addresses."""
    return SCHEME.sub("", address)


def _sum_file_parts(
    parts: Iterable[tuple[str, FilePart]], shapes: Shapes, by: Sequence[str]
) -> Iterator[Any]:
    """Sum the reports in parts of files. Each part is paired with the path that errors name."""
    sums, refused = Sums(shapes, by), Counter[str]()
    for path, part in parts:
        try:
            for rows in read_part(part, lambda reason, n: refused.update({reason: n}), by):
                sums.add(rows)
                if sums.n_integers > _MAX_INTEGERS:
                    yield from sums.batches()
                    sums = Sums(shapes, by)
            part.file.check_unchanged()
        except FileError as error:
            raise FileError(path, error.reason) from None
        except ReportError as error:
            raise FileError(path, str(error)) from None
    for reason, n in refused.items():
        sums.refuse("", "", reason, n)
    yield from sums.batches()


def add_sums(batches: Iterable[Any], *, shapes: Shapes, by: Sequence[str]) -> Iterator[Any]:
    """Add batches of sums, so that every key occurs once."""
    sums = Sums(shapes, by)
    for batch in batches:
        sums.add_sums(batch)
    yield from sums.batches()


def decode_group(
    key: tuple[Any, ...],
    table: Any,
    *,
    registry: Any,
    candidates: Mapping[str, Sequence[str]],
    by: Sequence[str],
    options: Mapping[str, Any],
) -> Any:
    """Decode the sums of one collection.

    Parameters
    ----------
    key : metric, fingerprint and the values of `by`
    table : pyarrow.Table of sums
    registry : the registry
    candidates : candidates of each metric
    by : names of further columns
    options : options of `rappor.decode`

    Returns
    -------
    A pyarrow.Table of `estimates_schema`. If the collection cannot be decoded, one row contains the
    error.
    """
    from rappor.decoding.decoder import decode  # noqa: PLC0415  # only workers that decode have it
    from rappor.engines.totals import counts_of, shapes_of  # noqa: PLC0415
    from rappor.protocol.encodings import get_encoding  # noqa: PLC0415

    labels = dict(zip(("metric", "params", *by), (value.as_py() for value in key), strict=True))
    sums = Sums(shapes_of(registry), by)
    for batch in table.to_batches():
        sums.add_sums(batch)
    (counts,) = counts_of(sums, registry).values()
    try:
        hashed = get_encoding(counts.params).is_hashed
        decoded = decode(counts, candidates.get(counts.metric) if hashed else None, **options)
    except DecodeError as error:
        return _build_rows(labels, {"reports": [counts.n_reports], "error": [str(error)]}, by)
    estimates = {
        name: column for name, column in decoded.to_arrow().to_pydict().items() if name in ESTIMATES
    }
    return _build_rows(labels, {"reports": [decoded.reports] * len(decoded), **estimates}, by)


def estimates_schema(by: Sequence[str]) -> Any:
    """Return the Arrow schema of estimates of many collections."""
    labels = dict.fromkeys(("metric", "params", *by), pa.string())
    return pa.schema({**labels, "reports": pa.int64(), **ESTIMATES, "error": pa.string()})


def _build_rows(
    labels: Mapping[str, str], columns: Mapping[str, Sequence[Any]], by: Sequence[str]
) -> Any:
    """Return a table of `estimates_schema`. Missing columns are null."""
    schema = estimates_schema(by)
    n = len(columns["reports"])
    everything = {name: [label] * n for name, label in labels.items()} | dict(columns)
    arrays = [
        pa.array(everything.get(name, [None] * n), schema.field(name).type) for name in schema.names
    ]
    return pa.table(arrays, schema=schema)
