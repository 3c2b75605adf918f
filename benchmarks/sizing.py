"""The resources that a collector needs for a load of metrics: processors, disk and written bytes.

Question: how many cores and gigabytes does a collector need for 100,000 to 10 million devices that
report each metric once a day? The cost of one upload is measured, and multiplied by the number of
uploads:

    processors     a whole collector with its merge process, and PostgreSQL's server, while 64
                   connections send uploads without pause
    disk, written  the store by itself: the keys, the counters and the log

The inbox is the durable queue of accepted uploads. An upload contains the reports of one or more
metrics. A batch is the uploads that one transaction writes into the inbox. Counters are the sums of
reports by metric, day and cohort. A merge adds the reports of the inbox to the counters.

The benchmark prints two tables. The first has the processors, the disk and the written bytes for
each load and number of devices. The second has the delay of an upload: the time until the inbox has
stored its batch, with and without another process that merges without pause.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import multiprocessing
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.collector import ROOT, create_database, create_databases, load, serve
from benchmarks.tables import Table
from rappor import Registry
from rappor.protocol.wire import Report, Upload

_COHORTS: Final = 128
"""Number of cohorts of every metric. A profile (named parameters, such as "balanced") has 128
cohorts for strings, too. The bytes of the counters are in proportion to this number."""
_BATCH: Final = 64
"""Number of uploads in a batch. 64 connections that send without pause produce such batches."""
_BATCHES_OF_APPENDS: Final = 16
"""Number of different batches that are appended in turn while delays are measured. More batches
have more different reports, and creating them takes longer."""
_PEAK: Final = 4
"""Load of the busiest time of a day, as a multiple of the mean load.

The number is an assumption: devices send most reports while people use them.
"""
_LOADS: Final = ((1, 128, 1), (20, 128, 1), (20, 1024, 1), (20, 128, 20), (20, 1024, 20))
"""Measured loads. A load is the number of metrics, the number of bits of a report and the number of
reports of an upload."""
_DEVICES: Final = (100_000, 1_000_000, 10_000_000)
"""Numbers of devices for which the resources are computed."""
_START_SECONDS: Final = 60.0
"""Longest time until a new process has merged its first batches, in seconds. A larger value delays
the error if the process cannot start."""
_KEY_DAYS: Final = 14
"""Number of days for which the collector stores the key of an upload, to recognize retries."""
_BATCHES_A_SECOND: Final = {1: 40, 20: 10}
"""Batches a second at which delays are measured, by the number of reports of an upload.

