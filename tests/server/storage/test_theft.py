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
from rappor_server.storage.database import erase_traces, open_database, sqlite_url
from rappor_server.storage.inbox import Batch, open_inbox
from rappor_server.storage.merge import retry_unreadable
from rappor_server.storage.record import encode
from rappor_server.storage.schema_versions import migrate
from sqlalchemy import Engine, inspect, text

from rappor import Params, Registry
from rappor.protocol.wire import Report, Upload

N_BATCHES, N_UPLOADS = 12, 10
N_MARKED = N_BATCHES * N_UPLOADS  # half of them have two reports
TOMORROW = TODAY + datetime.timedelta(days=1)
AS_USUAL = {"min_reports": None}
REGISTRY = Registry.loads(
    UNBOUNDED
    + entry("sound", encoding="boolean", **AS_USUAL)
    + entry("theme", encoding="onehot", categories=["light", "dark", "red"], **AS_USUAL)
    + entry("page", k=16, m=2, **AS_USUAL)
)
ACCEPTED = AcceptedParams(REGISTRY)
WIDE = metric_of(params=Params(k=128, m=4, f=0.5, p=0.25, q=0.75))


def make_report(metric: str, bits: int, cohort: int = 0) -> Report:
    """Return a report with these bits."""
    params = REGISTRY[metric].params
    packed = (bits % (1 << params.k)).to_bytes(params.n_bytes, "little")
    return Report(metric=metric, params=params.fingerprint, cohort=cohort, bits=packed)


