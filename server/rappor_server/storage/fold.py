"""Folding: groups of uploads become sums, in one transaction, and are gone.

Any process may fold; one does at a time. A key that is known counts nothing again. Of an upload of
which some reports were refused, each accepted one has a key of its own, and so each report of such
an upload counts once, whichever of its attempts were refused in part or not: a whole upload is
known by its key, and its reports by theirs; a part of one by both. That holds within the groups
that are folded together as well, whatever their order.
"""

from __future__ import annotations

import datetime
import functools
import secrets
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, delete, insert, select

from rappor.protocol.params import Params
from rappor_server.ingest.retry_keys import KEY_BYTES, key_of_report
from rappor_server.storage import day_tables, keys, schema
from rappor_server.storage.bulk import BulkDelete, BulkInsert
from rappor_server.storage.database import as_day, is_alone, today_of, wait_alone, writing
from rappor_server.storage.day_tables import KEPT, PART, UPLOAD, days_of
from rappor_server.storage.inbox import Group, Inbox, open_inbox
from rappor_server.storage.record import Kind, Record, RecordError, Reports, decode
from rappor_server.storage.tallies import Tally, sum_by_cohort

_CELL: Final = ("metric", "params", "day", "quarantine", "cohort")
_TALLIES: Final = BulkInsert(schema.tally, keys=_CELL)
_BEFORE: Final = BulkDelete(schema.tally, keys=_CELL, returning=("cohort", "reports", "ones"))
_REFUSALS: Final = BulkInsert(schema.refusal, keys=("day", "metric", "reason"))
_REFUSED_BEFORE: Final = BulkDelete(
    schema.refusal,
    keys=("day", "metric", "reason"),
    returning=("day", "metric", "reason", "number"),
)
_BITS_AT_ONCE: Final = 8_000_000
_DAY: Final = datetime.timedelta(days=1)


class Folded(NamedTuple):
    """What a fold came to: uploads, retries that counted nothing, counters, groups set apart."""

    uploads: int = 0
    doubles: int = 0
    cells: int = 0
    failed: int = 0


class _Batch(NamedTuple):
    """One kind of reports of one day, which count in the same rows."""

    day: datetime.date
    kind: Kind


class _Columns(NamedTuple):
    """Reports that count: `cohorts` (n,) and `packed` (n, n_bytes) uint8."""

    params: Params
    cohorts: NDArray[np.uint32]
    packed: NDArray[np.uint8]


def fold_all(engine: Engine) -> Folded:
    """Fold what was acknowledged before, whoever else folds; StoreError if that is not certain."""
    inbox = open_inbox(engine)
    try:
        return fold(engine, inbox, waits=True)
    finally:
        inbox.close()


def fold(
    engine: Engine, inbox: Inbox, *, waits: bool = False, today: datetime.date | None = None
) -> Folded:
    """Fold all that waits, piece by piece; `today` is that of the database's clock.

    Unless it `waits`, it leaves that to another one who is folding.
    """
    total = Folded()
    inbox.seal()
    while True:
        with writing(engine) as db:
            if waits:
                wait_alone(db)
            elif not is_alone(db):
                return total
            _beat(db, today or today_of(db))
            groups = inbox.take(db)
            piece = _fold(db, groups, today or today_of(db))
        inbox.clear()
        total = Folded(*map(sum, zip(total, piece, strict=True)))
        if not groups:
            return total


def retry_failed(engine: Engine, *, today: datetime.date | None = None) -> Folded:
    """Fold the groups that were set apart and that this version can read."""
    columns = schema.inbox_failed.c
    with writing(engine) as db:
        wait_alone(db)
        rows = db.execute(delete(schema.inbox_failed).returning(columns.day, columns.data)).all()
        return _fold(
            db, [Group(row.day, 0, bytes(row.data)) for row in rows], today or today_of(db)
        )


def _beat(db: Connection, today: datetime.date) -> None:
    """Note that a collector runs today, and leave the day before that on which one ran."""
    days = sorted(db.execute(select(schema.heartbeat.c.day)).scalars())
    if days[-1:] != [today]:
        before = [day for day in days if day < today][-1:]
        db.execute(delete(schema.heartbeat))
        db.execute(insert(schema.heartbeat), [{"day": day} for day in (*before, today)])


def _fold(db: Connection, groups: Sequence[Group], today: datetime.date) -> Folded:
    """Write what some groups come to."""
    records, n_failed = _read(db, groups, today)
    uploads = _Uploads(db, [record for _, record in records])
    refusals: Counter[tuple[datetime.date, str, str]] = Counter()
    batches: dict[_Batch, list[_Columns]] = defaultdict(list)
    for number, (day, record) in enumerate(records):
        for key, n in record.refusals.items():
            refusals[day, *key] += n
        for reports in record.reports:
            if len((columns := uploads.new_ones(number, reports)).cohorts):
                batches[_Batch(day, reports.kind)].append(columns)
    uploads.keep(db, today)
    cells = sum(_count(db, batch, columns) for batch, columns in batches.items())
    _keep_reports(db, batches)
    add_refusals(db, refusals)
    return Folded(uploads.n_uploads, uploads.n_doubles, cells, n_failed)


def _read(
    db: Connection, groups: Sequence[Group], today: datetime.date
) -> tuple[list[tuple[datetime.date, Record]], int]:
    """Return records with the days that they count on, and how many groups were set apart."""

    @functools.cache
    def find(fingerprint: str) -> Params | None:
        columns = schema.params.c
        query = select(columns.document).where(columns.fingerprint == fingerprint)
        document = db.scalar(query)
        return None if document is None else Params.from_json(document)

    records, n_failed = [], 0
    for day, _, data in groups:
        try:
            record = decode(data, find)
        except RecordError:
            n_failed += 1
            db.execute(insert(schema.inbox_failed).values(day=day, data=data))
        else:  # a day beyond tomorrow is that of a clock that is ahead
            records.append((day if day <= today + _DAY else today, record))
    return records, n_failed


