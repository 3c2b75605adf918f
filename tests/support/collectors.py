"""Uploads, registries and running collectors that the tests of the server share."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import plain_http
import registries
from programs import until
from rappor_server.ingest.accepted_params import AcceptedParams
from rappor_server.ingest.validate import Submission, Suspicious, read_upload
from rappor_server.operations.closing import close_all
from rappor_server.releases import releases
from rappor_server.storage import day_tables, schema, tokens
from rappor_server.storage.blocks import Rules, rules_in_force
from rappor_server.storage.bulk import insert_rows
from rappor_server.storage.database import open_database, utc_today, write_transaction
from rappor_server.storage.inbox import Batch, open_inbox
from rappor_server.storage.merge import MergeResult, merge, merge_all
from rappor_server.storage.record import Refusals, encode
from rappor_server.storage.tallies import Tally
from sqlalchemy import Engine, event, select, text

from rappor import Counts, Metric, Params, Registry
from rappor.protocol.wire import Report, Upload

T = TypeVar("T")
TODAY = datetime.date(2026, 11, 21)


def entry(name: str, **fields: Any) -> str:
    """Return the entry of a metric without a minimum as TOML. A field with None is left out."""
    defaults = {
        "description": "A metric of tests",
        "owner": "a@example.org",
        "expires": datetime.date(2100, 1, 1),
        "epoch": "life",
        "encoding": "bloom",
        "f": 0.5,
        "p": 0.25,
        "q": 0.75,
        "min_reports": 0,
    }
    lines = (
        f"{key} = {_toml(value)}\n"
        for key, value in (defaults | fields).items()
        if value is not None
    )
    return f"[metrics.{name}]\n{''.join(lines)}\n"


def _toml(value: Any) -> str:
    """Return a value as TOML. A dict is an inline table."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_toml(item)}' for key, item in value.items())}}}"
    return str(value) if isinstance(value, datetime.date) else json.dumps(value)


LOUD: dict[str, Any] = {"f": 0.0, "p": 0.05, "q": 0.95, "insecure": True}
"""Fields of noise that protects nobody, so that few reports show what was sent."""
UNBOUNDED = "[budget]\ntotal = inf\n"
REGISTRY = (
    UNBOUNDED
    + entry("page", k=16, m=4, candidates="pages.txt")
    + entry("sound", encoding="boolean")
    + entry("small", interval="day", k=16, m=4, min_reports=5, min_cohort=2)
    + entry("old", encoding="boolean", expires=datetime.date(2020, 1, 1))
)


ACCEPTED = AcceptedParams(Registry.loads(REGISTRY))
PARAMS = ACCEPTED.registry["page"].params
BOOLEAN = ACCEPTED.registry["sound"].params


def metric_of(name: str = "page", params: Params = PARAMS, **fields: Any) -> Metric:
    """Return a metric that expires in 2030."""
    return registries.metric_of(params, name, **{"expires": datetime.date(2030, 1, 1)} | fields)


def report_of(
    metric: str = "page", *, bits: int = 0x0F0F, cohort: int = 1, params: Params | None = None
) -> Report:
    """Return a report of a metric of REGISTRY."""
    params = params or ACCEPTED.registry[metric].params
    packed = (bits & ((1 << params.k) - 1)).to_bytes(params.n_bytes, "little")
    cohort = min(cohort, params.m - 1)
    return Report(metric=metric, params=params.fingerprint, cohort=cohort, bits=packed)


def upload_of(*reports: Report, upload_id: str | None = None) -> bytes:
    """Return the body of an upload of some reports, by default of one report."""
    chosen = reports or (report_of(),)
    return Upload(id=upload_id or Upload.new_id(), reports=tuple(chosen)).to_json()


def submission_of(
    body: bytes,
    accepted: AcceptedParams = ACCEPTED,
    *,
    today: datetime.date = TODAY,
    suspicious: Suspicious = Suspicious.ACCEPT,
) -> Submission:
    """Parse a body as the collector does; accept every popcount."""
    return read_upload(body, accepted, today=today, max_reports=1000, suspicious=suspicious)


def released(engine: Engine, name: str = "page") -> releases.Release:
    """Return all counts of a metric, without its minimum."""
    metric = Registry.loads(REGISTRY.replace("min_reports = 5", "min_reports = 0"))[name]
    return releases.read_release(engine, metric, datetime.date.min, datetime.date.max)


def rules_of(*metrics: Metric) -> dict[str, Rules]:
    """Return the rules of blocks under a registry that has these metrics."""
    return rules_in_force([registries.registry_of(*metrics)])


def close_days(engine: Engine, metric: Metric, today: datetime.date) -> None:
    """Close the blocks of all days of a metric before today."""
    close_all(engine, rules_of(metric), today)


