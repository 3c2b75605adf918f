"""A thief with all tables, SQLite's files or a backup, after a busy day: sums, and no report.

Each attack is shown to work where something is left to find.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import hmac
import itertools
import json
import math
import random
import secrets
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from collectors import (
    TODAY,
    UNBOUNDED,
    close_days,
    count_group,
    entry,
    merge_now,
    metric_of,
    serving,
    submission_of,
    upload_of,
)
from collectors import report_of as page_report
from rappor_server.ingest.accepted_params import AcceptedParams
from rappor_server.ingest.retry_keys import key_of_upload
from rappor_server.operations.backup import backup
from rappor_server.operations.retention import prune
from rappor_server.storage.database import (
    erase_traces,
    migrate,
    open_database,
    sqlite_url,
)
from rappor_server.storage.inbox import Batch, open_inbox
from rappor_server.storage.merge import retry_unreadable
from rappor_server.storage.record import encode
from sqlalchemy import Engine, inspect, text

from rappor import Params, Registry
from rappor.protocol.wire import Report, Upload

N_GROUPS, N_UPLOADS = 12, 10
N_MARKED = N_GROUPS * N_UPLOADS  # half of them have two reports
TOMORROW = TODAY + datetime.timedelta(days=1)
AS_USUAL = {"interval": None, "min_reports": None}
REGISTRY = Registry.loads(
    UNBOUNDED
    + entry("sound", encoding="boolean", **AS_USUAL)
    + entry("theme", encoding="onehot", categories=["light", "dark", "red"], **AS_USUAL)
    + entry("page", k=16, m=2, **AS_USUAL)
)
ACCEPTED = AcceptedParams(REGISTRY)
WIDE = metric_of(params=Params(k=128, m=4, f=0.5, p=0.25, q=0.75))


def report(metric: str, bits: int, cohort: int = 0) -> Report:
    """Return a report with these bits."""
    params = REGISTRY[metric].params
    packed = (bits % (1 << params.k)).to_bytes(params.n_bytes, "little")
    return Report(metric=metric, params=params.fingerprint, cohort=cohort, bits=packed)


def bodies_of_a_day(seed: int) -> list[list[bytes]]:
    """Return groups of uploads, which are alike for all seeds but for bits and ids.

    In a group there are uploads of one boolean, of one category, of both, and of two strings. The
    strings' bits are the number of the report in the order of arrival.
    """
    rng = random.Random(seed)  # noqa: S311 - a test's day
    numbers = itertools.count()

    def upload(i: int) -> bytes:
        small = report("sound", rng.getrandbits(1)), report("theme", 1 << rng.randrange(3))
        marked = report("page", next(numbers), 0), report("page", next(numbers), 1)
        chosen = [small[:1], small[1:], small][i // 2 % 3] if i % 2 else marked
        return Upload(id=Upload.new_id(), reports=chosen).to_json()

    return [[upload(i) for i in range(N_UPLOADS)] for _ in range(N_GROUPS)]


def live_through(database: str, groups: list[list[bytes]]) -> Iterator[Engine]:
    """Store a day's uploads by collectors that end now and then; yield after each group."""
    for start in range(0, len(groups), 4):
        with open_database(database) as engine:
            for group in groups[start : start + 4]:
                submissions = [submission_of(body, ACCEPTED) for body in group]
                count_group(engine, submissions, {("", "malformed"): 1}, today=TODAY)
                yield engine


class Loot:
    """What a thief has: an engine on a database or a backup, and the day's bodies to check by."""

    def __init__(self, engine: Engine, groups: list[list[bytes]]) -> None:
        self.engine = engine
        self.bodies = [body for group in groups for body in group]
        self.ids = self.ids_of(self.bodies)

    @staticmethod
    def ids_of(bodies: Iterable[bytes]) -> list[bytes]:
        """Return the ids of uploads."""
        return [base64.urlsafe_b64decode(json.loads(body)["id"] + "==") for body in bodies]

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return all rows of all tables, in the order in which they lie."""
        hidden = "ctid::text, xmin::text AS writer, " if self.is_postgresql else ""
        found = {}
        with self.engine.connect() as db:
            for name in inspect(self.engine).get_table_names():
                rows = db.execute(text(f'SELECT {hidden}* FROM "{name}"'))  # noqa: S608
                found[name] = [dict(row) for row in rows.mappings()]
        return found

    @property
    def is_postgresql(self) -> bool:
        """Return whether rows show who wrote them."""
        return self.engine.dialect.name == "postgresql"

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Return the rows of the tables of one kind."""
        return [
            row for name, rows in self.tables().items() if name.startswith(kind) for row in rows
        ]


