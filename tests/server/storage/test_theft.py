"""A thief who has all tables, the files of SQLite or a backup finds sums, and no single report.

The tests play the day of a collector: 12 batches of 10 uploads are stored and merged, and the
collector restarts twice. Then a thief (`Loot`) searches the stolen data for ids of uploads, for
reports, and for earlier states of a counter, whose difference to the last state is one batch. The
tests show for most attacks that the attack succeeds on data that contains what it looks for.
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
    build_metric,
    build_upload,
    close_days,
    format_entry,
    merge_now,
    parse_submission,
    run_collector,
    store_and_merge,
)
from collectors import build_report as page_report
from databases import ON_BOTH_DATABASES
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

N_BATCHES, N_UPLOADS = 12, 10  # batches of a day, and uploads of a batch
N_ALL_UPLOADS = N_BATCHES * N_UPLOADS
TOMORROW = TODAY + datetime.timedelta(days=1)
AS_USUAL = {"min_reports": None}
"""Leaves `min_reports` out of an entry, so the metric has the default minimum."""
REGISTRY = Registry.loads(
    UNBOUNDED
    + format_entry("sound", encoding="boolean", **AS_USUAL)
    + format_entry("theme", encoding="onehot", categories=["light", "dark", "red"], **AS_USUAL)
    + format_entry("page", k=16, m=2, **AS_USUAL)
)
ACCEPTED = AcceptedParams(REGISTRY)
WIDE = build_metric(params=Params(k=128, m=4, f=0.5, p=0.25, q=0.75))


def make_report(metric: str, bits: int, cohort: int = 0) -> Report:
    """Return a report with these bits."""
    params = REGISTRY[metric].params
    packed = (bits % (1 << params.k)).to_bytes(params.n_bytes, "little")
    return Report(metric=metric, params=params.fingerprint, cohort=cohort, bits=packed)


def make_day(seed: int) -> list[list[bytes]]:
    """Return the uploads of a day, in batches. Days of two seeds differ in bits and ids only.

    Uploads with an even index in their batch have two reports of strings, in cohorts 0 and 1. The
    bits of a string are the number of its report in the order of arrival. Uploads with an odd index
    have one boolean, one category, or both.
    """
    rng = random.Random(seed)  # noqa: S311 - a test's day
    numbers = itertools.count()

    def make_upload(i: int) -> bytes:
        small = (
            make_report("sound", rng.getrandbits(1)),
            make_report("theme", 1 << rng.randrange(3)),
        )
        strings = make_report("page", next(numbers), 0), make_report("page", next(numbers), 1)
        reports = [small[:1], small[1:], small][i // 2 % 3] if i % 2 else strings
        return Upload(id=Upload.new_id(), reports=reports).to_json()

    return [[make_upload(i) for i in range(N_UPLOADS)] for _ in range(N_BATCHES)]


def store_day(database: str, batches: list[list[bytes]]) -> Iterator[Engine]:
    """Store and merge the uploads of a day; yield the database after each batch.

    A collector ends after four batches, and another collector continues.
    """
    for start in range(0, len(batches), 4):
        with open_database(database) as engine:
            for batch in batches[start : start + 4]:
                submissions = [parse_submission(body, ACCEPTED) for body in batch]
                store_and_merge(engine, submissions, {("", "malformed"): 1}, today=TODAY)
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
        """Return all rows of all tables in their physical order.

        Rows of PostgreSQL have two hidden columns: their place, and the transaction that wrote it.
        """
        hidden_columns = "ctid::text, xmin::text AS writer, " if self.is_postgresql else ""
        rows_by_table = {}
        with self.engine.connect() as db:
            for name in inspect(self.engine).get_table_names():
                rows = db.execute(text(f'SELECT {hidden_columns}* FROM "{name}"'))  # noqa: S608
                rows_by_table[name] = [dict(row) for row in rows.mappings()]
        return rows_by_table

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
    """Yield the database of a collector on the day after the stored day, or a backup of it."""
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
    """Yield every part of 16 bytes of some cells. An id has 16 bytes."""
    for cell in cells:
        yield from (cell[i : i + 16] for i in range(len(cell) - 15))


def guess_upload(row: dict[str, Any], ids: Iterable[bytes]) -> bytes | None:
    """Return the upload whose hash is in a row, or None.

    The thief tries all uploads of a boolean, of a category and of both, with each of `ids`. Tried
    hashes are a plain SHA-256 of the upload, and the HMAC that is the deduplication key.
    """
    cells = {encode_cell(cell) for cell in row.values()}
    booleans = [make_report("sound", bit) for bit in (0, 1)]
    categories = [make_report("theme", 1 << i) for i in range(3)]
    single_reports = [(report,) for report in booleans + categories]
    pairs_of_reports = list(itertools.product(booleans, categories))
    for upload_id in ids:
        name = base64.urlsafe_b64encode(upload_id).rstrip(b"=").decode()
        for reports in (*single_reports, *pairs_of_reports):
            body = Upload(id=name, reports=reports).to_json()
            hashes = {hashlib.sha256(body).digest(), hmac.digest(upload_id, body, "sha256")[:16]}
            if hashes & cells:
                return body
    return None


@ON_BOTH_DATABASES
@pytest.mark.slow
def test_thief_finds_no_upload_id_or_report(loot: Loot) -> None:
    """Four attacks on one stolen database or backup find no upload, no id and no single report."""
    check_no_upload_is_found_by_guessing(loot)
    check_no_id_is_stored(loot)
    check_no_row_of_counts_is_one_report(loot)
    check_no_block_is_one_report(loot)  # the last check, because it closes the blocks


def check_no_upload_is_found_by_guessing(loot: Loot) -> None:
    """A thief who tries all possible uploads of a boolean or category finds none of them.

    The deduplication key is an HMAC whose key is the id of the upload, which is not stored. Two
    checks show that the attack works otherwise. It finds the upload in a row with an id and a plain
    hash. It finds the upload in a stored row if the thief knows the id.
    """
    rows = loot.read_kind("upload")
    assert len(rows) == N_ALL_UPLOADS
    assert [guess_upload(row, list_windows(map(encode_cell, row.values()))) for row in rows] == [
        None
    ] * N_ALL_UPLOADS
    small = next(body for body in loot.bodies if b'"sound"' in body)
    upload_id = loot.ids[loot.bodies.index(small)]
    plain = {"id": upload_id, "digest": hashlib.sha256(small).digest()}
    assert guess_upload(plain, list_windows(plain.values())) == small
    (row,) = [row for row in rows if encode_cell(row["key"]) == key_of_upload(upload_id, small)]
    assert guess_upload(row, [upload_id]) == small
    assert set(row) - {"ctid", "writer"} == {"key"}


def check_no_id_is_stored(loot: Loot) -> None:
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
    for upload_id in loot.ids:
        assert upload_id not in stolen
        assert base64.urlsafe_b64encode(upload_id).rstrip(b"=") not in stolen
    assert key_of_upload(loot.ids[0], loot.bodies[0]) in stolen  # the search finds what is there


def check_no_row_of_counts_is_one_report(loot: Loot) -> None:
    """Every row of counters is the sum of at least ten reports, although collectors restarted.

    Each cohort has one row, so no restart began a second row.
    """
    rows = loot.read_tables()["tally"]
    totals = {(row["metric"], row["cohort"]): row["reports"] for row in rows}
    assert set(totals) == {("sound", 0), ("theme", 0), ("page", 0), ("page", 1)}
    assert len(rows) == len(totals)
    assert min(totals.values()) >= 10


def check_no_block_is_one_report(loot: Loot) -> None:
    """All reports that are released the next day are in rows of at least ten reports."""
    engine = loot.engine
    for metric in REGISTRY.values():
        close_days(engine, metric, TOMORROW)
    tables = loot.read_tables()
    assert tables["tally"] == []
    assert all(row["closed"] and row["reports"] >= 10 for row in tables["block"])
    assert sum(row["reports"] for row in tables["block"]) > N_ALL_UPLOADS


DEPENDENT_TABLES = ("upload", "tally", "block", "last_merged", "inbox_number", "inbox_13")
"""Contains the beginnings of the names of tables that may differ between the two days. The first
three depend on the uploads, and all other tests attack them. The last three count merges, and each
kind of database uses its own."""


@pytest.mark.slow
def test_all_other_tables_do_not_depend_on_uploads(database: str, tmp_path: Path) -> None:
    """A day with other bits and other ids leaves equal rows in all other tables.

    The second day is on SQLite, so for PostgreSQL the comparison is between both databases. They
    write booleans differently.
    """
    rows_of_days = []
    for seed, address in ((1, database), (2, sqlite_url(tmp_path / "other"))):
        migrate(address)
        for _ in store_day(address, make_day(seed)):
            pass
        with open_database(address) as engine:
            tables = Loot(engine, []).read_tables()
        rows_of_days.append(
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
                if name.partition("_2026")[0] not in DEPENDENT_TABLES
            }
        )
    assert rows_of_days[0] == rows_of_days[1]
    # The comparison contains the tables that a collector writes.
    assert {"heartbeat", "refusal", "params", "day_table", "token", "blocked"} <= set(
        rows_of_days[0]
    )


def test_sqlite_files_contain_no_earlier_sums(tmp_path: Path) -> None:
    """The files of SQLite contain only the last state of each counter, and no earlier state.

    Two states of a counter differ by the reports of a batch. The sums of the two cohorts of `page`
    have 16 bytes. Shorter sums could be in the files by chance.
    """
    path = tmp_path / "counts.sqlite3"
    address = sqlite_url(path)
    migrate(address)
    states: set[bytes] = set()
    for engine in store_day(address, make_day(3)):
        with engine.connect() as db:
            last = {bytes(row.ones) for row in db.execute(text("SELECT ones FROM tally"))}
        states |= {sums for sums in last if len(sums) == 16}
    data = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert len(states & last) == 2  # one state of each cohort of `page`
    assert {sums for sums in states if sums in data} == states & last
    assert len(states) > 15  # the 12 batches have made many different states


N_STOLEN = 300
"""Number of reports that the next test stores, in batches of ten."""
N_UNREADABLE = 110
"""Number of reports in batches that the first merge cannot read. They are the first eleven batches.
The first merge comes directly after them."""


@ON_BOTH_DATABASES
@pytest.mark.slow
def test_data_files_contain_no_report_after_a_merge(engine: Engine) -> None:
    """The files of a database contain all 300 reports before the merges, and none afterwards.

    Each batch has 10 reports. The first eleven batches are unreadable, because the database does
    not know their parameters. The first merge moves them to the unreadable batches, so the files
    still contain their reports. A later batch brings the parameters. Then `retry_unreadable` merges
    them.
    """
    reports = [page_report(bits=secrets.randbits(128), params=WIDE.params) for _ in range(N_STOLEN)]
    accepted_params = AcceptedParams(Registry([WIDE], total=math.inf))
    names = {WIDE.params.fingerprint: WIDE.params.to_json()}
    for start in range(0, N_STOLEN, 10):
        submissions = [
            parse_submission(build_upload(report), accepted_params)
            for report in reports[start : start + 10]
        ]
        is_readable = start >= N_UNREADABLE
        with contextlib.closing(open_inbox(engine)) as inbox:
            batch = Batch(TODAY, 10, encode(submissions, {}))
            inbox.append(batch, names if is_readable else {})
        if start + 10 == N_UNREADABLE:
            assert count_in_files(engine, reports) == N_UNREADABLE
            assert merge_now(engine).failed == N_UNREADABLE // 10
            assert count_in_files(engine, reports) == N_UNREADABLE
    merge_now(engine)
    retry_unreadable(engine, today=TODAY)
    merge_now(engine)
    assert count_in_files(engine, reports) == 0
    sums = {bytes(row["ones"]) for row in Loot(engine, []).read_tables()["tally"]}
    assert len(sums) == 1  # all reports are in the one counter


def count_in_files(engine: Engine, reports: Iterable[Report]) -> int:
    """Return the number of reports whose bits are in any data file of a database."""
    if engine.dialect.name == "sqlite":
        path = Path(str(engine.url.database))
        files = list(path.parent.glob(f"{path.name}*"))
    else:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
            db.execute(text("CHECKPOINT"))
            query = "SELECT oid FROM pg_database WHERE datname = current_database()"
            number = db.execute(text(query)).scalar_one()
        files = list((Path(str(engine.url.query["host"])) / "base" / str(number)).iterdir())
    data = b"".join(file.read_bytes() for file in files)
    return sum(report.bits in data for report in reports)


@pytest.mark.acceptance
@pytest.mark.timeout(300)
def test_files_contain_no_report_after_a_minute(tmp_path: Path) -> None:
    """After a minute the inbox of a running collector contains none of 20 uploads.

    The test searches the deduplication keys, which the inbox stores beside the reports. The 16 bits
    of a report could be in the files by chance. No file contains an id of an upload. Further
    uploads come every 0.4 seconds. They are too few for a merge that begins early.
    """
    path = tmp_path / "counts.sqlite3"
    bodies = [build_upload(page_report(bits=i + 1)) for i in range(20)]
    keys = [
        key_of_upload(upload_id, body)
        for upload_id, body in zip(Loot.list_ids(bodies), bodies, strict=True)
    ]
    with run_collector(tmp_path, sqlite_url(path), "--suspicious", "accept") as running:
        for body in bodies:
            assert running.post(body).status_code == 200
        assert count_in_folder(tmp_path, keys) == 20
        end = time.monotonic() + 60
        while time.monotonic() < end:
            assert running.post(build_upload()).status_code == 200
            time.sleep(0.4)
        inbox = tmp_path / "counts.sqlite3-inbox"
        data = b"".join(file.read_bytes() for file in tmp_path.glob(f"{inbox.name}*"))
        assert not any(key in data for key in keys)
        assert count_in_folder(tmp_path, Loot.list_ids(bodies)) == 0


def count_in_folder(folder: Path, strings: Iterable[bytes]) -> int:
    """Return how many byte strings are in the files of the SQLite database of a folder."""
    data = b"".join(file.read_bytes() for file in folder.glob("counts.sqlite3*"))
    return sum(string in data for string in strings)
