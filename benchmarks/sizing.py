"""What a collector needs for a metric load: processors, disk and what is written, by shape."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.collector import ROOT, another_database, databases, load, serving
from benchmarks.tables import Table

_COHORTS: Final = 128
_GROUP: Final = 64
"""Uploads of a group, as 64 connections make it."""
_PEAK: Final = 4
"""Times the mean of a day."""
_SHAPES: Final = ((1, 128, 1), (20, 128, 1), (20, 1024, 1), (20, 128, 20), (20, 1024, 20))
"""Metrics, bits, and reports of an upload."""
_DEVICES: Final = (100_000, 1_000_000, 10_000_000)
_KEY_DAYS: Final = 14
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
    """Of an upload: seconds of processors, bytes kept as keys, bytes written."""

    seconds: float
    kept: float
    written: float


def sizing(*, quick: bool) -> list[Table]:
    """Measure the store's part of an upload, add HTTP's, and multiply by devices."""
    table = Table(
        title=f"sizing: each device reports each metric once a day, m = {_COHORTS}",
        columns=(
            *("database", "metrics", "k", "reports an upload", "devices a day"),
            *(
                "CPU an upload, us",
                f"cores at {_PEAK} times the mean",
                "disk, GB",
                "written, GB a day",
            ),
        ),
        note="CPU of reading, appending and folding, and of HTTP, measured by a POST that does "
        "nothing; on PostgreSQL with the server's processes. Disk: keys of "
        f"{_KEY_DAYS} days and the counters of two. Written: to the database and its log; on "
        "PostgreSQL the write-ahead log. Blocks and kept reports are not included.",
    )
    n_reports = 4096 if quick else 65_536
    with tempfile.TemporaryDirectory(dir=ROOT.parent) as folder, databases(folder) as urls:
        http = _http_seconds(Path(folder), urls["SQLite"], seconds=1.0 if quick else 5.0)
        for (label, url), shape in itertools.product(urls.items(), _SHAPES):
            if url:
                cost = _measure(Path(folder), url, *shape, n_reports=n_reports)
                for devices in _DEVICES:
                    table.rows.append([label, *shape, *_needs(cost, http, *shape, devices)])
    return [table]


def _needs(cost: _Cost, http: float, metrics: int, k: int, reports: int, devices: int) -> list[Any]:
    uploads = devices * metrics / reports
    seconds = cost.seconds + http
    counters = 2 * metrics * _COHORTS * k * 8
    return [
        f"{devices:,}",
        1e6 * seconds,
        _PEAK * uploads * seconds / 86_400,
        (uploads * cost.kept * _KEY_DAYS + counters) / 1e9,
        uploads * cost.written / 1e9,
    ]


def _http_seconds(folder: Path, url: str, *, seconds: float) -> float:
    """Return the processor's seconds that HTTP costs an upload."""
    with serving(folder, "nothing", url) as (port, process):
        before = _processor_seconds(process)
        found = load(port, seconds, 1)
        return (_processor_seconds(process) - before) / found["total"]


