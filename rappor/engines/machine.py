"""Aggregation of files on one machine: all cores, bounded memory, and checkpoints.

The input is paths of files and folders, and a registry. The output is the counts of each
collection, and the number of refused rows by reason (`FileAggregation`).

A file goes through these steps:

    file -> parts -> sums of each part -> sums of the file -> sums of the run
            |        in a thread          in the main thread, when all parts are summed
            ranges of bytes of 128 MB (`rappor.engines.rows.FilePart`)

The loops over bits and pyarrow's readers release the lock of the interpreter, so that the threads
run on all cores. The memory contains one batch for each thread, and the sums.

A checkpoint contains the sums of the run, the list of the files in them, and a SHA-256 of both. It
is one file that is replaced as a whole. It is written every few seconds, and at an interruption. A
later run with the same files continues from the checkpoint: it skips the files of the list, and
counts no file twice. Three rules make this safe:

- A file is added to the sums of the run only as a whole, when all its parts are summed.
- A checkpoint is not written while a file is being added (`_is_whole`).
- A checkpoint of other files, of another registry or of other columns is refused.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from rappor.base.atomic_files import hash_file, replace_file
from rappor.base.errors import FileError, ReportError
from rappor.base.progress import Progress, no_progress
from rappor.counts.counts import Counts
from rappor.engines.files import ReportFile, check_no_table, find_files, status_of
from rappor.engines.layout import REASONS
from rappor.engines.rows import FilePart, parts_of, read_part
from rappor.engines.sums import Shape, Shapes, Sums, sum_schema
from rappor.engines.totals import Collection, counts_of, shapes_of
from rappor.protocol.params import Params
from rappor.registry.registry import Registry

_STATE_KEY: Final = b"rappor.checkpoint"
"""Key under which the metadata of a checkpoint contain the list of files. A checkpoint is a Parquet
file, and its rows are the sums."""

_HASH_BYTES: Final = 32
"""Number of bytes of the SHA-256 that is appended to the Parquet file of a checkpoint."""

_CHECKPOINT_SECONDS: Final = 10.0
"""Default number of seconds between two checkpoints.

With a larger number, an interruption loses more work. With a smaller number, writing takes a larger
part of the time.
"""

Refused = Counter[tuple[str, str, str]]
"""Number of refused rows by metric, params and reason. Metric and params are the texts of the rows,
cut to 64 characters.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileAggregation:
    """Sums of many files, and the refused rows.

    Attributes
    ----------
    counts : dict
        Counts of each collection.
    refused : Counter
        Number of refused rows by metric, params and reason.
    first_refused : dict
        First file with a row that is refused, by metric, params and reason.
    n_files : int
        Number of files.
    n_resumed : int
        Number of files whose sums came from a checkpoint.
    file_access : str
        Sentence that says how the workers of a cluster read the files: by their paths, or as bytes
        that Spark passes (`rappor.engines.spark_files`). Empty for one machine.
    """

    counts: dict[Collection, Counts]
    refused: Refused
    first_refused: dict[tuple[str, str, str], str]
    n_files: int
    n_resumed: int
    file_access: str = ""

    @property
    def n_reports(self) -> int:
        """Number of reports in all sums."""
        return sum(counts.n_reports for counts in self.counts.values())