class _Uploads:
    """Which uploads and reports of some records are new."""

    def __init__(self, db: Connection, records: Sequence[Record]) -> None:
        """Look all keys up at once."""
        self.n_uploads = self.n_doubles = 0
        self._is_new = [np.zeros(len(record.keys), bool) for record in records]
        self._places: list[dict[int, set[int]]] = [{} for _ in records]
        """By record and upload: the places that count, where each report is judged by itself."""
        every = [
            (r, i, key) for r, record in enumerate(records) for i, key in enumerate(record.keys)
        ]
        self._wholes = {key for r, i, key in every if records[r].is_whole[i]}
        self._known = keys.known(db, UPLOAD, {key for _, _, key in every})
        self._parts: set[bytes] = set()
        self._judge_reports(db, records)
        seen = set(self._known)
        for r, i, key in every:
            if records[r].is_whole[i] and key not in seen:
                seen.add(key)
                self._is_new[r][i] = True
            places = self._places[r].get(i, {0} if self._is_new[r][i] else ())
            self.n_uploads += bool(places)
            self.n_doubles += not places

    def _judge_reports(self, db: Connection, records: Sequence[Record]) -> None:
        """Judge each report by itself where uploads are, or were before, refused in part."""
        has_parts = bool(days_of(db, PART))
        asked: dict[bytes, tuple[int, int, int]] = {}
        for r, record in enumerate(records):
            if not has_parts and all(record.is_whole):
                continue
            for reports in record.reports:
                for i, place in zip(reports.owners.tolist(), reports.places.tolist(), strict=True):
                    key, is_whole = record.keys[i], record.is_whole[i]
                    if key in self._known or (key in self._wholes and not is_whole):
                        continue
                    report_key = key_of_report(key, place)
                    asked.setdefault(report_key, (r, i, place))
                    if not is_whole:
                        self._parts.add(report_key)
        known = keys.known(db, PART, asked)
        for report_key, (r, i, place) in asked.items():
            places = self._places[r].setdefault(i, set())
            if report_key not in known:
                places.add(place)

    def new_ones(self, r: int, reports: Reports) -> _Columns:
        """Return those of a record's reports that count."""
        counts = self._is_new[r][reports.owners]
        if judged := self._places[r]:
            both = zip(reports.owners.tolist(), reports.places.tolist(), strict=True)
            for row, (i, place) in enumerate(both):
                if i in judged:
                    counts[row] = place in judged[i]
        return _Columns(reports.params, reports.cohorts[counts], reports.packed[counts])

    def keep(self, db: Connection, today: datetime.date) -> None:
        """Let all keys be known from now on, those of before for 14 days more."""
        keys.keep(db, UPLOAD, self._wholes | self._known, today)
        keys.keep(db, PART, self._parts, today)


def _count(db: Connection, batch: _Batch, reports: Sequence[_Columns]) -> int:
    """Add reports to their counters, some cohorts at a time; return how many were written."""
    params = reports[0].params
    cohorts = np.concatenate([each.cohorts for each in reports])
    packed = np.concatenate([each.packed for each in reports])
    order = np.argsort(cohorts, kind="stable")
    step = max(_BITS_AT_ONCE // params.k, 1)
    n_cells = 0
    for start in range(0, len(order), step):
        some = order[start : start + step]
        added = sum_by_cohort(params.k, cohorts[some], packed[some])
        kind, day = batch.kind, batch.day
        keys_of = [(kind.metric, kind.fingerprint, day, kind.quarantine, j) for j in added]
        for cohort, number, ones in _BEFORE.run(db, keys_of):
            added[cohort] += Tally.from_bytes(number, bytes(ones))
        totals = zip(keys_of, added.values(), strict=True)
        _TALLIES.run(db, [(*key, total.reports, total.to_bytes()) for key, total in totals])
        n_cells += len(added)
    return n_cells


def _keep_reports(db: Connection, batches: Mapping[_Batch, Sequence[_Columns]]) -> None:
    """Store the noisy reports of metrics that keep them, in the order of random keys."""
    by_day: dict[datetime.date, list[tuple[str, str, int, bytes]]] = defaultdict(list)
    for (day, kind), columns in batches.items():
        if kind.keep:
            by_day[day] += [
                (kind.metric, kind.fingerprint, cohort, bits.tobytes())
                for each in columns
                for cohort, bits in zip(each.cohorts.tolist(), each.packed, strict=True)
            ]
    for day, reports in by_day.items():
        secrets.SystemRandom().shuffle(reports)
        day_tables.add(db, KEPT, day)
        rows = [
            (key, *report)
            for key, report in zip(
                sorted(secrets.token_bytes(KEY_BYTES) for _ in reports), reports, strict=True
            )
        ]
        BulkInsert(day_tables.table_of(KEPT, day)).run(db, rows)
        day_tables.note_unshuffled(db, day)  # `prune` may have shuffled it since it was added


def add_refusals(db: Connection, refusals: Counter[tuple[datetime.date, str, str]]) -> None:
    """Add numbers of refusals by day, metric and reason, where one is alone."""
    for day, metric, reason, number in _REFUSED_BEFORE.run(db, list(refusals)):
        refusals[as_day(day), metric, reason] += number
    _REFUSALS.run(db, [(*key, number) for key, number in refusals.items()])
