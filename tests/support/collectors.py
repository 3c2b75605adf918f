"""Uploads, registries and running collectors that the tests of the server share."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import plain_http
import registries
from click.testing import CliRunner
from collector_forks import Fork, fork
from programs import wait_until
from rappor_server.cli.command_group import run
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
from sqlalchemy import Engine, select
from warm_commands import locate_commands, write_commands

from rappor import Counts, Metric, Params, Registry
from rappor.protocol.wire import Report, Upload

T = TypeVar("T")
TODAY = datetime.date(2026, 11, 21)
"""Day on which the uploads of a test come, unless the test passes another day."""


def format_entry(name: str, **fields: Any) -> str:
    """Return the entry of a metric as TOML, by default without a minimum of reports.

    A field of the entry that is None is left out, so that the registry's own default applies.
    """
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
    """Return a value as TOML. A dictionary becomes an inline table."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_toml(item)}' for key, item in value.items())}}}"
    return str(value) if isinstance(value, datetime.date) else json.dumps(value)


LOUD: dict[str, Any] = {"f": 0.0, "p": 0.05, "q": 0.95, "insecure": True}
"""Noise of an entry that is too small to protect a device. A few reports are enough to estimate the
shares, so tests of pages and results are fast."""

UNBOUNDED = "[budget]\ntotal = inf\n"
"""Budget of a registry in which the cost of the metrics does not matter."""

REGISTRY = (
    UNBOUNDED
    + format_entry("page", k=16, m=4, candidates="pages.txt")
    + format_entry("sound", encoding="boolean")
    + format_entry("small", interval="day", k=16, m=4, min_reports=5, min_cohort=2)
    + format_entry("old", encoding="boolean", expires=datetime.date(2020, 1, 1))
)
"""Registry of most collectors: a metric of strings with a list of candidates, a boolean metric, a
metric with a minimum of 5 reports and of 2 reports in a cohort, and an expired metric."""

ACCEPTED = AcceptedParams(Registry.loads(REGISTRY))
"""Parameter sets that a collector with `REGISTRY` accepts."""

PARAMS = ACCEPTED.registry["page"].params
"""Parameters of `page`, which has 16 bits and 4 cohorts."""
BOOLEAN = ACCEPTED.registry["sound"].params
"""Parameters of `sound`, which has 1 bit and 1 cohort."""


def build_metric(name: str = "page", params: Params = PARAMS, **fields: Any) -> Metric:
    """Return a metric that expires in 2030."""
    return registries.build_metric(params, name, **{"expires": datetime.date(2030, 1, 1)} | fields)


def build_report(
    metric: str = "page", *, bits: int = 0x0F0F, cohort: int = 1, params: Params | None = None
) -> Report:
    """Return a report of a metric of `REGISTRY`.

    `bits` is an integer whose bit i is bit i of the report. Bits beyond k - 1 are dropped, and a
    metric with fewer cohorts gets its last cohort.
    """
    params = params or ACCEPTED.registry[metric].params
    packed = (bits & ((1 << params.k) - 1)).to_bytes(params.n_bytes, "little")
    cohort = min(cohort, params.m - 1)
    return Report(metric=metric, params=params.fingerprint, cohort=cohort, bits=packed)


def build_upload(*reports: Report, upload_id: str | None = None) -> bytes:
    """Return the body of an upload of some reports, by default of one report."""
    chosen = reports or (build_report(),)
    return Upload(id=upload_id or Upload.new_id(), reports=tuple(chosen)).to_json()


def parse_submission(
    body: bytes,
    accepted: AcceptedParams = ACCEPTED,
    *,
    today: datetime.date = TODAY,
    suspicious: Suspicious = Suspicious.ACCEPT,
) -> Submission:
    """Parse a body as the collector does; accept every popcount."""
    return read_upload(body, accepted, today=today, max_reports=1000, suspicious=suspicious)


def read_counts_without_minimum(engine: Engine, name: str = "page") -> releases.Release:
    """Return a release of all counts of a metric of `REGISTRY`, as if it had no minimum."""
    metric = Registry.loads(REGISTRY.replace("min_reports = 5", "min_reports = 0"))[name]
    return releases.read_release(engine, metric, datetime.date.min, datetime.date.max)


def build_rules(*metrics: Metric) -> dict[str, Rules]:
    """Return the rules by which the blocks of these metrics close, by the names of the metrics."""
    return rules_in_force([registries.build_registry(*metrics)])