def make_day(seed: int) -> list[list[bytes]]:
    """Return batches of uploads. Two seeds differ in bits and ids only.

    A batch has uploads of one boolean, of one category, of both, and of two strings. The bits of a
    string are the number of its report in the order of arrival.
    """
    rng = random.Random(seed)  # noqa: S311 - a test's day
    numbers = itertools.count()

    def upload(i: int) -> bytes:
        small = (
            make_report("sound", rng.getrandbits(1)),
            make_report("theme", 1 << rng.randrange(3)),
        )
        marked = make_report("page", next(numbers), 0), make_report("page", next(numbers), 1)
        chosen = [small[:1], small[1:], small][i // 2 % 3] if i % 2 else marked
        return Upload(id=Upload.new_id(), reports=chosen).to_json()

    return [[upload(i) for i in range(N_UPLOADS)] for _ in range(N_BATCHES)]


def store_day(database: str, batches: list[list[bytes]]) -> Iterator[Engine]:
    """Store the uploads of a day by collectors that end now and then; yield after each batch."""
    for start in range(0, len(batches), 4):
        with open_database(database) as engine:
            for batch in batches[start : start + 4]:
                submissions = [submission_of(body, ACCEPTED) for body in batch]
                count_group(engine, submissions, {("", "malformed"): 1}, today=TODAY)
                yield engine


class Loot:
    """Database or backup that a thief has, and the bodies of the day for comparison."""

    def __init__(self, engine: Engine, batches: list[list[bytes]]) -> None:
        self.engine = engine
        self.bodies = [body for batch in batches for body in batch]
        self.ids = self.list_ids(self.bodies)

    @staticmethod
    def list_ids(bodies: Iterable[bytes]) -> list[bytes]:
        """Return the ids of uploads."""
        return [base64.urlsafe_b64decode(json.loads(body)["id"] + "==") for body in bodies]

    def read_tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return all rows of all tables in their physical order."""
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

    def read_kind(self, kind: str) -> list[dict[str, Any]]:
        """Return the rows of the tables of one kind."""
        return [
            row
            for name, rows in self.read_tables().items()
            if name.startswith(kind)
            for row in rows
        ]


@pytest.fixture(params=["database", "backup"])
def loot(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Iterator[Loot]:
    """A database on the day after a busy day, or a backup of it."""
    migrate(database)
    batches = make_day(1)
    for _ in store_day(database, batches):
        pass
    with open_database(database) as engine:
        prune(engine, today=TOMORROW)
    address = database
    if request.param == "backup":
        copy = tmp_path / "copy"
        backup(database, copy)
        address = sqlite_url(copy)
    with open_database(address) as engine:
        yield Loot(engine, batches)


def encode_cell(value: object) -> bytes:
    """Return a cell of a row as bytes."""
    if isinstance(value, uuid.UUID):
        return value.bytes
    return value if isinstance(value, bytes) else str(value).encode()


def list_windows(cells: Iterable[bytes]) -> Iterator[bytes]:
    """Yield every part of a row that could be an id."""
    for cell in cells:
        yield from (cell[i : i + 16] for i in range(len(cell) - 15))


def guess_upload(row: dict[str, Any], ids: Iterable[bytes]) -> bytes | None:
    """Try all uploads of one boolean or category, under some ids, against the hashes of a row."""
    cells = {encode_cell(cell) for cell in row.values()}
    booleans = [make_report("sound", bit) for bit in (0, 1)]
    categories = [make_report("theme", 1 << i) for i in range(3)]
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
def test_no_upload_is_found_by_guessing(loot: Loot) -> None:
    """Not even a boolean is found. With the id, or with a plain hash, the search finds it."""
    rows = loot.read_kind("upload")
    assert len(rows) == N_MARKED
    assert [guess_upload(row, list_windows(map(encode_cell, row.values()))) for row in rows] == [
        None
    ] * N_MARKED
    small = next(body for body in loot.bodies if b'"sound"' in body)
    own_id = loot.ids[loot.bodies.index(small)]
    plain = {"id": own_id, "digest": hashlib.sha256(small).digest()}
    assert guess_upload(plain, list_windows(plain.values())) == small
    (known,) = [row for row in rows if encode_cell(row["key"]) == key_of_upload(own_id, small)]
    assert guess_upload(known, [own_id]) == small
    assert set(known) - {"ctid", "writer"} == {"key"}


@pytest.mark.slow
def test_no_id_is_stored(loot: Loot) -> None:
    """No cell of any table and no SQLite file contains an id, as bytes or as text."""
    stolen = b"\n".join(
        encode_cell(cell)
        for rows in loot.read_tables().values()
        for row in rows
        for cell in row.values()
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
    """Every row is the sum of many reports, although the collector restarted twice."""
    rows = loot.read_tables()["tally"]
    totals = {(row["metric"], row["cohort"]): row["reports"] for row in rows}
    assert set(totals) == {("sound", 0), ("theme", 0), ("page", 0), ("page", 1)}
    assert len(rows) == len(totals)
    assert min(totals.values()) >= 10


@pytest.mark.slow
def test_no_block_is_one_report(loot: Loot) -> None:
    """All reports that are released the next day are in rows of at least ten reports."""
    engine = loot.engine
    for metric in REGISTRY.values():
        close_days(engine, metric, TOMORROW)
    tables = loot.read_tables()
    assert tables["tally"] == []
    assert all(row["closed"] and row["reports"] >= 10 for row in tables["block"])
    assert sum(row["reports"] for row in tables["block"]) > N_MARKED


TOLD = ("upload", "tally", "block", "last_merged", "inbox_number", "inbox_13")
"""The tables, or kinds of them, that depend on what devices sent; the attacks are on these.
The last three count folds, and each database uses its own."""


@pytest.mark.slow
def test_all_other_tables_do_not_depend_on_uploads(database: str, tmp_path: Path) -> None:
    """A day with other bits and other ids leaves equal rows."""
    found = []
    for seed, address in ((1, database), (2, sqlite_url(tmp_path / "other"))):
        migrate(address)
        for _ in store_day(address, make_day(seed)):
            pass
        with open_database(address) as engine:
            tables = Loot(engine, []).read_tables()
        found.append(
            {
                name: sorted(
                    json.dumps(
                        # The key of the pages' cookies is random. It is drawn with the database.
                        {
                            key: cell
                            for key, cell in row.items()
                            if key not in ("ctid", "writer", "secret")
                        },
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


def test_sqlite_files_contain_no_earlier_sums(tmp_path: Path) -> None:
    """Two states of a counter differ by the reports of a batch. Only the last state is left."""
    path = tmp_path / "counts.sqlite3"
    address = sqlite_url(path)
    migrate(address)
    states: set[bytes] = set()
    for engine in store_day(address, make_day(3)):
        with engine.connect() as db:
            last = {bytes(row.ones) for row in db.execute(text("SELECT ones FROM tally"))}
        states |= {ones for ones in last if len(ones) == 16}
    data = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert sum(ones in data for ones in states) == len(states & last) == 2
    assert len(states) > 15


N_THIRDS, N_STOLEN = 3, 300


@pytest.mark.slow
def test_data_files_contain_no_report_after_a_merge(engine: Engine) -> None:
    """The files contain all 300 reports before the merge, and none afterwards.

    Unreadable batches, here without parameters, are stored until they are merged.
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
            assert count_in_files(engine, reports) == start + 10
            assert merge_now(engine).failed == start // 10 + 1
            assert count_in_files(engine, reports) == start + 10
    merge_now(engine)
    retry_unreadable(engine, today=TODAY)
    merge_now(engine)
    assert count_in_files(engine, reports) == 0
    sums = {bytes(row["ones"]) for row in Loot(engine, []).read_tables()["tally"]}
    assert len(sums) == 1


def count_in_files(engine: Engine, reports: Iterable[Report]) -> int:
    """Return the number of reports whose bits are in any data file of a database."""
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
def test_files_contain_no_report_after_a_minute(tmp_path: Path) -> None:
    """Uploads come all the time, but too slowly for an early merge."""
    path = tmp_path / "counts.sqlite3"
    bodies = [upload_of(page_report(bits=i + 1)) for i in range(20)]
    keys = [
        key_of_upload(own, body) for own, body in zip(Loot.list_ids(bodies), bodies, strict=True)
    ]
    with serving(tmp_path, sqlite_url(path), "--suspicious", "accept") as running:
        for body in bodies:
            assert running.post(body).status_code == 200
        assert count_found(tmp_path, keys) == 20
        end = time.monotonic() + 60
        while time.monotonic() < end:
            assert running.post(upload_of()).status_code == 200
            time.sleep(0.4)
        inbox = tmp_path / "counts.sqlite3-inbox"
        data = b"".join(file.read_bytes() for file in tmp_path.glob(f"{inbox.name}*"))
        assert not any(key in data for key in keys)
        assert count_found(tmp_path, Loot.list_ids(bodies)) == 0


def count_found(folder: Path, secrets: Iterable[bytes]) -> int:
    """Return how many byte strings are in the files of a database."""
    data = b"".join(file.read_bytes() for file in folder.glob("counts.sqlite3*"))
    return sum(secret in data for secret in secrets)
