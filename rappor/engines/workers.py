"""What a worker of a cluster runs: functions over Arrow batches.

They need numpy and pyarrow; with numba they are faster, and equal. `decode_group` decodes, so its
workers need the extra `analysis`.
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
from rappor.engines.rows import Chunk, read_part
from rappor.engines.sums import Shapes, Sums
from rappor.engines.wildcards import matches

_MOST_CELLS: Final = 1 << 25
"""Sums that a worker holds before it hands them on: 256 MB."""

SCHEME: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?")
"""What stands before the path in an address: a scheme, and perhaps a host."""

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
"""Columns of an estimate, as `Estimates` names them, and their types."""

TASKS: Final = pa.schema(
    {
        "path": pa.string(),
        "millis": pa.int64(),
        "size": pa.int64(),
        "start": pa.int64(),
        "end": pa.int64(),
    }
)
"""Parts of files, as `rows.Chunk` has them; millis is the time of the last change."""

LISTED: Final = pa.schema([TASKS.field(name) for name in ("path", "millis", "size")])
"""The files that Spark lists."""

ROOTS: Final = pa.schema([TASKS.field("path")])
"""Paths that were given."""

WALKED: Final = pa.schema({"root": pa.string(), "path": pa.string(), "fault": pa.string()})
"""The files below such a path, or what is wrong with one."""

SEEN: Final = LISTED.append(pa.field("identity", pa.string()))
"""The same, as a worker sees them: equal identities are one file, null is none."""

DIGESTS: Final = pa.schema({"path": pa.string(), "digest": pa.string()})
"""The SHA-256 of files that have rows."""

_CHANGED: Final = "it changed after it was listed, or a worker has another file of this path"


def run_task(
    batches: Iterable[Any], *, work: Callable[..., Iterator[Any]], **given: Any
) -> Iterator[Any]:
    """Do what a function of this module does, as a task of Spark.

    Before each task Spark makes its workers look again into every archive that they have imported
    from, its own among them: a fifth of a second. None of them changes, so they are left out of
    that. Imports find them as before.
    """
    yield from work(batches, **given)
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


def sum_reports(batches: Iterable[Any], *, shapes: Shapes, by: Sequence[str]) -> Iterator[Any]:
    """Turn batches of reports into batches of sums, the same keys perhaps several times."""
    sums = Sums(shapes, by)
    for batch in batches:
        sums.add(batch)
        if sums.n_cells > _MOST_CELLS:
            yield from sums.batches()
            sums = Sums(shapes, by)
    yield from sums.batches()


def see_files(batches: Iterable[Any]) -> Iterator[Any]:
    """Add to the files of `LISTED` what tells them, null for those that this worker has not."""
    for batch in batches:
        identities = [_identity(file) for file in batch.to_pylist()]
        yield batch.append_column("identity", pa.array(identities, pa.string()))


def _identity(listed: Mapping[str, Any]) -> str | None:
    """Return the same for a file and all links to it, on every host.

    Devices have other numbers on other hosts, and hard links are told without them.
    """
    try:
        status = Path(path_of(listed["path"])).stat()
    except OSError:
        return None
    file = _listed_file(listed)
    if status.st_nlink == 1:
        return os.path.realpath(file.path)
    return f"{status.st_ino} {file.size} {file.mtime_ns}"


def walk_folders(batches: Iterable[Any]) -> Iterator[Any]:
    """Tell the files that this worker finds below some paths, as one machine finds them.

    Spark passes by in silence what Java cannot read, a link to nothing among them.
    """
    for batch in batches:
        for root in batch.column("path").to_pylist():
            rows = [
                {"root": root, "path": _text(path), "fault": fault} for path, fault in _walked(root)
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=WALKED)


def _walked(root: str) -> Iterator[tuple[str | os.PathLike[str], str | None]]:
    """Yield each file under a path, or what is there instead and what is wrong with it."""
    loops: list[Path] = []
    try:
        for start in map(Path, matches(root)):
            for path in walk(start, loops) if start.is_dir() else [start]:
                status_of(path)
                yield path, None
    except FileError as error:
        yield error.path, error.reason
    for loop in loops:
        yield loop, "it is a link to a folder that it is in: Spark follows it without end"


def _text(path: str | os.PathLike[str]) -> str:
    """Return a path as text that can be sent, also where its bytes are not UTF-8."""
    return os.fsencode(path).decode(errors="replace")


def sum_parts(batches: Iterable[Any], *, shapes: Shapes, by: Sequence[str]) -> Iterator[Any]:
    """Turn `TASKS`, whose files this worker opens itself, into batches of sums."""
    return _sum_chunks(_parts(batches), shapes, by)


def sum_contents(
    batches: Iterable[Any],
    *,
    listed: Mapping[str, tuple[int, int]],
    shapes: Shapes,
    by: Sequence[str],
) -> Iterator[Any]:
    """Turn whole files, their path, millis and content, into batches of sums.

    `listed` has the time and the size that each was listed with.
    """
    return _sum_chunks(_copies(batches, listed), shapes, by)


def digest_contents(
    batches: Iterable[Any], *, listed: Mapping[str, tuple[int, int]]
) -> Iterator[Any]:
    """Turn whole files, as `sum_contents` gets them, into `DIGESTS`."""
    for path, chunk in _copies(batches, listed):
        if any(_sum_chunks([(path, chunk)], {}, ())):  # refusals, of all rows
            row = {"path": path, "digest": hash_file(chunk.file.path)}
            yield pa.RecordBatch.from_pylist([row], schema=DIGESTS)


def _parts(batches: Iterable[Any]) -> Iterator[tuple[str, Chunk]]:
    for batch in batches:
        for task in batch.to_pylist():
            yield task["path"], Chunk(_listed_file(task), task["start"], task["end"], task["size"])


def _copies(
    batches: Iterable[Any], listed: Mapping[str, tuple[int, int]]
) -> Iterator[tuple[str, Chunk]]:
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
                yield path, Chunk(replace(file, labels=folder_labels(name)), 0, 0, 0)


def _listed_file(listed: Mapping[str, Any]) -> ReportFile:
    """Return a file as this worker sees it; FileError unless it is as it was listed."""
    (file,) = find_files([path_of(listed["path"])])
    if not file.is_like(listed["size"], listed["millis"]):
        raise FileError(listed["path"], _CHANGED)
    return file


def path_of(address: str) -> str:
    """Return the path in an address as Spark writes it, whose characters are as they are."""
    return SCHEME.sub("", address)


def _sum_chunks(
    chunks: Iterable[tuple[str, Chunk]], shapes: Shapes, by: Sequence[str]
) -> Iterator[Any]:
    """Read parts of files, each with the name that people know, and add them up."""
    sums, refused = Sums(shapes, by), Counter[str]()
    for path, chunk in chunks:
        try:
            for rows in read_part(chunk, lambda reason, n: refused.update({reason: n}), by):
                sums.add(rows)
                if sums.n_cells > _MOST_CELLS:
                    yield from sums.batches()
                    sums = Sums(shapes, by)
            chunk.file.check_unchanged()
        except FileError as error:
            raise FileError(path, error.reason) from None
        except ReportError as error:
            raise FileError(path, str(error)) from None
    for reason, n in refused.items():
        sums.refuse("", "", reason, n)
    yield from sums.batches()


def add_sums(batches: Iterable[Any], *, shapes: Shapes, by: Sequence[str]) -> Iterator[Any]:
    """Add batches of sums up: every key comes out once."""
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
    """Decode the sums of one collection: metric, parameters and the values of `by`.

    Returns a pyarrow.Table of `estimates_schema`; where there is no answer, one row says why.
    """
    from rappor.decoding.decoder import decode  # noqa: PLC0415  # only workers that decode have it
    from rappor.engines.totals import counts_of, shapes_of  # noqa: PLC0415
    from rappor.protocol.encodings import encoding_of  # noqa: PLC0415

    labels = dict(zip(("metric", "params", *by), (value.as_py() for value in key), strict=True))
    sums = Sums(shapes_of(registry), by)
    for batch in table.to_batches():
        sums.add_sums(batch)
    try:
        (counts,) = counts_of(sums, registry).values()
        hashed = encoding_of(counts.params).hashed
        found = decode(counts, candidates.get(counts.metric) if hashed else None, **options)
    except DecodeError as error:
        return _rows(labels, {"reports": [0], "error": [str(error)]}, by)
    estimates = {
        name: column for name, column in found.to_arrow().to_pydict().items() if name in ESTIMATES
    }
    return _rows(labels, {"reports": [found.reports] * len(found), **estimates}, by)


def estimates_schema(by: Sequence[str]) -> Any:
    """Return the Arrow schema of estimates of many collections."""
    labels = dict.fromkeys(("metric", "params", *by), pa.string())
    return pa.schema({**labels, "reports": pa.int64(), **ESTIMATES, "error": pa.string()})


def _rows(
    labels: Mapping[str, str], columns: Mapping[str, Sequence[Any]], by: Sequence[str]
) -> Any:
    schema = estimates_schema(by)
    n = len(columns["reports"])
    everything = {name: [label] * n for name, label in labels.items()} | dict(columns)
    arrays = [
        pa.array(everything.get(name, [None] * n), schema.field(name).type) for name in schema.names
    ]
    return pa.table(arrays, schema=schema)