def _measure(
    folder: Path, url: str, metrics: int, k: int, reports: int, *, n_reports: int
) -> _Cost:
    """Read, append and fold uploads of a shape into a database of its own."""
    from rappor_server.ingest.accepted_params import AcceptedParams  # noqa: PLC0415 - the extra
    from rappor_server.ingest.validate import Suspicious, read_upload  # noqa: PLC0415
    from rappor_server.storage.database import open_engine  # noqa: PLC0415
    from rappor_server.storage.fold import fold  # noqa: PLC0415
    from rappor_server.storage.inbox import Group, open_inbox  # noqa: PLC0415
    from rappor_server.storage.record import encode  # noqa: PLC0415

    from rappor import Registry  # noqa: PLC0415

    entries = (_METRIC.format(i=i, k=k, m=_COHORTS) for i in range(metrics))
    registry = Registry.loads("[budget]\ntotal = inf\n" + "".join(entries))
    known, today = AcceptedParams(registry), datetime.datetime.now(datetime.UTC).date()
    bodies = list(_bodies(registry, reports, n_reports // reports))
    engine = open_engine(_fresh(folder, url))
    inbox, meter = open_inbox(engine), _Meter(engine)
    worth_it, waiting = max(16 * metrics * _COHORTS, 4096), 0
    for start in range(0, len(bodies), _GROUP):
        group = [
            read_upload(body, known, today=today, max_reports=1000, suspicious=Suspicious.ACCEPT)
            for body in bodies[start : start + _GROUP]
        ]
        params = {each.fingerprint: each.params for one in group for each in one.accepted}
        documents = {name: each.to_json() for name, each in params.items()}
        inbox.append(Group(today, reports * len(group), encode(group, {})), documents)
        waiting += reports * len(group)
        if waiting >= worth_it or start + _GROUP >= len(bodies):
            fold(engine, inbox, waits=True)
            waiting = 0
    seconds, written = meter.read()
    kept = meter.key_bytes(today) / len(bodies)
    inbox.close()
    engine.dispose()
    return _Cost(seconds / len(bodies), kept, written / len(bodies))


def _bodies(registry: Any, reports: int, n: int) -> Iterator[bytes]:
    """Make uploads whose reports are of the metrics in turn, with random cohorts and bits."""
    from rappor.protocol.wire import Report, Upload  # noqa: PLC0415

    metrics = itertools.cycle(registry.values())
    for _ in range(n):
        drawn = tuple(
            Report(
                metric=metric.name,
                params=metric.fingerprint,
                cohort=secrets.randbelow(_COHORTS),
                bits=secrets.token_bytes(metric.params.n_bytes),
            )
            for metric in itertools.islice(metrics, reports)
        )
        yield Upload(id=Upload.new_id(), reports=drawn).to_json()


def _fresh(folder: Path, url: str) -> str:
    """Make a database with the schema of this version beside the one at an address."""
    from rappor_server.storage.database import migrate  # noqa: PLC0415 - the extra 'server'

    name = f"sizing_{secrets.token_hex(8)}"
    is_sqlite = url.startswith("sqlite")
    own = f"sqlite:///{folder}/{name}.sqlite3" if is_sqlite else another_database(url, name)
    migrate(own)
    return own


def _processor_seconds(number: int, *, children: bool = False) -> float:
    """Return what a process has used, and its children, those that have ended too (proc(5))."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = path.read_text(encoding="ascii").rpartition(")")[2].split()
            if path.parent.name == str(number):
                found += sum(map(int, words[11 : 15 if children else 13]))
            elif children and words[1] == str(number):
                found += sum(map(int, words[11:13]))
    return found / os.sysconf("SC_CLK_TCK")


class _Meter:
    """What this process and a database's use: seconds of processors, and bytes written."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._is_postgresql = engine.dialect.name == "postgresql"
        self._before = self._now()

    def read(self) -> tuple[float, float]:
        """Return seconds and bytes since the start."""
        (before, written), (now, all_written) = self._before, self._now()
        return now - before, all_written - written

    def _now(self) -> tuple[float, float]:
        if not self._is_postgresql:
            written = dict(
                line.split(": ") for line in Path("/proc/self/io").read_text().splitlines()
            )
            return time.process_time(), float(written["write_bytes"])
        log = self._ask("SELECT pg_current_wal_lsn() - '0/0'")
        postmaster = Path(str(self._ask("SHOW data_directory"))) / "postmaster.pid"
        number = int(postmaster.read_text().split()[0])
        return time.process_time() + _processor_seconds(number, children=True), float(log)

    def key_bytes(self, day: datetime.date) -> int:
        """Return the size of the table of a day's keys."""
        name = f"upload_{day:%Y%m%d}"
        if self._is_postgresql:
            return int(self._ask(f"SELECT pg_total_relation_size('{name}')"))
        sizes = f"SELECT sum(pgsize) FROM dbstat WHERE name = '{name}'"  # noqa: S608 - our own
        return int(self._ask(sizes))

    def _ask(self, query: str) -> Any:
        from sqlalchemy import text  # noqa: PLC0415 - the extra 'server'

        with self._engine.connect() as db:
            return db.execute(text(query)).scalar_one()