def close_days(engine: Engine, metric: Metric, today: datetime.date) -> None:
    """Close the blocks of all days of a metric before today."""
    close_all(engine, build_rules(metric), today)


def require_found(value: T | None) -> T:
    """Return the result of a search, and fail if the result is None."""
    assert value is not None
    return value


def count_reports(engine: Engine, name: str = "page") -> int:
    """Return the number of reports of a metric that are merged into counters."""
    return read_counts_without_minimum(engine, name).n_reports


def read_day_rows(engine: Engine, kind: str) -> list[dict[str, Any]]:
    """Return the rows of all tables of a kind, each row with its day.

    The collector's database has one table of each kind for each day (`day_tables`).
    """
    with engine.connect() as db:
        return [
            dict(row) | {"day": day}
            for day in day_tables.list_days(db, kind)
            for row in db.execute(select(day_tables.table_of(kind, day))).mappings()
        ]


def commit(engine: Engine, *bodies: bytes, today: datetime.date = TODAY) -> list[Any]:
    """Parse bodies, store the uploads as one batch, and merge it. Return the response to each."""
    submissions = [parse_submission(body) for body in bodies]
    store_and_merge(engine, submissions, today=today)
    return [submission.response for submission in submissions]


def store_and_merge(
    engine: Engine,
    submissions: Sequence[Submission],
    refusals: Refusals | None = None,
    *,
    today: datetime.date = TODAY,
) -> MergeResult:
    """Store uploads as one batch, and merge the batch, with `today` as the day of both steps."""
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


_USED_PORTS: set[int] = set()
"""Ports that `find_free_port` has returned. A collector may not listen on its port yet."""


@dataclass
class Running:
    """A collector in a process of its own."""

    process: subprocess.Popen[bytes] | Fork
    port: int
    folder: Path
    log: Path
    admin: int = 0
    """Port of the admin address, 0 if the public address serves operators, too."""
    database: str = ""
    """Address of the database, empty if the test cannot open it."""

    @property
    def url(self) -> str:
        """URL of the public address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        """URL of the admin address."""
        return f"http://127.0.0.1:{self.admin or self.port}"

    def post(self, body: bytes, **headers: str) -> httpx.Response:
        """Send an upload. An underscore in the name of a header stands for a hyphen."""
        all_headers = {"Content-Type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        url = f"{self.url}/v1/reports"
        return plain_http.post(url, content=body, headers=all_headers, timeout=30)

    def get(self, path: str, token: str = "", **headers: str) -> httpx.Response:
        """Request a path, with a read token as an analyst, or without one as a device.

        Stored uploads are merged before an analyst reads.
        """
        if not token:
            return plain_http.get(f"{self.url}{path}", headers=headers, timeout=60)
        self.merge_uploads()
        all_headers = {"Authorization": f"Bearer {token}"} | headers
        return plain_http.get(f"{self.admin_url}{path}", headers=all_headers, timeout=60)

    def request_estimates(
        self, token: str, options: object, *, metric: str = "page", query: str = "", **headers: str
    ) -> httpx.Response:
        """Request estimates as an analyst. `options` are a JSON object, or bytes of a body."""
        body = options if isinstance(options, bytes) else json.dumps(options).encode()
        all_headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        all_headers |= {name.replace("_", "-"): value for name, value in headers.items()}
        self.merge_uploads()
        url = f"{self.admin_url}/v1/metrics/{metric}/estimates{query}"
        return plain_http.post(url, content=body, headers=all_headers, timeout=150)

    def merge_uploads(self) -> None:
        """Merge stored uploads now. Otherwise the merge process would merge them a second later."""
        if self.database:
            with open_database(self.database) as engine:
                merge_all(engine)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of the log whose event has this name."""
        lines = self.log.read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def children(self) -> dict[str, int]:
        """Return the process ids of the running child processes by their names."""
        return {name: number for number, name in self._children()}

    def children_named(self, name: str) -> list[int]:
        """Return the process ids of the running child processes that have a name."""
        return [number for number, child_name in self._children() if child_name == name]

    def _children(self) -> list[tuple[int, str]]:
        """Return process id and name of each running child process."""
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


def build_command(*arguments: str) -> list[str]:
    """Return the command line of `rappor-server` with these arguments."""
    return [sys.executable, "-c", "from rappor_server.cli import main; main()", *arguments]


