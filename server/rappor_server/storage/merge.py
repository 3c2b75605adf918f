"""Merging: batches leave the inbox, and their reports are added to the counters.

One transaction does both. Every process may merge, but only one process merges at a time. The merge
process (`merge_process`) merges regularly. Whoever closes blocks, makes a backup or deletes data
calls `merge_all` first.

Each batch has the day (UTC) of its receipt. A counter is the sum of the reports of one metric,
fingerprint (hash of the parameters), day and cohort.

A device repeats an upload until it gets a response, so the inbox may contain the same report many
times. Every attempt has the same bytes. Keys (`ingest.retry_keys`) prevent that a report counts
twice:

- An upload of which no report was refused is *whole*. A merge stores the key of the upload.
- An upload of which some reports were refused is *partial*. A later attempt may have more reports
  accepted, for example after the registry was updated. So a merge stores a key for each accepted
  report of the upload.

Example: two attempts of an upload with the reports 1, 2 and 3.

    first attempt         second attempt        counted
    whole                 whole                 1, 2 and 3. The key of the upload is stored
    whole                 partial, 2 refused    1, 2 and 3. The key of the upload is stored
    partial, 2 refused    partial, 3 refused    1 and 3, then 2. The key of report 1 is stored
    partial, 2 refused    whole                 1 and 3, then 2. The keys of the reports 1 and 3 are
                                                stored

Both attempts may be in one merge, in either order. They count as if the whole attempt came first.
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
The value bounds memory: 4,096 reports of 2,040 bits are 8 MB of unpacked bits. A larger value
merges in fewer statements."""


class MergeResult(NamedTuple):
    """Totals of one or more merges.

    Attributes
    ----------
    uploads : number of uploads of which at least one report was counted
    duplicates : number of uploads of which no report was counted, because all were counted before
    counters : number of counters that were written
    failed : number of batches that could not be read. They are in the table `unreadable_batch`
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
    # Only the batches of this moment. Under load, a merge without this limit would never end: it
    # would go on with the few batches that arrived during its last transaction, and each of its
    # transactions would write nearly all counters.
    inbox.seal()
    while True:
        with write_transaction(engine) as db:
            if not try_maintenance_lock(db, wait=wait):
                return total
            # Read after the lock was granted. The wait for the lock may have begun on the day
            # before.
            day = today or read_today(db)
            _record_heartbeat(db, day)
            batches = inbox.take(db)
            result = _merge_batches(db, batches, day)
        # After the commit: batches that were deleted before a failed commit would be lost.
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
    is_recorded = bool(days) and days[-1] == today
    if not is_recorded:
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
            if len(selected.cohorts):  # no report counts if all of them are retries
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

    An unreadable batch is moved to the table `unreadable_batch`. In the inbox, it would make every
    merge fail.
    """

    # The cache saves a query for each batch: a merge has thousands of batches with the same few
    # fingerprints.
    @functools.cache
    def find_params(fingerprint: str) -> Params | None:
        columns = schema.params.c
        query = select(columns.document).where(columns.fingerprint == fingerprint)
        document = db.scalar(query)
        return None if document is None else Params.from_json(document)

    records, n_failed = [], 0
    for day, _, data in batches:
        try:
            if day is None:  # the inbox could not parse the day of the row
                raise RecordError("a batch must have a day")
            record = decode(data, find_params)
        except RecordError:
            n_failed += 1
            db.execute(insert(schema.unreadable_batch).values(day=day or today, data=data))
        else:
            # Case: a collector whose clock is ahead wrote a batch of a later day. Its reports count
            # for today. Under the later day, they could be released only after that day.
            records.append((min(day, today), record))
    return records, n_failed


