"""Merging: batches leave the inbox, and their reports are added to the counters.

One transaction does both. Every process may merge, but only one process merges at a time. A device
repeats an upload until it gets a response, so the same report may be in the inbox many times. Keys
prevent that a report counts twice:

- An upload of which no report was refused is *whole*. The database stores the key of the upload. An
  upload with a stored key is a duplicate, and none of its reports count.
- An upload of which some reports were refused is *partial*. A later attempt may have other reports
  accepted, for example after the registry was updated. The database therefore stores a key for each
  accepted report of the upload, and each report counts once, in whichever attempt it is accepted
  first.
- A whole upload after a partial attempt is checked by the keys of its reports, and a partial upload
  after a whole one by the key of the upload.

The rules hold among the batches of one merge too, in any order of the batches.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, delete, insert, select

from rappor.protocol.params import Params
from rappor_server.ingest.retry_keys import key_of_report
from rappor_server.storage import schema
from rappor_server.storage.bulk import insert_rows
from rappor_server.storage.database import (
    lock_maintenance,
    read_today,
    try_maintenance_lock,
    write_transaction,
)
from rappor_server.storage.day_tables import PART, UPLOAD, find_known_keys, list_days, store_keys
from rappor_server.storage.inbox import Batch, Inbox, open_inbox, take_unreadable
from rappor_server.storage.record import Kind, Record, RecordError, Reports, decode
from rappor_server.storage.tallies import Tally, sum_by_cohort

_MAX_REPORTS_SUMMED: Final = 4096
"""Largest number of reports that are unpacked and summed at once, and of cohorts in one statement.
The value bounds memory."""


class MergeResult(NamedTuple):
    """Totals of one or more merges.

    Attributes
    ----------
    uploads : number of uploads of which at least one report was counted
    duplicates : number of retried uploads of which no report was counted
    counters : number of counters that were written
    failed : number of batches that could not be read and were moved out of the inbox
    """

    uploads: int = 0
    duplicates: int = 0
    counters: int = 0
    failed: int = 0


def merge_all(engine: Engine) -> MergeResult:
    """Merge all batches that were acknowledged before the call, and wait for other merges.

    Raises
    ------
    StoreError
        A batch may not have been merged.
    """
    with contextlib.closing(open_inbox(engine)) as inbox:
        return merge(engine, inbox, wait=True)


def merge(
    engine: Engine, inbox: Inbox, *, wait: bool = False, today: datetime.date | None = None
) -> MergeResult:
    """Merge all batches of an inbox, in transactions of limited size.

    Parameters
    ----------
    engine : the database
    inbox : the inbox of the database
    wait : whether to wait for another process that merges. Otherwise the function returns at once
        and leaves the batches to that process.
    today : day (UTC) of the merge; by default the day of the database's clock
    """
    total = MergeResult()
    # Under load, a merge without a limit would go on with the few batches that arrived during its
    # last transaction, and write all counters for each of them.
    inbox.seal()
    while True:
        with write_transaction(engine) as db:
            if not try_maintenance_lock(db, wait=wait):
                return total
            # Read after the lock, which may have been waited for since the day before.
            day = today or read_today(db)
            _record_heartbeat(db, day)
            batches = inbox.take(db)
            result = _merge_batches(db, batches, day)
        # After the commit: a crash before it leaves the batches in the inbox, and a crash before
        # `clear` leaves rows that are marked as merged.
        inbox.clear()
        total = MergeResult(*map(sum, zip(total, result, strict=True)))
        if not batches:
            return total


def retry_unreadable(engine: Engine, *, today: datetime.date | None = None) -> MergeResult:
    """Merge those unreadable batches that this version of the program can read."""
    with write_transaction(engine) as db:
        lock_maintenance(db)
        # A batch that still cannot be read is inserted again by the same transaction.
        return _merge_batches(db, take_unreadable(db), today or read_today(db))


def _record_heartbeat(db: Connection, today: datetime.date) -> None:
    """Record that a collector runs today, and keep the previous day on which a collector ran.

    `operations.retention.check_clock` compares both days with its own clock before it deletes data.
    A single day would not be enough: a collector whose clock jumped writes a wrong day too.
    """
    days = sorted(db.execute(select(schema.heartbeat.c.day)).scalars())
    if days[-1:] != [today]:
        previous = [day for day in days if day < today][-1:]
        db.execute(delete(schema.heartbeat))
        db.execute(insert(schema.heartbeat), [{"day": day} for day in (*previous, today)])


def _merge_batches(db: Connection, batches: Sequence[Batch], today: datetime.date) -> MergeResult:
    """Add the new reports of batches to the counters, and store the keys of their uploads."""
    records, n_failed = _decode_batches(db, batches, today)
    duplicates = _DuplicateCheck(db, [record for _, record in records])
    refusals: Counter[tuple[datetime.date, str, str]] = Counter()
    new_reports: dict[tuple[datetime.date, Kind], list[Reports]] = defaultdict(list)
    for index, (day, record) in enumerate(records):
        for metric_and_reason, number in record.refusals.items():
            refusals[day, *metric_and_reason] += number
        for reports in record.reports:
            selected = duplicates.select_new(index, reports)
            if len(selected.cohorts):  # all of them may be retries
                new_reports[day, reports.kind].append(selected)
    duplicates.store_keys(db, today)
    n_counters = sum(
        _add_to_counters(db, day, kind, parts) for (day, kind), parts in new_reports.items()
    )
    add_refusals(db, refusals)
    return MergeResult(duplicates.n_uploads, duplicates.n_duplicates, n_counters, n_failed)


def _decode_batches(
    db: Connection, batches: Sequence[Batch], today: datetime.date
) -> tuple[list[tuple[datetime.date, Record]], int]:
    """Return the records with their days of receipt, and the number of unreadable batches.

    An unreadable batch is moved to a table of its own. It would otherwise stop every merge for
    ever.
    """

    # Cached: a merge has thousands of batches, and all of them have the same few fingerprints.
    @functools.cache
    def find_params(fingerprint: str) -> Params | None:
        columns = schema.params.c
        query = select(columns.document).where(columns.fingerprint == fingerprint)
        document = db.scalar(query)
        return None if document is None else Params.from_json(document)

    records, n_failed = [], 0
    for day, _, data in batches:
        try:
            if day is None:  # the column is damaged
                raise RecordError("a batch must have a day")
            record = decode(data, find_params)
        except RecordError:
            n_failed += 1
            db.execute(insert(schema.unreadable_batch).values(day=day or today, data=data))
        else:
            # A batch dated in the future comes from a collector whose clock is ahead. Its reports
            # count today: a later day would stay open until that day has ended.
            records.append((min(day, today), record))
    return records, n_failed


class _DuplicateCheck:
    """The uploads and reports of some records that the database has not counted yet.

    Uploads are identified by (record index, upload index), reports by (record index, upload index,
    position in the upload).
    """

    def __init__(self, db: Connection, records: Sequence[Record]) -> None:
        uploads = [
            (record_index, upload_index, key)
            for record_index, record in enumerate(records)
            for upload_index, key in enumerate(record.keys)
        ]
        self._known_uploads = find_known_keys(db, UPLOAD, {key for _, _, key in uploads})
        self._whole_uploads = {key for r, i, key in uploads if records[r].is_whole[i]}
        self._partial_reports: set[bytes] = set()
        """Keys of the accepted reports of partial uploads."""
        self._new_reports: set[tuple[int, int, int]] | None = None
        """Reports that count, if each report must be checked by its own key, else None."""
        # `reversed`: the first of several uploads with one key is the one that counts
        new_uploads = {
            key: (r, i) for r, i, key in reversed(uploads) if key not in self._known_uploads
        }
        self._is_new = [np.zeros(len(record.keys), bool) for record in records]
        for record_index, upload_index in new_uploads.values():
            self._is_new[record_index][upload_index] = True
        self.n_uploads = len(new_uploads)
        # Checking each report is slow. It is needed only while a partial upload is among the
        # records or among the stored keys.
        has_partial_uploads = not all(all(record.is_whole) for record in records)
        if has_partial_uploads or list_days(db, PART):
            self._new_reports = self._find_new_reports(db, records)
            self.n_uploads = len({(r, i) for r, i, _ in self._new_reports})
        self.n_duplicates = len(uploads) - self.n_uploads

    def _find_new_reports(
        self, db: Connection, records: Sequence[Record]
    ) -> set[tuple[int, int, int]]:
        """Return the reports that count, each checked by its own key."""
        reports_by_key: dict[bytes, tuple[int, int, int]] = {}
        for r, record in enumerate(records):
            for reports in record.reports:
                rows = zip(reports.owners.tolist(), reports.positions.tolist(), strict=True)
                for i, position in rows:
                    key, is_whole = record.keys[i], record.is_whole[i]
                    # A whole attempt of the same upload is counted already, or is among the
                    # records.
                    if key in self._known_uploads or (key in self._whole_uploads and not is_whole):
                        continue
                    report_key = key_of_report(key, position)
                    reports_by_key.setdefault(report_key, (r, i, position))
                    if not is_whole:
                        self._partial_reports.add(report_key)
        known = find_known_keys(db, PART, reports_by_key)
        return {report for key, report in reports_by_key.items() if key not in known}

    def select_new(self, record_index: int, reports: Reports) -> Reports:
        """Return the reports of a record that count."""
        is_counted: NDArray[np.bool_] = self._is_new[record_index][reports.owners]
        if self._new_reports is not None:
            rows = zip(reports.owners.tolist(), reports.positions.tolist(), strict=True)
            is_counted = np.array(
                [(record_index, i, position) in self._new_reports for i, position in rows]
            )
        cohorts, packed = reports.cohorts[is_counted], reports.packed[is_counted]
        return reports._replace(cohorts=cohorts, packed=packed)

    def store_keys(self, db: Connection, today: datetime.date) -> None:
        """Store the keys of all uploads; a key that was stored before lives for 14 days more."""
        # Known keys, too: the device that retries did not get the response, and may retry again
        # after the first key has expired.
        store_keys(db, UPLOAD, self._whole_uploads | self._known_uploads, today)
        store_keys(db, PART, self._partial_reports, today)


def _add_to_counters(
    db: Connection, day: datetime.date, kind: Kind, parts: Sequence[Reports]
) -> int:
    """Add reports of one day and kind to their counters; return the number of written counters.

    The reports are sorted by cohort and added in pieces, so that each counter is read and written
    once or twice, and memory is bounded.
    """
    k, columns = parts[0].params.k, schema.tally.c
    cohorts = np.concatenate([part.cohorts for part in parts])
    packed = np.concatenate([part.packed for part in parts])
    order = np.argsort(cohorts, kind="stable")
    stored = select(columns.cohort, columns.reports, columns.ones).where(
        columns.metric == kind.metric,
        columns.params == kind.fingerprint,
        columns.day == day,
    )
    n_counters = 0
    for start in range(0, len(order), _MAX_REPORTS_SUMMED):
        piece = order[start : start + _MAX_REPORTS_SUMMED]
        tallies = sum_by_cohort(k, cohorts[piece], packed[piece])
        for cohort, number, ones in db.execute(stored.where(columns.cohort.in_(tallies))):
            tallies[cohort] += Tally.from_bytes(number, bytes(ones), k=k)
        rows = [
            (kind.metric, kind.fingerprint, day, cohort, tally.reports, tally.to_bytes())
            for cohort, tally in tallies.items()
        ]
        update = "reports = excluded.reports, ones = excluded.ones"
        insert_rows(db, schema.tally, rows, update=update)
        n_counters += len(tallies)
    return n_counters


def add_refusals(db: Connection, refusals: Mapping[tuple[datetime.date, str, str], int]) -> None:
    """Add numbers of refused reports to the table of refusals.

    Parameters
    ----------
    db : a transaction that has the maintenance lock
    refusals : number of refused reports or uploads, by day, metric and reason
    """
    # The database adds. Reading the numbers first would lose refusals of a transaction between.
    rows = [(*key, number) for key, number in refusals.items()]
    insert_rows(db, schema.refusal, rows, update="number = refusal.number + excluded.number")