@pytest.fixture(params=["database", "backup"])
def loot(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Iterator[Loot]:
    """A database on the day after a busy one, or a backup of it."""
    migrate(database)
    groups = bodies_of_a_day(1)
    for _ in live_through(database, groups):
        pass
    with open_database(database) as engine:
        prune(engine, today=TOMORROW)
    address = database
    if request.param == "backup":
        copy = tmp_path / "copy"
        backup(database, copy)
        address = sqlite_url(copy)
    with open_database(address) as engine:
        yield Loot(engine, groups)


def as_bytes(value: object) -> bytes:
    """Return a cell of a row as bytes."""
    if isinstance(value, uuid.UUID):
        return value.bytes
    return value if isinstance(value, bytes) else str(value).encode()


def windows(cells: Iterable[bytes]) -> Iterator[bytes]:
    """Yield every piece of a row that could be an id."""
    for cell in cells:
        yield from (cell[i : i + 16] for i in range(len(cell) - 15))


def guess(row: dict[str, Any], ids: Iterable[bytes]) -> bytes | None:
    """Try all uploads of one boolean or category, under ids, against the hashes of a row."""
    cells = {as_bytes(cell) for cell in row.values()}
    booleans = [report("sound", bit) for bit in (0, 1)]
    categories = [report("theme", 1 << i) for i in range(3)]
    small = [(one,) for one in booleans + categories]
    both = list(itertools.product(booleans, categories))
    for own_id in ids:
        name = base64.urlsafe_b64encode(own_id).rstrip(b"=").decode()
        for reports in (*small, *both):
            body = Upload(id=name, reports=reports).to_json()
            tried = {hashlib.sha256(body).digest(), hmac.digest(own_id, body, "sha256")[:16]}
            if tried & cells:
                return body
    return None


@pytest.mark.slow
def test_no_upload_is_found_by_trying(loot: Loot) -> None:
    """Not even that of a boolean; whoever has the id, or a plain hash beside it, finds it."""
    rows = loot.of_kind("upload")
    assert len(rows) == N_MARKED
    assert [guess(row, windows(map(as_bytes, row.values()))) for row in rows] == [None] * N_MARKED
    small = next(body for body in loot.bodies if b'"sound"' in body)
    own_id = loot.ids[loot.bodies.index(small)]
    plain = {"id": own_id, "digest": hashlib.sha256(small).digest()}
    assert guess(plain, windows(plain.values())) == small
    (known,) = [row for row in rows if as_bytes(row["key"]) == key_of_upload(own_id, small)]
    assert guess(known, [own_id]) == small
    assert set(known) - {"ctid", "writer"} == {"key"}


@pytest.mark.slow
def test_no_id_is_anywhere(loot: Loot) -> None:
    """Not in a cell of any table, nor in SQLite's files, as bytes or as text."""
    stolen = b"\n".join(
        as_bytes(cell) for rows in loot.tables().values() for row in rows for cell in row.values()
    )
    if not loot.is_postgresql:
        path = Path(str(loot.engine.url.database))
        erase_traces(path)
        stolen += b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))
    for own_id in loot.ids:
        assert own_id not in stolen
        assert base64.urlsafe_b64encode(own_id).rstrip(b"=") not in stolen
    assert key_of_upload(loot.ids[0], loot.bodies[0]) in stolen  # the search finds what is there


@pytest.mark.slow
def test_no_row_of_counts_is_one_report(loot: Loot) -> None:
    """Every row is the sum of many reports, although the collector began anew twice."""
    rows = loot.tables()["tally"]
    totals = {(row["metric"], row["cohort"]): row["reports"] for row in rows}
    assert set(totals) == {("sound", 0), ("theme", 0), ("page", 0), ("page", 1)}
    assert len(rows) == len(totals)
    assert min(totals.values()) >= 10


@pytest.mark.slow
def test_no_block_is_one_report(loot: Loot) -> None:
    """What is released the next day is in rows of at least ten reports, and in no other."""
    engine = loot.engine
    for metric in REGISTRY.values():
        close_days(engine, metric, TOMORROW)
    tables = loot.tables()
    assert tables["tally"] == []
    assert all(row["closed"] and row["reports"] >= 10 for row in tables["block"])
    assert sum(row["reports"] for row in tables["block"]) > N_MARKED


TOLD = ("upload", "tally", "block", "last_merged", "inbox_number", "inbox_13")
"""The tables, or kinds of them, that depend on what devices sent; the attacks are on these.
The last three count folds, and each database uses its own."""