def call_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run rappor-server in this process.

    A new interpreter would import the packages for a second, which is longer than most commands.
    """
    with CliRunner().isolation(env=environment) as (stdout, stderr, _):
        code = run(arguments)
        return subprocess.CompletedProcess(
            arguments, code, stdout.getvalue().decode(), stderr.getvalue().decode()
        )


def run_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run rappor-server in a process of its own, which is a fork with the imports."""
    return subprocess.run(
        [str(locate_commands() / "rappor-server"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )


_TEST_VARIABLES = ("CI", "PYTEST_CURRENT_TEST")
"""Environment variables that only tests have. The shell of a reader lacks them. If one is set,
telemetry is off, and a script of a page would print something else."""


def run_script(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a bash script in a folder. Commands of this project run the code of the repository."""
    commands = folder / ".commands"
    commands.mkdir(exist_ok=True)
    write_commands(commands)
    bash = shutil.which("bash")
    assert bash, "documents and examples are written for bash"
    return subprocess.run(
        [bash, "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={name: text for name, text in os.environ.items() if name not in _TEST_VARIABLES}
        | {
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "XDG_DATA_HOME": str(folder / ".data"),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def find_free_port() -> int:
    """Return a port on which no program listens, another port at each call.

    The port is below 32,768, where Linux begins to take ports for outgoing connections. Otherwise
    a connection could take the port before the collector listens.
    """
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if port not in _USED_PORTS:
                _USED_PORTS.add(port)
                return port


def launch(
    folder: Path,
    database: str,
    *flags: str,
    port: int = 0,
    admin: int = 0,
    registry: str = REGISTRY,
    is_forked: bool = False,
    **environment: str,
) -> Running:
    """Start a collector, and do not wait until it is ready.

    `flags` are arguments of `rappor-server serve`, and `environment` are environment variables. A
    registry that stands in the folder already is not written again. A collector that is forked
    (`collector_forks`) has no imports to make, which are most of the CPU time of a start.
    """
    if admin:
        flags = ("--admin", f"127.0.0.1:{admin}", *flags)
    path = folder / "metrics.toml"
    if not path.exists():
        path.write_text(registry)
        (folder / "pages.txt").write_text("a\nb\n")
    port = port or find_free_port()
    log = folder / "collector.log"
    words = ["serve", str(path), "--database", database, "--port", str(port), *flags]
    variables = {**os.environ, **environment}
    process: subprocess.Popen[bytes] | Fork
    if is_forked:
        process = fork(words, log, variables)
    else:
        with log.open("ab") as output:
            process = subprocess.Popen(
                build_command(*words),
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=variables,
            )
    return Running(process, port, folder, log, admin, database)


def start(folder: Path, database: str, *flags: str, **more: Any) -> Running:
    """Fork a collector, and wait until it is ready."""
    running = launch(folder, database, *flags, is_forked=True, **more)
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

    wait_until(is_ready, 180)


@contextlib.contextmanager
def run_collector(folder: Path, database: str, *flags: str, **more: Any) -> Iterator[Running]:
    """Run a collector during a `with` block. The arguments are those of `launch`."""
    running = start(folder, database, *flags, **more)
    try:
        yield running
    finally:
        running.kill()


def run_file_collector(
    folder: Path, *flags: str, **more: Any
) -> contextlib.AbstractContextManager[Running]:
    """Run a collector during a `with` block, with an SQLite file in the folder as its database."""
    return run_collector(folder, f"sqlite:///{folder / 'counts.sqlite3'}", *flags, **more)


def make_token(database: str, *metrics: str, expires: datetime.date | None = None) -> str:
    """Create a token that may read some metrics, or all of them."""
    with open_database(database) as engine:
        today = utc_today()
        return tokens.create(engine, metrics=metrics or None, expires=expires, today=today)


def store_counts(engine: Engine, counts: Counts, day: datetime.date) -> None:
    """Store counts as the counters of a day, as if their reports had come on the day."""
    params = counts.params
    kind = (counts.metric, params.fingerprint, day)
    rows = [
        (*kind, cohort, tally.reports, tally.to_bytes())
        for cohort, tally in enumerate(
            map(Tally, counts.cohort_reports.tolist(), counts.bit_counts)
        )
        if tally.reports
    ]
    with write_transaction(engine) as db:
        insert_rows(db, schema.params, [(params.fingerprint, params.to_json())], skip_stored=True)
        insert_rows(db, schema.tally, rows)