def require_found(value: T | None) -> T:
    """Return the result of a search, and fail if the result is None."""
    assert value is not None
    return value


def total(engine: Engine, name: str = "page") -> int:
    """Return the number of counted reports of a metric."""
    return released(engine, name).n_reports


def rows_of(engine: Engine, kind: str) -> list[dict[str, Any]]:
    """Return the rows of the tables of all days of a kind."""
    with engine.connect() as db:
        return [
            dict(row) | {"day": day}
            for day in day_tables.list_days(db, kind)
            for row in db.execute(select(day_tables.table_of(kind, day))).mappings()
        ]


def commit(engine: Engine, *bodies: bytes, today: datetime.date = TODAY) -> list[Any]:
    """Store uploads as one batch, and merge the batch on a day; return the responses."""
    submissions = [submission_of(body) for body in bodies]
    count_group(engine, submissions, today=today)
    return [submission.response for submission in submissions]


def count_group(
    engine: Engine,
    submissions: Sequence[Submission],
    refusals: Refusals | None = None,
    *,
    today: datetime.date = TODAY,
) -> MergeResult:
    """Store uploads as one batch, and merge the batch on a day."""
    append(engine, submissions, refusals, today=today)
    return merge_now(engine, today=today)


def day(offset: int) -> datetime.date:
    """Return the day some days after TODAY."""
    return TODAY + datetime.timedelta(days=offset)


def append(
    engine: Engine,
    submissions: Sequence[Submission],
    refusals: Refusals | None = None,
    *,
    today: datetime.date = TODAY,
) -> None:
    """Store uploads as one batch in the inbox of a database."""
    accepted = [report for submission in submissions for report in submission.accepted]
    params = {report.fingerprint: report.params.to_json() for report in accepted}
    with contextlib.closing(open_inbox(engine)) as inbox:
        inbox.append(Batch(today, len(accepted), encode(submissions, refusals or {})), params)


def merge_now(engine: Engine, *, today: datetime.date = TODAY) -> MergeResult:
    """Merge all batches of the inbox on a day."""
    with contextlib.closing(open_inbox(engine)) as inbox:
        return merge(engine, inbox, wait=True, today=today)


_GIVEN_PORTS: set[int] = set()


@dataclass
class Running:
    """A collector in a process of its own."""

    process: subprocess.Popen[bytes]
    port: int
    folder: Path
    log: Path
    admin: int = 0
    """The port of operators, 0 where they have none of their own."""
    database: str = ""

    @property
    def url(self) -> str:
        """URL of the public address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        """URL of the admin address."""
        return f"http://127.0.0.1:{self.admin or self.port}"

    def post(self, body: bytes, **headers: str) -> httpx.Response:
        """Send an upload."""
        named = {"Content-Type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        return plain_http.post(f"{self.url}/v1/reports", content=body, headers=named, timeout=30)

    def get(self, path: str, token: str = "", **headers: str) -> httpx.Response:
        """Request a path, with a read token as an analyst, or without one as a device.

        Stored uploads are merged before an analyst reads.
        """
        if not token:
            return plain_http.get(f"{self.url}{path}", headers=headers, timeout=60)
        self.count()
        named = {"Authorization": f"Bearer {token}"}
        return plain_http.get(f"{self.admin_url}{path}", headers=named | headers, timeout=60)

    def ask(
        self, token: str, asked: object, *, metric: str = "page", query: str = "", **headers: str
    ) -> httpx.Response:
        """Request estimates with a JSON object or with bytes."""
        body = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
        named = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        self.count()
        url = f"{self.admin_url}/v1/metrics/{metric}/estimates{query}"
        return plain_http.post(url, content=body, headers=named, timeout=150)

    def count(self) -> None:
        """Merge stored uploads, as the merge process does a second later."""
        if self.database:
            with open_database(self.database) as engine:
                merge_all(engine)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of the log with an event."""
        lines = self.log.read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def children(self) -> dict[str, int]:
        """Return the numbers of the running child processes by their names."""
        return {name: number for number, name in self._children()}

    def children_named(self, name: str) -> list[int]:
        """Return the numbers of the running child processes with a name."""
        return [number for number, child_name in self._children() if child_name == name]

    def _children(self) -> list[tuple[int, str]]:
        command = ["ps", "-o", "stat=,pid=,comm=", "--ppid", str(self.process.pid)]
        lines = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        rows = [line.split() for line in lines.splitlines()]
        # A zombie has ended. Its state contains Z.
        return [(int(number), name) for state, number, name in rows if "Z" not in state]

    def kill(self) -> None:
        """Kill the collector and its child processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


def beside(engine: Engine, statement: str, other: Callable[[], object]) -> threading.Thread:
    """Let a thread run `other` before the next SQL statement that begins with `statement`.

    The statement continues when the thread has ended or waits for a lock of PostgreSQL. Returns the
    thread, which starts with the statement.
    """
    thread = threading.Thread(target=other)
    waiting = text("SELECT COUNT(*) FROM pg_locks WHERE NOT granted")

    def start(executed: str) -> None:
        if executed.startswith(statement) and thread.ident is None:
            thread.start()
            with engine.connect() as db:
                while thread.is_alive() and not db.scalar(waiting):
                    db.rollback()
                    thread.join(0.01)

    event.listen(engine, "before_cursor_execute", lambda *args: start(args[2]))
    return thread


def command(*arguments: str) -> list[str]:
    """Return the command line of rappor-server."""
    return [sys.executable, "-c", "from rappor_server.cli import main; main()", *arguments]


def run_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run rappor-server to its end."""
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )


_OF_TESTS = ("CI", "PYTEST_CURRENT_TEST")
"""Variables that the shell of a reader lacks. Programs with telemetry do nothing if one is set."""


def run_script(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a bash script in a folder with the commands of this project."""
    own = folder / ".commands"
    own.mkdir(exist_ok=True)
    for name in ("rappor", "rappor-client", "rappor-server"):
        module = name.replace("-", "_") + ".cli"
        program = own / name
        program.write_text(
            f"#!{sys.executable}\nimport sys\nfrom {module} import main\n"
            "if __name__ == '__main__':\n    sys.exit(main())\n"
        )
        program.chmod(0o755)
    for name in ("python", "python3"):
        python = own / name
        python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        python.chmod(0o755)
    bash = shutil.which("bash")
    assert bash, "documents and examples are written for bash"
    return subprocess.run(
        [bash, "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={name: text for name, text in os.environ.items() if name not in _OF_TESTS}
        | {
            "PATH": f"{own}{os.pathsep}{os.environ['PATH']}",
            "XDG_DATA_HOME": str(folder / ".data"),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def free_port() -> int:
    """Return a free port, a different one each time, below the range of outgoing connections."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if port not in _GIVEN_PORTS:
                _GIVEN_PORTS.add(port)
                return port


def launch(
    folder: Path,
    database: str,
    *flags: str,
    port: int = 0,
    admin: int = 0,
    registry: str = REGISTRY,
    **environment: str,
) -> Running:
    """Start a collector."""
    if admin:
        flags = ("--admin", f"127.0.0.1:{admin}", *flags)
    path = folder / "metrics.toml"
    if not path.exists():
        path.write_text(registry)
        (folder / "pages.txt").write_text("a\nb\n")
    port = port or free_port()
    log = folder / "collector.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command("serve", str(path), "--database", database, "--port", str(port), *flags),
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, **environment},
        )
    return Running(process, port, folder, log, admin, database)


def start(folder: Path, database: str, *flags: str, **more: Any) -> Running:
    """Start a collector, and wait until it is ready."""
    running = launch(folder, database, *flags, **more)
    try:
        wait_until_ready(running)
    except BaseException:
        running.kill()
        raise
    return running


def wait_until_ready(running: Running) -> None:
    """Wait until a collector is ready; fail with its log if its process ends."""

    def is_ready() -> bool:
        assert running.process.poll() is None, running.log.read_text()
        with contextlib.suppress(httpx.TransportError):
            return plain_http.get(f"{running.admin_url}/readyz", timeout=5).status_code == 200
        return False

    until(is_ready, 180)


@contextlib.contextmanager
def serving(folder: Path, database: str, *flags: str, **more: Any) -> Iterator[Running]:
    """Run a collector while the block runs."""
    running = start(folder, database, *flags, **more)
    try:
        yield running
    finally:
        running.kill()


def serving_file(
    folder: Path, *flags: str, **more: Any
) -> contextlib.AbstractContextManager[Running]:
    """Run a collector whose database is a file of the folder."""
    return serving(folder, f"sqlite:///{folder / 'counts.sqlite3'}", *flags, **more)


def make_token(database: str, *metrics: str, expires: datetime.date | None = None) -> str:
    """Create a token that may read some metrics, or all of them."""
    with open_database(database) as engine:
        today = utc_today()
        return tokens.create(engine, metrics=metrics or None, expires=expires, today=today)


def put(engine: Engine, counts: Counts, day: datetime.date) -> None:
    """Store counts as the counters of a day, as if their reports had come on the day."""
    params = counts.params
    kind = (counts.metric, params.fingerprint, day)
    rows = [
        (*kind, cohort, each.reports, each.to_bytes())
        for cohort, each in enumerate(map(Tally, counts.cohort_reports.tolist(), counts.bit_counts))
    ]
    with write_transaction(engine) as db:
        insert_rows(db, schema.params, [(params.fingerprint, params.to_json())])
        insert_rows(db, schema.tally, rows)