One process can append three times as many.
"""
_METRIC: Final = """
[metrics.m{i}]
description = "a"
owner = "b"
expires = 2100-01-01
epoch = "quarter"
encoding = "bloom"
k = {k}
m = {m}
f = 0.5
p = 0.25
q = 0.75
"""


class _Cost(NamedTuple):
    """Cost of the store for one upload.

    Attributes
    ----------
    key_bytes : bytes of its deduplication key on the disk, with the index
    written : bytes that are written to the disk
    """

    key_bytes: float
    written: float


def sizing(*, quick: bool) -> list[Table]:
    """Measure the cost of an upload, and multiply it by the number of devices."""
    resources = Table(
        title=f"sizing: each device reports each metric once a day, m = {_COHORTS}",
        columns=(
            "database",
            "metrics",
            "k",
            "reports an upload",
            "devices a day",
            "CPU an upload, us",
            f"cores at {_PEAK} times the mean",
            "disk, GB",
            "written, GB a day",
        ),
        note="CPU of a whole collector with its merge process, to which 64 connections send "
        "without pause; on PostgreSQL with the server's processes. Disk: keys of "
        f"{_KEY_DAYS} days and the counters of two days. Written: to the database and its log; on "
        "PostgreSQL the write-ahead log. Disk without the sums of earlier days, and without the "
        "files of an operator who stores each report.",
    )
    delays = Table(
        title=f"delays: batches of {_BATCH} uploads into the inbox at a third of the capacity, ms",
        columns=(
            "database",
            "metrics",
            "k",
            "reports an upload",
            "batches a second",
            "p99 without merges",
            "p99 while merging",
            "ratio",
            "longest without merges",
            "longest while merging",
        ),
        note='Delay of an upload until its commit. "While merging": another process merges without '
        "pause. This is the worst case, because the merge process of a collector pauses.",
    )
    n_reports = 4096 if quick else 65_536
    seconds = 1.0 if quick else 10.0
    with tempfile.TemporaryDirectory(dir=ROOT.parent) as folder, create_databases(folder) as urls:
        for (label, url), metrics_bits_reports in itertools.product(urls.items(), _LOADS):
            # The address of PostgreSQL is empty if its embedded server is not installed.
            if not url:
                continue
            cost = _measure_store(Path(folder), url, *metrics_bits_reports, n_reports=n_reports)
            processor = _measure_processor(
                Path(folder), url, *metrics_bits_reports, seconds=seconds
            )
            for devices in _DEVICES:
                figures = _compute_resources(cost, processor, *metrics_bits_reports, devices)
                resources.rows.append([label, *metrics_bits_reports, *figures])
            figures = _measure_delays(Path(folder), url, *metrics_bits_reports, quick=quick)
            delays.rows.append([label, *metrics_bits_reports, *figures])
    return [resources, delays]


def _measure_delays(
    folder: Path, url: str, metrics: int, k: int, reports: int, *, quick: bool
) -> list[float]:
    """Append batches at a steady rate, first without merges, and then while a process merges.

    Returns
    -------
    Batches a second; the 99th percentile of the delay in both cases, in milliseconds, and their
    ratio; the largest delay in both cases.
    """
    from rappor_server.storage.database import open_engine  # noqa: PLC0415 - the extra 'server'

    database = _create_database(folder, url)
    engine = open_engine(database)
    seconds = 2.0 if quick else 20.0
    bodies = list(_make_bodies(_make_registry(metrics, k), reports, _BATCHES_OF_APPENDS * _BATCH))
    batches = _renew_keys(list(_read_batches(_make_registry(metrics, k), bodies)))
    rate = _BATCHES_A_SECOND[reports]
    delays_without_merges = _time_appends(engine, batches, rate, seconds)
    processes = multiprocessing.get_context("spawn")
    has_merged = processes.Event()
    merge_process = processes.Process(target=_merge_forever, args=(database, has_merged))
    merge_process.start()
    try:
        # The new process first imports its modules. Appends in that time would meet no merge.
        if not has_merged.wait(_START_SECONDS):
            raise TimeoutError("the merge process has not merged the first batches")
        delays_while_merging = _time_appends(engine, batches, rate, seconds)
    finally:
        merge_process.terminate()
        merge_process.join()
        engine.dispose()
    # Both lists are sorted and have the same length.
    p99 = 99 * len(delays_without_merges) // 100
    return [
        rate,
        delays_without_merges[p99],
        delays_while_merging[p99],
        delays_while_merging[p99] / delays_without_merges[p99],
        delays_without_merges[-1],
        delays_while_merging[-1],
    ]


def _renew_keys(batches: list[list[Any]]) -> Iterator[list[Any]]:
    """Yield batches repeatedly with new keys, so that no upload is a retry."""
    import msgspec  # noqa: PLC0415 - the extra 'server'

    for batch in itertools.cycle(batches):
        yield [msgspec.structs.replace(upload, key=secrets.token_bytes(16)) for upload in batch]


def _time_appends(
    engine: Any, batches: Iterator[list[Any]], rate: int, seconds: float
) -> list[float]:
    """Append batches at a rate, and return the times of all appends in milliseconds, sorted."""
    from rappor_server.storage.inbox import open_inbox  # noqa: PLC0415 - the extra 'server'

    inbox, durations = open_inbox(engine), []
    start = time.perf_counter()
    for i in range(int(seconds * rate)):
        packed = _pack(next(batches))
        time.sleep(max(0.0, start + i / rate - time.perf_counter()))
        before = time.perf_counter()
        inbox.append(*packed)
        durations.append(1e3 * (time.perf_counter() - before))
    inbox.close()
    return sorted(durations)


def _merge_forever(url: str, has_merged: Event) -> None:
    """Merge all batches, until this process is ended. The first merge sets the event."""
    from rappor_server.storage.database import open_engine  # noqa: PLC0415 - the extra 'server'
    from rappor_server.storage.merge import merge_all  # noqa: PLC0415 - the extra 'server'

    engine = open_engine(url)
    while True:
        merge_all(engine)
        has_merged.set()


def _compute_resources(
    cost: _Cost, processor: float, metrics: int, k: int, reports: int, devices: int
) -> list[Any]:
    """Return the resources for a number of devices, in the order of the columns of `sizing`.

    The disk contains the keys of `_KEY_DAYS` days, and the counters of two days: 8 bytes for each
    bit of each cohort.

    Parameters
    ----------
    cost : cost of an upload in the store
    processor : processor seconds of an upload in a whole collector
    metrics, k, reports : the load, see `_LOADS`
    devices : number of devices, each of which reports each metric once a day
    """
    uploads = devices * metrics / reports
    counters = 2 * metrics * _COHORTS * k * 8
    return [
        f"{devices:,}",
        1e6 * processor,
        _PEAK * uploads * processor / 86_400,
        (uploads * cost.key_bytes * _KEY_DAYS + counters) / 1e9,
        uploads * cost.written / 1e9,
    ]


def _measure_processor(
    folder: Path, url: str, metrics: int, k: int, reports: int, *, seconds: float
) -> float:
    """Return the processor seconds of an upload in a whole collector with its processes.

    The merge process leaves uploads of the last minute in the inbox. This process merges them, and
    its own time counts, too.
    """
    from rappor_server.storage.database import open_engine  # noqa: PLC0415 - the extra 'server'
    from rappor_server.storage.merge import merge_all  # noqa: PLC0415 - the extra 'server'

    database = _create_database(folder, url)
    engine = open_engine(database)
    with serve(folder, "collector", database, _make_toml(metrics, k)) as (port, pid, path):
        # The first uploads fill caches and start the merge process, and do not count.
        load(port, 1.0, reports, path)
        merge_all(engine)
        meter, before = _Meter(engine), _read_processor_seconds(pid, children=True)
        figures = load(port, seconds, reports, path)
        merge_all(engine)
        after = _read_processor_seconds(pid, children=True)
        used = meter.read()[0] + after - before
    engine.dispose()
    assert not figures["bad"], f"{figures['bad']} uploads were turned away"
    return float(used / figures["total"])


def _measure_store(
    folder: Path, url: str, metrics: int, k: int, reports: int, *, n_reports: int
) -> _Cost:
    """Read, append and merge uploads in a separate database, and return the cost of one upload."""
    from rappor_server.storage.database import open_engine  # noqa: PLC0415 - the extra 'server'
    from rappor_server.storage.inbox import open_inbox  # noqa: PLC0415 - the extra 'server'
    from rappor_server.storage.merge import merge  # noqa: PLC0415 - the extra 'server'

    registry = _make_registry(metrics, k)
    bodies = list(_make_bodies(registry, reports, n_reports // reports))
    engine = open_engine(_create_database(folder, url))
    inbox, meter = open_inbox(engine), _Meter(engine)
    # A merge rewrites the counters of every metric and cohort. As in the collector, a merge begins
    # when 16 reports for each counter wait, and at least 4,096 reports.
    merge_size, n_waiting = max(16 * metrics * _COHORTS, 4096), 0
    for batch in _read_batches(registry, bodies):
        inbox.append(*_pack(batch))
        n_waiting += reports * len(batch)
        if n_waiting >= merge_size:
            merge(engine, inbox, wait=True)
            n_waiting = 0
    merge(engine, inbox, wait=True)
    today = datetime.datetime.now(datetime.UTC).date()
    _, written = meter.read()
    key_bytes = meter.read_key_bytes(today) / len(bodies)
    inbox.close()
    engine.dispose()
    return _Cost(key_bytes, written / len(bodies))


def _make_registry(metrics: int, k: int) -> Registry:
    """Return a registry of equal metrics with k bits."""
    return Registry.loads(_make_toml(metrics, k))


def _make_toml(metrics: int, k: int) -> str:
    """Return the text of a registry of equal metrics with k bits."""
    entries = (_METRIC.format(i=i, k=k, m=_COHORTS) for i in range(metrics))
    return "[budget]\ntotal = inf\n" + "".join(entries)


def _read_batches(registry: Registry, bodies: list[bytes]) -> Iterator[list[Any]]:
    """Read uploads, a batch at a time."""
    # Both modules need the extra 'server'.
    from rappor_server.ingest.accepted_params import AcceptedParams  # noqa: PLC0415
    from rappor_server.ingest.validate import Suspicious, read_upload  # noqa: PLC0415

    accepted_params, today = AcceptedParams(registry), datetime.datetime.now(datetime.UTC).date()
    for start in range(0, len(bodies), _BATCH):
        yield [
            read_upload(
                body, accepted_params, today=today, max_reports=1000, suspicious=Suspicious.ACCEPT
            )
            for body in bodies[start : start + _BATCH]
        ]


def _pack(batch: list[Any]) -> tuple[Any, dict[str, str]]:
    """Return a batch as the inbox stores it, and its parameters by fingerprint."""
    from rappor_server.storage.inbox import Batch  # noqa: PLC0415 - the extra 'server'
    from rappor_server.storage.record import encode  # noqa: PLC0415 - the extra 'server'

    accepted = [report for upload in batch for report in upload.accepted]
    params_of_fingerprint = {report.fingerprint: report.params for report in accepted}
    params_json = {
        fingerprint: params.to_json() for fingerprint, params in params_of_fingerprint.items()
    }
    today = datetime.datetime.now(datetime.UTC).date()
    # The empty mapping: no upload was refused before it was parsed.
    return Batch(today, len(accepted), encode(batch, {})), params_json


def _make_bodies(registry: Registry, reports: int, n: int) -> Iterator[bytes]:
    """Create uploads whose reports belong to the metrics in turn, with random cohorts and bits."""
    metrics = itertools.cycle(registry.values())
    for _ in range(n):
        upload_reports = tuple(
            Report(
                metric=metric.name,
                params=metric.fingerprint,
                cohort=secrets.randbelow(_COHORTS),
                bits=secrets.token_bytes(metric.params.n_bytes),
            )
            for metric in itertools.islice(metrics, reports)
        )
        yield Upload(id=Upload.new_id(), reports=upload_reports).to_json()


def _create_database(folder: Path, url: str) -> str:
    """Create an empty database with the tables of this version, and return its address.

    On PostgreSQL, the new database belongs to the server that has the database `url`. On SQLite,
    the new database is a file in `folder`.
    """
    from rappor_server.storage.schema_versions import migrate  # noqa: PLC0415 - the extra 'server'

    name = f"sizing_{secrets.token_hex(8)}"
    is_sqlite = url.startswith("sqlite")
    database = f"sqlite:///{folder}/{name}.sqlite3" if is_sqlite else create_database(url, name)
    migrate(database)
    return database


def _read_processor_seconds(pid: int, *, children: bool = False) -> float:
    """Return the processor seconds of a process on Linux.

    With `children`, the seconds of the children of the process are added.

    The fields of /proc/PID/stat (proc(5)), counted from 1:

        2           name of the program in brackets, which may contain spaces
        4           PID of the parent
        14, 15      ticks of the process in user mode and in the kernel
        16, 17      the same of its children that have ended

    The text after the closing bracket begins with field 3, so field n has the index n - 3.
    """
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = path.read_text(encoding="ascii").rpartition(")")[2].split()
            if path.parent.name == str(pid):
                ticks += sum(map(int, words[11 : 15 if children else 13]))
            elif children and words[1] == str(pid):
                ticks += sum(map(int, words[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


class _Meter:
    """Processor seconds and written bytes of this process and of the process of the database."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._is_postgresql = engine.dialect.name == "postgresql"
        self._before = self._read_now()

    def read(self) -> tuple[float, float]:
        """Return the processor seconds and the written bytes since this object was created."""
        (before, written), (now, all_written) = self._before, self._read_now()
        return now - before, all_written - written

    def _read_now(self) -> tuple[float, float]:
        """Return the processor seconds and the written bytes until now.

        On PostgreSQL, the processor seconds contain the server's, and the written bytes are the
        position of the write-ahead log.
        """
        if not self._is_postgresql:
            written = dict(
                line.split(": ") for line in Path("/proc/self/io").read_text().splitlines()
            )
            return time.process_time(), float(written["write_bytes"])
        log = self._query("SELECT pg_current_wal_lsn() - '0/0'")
        postmaster = Path(str(self._query("SHOW data_directory"))) / "postmaster.pid"
        pid = int(postmaster.read_text().split()[0])
        return time.process_time() + _read_processor_seconds(pid, children=True), float(log)

    def read_key_bytes(self, day: datetime.date) -> int:
        """Return the size of the table with the keys of a day."""
        name = f"upload_{day:%Y%m%d}"
        if self._is_postgresql:
            return int(self._query(f"SELECT pg_total_relation_size('{name}')"))
        sizes = f"SELECT sum(pgsize) FROM dbstat WHERE name = '{name}'"  # noqa: S608 - our own
        return int(self._query(sizes))

    def _query(self, query: str) -> Any:
        """Run a query, and return its single value."""
        from sqlalchemy import text  # noqa: PLC0415 - the extra 'server'

        with self._engine.connect() as db:
            return db.execute(text(query)).scalar_one()