@pytest.mark.slow
def test_all_other_tables_are_the_same_whatever_was_sent(database: str, tmp_path: Path) -> None:
    """A day of other bits, of other ids, leaves the same rows: so they tell nothing of either."""
    found = []
    for seed, address in ((1, database), (2, sqlite_url(tmp_path / "other"))):
        migrate(address)
        for _ in live_through(address, bodies_of_a_day(seed)):
            pass
        with open_database(address) as engine:
            tables = Loot(engine, []).tables()
        found.append(
            {
                name: sorted(
                    json.dumps(
                        {key: cell for key, cell in row.items() if key not in ("ctid", "writer")},
                        default=str,
                        sort_keys=True,
                    )
                    .replace("true", "1")
                    .replace("false", "0")
                    for row in rows
                )
                for name, rows in tables.items()
                if name.partition("_2026")[0] not in TOLD
            }
        )
    assert found[0] == found[1]
    assert {"heartbeat", "refusal", "params", "day_table", "token", "blocked"} <= set(found[0])


def test_files_of_sqlite_hold_no_earlier_sums(tmp_path: Path) -> None:
    """Two states of a counter differ by a group's reports; only the last one is left."""
    path = tmp_path / "counts.sqlite3"
    address = sqlite_url(path)
    migrate(address)
    states: set[bytes] = set()
    for engine in live_through(address, bodies_of_a_day(3)):
        with engine.connect() as db:
            last = {bytes(row.ones) for row in db.execute(text("SELECT ones FROM tally"))}
        states |= {ones for ones in last if len(ones) == 8 * 16}
    data = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert sum(ones in data for ones in states) == len(states & last) == 2
    assert len(states) > 15


N_THIRDS, N_STOLEN = 3, 300


@pytest.mark.slow
def test_data_files_after_a_fold_hold_no_single_report(engine: Engine) -> None:
    """Before it they hold all 300, afterwards none: neither bits nor what a sum was before.

    Groups that are set apart, without parameters here, are held until they are counted.
    """
    reports = [page_report(bits=secrets.randbits(128), params=WIDE.params) for _ in range(N_STOLEN)]
    known = AcceptedParams(Registry([WIDE], total=math.inf))
    names = {WIDE.params.fingerprint: WIDE.params.to_json()}
    for start in range(0, N_STOLEN, 10):
        given = [submission_of(upload_of(each), known) for each in reports[start : start + 10]]
        are_read = start > N_STOLEN // N_THIRDS
        with contextlib.closing(open_inbox(engine)) as inbox:
            inbox.append(Batch(TODAY, 10, encode(given, {})), names if are_read else {})
        if start == N_STOLEN // N_THIRDS:
            assert n_in_files(engine, reports) == start + 10
            assert merge_now(engine).failed == start // 10 + 1
            assert n_in_files(engine, reports) == start + 10
    merge_now(engine)
    retry_unreadable(engine, today=TODAY)
    merge_now(engine)
    assert n_in_files(engine, reports) == 0
    sums = {bytes(row["ones"]) for row in Loot(engine, []).tables()["tally"]}
    assert len(sums) == 1


def n_in_files(engine: Engine, reports: Iterable[Report]) -> int:
    """Return how many reports are found by their bits in all files of a database's data."""
    if engine.dialect.name == "sqlite":
        path = Path(str(engine.url.database))
        files = list(path.parent.glob(f"{path.name}*"))
    else:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
            db.execute(text("CHECKPOINT"))
            own = "SELECT oid FROM pg_database WHERE datname = current_database()"
            number = db.execute(text(own)).scalar_one()
        files = list((Path(str(engine.url.query["host"])) / "base" / str(number)).iterdir())
    data = b"".join(file.read_bytes() for file in files)
    return sum(report.bits in data for report in reports)


@pytest.mark.acceptance
@pytest.mark.timeout(300)
def test_files_of_a_running_collector_hold_no_report_after_a_minute(tmp_path: Path) -> None:
    """Although uploads come all the time, more slowly than would be worth a fold."""
    path = tmp_path / "counts.sqlite3"
    bodies = [upload_of(page_report(bits=i + 1)) for i in range(20)]
    keys = [key_of_upload(own, body) for own, body in zip(Loot.ids_of(bodies), bodies, strict=True)]
    with serving(tmp_path, sqlite_url(path), "--suspicious", "accept") as running:
        for body in bodies:
            assert running.post(body).status_code == 200
        assert found_in(tmp_path, keys) == 20
        end = time.monotonic() + 60
        while time.monotonic() < end:
            assert running.post(upload_of()).status_code == 200
            time.sleep(0.4)
        inbox = tmp_path / "counts.sqlite3-inbox"
        data = b"".join(file.read_bytes() for file in tmp_path.glob(f"{inbox.name}*"))
        assert not any(key in data for key in keys)
        assert found_in(tmp_path, Loot.ids_of(bodies)) == 0


def found_in(folder: Path, secrets: Iterable[bytes]) -> int:
    """Return how many of these byte strings are in the files of a database."""
    data = b"".join(file.read_bytes() for file in folder.glob("counts.sqlite3*"))
    return sum(secret in data for secret in secrets)
