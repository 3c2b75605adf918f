"""Files of stored reports on one machine: all cores, bounded memory, and a way to go on.

Threads read parts of files and add them up; the loops over bits and pyarrow's readers hold no
lock of the interpreter. What is held are one batch a thread, and sums.

While it runs, a checkpoint is written now and then, and when it is interrupted: one file that
holds the sums and the list of the files in them, with a SHA-256 over both, and takes its name
whole or not at all. So a later run goes on without those files, and counts none of them twice.
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
from rappor.engines.rows import Chunk, parts_of, read_part
from rappor.engines.sums import Shape, Shapes, Sums, sum_schema
from rappor.engines.totals import Collection, counts_of, shapes_of
from rappor.protocol.params import Params
from rappor.registry.registry import Registry

_STATE: Final = b"rappor.checkpoint"
_HASH_BYTES: Final = 32
_SECONDS: Final = 10.0
"""Between two checkpoints."""

Refused = Counter[tuple[str, str, str]]
"""Refused rows by metric, parameters (as the rows say, cut to 64 characters) and reason."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileAggregation:
    """The sums of many files, and what was left out of them.

    `first_refused` has, by the same keys as `refused`, the first file with such a row. `road` says
    how a cluster came to the files.
    """

    counts: dict[Collection, Counts]
    refused: Refused
    first_refused: dict[tuple[str, str, str], str]
    n_files: int
    n_resumed: int
    road: str = ""

    @property
    def n_reports(self) -> int:
        """Reports in all sums."""
        return sum(counts.n_reports for counts in self.counts.values())


def aggregate_files(  # noqa: PLR0913 - what a run may be told
    paths: Iterable[str | os.PathLike[str]],
    registry: Registry,
    *,
    by: Sequence[str] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    seconds: float = _SECONDS,
    threads: int | None = None,
    progress: Progress = no_progress,
) -> FileAggregation:
    """Add up the reports in files and folders: Parquet, CSV with a header, JSON lines of rows.

    A row that is no report, or not of the registry's metrics and parameters, is counted by its
    reason. A file counts once, however often it is named. `by` are further columns of text that
    keep counts apart. `checkpoint` is a file that is written every few `seconds` and at the end,
    and that a later run goes on from. `threads` are all cores if omitted.

    Raises FileError, with the name, where a file is missing, of no known kind, part of a table, not
    what its name says, or lacks a column, and where the checkpoint is of other files, another
    registry or other columns.
    """
    files = find_files(paths)
    check_no_table(files)
    run = _Run(shapes_of(registry), tuple(by), checkpoint)
    run.resume(files)
    rest = [file for file in files if file.identity not in run.done]
    run.work(rest, seconds, threads or os.cpu_count() or 1, progress)
    return FileAggregation(
        counts=counts_of(run.sums, registry),
        refused=run.sums.refused,
        first_refused=run.first_refused,
        n_files=len(files),
        n_resumed=len(files) - len(rest),
    )


def aggregate_parquet(path: str | os.PathLike[str], *, params: Params, metric: str) -> Counts:
    """Add up one Parquet file of one metric under one parameter set, in one thread.

    A row that is no report of it refuses the file. Raises FileError, with the row (from 0), and
    where the file cannot be read as Parquet or lacks a column.
    """
    file = ReportFile.of(Path(path), "parquet", status_of(Path(path)))
    shapes = {(metric, params.fingerprint): Shape(params.k, params.m)}
    counts, row = Counts.zero(params, metric), 0
    for batch in read_part(Chunk(file, 0, 0, file.size), lambda *_: None):
        try:
            sums = _sums_of(batch, shapes)
        except ReportError as error:
            raise FileError(path, str(error)) from None
        if sums.refused:
            raise FileError(path, _complaint(batch, row, shapes))
        for total in sums.totals.values():
            counts += Counts(params, total.ones, total.reports, metric)
        row += batch.num_rows
    file.check_unchanged()
    return counts


def _sums_of(batch: Any, shapes: Shapes) -> Sums:
    sums = Sums(shapes)
    sums.add(batch)
    return sums


def _complaint(batch: Any, first_row: int, shapes: Shapes) -> str:
    """Say what is wrong with the first row of a batch that is no report: halves are tried."""
    while batch.num_rows > 1:
        half = batch.num_rows // 2
        is_ahead = bool(_sums_of(batch.slice(0, half), shapes).refused)
        batch = batch.slice(0, half) if is_ahead else batch.slice(half)
        first_row += 0 if is_ahead else half
    ((metric, params),) = shapes
    named = {
        "unknown-metric": f"metric must be {metric!r}",
        "unknown-params": f"params must be {params!r}",
    }
    ((*_, reason),) = _sums_of(batch, shapes).refused
    sentence = (REASONS | named)[reason]
    name = sentence.partition(" ")[0]
    got = "others" if name == "bits" else repr(batch.column(name)[0].as_py())
    return f"{sentence}, got {got} in row {first_row}"