def aggregate_files(  # noqa: PLR0913 - the options of a run
    paths: Iterable[str | os.PathLike[str]],
    registry: Registry,
    *,
    by: Sequence[str] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    seconds: float = _CHECKPOINT_SECONDS,
    threads: int | None = None,
    progress: Progress = no_progress,
) -> FileAggregation:
    """Add the reports in files and folders: Parquet, CSV with a header, JSON lines of rows.

    A row is refused if it is not a report, or its metric or parameters are not in the registry.
    Refused rows are counted by their reason. A file counts once, even if several paths name it.

    Parameters
    ----------
    paths : iterable of path
        Files, and folders that are searched for files.
    registry : Registry
        The registry, whose metrics and parameters are accepted.
    by : sequence of str
        Names of further columns of text. Rows with different values are counted separately.
    checkpoint : path, optional
        File for checkpoints. If it exists, the run continues from it.
    seconds : float
        Seconds between two checkpoints.
    threads : int, optional
        Number of threads, by default the number of cores.
    progress : callable
        Called with a stage, the completed bytes and all bytes.

    Returns
    -------
    FileAggregation

    Raises
    ------
    FileError
        If a file is missing, has an unknown suffix or contents that do not match its suffix, is
        part of a table (Delta Lake, Hudi, Iceberg), or lacks a column. Or if the checkpoint is of
        other files, another registry or other columns.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from rappor import Registry
    >>> from rappor.engines import aggregate_files
    >>> registry = Registry.loads('''
    ... [budget]
    ... total = 24
    ... [metrics.member]
    ... description = "Is a member"
    ... owner = "survey@example.org"
    ... expires = 2099-12-31
    ... encoding = "boolean"
    ... profile = "balanced"
    ... epoch = "year"
    ... ''')
    >>> fingerprint = registry["member"].fingerprint
    >>> rows = ["format,metric,params,cohort,bits"]
    >>> rows += [f"1,member,{params},0,AQ" for params in (fingerprint, "?")]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with pathlib.Path(folder, "reports.csv").open("w") as file:
    ...         print(*rows, sep=chr(10), file=file)
    ...     result = aggregate_files([folder], registry)
    >>> result.n_reports, dict(result.refused)
    (1, {('member', '?', 'unknown-params'): 1})
    """
    files = find_files(paths)
    check_no_table(files)
    run = _Run(shapes_of(registry), tuple(by), checkpoint)
    run.resume(files)
    remaining = [file for file in files if file.identity not in run.counted_files]
    run.work(remaining, seconds, threads or os.cpu_count() or 1, progress)
    return FileAggregation(
        counts=counts_of(run.sums, registry),
        refused=run.sums.refused,
        first_refused=run.first_refused,
        n_files=len(files),
        n_resumed=len(files) - len(remaining),
    )


def aggregate_parquet(path: str | os.PathLike[str], *, params: Params, metric: str) -> Counts:
    """Add the reports of one Parquet file of one metric under one parameter set.

    Parameters
    ----------
    path : path
        Path of the file.
    params : Params
        The parameter set.
    metric : str
        Name of the metric.

    Returns
    -------
    Counts

    Raises
    ------
    FileError
        If a row is not a report of the metric and the parameters (the message contains the number
        of the row, counted from 0), the file is not Parquet, or a column is missing.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from rappor import Params
    >>> from rappor.engines import aggregate_parquet, write_parquet
    >>> params = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
    >>> packed, cohorts = np.array([[1], [0], [1]], dtype=np.uint8), np.zeros(3, dtype=np.int64)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "reports.parquet")
    ...     _ = write_parquet(path, [(packed, cohorts)], params=params, metric="member")
    ...     counts = aggregate_parquet(path, params=params, metric="member")
    >>> counts.bit_counts.tolist(), counts.n_reports
    ([[2]], 3)
    """
    file = ReportFile.of(Path(path), "parquet", status_of(Path(path)))
    shapes = {(metric, params.fingerprint): Shape.of(params)}
    counts, row = Counts.zero(params, metric), 0
    for batch in read_part(FilePart(file, 0, 0, file.size), lambda *_: None):
        try:
            sums = _sum_batch(batch, shapes)
        except ReportError as error:
            raise FileError(path, str(error)) from None
        if sums.refused:
            raise FileError(path, _describe_first_refused(batch, row, shapes))
        for total in sums.totals.values():
            counts += Counts(params, total.ones, total.reports, metric)
        row += batch.num_rows
    file.check_unchanged()
    return counts


def _sum_batch(batch: Any, shapes: Shapes) -> Sums:
    """Return the sums of one batch."""
    sums = Sums(shapes)
    sums.add(batch)
    return sums


