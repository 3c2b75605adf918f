"""Merging: batches leave the inbox, and their reports are added to the counters.

One transaction does both. Every process may merge, but only one process merges at a time. The merge
process (`merge_process`) merges regularly. A task that closes blocks, makes a backup or deletes
data calls `merge_all` first.

Each batch has the day (UTC) of its receipt. A counter is the sum of the reports of one metric,
fingerprint (hash of the parameters), day and cohort.

The inbox may contain the same report many times, because a device repeats an upload until it gets a
response. So a merge stores a key, 16 bytes, for what it has counted: for an upload of which all
reports were accepted, one key of the upload (`UPLOAD`), and otherwise one key for each accepted
report (`PART`). `retries` recognises by these keys which reports were counted before.

A merge first seals the batches that are in the inbox: it takes these batches, and leaves later ones
to the next merge. It repeats this transaction until it has taken all sealed batches:

    inbox -- take --> batches -- decode --> records -- find_new_reports --> new reports
                         |                     |                               | by day and kind
                         | unreadable          | refusals                      v
                         v                     v                            counters (`tally`)
                  unreadable_batch          refusal                         keys (`day_tables`)
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
from rappor_server.storage import schema
from rappor_server.storage.bulk import insert_rows
from rappor_server.storage.database import (
    lock_maintenance,
    read_today,
    try_maintenance_lock,
    write_transaction,
)
from rappor_server.storage.day_tables import PART, UPLOAD, store_keys
from rappor_server.storage.inbox import Batch, Inbox, open_inbox, take_unreadable
from rappor_server.storage.record import Kind, Record, RecordError, Reports, decode
from rappor_server.storage.retries import find_new_reports
from rappor_server.storage.tallies import Tally, sum_by_cohort

_MAX_REPORTS_SUMMED: Final = 4096
"""Largest number of reports that are unpacked and summed at once. The value bounds memory: 4,096
reports of 2,040 bits are 8 MB of unpacked bits. So many reports have at most as many cohorts, so
the value also bounds the number of cohorts in one statement. A larger value merges in fewer
statements."""


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
    # Take only the batches that are in the inbox now. Under load, a merge without this limit would
    # never end. It would continue with the few batches that arrived during its last transaction,
    # and each of its transactions would write nearly all counters.
    inbox.seal()
    while True:
        with write_transaction(engine) as db:
            if not try_maintenance_lock(db, wait=wait):
                return total
            # The day is read after the lock was granted, because the wait for the lock may have
            # begun on the day before.
            day = today or read_today(db)
            _record_heartbeat(db, day)
            batches = inbox.take(db)
            result = _merge_batches(db, batches, day)
        # The batches are deleted after the commit. If they were deleted before, and the commit
        # failed, they would be lost.
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

    `operations.retention.check_clock` reads both days before old data is deleted, because a clock
    that is ahead would delete data too early. Case: the clock of the machine jumps from 10 November
    to 1 December. A merge records 1 December, so the latest day agrees with the wrong clock. The
    previous day, 10 November, shows the gap.
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
    new = find_new_reports(db, [record for _, record in records])
    refusals: Counter[tuple[datetime.date, str, str]] = Counter()
    new_reports: dict[tuple[datetime.date, Kind], list[Reports]] = defaultdict(list)
    for (day, record), masks in zip(records, new.masks, strict=True):
        for metric_and_reason, number in record.refusals.items():
            refusals[day, *metric_and_reason] += number
        for reports, is_new in zip(record.reports, masks, strict=True):
            if is_new.any():
                # Nothing but the cohorts and the bits is needed to count reports.
                selected = reports._replace(
                    cohorts=reports.cohorts[is_new], packed=reports.packed[is_new]
                )
                new_reports[day, reports.kind].append(selected)
    store_keys(db, UPLOAD, new.upload_keys, today)
    store_keys(db, PART, new.report_keys, today)
    n_counters = sum(
        _add_to_counters(db, day, kind, parts) for (day, kind), parts in new_reports.items()
    )
    add_refusals(db, refusals)
    return MergeResult(new.n_uploads, new.n_duplicates, n_counters, n_failed)


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