class _DuplicateCheck:
    """The decision which reports of some records count, and the keys to store afterwards.

    Use: create the object, call `select_new` for the reports of each record, and then `store_keys`.

    Upload i of record r is identified by (r, i), both from 0. Report number `position` of this
    upload is identified by (r, i, position), with `position` from 1. Several uploads may have one
    key: they are attempts of one upload.

    The check has two ways:

        by uploads    fast. The key of an upload decides about all of its reports (`_is_new`). Used
                      if all uploads are whole, and no key of a single report is stored
        by reports    slow. A key of its own decides about each report (`_new_reports`)

    Attributes
    ----------
    n_uploads : number of uploads of which at least one report counts
    n_duplicates : number of all other uploads
    """

    def __init__(self, db: Connection, records: Sequence[Record]) -> None:
        uploads = [
            (r, i, key) for r, record in enumerate(records) for i, key in enumerate(record.keys)
        ]
        self._known_uploads = find_known_keys(db, UPLOAD, {key for _, _, key in uploads})
        """Keys of the uploads that an earlier merge counted as a whole."""
        self._whole_uploads = {key for r, i, key in uploads if records[r].is_whole[i]}
        """Keys of the whole uploads of the records."""
        self._partial_reports: set[bytes] = set()
        """Keys of the accepted reports of the partial uploads of the records."""
        self._new_reports: set[tuple[int, int, int]] | None = None
        """Reports that count if the check is by reports, else None."""
        # Among several uploads with one key the first one counts: `reversed` makes it the last one
        # that is written into the dictionary.
        new_uploads = {
            key: (r, i) for r, i, key in reversed(uploads) if key not in self._known_uploads
        }
        self._is_new = [np.zeros(len(record.keys), bool) for record in records]
        """Whether upload i of record r counts, if the check is by uploads."""
        for r, i in new_uploads.values():
            self._is_new[r][i] = True
        self.n_uploads = len(new_uploads)
        has_partial_uploads = not all(all(record.is_whole) for record in records)
        if has_partial_uploads or list_days(db, PART):
            self._new_reports = self._find_new_reports(db, records)
            self.n_uploads = len({(r, i) for r, i, _ in self._new_reports})
        self.n_duplicates = len(uploads) - self.n_uploads

    def _find_new_reports(
        self, db: Connection, records: Sequence[Record]
    ) -> set[tuple[int, int, int]]:
        """Return the reports that count, and set `_partial_reports`.

        A report does not count if

        - an earlier merge counted its upload as a whole,
        - or the upload is partial, and another attempt among the records is whole and counts,
        - or an earlier merge stored the key of the report,
        - or a report before it in the records has the same key.
        """
        reports_by_key: dict[bytes, tuple[int, int, int]] = {}
        for r, record in enumerate(records):
            for reports in record.reports:
                rows = zip(reports.owners.tolist(), reports.positions.tolist(), strict=True)
                for i, position in rows:
                    key, is_whole = record.keys[i], record.is_whole[i]
                    has_whole_attempt = not is_whole and key in self._whole_uploads
                    if key in self._known_uploads or has_whole_attempt:
                        continue
                    report_key = key_of_report(key, position)
                    reports_by_key.setdefault(report_key, (r, i, position))
                    if not is_whole:
                        self._partial_reports.add(report_key)
        known = find_known_keys(db, PART, reports_by_key)
        return {report for key, report in reports_by_key.items() if key not in known}

    def select_new(self, record_index: int, reports: Reports) -> Reports:
        """Return the reports that count, among the reports of one kind in a record.

        Only the cohorts and the bits are selected, because nothing else is needed to count them.
        """
        is_counted: NDArray[np.bool_] = self._is_new[record_index][reports.owners]
        if self._new_reports is not None:
            rows = zip(reports.owners.tolist(), reports.positions.tolist(), strict=True)
            is_counted = np.array(
                [(record_index, i, position) in self._new_reports for i, position in rows]
            )
        cohorts, packed = reports.cohorts[is_counted], reports.packed[is_counted]
        return reports._replace(cohorts=cohorts, packed=packed)

    def store_keys(self, db: Connection, today: datetime.date) -> None:
        """Store the keys of all uploads and of the reports of partial uploads for 14 days.

        The 14 days begin again for a key that was stored before. A device that retries did not get
        the response, and may retry again after the first 14 days.
        """
        store_keys(db, UPLOAD, self._whole_uploads | self._known_uploads, today)
        store_keys(db, PART, self._partial_reports, today)


def _add_to_counters(
    db: Connection, day: datetime.date, kind: Kind, parts: Sequence[Reports]
) -> int:
    """Add reports of one day and kind to their counters; return the number of written counters.

    The reports are sorted by cohort and added in pieces of `_MAX_REPORTS_SUMMED` reports, which
    bounds memory. A piece has few cohorts because of the sorting. The reports of a cohort may be in
    several pieces. Each piece then reads and writes the counter of the cohort.
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
    # The database adds. If the numbers were read first and written later, refusals that another
    # transaction adds in between would be lost.
    rows = [(*key, number) for key, number in refusals.items()]
    insert_rows(db, schema.refusal, rows, update="number = refusal.number + excluded.number")