def _describe_first_refused(batch: Any, first_row: int, shapes: Shapes) -> str:
    """Describe the fault of the first refused row of a batch.

    `first_row` is the number of the batch's first row in the file. The refused row is found by
    bisection, because the kernel only counts refused rows.
    """
    while batch.num_rows > 1:
        half = batch.num_rows // 2
        is_in_first_half = bool(_sum_batch(batch.slice(0, half), shapes).refused)
        batch = batch.slice(0, half) if is_in_first_half else batch.slice(half)
        first_row += 0 if is_in_first_half else half
    # A single parameter set is accepted, so the message can name it.
    ((metric, params),) = shapes
    named = {
        "unknown-metric": f"metric must be {metric!r}",
        "unknown-params": f"params must be {params!r}",
    }
    ((*_, reason),) = _sum_batch(batch, shapes).refused
    sentence = (REASONS | named)[reason]
    # Every sentence begins with the name of the column. The bits of a report are not shown.
    name = sentence.partition(" ")[0]
    value = "others" if name == "bits" else repr(batch.column(name)[0].as_py())
    return f"{sentence}, got {value} in row {first_row}"


class _Run:
    """State of a run: the sums, and the files whose reports the sums contain."""

    def __init__(
        self, shapes: Shapes, by: tuple[str, ...], checkpoint: str | os.PathLike[str] | None
    ) -> None:
        # Identities of the files whose reports the sums contain.
        self.counted_files: set[tuple[str, int, int]] = set()
        # First file, in alphabetical order, with each kind of refused row.
        self.first_refused: dict[tuple[str, str, str], str] = {}
        self._shapes = shapes
        self._by = by
        self._checkpoint = checkpoint
        # `work` sets the event at its end. After an error or an interruption, threads that still
        # read a part then stop.
        self._stop = threading.Event()
        # False while a file is being added: the sums then contain a part of a file.
        self._is_whole = True
        self.sums = self._create_sums()

    def resume(self, files: Sequence[ReportFile]) -> None:
        """Continue from the checkpoint of an earlier run, if the file exists.

        Raises FileError if the checkpoint is damaged, or of other files or parameters.
        """
        if self._checkpoint is None or not Path(self._checkpoint).exists():
            return
        with pa.OSFile(os.fspath(self._checkpoint)) as file:
            data = file.read_buffer()
        body = data.slice(0, max(data.size - _HASH_BYTES, 0))
        if hashlib.sha256(body).digest() != data.slice(body.size).to_pybytes():
            self._refuse_checkpoint("it is damaged")
        table = pq.read_table(pa.BufferReader(body))
        state = json.loads(table.schema.metadata[_STATE_KEY])
        if state["collections"] != self._describe_collections():
            self._refuse_checkpoint("it is of another registry or of other columns")
        self.counted_files = {(path, size, mtime) for path, size, mtime in state["files"]}
        self.first_refused = {tuple(key): path for key, path in state["first_refused"]}
        # The sums cannot be divided by file, so the reports of a file cannot be subtracted. Every
        # file of the checkpoint must therefore be among the files of this run, unchanged.
        for path, _, _ in sorted(self.counted_files - {file.identity for file in files}):
            self._refuse_checkpoint(f"{path} was counted and is now missing or changed")
        for batch in table.to_batches():
            self.sums.add_sums(batch)

    def _refuse_checkpoint(self, reason: str) -> NoReturn:
        """Raise the FileError of a checkpoint."""
        assert self._checkpoint is not None
        raise FileError(self._checkpoint, f"{reason}: delete this checkpoint to begin anew")

    def _describe_collections(self) -> list[list[Any]]:
        """Return the columns and shapes that the sums of a checkpoint must have, as JSON values.

        Example: [["country"], ["theme", FINGERPRINT, k, m, is_exclusive], ...].
        """
        return [list(self._by), *sorted([*key, *shape] for key, shape in self._shapes.items())]

    def save(self) -> None:
        """Write a checkpoint as a whole, unless a file is being added at this moment."""
        if self._checkpoint is None or not self._is_whole:
            return
        state = {
            "collections": self._describe_collections(),
            "files": sorted(self.counted_files),
            "first_refused": list(self.first_refused.items()),
        }
        schema = sum_schema(self._by).with_metadata({_STATE_KEY: json.dumps(state).encode()})
        with replace_file(self._checkpoint) as file:
            with pq.ParquetWriter(file, schema) as writer:
                for batch in self.sums.batches():
                    writer.write_batch(batch)
            file.flush()
            file.write(bytes.fromhex(hash_file(file.name)))

    def work(
        self, files: list[ReportFile], seconds: float, threads: int, progress: Progress
    ) -> None:
        """Add files, and write a checkpoint at the end, also after an error or an interruption."""
        pool = ThreadPoolExecutor(threads)
        try:
            # Two parts for each thread: one that the thread reads, and one that waits for a thread.
            self._drain(files, pool, 2 * threads, seconds, progress)
        finally:
            self._stop.set()
            pool.shutdown(cancel_futures=True)
            self.save()

    def _drain(
        self,
        files: list[ReportFile],
        pool: ThreadPoolExecutor,
        max_parts: int,
        seconds: float,
        progress: Progress,
    ) -> None:
        """Sum parts in the pool, and add a file when all its parts are summed.

        At most `max_parts` parts are in the pool. Without this limit, the threads could finish
        parts faster than this function adds their sums, and the sums would fill the memory.
        """
        n_all_bytes, n_done_bytes = sum(file.size for file in files), 0
        last_saved = time.monotonic()
        parts = _list_parts(files)
        # Parts in the pool, each with the number of parts of its file.
        running_parts: dict[Future[Sums], tuple[FilePart, int]] = {}
        # Sums, and number of summed parts, of files that are not complete.
        unfinished: dict[str, tuple[Sums, int]] = {}
        while True:
            for part, n_parts in itertools.islice(parts, max_parts - len(running_parts)):
                running_parts[pool.submit(self._sum_part, part)] = part, n_parts
            if not running_parts:
                return
            for future in wait(running_parts, return_when=FIRST_COMPLETED).done:
                part, n_parts = running_parts.pop(future)
                summed, n_summed = unfinished.pop(part.file.path, (self._create_sums(), 0))
                summed.merge(future.result())
                if n_summed + 1 == n_parts:
                    self._add_file(part.file, summed)
                else:
                    unfinished[part.file.path] = summed, n_summed + 1
                n_done_bytes += part.size
                progress("adding up reports", n_done_bytes, n_all_bytes)
            if time.monotonic() - last_saved >= seconds:
                self.save()
                last_saved = time.monotonic()

    def _create_sums(self) -> Sums:
        """Return empty sums."""
        return Sums(self._shapes, self._by)

    def _sum_part(self, part: FilePart) -> Sums:
        """Sum the rows of a part, until the run is stopped. Runs in a thread of the pool."""
        sums = self._create_sums()
        for batch in read_part(part, lambda reason, n: sums.refuse("", "", reason, n), self._by):
            if self._stop.is_set():
                break
            try:
                sums.add(batch)
            except ReportError as error:
                raise FileError(part.file.path, str(error)) from None
        return sums

    def _add_file(self, file: ReportFile, sums: Sums) -> None:
        """Add the sums of a file, and record its identity.

        Ctrl-C may interrupt between any two lines. Then the sums contain a part of the file, and
        `_is_whole` prevents a checkpoint.
        """
        file.check_unchanged()
        self._is_whole = False
        self.sums.merge(sums)
        for key in sums.refused:
            first = self.first_refused.get(key, file.path)
            self.first_refused[key] = min(first, file.path)
        self.counted_files.add(file.identity)
        self._is_whole = True


def _list_parts(files: Iterable[ReportFile]) -> Iterator[tuple[FilePart, int]]:
    """Yield the parts of all files, each with the number of parts of its file."""
    for file in files:
        parts = parts_of(file)
        for part in parts:
            yield part, len(parts)