class _Run:
    """What is summed so far, and of which files."""

    def __init__(
        self, shapes: Shapes, by: tuple[str, ...], checkpoint: str | os.PathLike[str] | None
    ) -> None:
        self.done: set[tuple[str, int, int]] = set()
        self.first_refused: dict[tuple[str, str, str], str] = {}
        self._shapes = shapes
        self._by = by
        self._checkpoint = checkpoint
        self._stop = threading.Event()
        self._is_whole = True
        self.sums = self._nothing()

    def resume(self, files: Sequence[ReportFile]) -> None:
        """Take over what an earlier run has left, if it was of these files.

        Raises FileError if it was not.
        """
        if self._checkpoint is None or not Path(self._checkpoint).exists():
            return
        with pa.OSFile(os.fspath(self._checkpoint)) as file:
            data = file.read_buffer()
        body = data.slice(0, max(data.size - _HASH_BYTES, 0))
        if hashlib.sha256(body).digest() != data.slice(body.size).to_pybytes():
            self._mistrust("it is damaged")
        table = pq.read_table(pa.BufferReader(body))
        state = json.loads(table.schema.metadata[_STATE])
        if state["collections"] != self._collections():
            self._mistrust("it is of another registry")
        self.done = {(path, size, mtime) for path, size, mtime in state["files"]}
        self.first_refused = {tuple(key): path for key, path in state["first_refused"]}
        for path, _, _ in sorted(self.done - {file.identity for file in files}):
            self._mistrust(f"{path} was counted and is now missing or changed")
        for batch in table.to_batches():
            self.sums.add_sums(batch)

    def _mistrust(self, reason: str) -> NoReturn:
        assert self._checkpoint is not None
        raise FileError(self._checkpoint, f"{reason}: delete this checkpoint to begin anew")

    def _collections(self) -> list[list[Any]]:
        """Return what sums of a checkpoint must be of."""
        return [list(self._by), *sorted([*key, *shape] for key, shape in self._shapes.items())]

    def save(self) -> None:
        """Write a checkpoint, whole or not at all; none of a file whose sums are half added."""
        if self._checkpoint is None or not self._is_whole:
            return
        state = {
            "collections": self._collections(),
            "files": sorted(self.done),
            "first_refused": list(self.first_refused.items()),
        }
        schema = sum_schema(self._by).with_metadata({_STATE: json.dumps(state).encode()})
        with replace_file(self._checkpoint) as file:
            with pq.ParquetWriter(file, schema) as writer:
                for batch in self.sums.batches():
                    writer.write_batch(batch)
            file.flush()
            file.write(bytes.fromhex(hash_file(file.name)))

    def work(
        self, files: list[ReportFile], seconds: float, threads: int, progress: Progress
    ) -> None:
        """Add files up, and leave a checkpoint however that ends."""
        pool = ThreadPoolExecutor(threads)
        try:
            self._drain(files, pool, 2 * threads, seconds, progress)
        finally:
            self._stop.set()
            pool.shutdown(cancel_futures=True)
            self.save()

    def _drain(
        self,
        files: list[ReportFile],
        pool: ThreadPoolExecutor,
        most: int,
        seconds: float,
        progress: Progress,
    ) -> None:
        """Keep a few parts in the pool; take over a file when all its parts are summed."""
        total, n_bytes, saved = sum(file.size for file in files), 0, time.monotonic()
        parts = _parts(files)
        under_way: dict[Future[Sums], tuple[Chunk, int]] = {}
        unfinished: dict[str, tuple[Sums, int]] = {}
        while True:
            for part, n_parts in itertools.islice(parts, most - len(under_way)):
                under_way[pool.submit(self._sum_part, part)] = part, n_parts
            if not under_way:
                return
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                part, n_parts = under_way.pop(future)
                summed, n_summed = unfinished.pop(part.file.path, (self._nothing(), 0))
                summed.merge(future.result())
                if n_summed + 1 == n_parts:
                    self._take(part.file, summed)
                else:
                    unfinished[part.file.path] = summed, n_summed + 1
                n_bytes += part.size
                progress("adding up reports", n_bytes, total)
            if time.monotonic() - saved >= seconds:
                self.save()
                saved = time.monotonic()

    def _nothing(self) -> Sums:
        return Sums(self._shapes, self._by)

    def _sum_part(self, part: Chunk) -> Sums:
        sums = self._nothing()
        for batch in read_part(part, lambda reason, n: sums.refuse("", "", reason, n), self._by):
            if self._stop.is_set():
                break
            try:
                sums.add(batch)
            except ReportError as error:
                raise FileError(part.file.path, str(error)) from None
        return sums

    def _take(self, file: ReportFile, sums: Sums) -> None:
        """Add the sums of a file, and note that it is counted.

        An interruption may come between any two lines.
        """
        file.check_unchanged()
        self._is_whole = False
        self.sums.merge(sums)
        for key in sums.refused:
            first = self.first_refused.get(key, file.path)
            self.first_refused[key] = min(first, file.path)
        self.done.add(file.identity)
        self._is_whole = True


def _parts(files: Iterable[ReportFile]) -> Iterator[tuple[Chunk, int]]:
    """Yield the parts of each file, with their number."""
    for file in files:
        parts = parts_of(file)
        for part in parts:
            yield part, len(parts)
