"""Folding: groups of uploads become sums, in one transaction, and are gone.

Any process may fold; one does at a time. A key that is known counts nothing again. Of an upload of
which some reports were refused, each accepted one has a key of its own, and so each report of such
an upload counts once, whichever of its attempts were refused in part or not: a whole upload is
known by its key, and its reports by theirs; a part of one by both. That holds within the groups
that are folded together as well, whatever their order.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from sqlalchemy import Connection, Engine, delete, insert, select

from rappor.protocol.params import Params
from rappor_server.ingest.retry_keys import key_of_report
from rappor_server.storage import schema
from rappor_server.storage.bulk import insert_rows
from rappor_server.storage.database import is_alone, today_of, wait_alone, writing
from rappor_server.storage.day_tables import PART, UPLOAD, days_of, keep_keys, known_keys
from rappor_server.storage.inbox import Group, Inbox, open_inbox, take_failed
from rappor_server.storage.record import Kind, Record, RecordError, Reports, decode
from rappor_server.storage.tallies import Tally, sum_by_cohort

_AT_ONCE: Final = 4096
"""Reports that are added up at once, so that memory is bounded, and the cohorts in a statement."""


class Folded(NamedTuple):
    """What a fold came to: uploads, retries that counted nothing, counters, groups set apart."""

    uploads: int = 0
    doubles: int = 0
    cells: int = 0
    failed: int = 0


def fold_all(engine: Engine) -> Folded:
    """Fold what was acknowledged before, whoever else folds; StoreError if that is not certain."""
    with contextlib.closing(open_inbox(engine)) as inbox:
        return fold(engine, inbox, waits=True)


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
            if not is_alone(db, waits=waits):
                return total
            day = today or today_of(db)
            _beat(db, day)
            groups = inbox.take(db)
            piece = _fold(db, groups, day)
        inbox.clear()
        total = Folded(*map(sum, zip(total, piece, strict=True)))
        if not groups:
            return total


def retry_failed(engine: Engine, *, today: datetime.date | None = None) -> Folded:
    """Fold the groups that were set apart and that this version can read."""
    with writing(engine) as db:
        wait_alone(db)
        return _fold(db, take_failed(db), today or today_of(db))


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
    batches: dict[tuple[datetime.date, Kind], list[Reports]] = defaultdict(list)
    for number, (day, record) in enumerate(records):
        for key, n in record.refusals.items():
            refusals[day, *key] += n
        for reports in record.reports:
            if len((new := uploads.new_ones(number, reports)).cohorts):
                batches[day, reports.kind].append(new)
    uploads.keep(db, today)
    cells = sum(_count(db, *batch, reports) for batch, reports in batches.items())
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
            if day is None:
                raise RecordError("a group must have a day")
            record = decode(data, find)
        except RecordError:
            n_failed += 1
            db.execute(insert(schema.inbox_failed).values(day=day or today, data=data))
        else:  # a day to come is that of a clock that is ahead
            records.append((min(day, today), record))
    return records, n_failed


class _Uploads:
    """Which uploads and reports of some records are new."""

    def __init__(self, db: Connection, records: Sequence[Record]) -> None:
        every = [(r, i, key) for r, each in enumerate(records) for i, key in enumerate(each.keys)]
        self._known = known_keys(db, UPLOAD, {key for _, _, key in every})
        self._wholes = {key for r, i, key in every if records[r].is_whole[i]}
        self._parts: set[bytes] = set()
        self._counted: set[tuple[int, int, int]] | None = None
        """Record, upload and place of each report that counts, where each is judged by itself."""
        first = {key: (r, i) for r, i, key in reversed(every) if key not in self._known}
        self._is_new = [np.zeros(len(record.keys), bool) for record in records]
        for r, i in first.values():
            self._is_new[r][i] = True
        self.n_uploads = len(first)
        if days_of(db, PART) or not all(all(record.is_whole) for record in records):
            self._counted = self._judge_reports(db, records)
            self.n_uploads = len({(r, i) for r, i, _ in self._counted})
        self.n_doubles = len(every) - self.n_uploads

    def _judge_reports(
        self, db: Connection, records: Sequence[Record]
    ) -> set[tuple[int, int, int]]:
        """Judge each report by itself, as uploads are, or were before, refused in part."""
        asked: dict[bytes, tuple[int, int, int]] = {}
        for r, record in enumerate(records):
            for reports in record.reports:
                for i, place in zip(reports.owners.tolist(), reports.places.tolist(), strict=True):
                    key, is_whole = record.keys[i], record.is_whole[i]
                    if key in self._known or (key in self._wholes and not is_whole):
                        continue
                    report_key = key_of_report(key, place)
                    asked.setdefault(report_key, (r, i, place))
                    if not is_whole:
                        self._parts.add(report_key)
        known = known_keys(db, PART, asked)
        return {place for report_key, place in asked.items() if report_key not in known}

    def new_ones(self, r: int, reports: Reports) -> Reports:
        """Return those of a record's reports that count."""
        counts = self._is_new[r][reports.owners]
        if self._counted is not None:
            both = zip(reports.owners.tolist(), reports.places.tolist(), strict=True)
            counts = np.array([(r, i, place) in self._counted for i, place in both])
        return reports._replace(cohorts=reports.cohorts[counts], packed=reports.packed[counts])

    def keep(self, db: Connection, today: datetime.date) -> None:
        """Let all keys be known from now on, those of before for 14 days more."""
        keep_keys(db, UPLOAD, self._wholes | self._known, today)
        keep_keys(db, PART, self._parts, today)


def _count(db: Connection, day: datetime.date, kind: Kind, batch: Sequence[Reports]) -> int:
    """Add reports to their counters, some cohorts at a time; return how many were written."""
    k, columns = batch[0].params.k, schema.tally.c
    cohorts = np.concatenate([each.cohorts for each in batch])
    packed = np.concatenate([each.packed for each in batch])
    order = np.argsort(cohorts, kind="stable")
    cell = (kind.metric, kind.fingerprint, day)
    cells = select(columns.cohort, columns.reports, columns.ones).where(
        columns.metric == kind.metric,
        columns.params == kind.fingerprint,
        columns.day == day,
    )
    n_cells = 0
    for start in range(0, len(order), _AT_ONCE):
        some = order[start : start + _AT_ONCE]
        added = sum_by_cohort(k, cohorts[some], packed[some])
        for cohort, number, ones in db.execute(cells.where(columns.cohort.in_(added))):
            added[cohort] += Tally.from_bytes(number, bytes(ones))
        insert_rows(
            db,
            schema.tally,
            [(*cell, cohort, each.reports, each.to_bytes()) for cohort, each in added.items()],
            update="reports = excluded.reports, ones = excluded.ones",
        )
        n_cells += len(added)
    return n_cells


def add_refusals(db: Connection, refusals: Mapping[tuple[datetime.date, str, str], int]) -> None:
    """Add numbers of refusals by day, metric and reason, where one is alone."""
    rows = [(*key, number) for key, number in refusals.items()]
    insert_rows(db, schema.refusal, rows, update="number = refusal.number + excluded.number")
