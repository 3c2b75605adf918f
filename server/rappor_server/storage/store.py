"""What is kept of uploads: sums, and the ids that make a retry harmless.

Every run of a collector writes a shard of its own each day, one row for each counter, and
remembers what it has written. It never reads a counter to add to it, and no two collectors ever
touch the same row. It continues in a new shard after any failure, because the collector then
cannot tell what the database has kept, and when its counters were folded meanwhile, which happens
only to a collector whose clock lags.
"""

from __future__ import annotations

import contextlib
import datetime
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from sqlalchemy import Connection, Engine, select

from rappor_server.errors import ConflictError, StoreError
from rappor_server.ingest.validate import AcceptedReport, Submission
from rappor_server.storage import schema
from rappor_server.storage.bulk import BulkInsert, BulkUpdate
from rappor_server.storage.database import (
    check_schema,
    failing_as_store_error,
    open_engine,
    open_to_write,
)
from rappor_server.storage.tallies import Cell, Tally, sum_reports

_UPLOADS: Final = BulkInsert(schema.upload, returning="id")
_PARAMS: Final = BulkInsert(schema.params)
_TALLIES: Final = BulkInsert(schema.tally, returning="cohort")
_OLD_TALLIES: Final = BulkUpdate(
    schema.tally, keys=("metric", "params", "day", "quarantine", "cohort", "shard")
)
_REFUSALS: Final = BulkInsert(schema.refusal, keys=("day", "metric", "reason", "shard"))
_KEPT: Final = BulkInsert(schema.kept)

Refusals = Mapping[tuple[str, str], int]
"""(metric, reason) -> number."""


class _TryAgainError(StoreError):
    """Nothing was stored, and the same group can be stored in a new shard at once."""


@dataclass
class _Shard:
    """What this run has written of a day."""

    id: int
    day: datetime.date
    tallies: dict[Cell, Tally] = field(default_factory=dict)
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)


class Store:
    """One database; `commit` is for one thread, the rest for any."""

    def __init__(self, engine: Engine) -> None:
        """Use an engine whose database has the schema of this program."""
        self.engine = engine
        self._shard: _Shard | None = None
        self._own: Connection | None = None
        self._named_params: set[str] = set()

    @classmethod
    def open(cls, url: str) -> Self:
        """Open a database; SchemaError unless it has the schema of this program."""
        engine = open_engine(url)
        try:
            check_schema(engine)
        except StoreError:
            engine.dispose()
            raise
        return cls(engine)

    def close(self) -> None:
        """Close all connections to the database."""
        self._drop()
        self.engine.dispose()

    def ping(self) -> None:
        """Raise StoreError unless the database answers a query."""
        with failing_as_store_error(), self.engine.connect() as db:
            db.execute(select(1))

    def commit(
        self,
        submissions: Sequence[Submission],
        refusals: Refusals,
        *,
        today: datetime.date,
    ) -> list[bytes | ConflictError]:
        """Store a group of uploads in one transaction, on the disk when this returns.

        Returns for each submission the answer to send: an id that was stored before with the same
        body has its stored answer and is not counted again; with another body it is a
        ConflictError. `refusals` counts uploads that were refused whole. Raises StoreError if it
        is not certain that everything was stored; the same group may then be committed again.
        """
        try:
            return self._commit(submissions, refusals, today)
        except _TryAgainError:
            return self._commit(submissions, refusals, today)

    def _commit(
        self, submissions: Sequence[Submission], refusals: Refusals, today: datetime.date
    ) -> list[bytes | ConflictError]:
        shard = self._shard
        self._shard = None  # until all is well
        with self._writing() as db:
            if shard is None or shard.day != today:
                shard = _new_shard(db, today)
            fresh, results = self._admit(db, submissions, today)
            tallies = self._count(db, shard, fresh)
            refused = self._refuse(db, shard, fresh, refusals)
        shard.tallies |= tallies
        shard.refusals = refused
        self._named_params |= {cell.fingerprint for cell in tallies}
        self._shard = shard
        return results

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        """Open a transaction on the writer's own connection, which any failure closes.

        A group whose connection broke while it was idle is worth another try at once.
        """
        was_idle = self._own is not None
        try:
            with failing_as_store_error():
                self._own = db = self._own or open_to_write(self.engine)
                with db.begin():
                    yield db
        except BaseException as error:
            is_broken = self._own is not None and self._own.invalidated
            self._drop()
            if is_broken and was_idle and isinstance(error, StoreError):
                raise _TryAgainError(str(error)) from None
            raise

    def _drop(self) -> None:
        if self._own is not None:
            with contextlib.suppress(StoreError), failing_as_store_error():
                self._own.close()
        self._own = None

    def _admit(
        self, db: Connection, submissions: Sequence[Submission], today: datetime.date
    ) -> tuple[list[Submission], list[bytes | ConflictError]]:
        """Insert the new ids; return their submissions, and the answer of every submission."""
        first: dict[bytes, Submission] = {}
        for submission in submissions:
            first.setdefault(submission.id, submission)
        inserted = self._insert_ids(db, first, today)
        stored = self._stored(db, first.keys() - inserted)
        stored |= {key: (first[key].digest, first[key].answer) for key in inserted}
        results: list[bytes | ConflictError] = []
        for submission in submissions:
            digest, answer = stored[submission.id]
            results.append(answer if digest == submission.digest else ConflictError())
        return [first[key] for key in inserted], results

    def _insert_ids(
        self, db: Connection, first: Mapping[bytes, Submission], today: datetime.date
    ) -> set[bytes]:
        """Insert ids and return the new ones; wait for ids that another collector is writing."""
        rows = [
            (key, first[key].digest, first[key].answer, today)
            for key in sorted(first)  # in one order everywhere: no deadlock
        ]
        return {bytes(key) for key in _UPLOADS.run(db, rows)}

    def _stored(self, db: Connection, ids: set[bytes]) -> dict[bytes, tuple[bytes, bytes]]:
        """Return digest and answer of ids that were stored before."""
        if not ids:
            return {}
        columns = schema.upload.c
        rows = db.execute(
            select(columns.id, columns.digest, columns.answer).where(columns.id.in_(ids))
        )
        return {bytes(key): (bytes(digest), bytes(answer)) for key, digest, answer in rows}

    def _count(
        self, db: Connection, shard: _Shard, fresh: Sequence[Submission]
    ) -> dict[Cell, Tally]:
        """Write the new totals of all counters that the submissions add to, and return them."""
        accepted = [report for submission in fresh for report in submission.accepted]
        added = sum_reports(accepted)
        totals = {
            cell: shard.tallies[cell] + tally if cell in shard.tallies else tally
            for cell, tally in added.items()
        }
        self._name_params(db, accepted)
        old: list[tuple[Any, ...]] = []
        new: list[tuple[Any, ...]] = []
        for cell, tally in totals.items():
            key = (cell.metric, cell.fingerprint, shard.day, cell.quarantine, cell.cohort, shard.id)
            rows = old if cell in shard.tallies else new
            rows.append((*key, tally.reports, tally.to_bytes()))
        written = _OLD_TALLIES.run(db, old) + len(_TALLIES.run(db, new))
        if written != len(totals):
            raise _TryAgainError("the counters of this day were folded")
        self._keep(db, shard.day, accepted)
        return totals

    def _name_params(self, db: Connection, accepted: Sequence[AcceptedReport]) -> None:
        """Store the parameter sets that this run has not stored yet."""
        new = {report.fingerprint: report.params for report in accepted}
        rows = [
            (fingerprint, new[fingerprint].to_json())
            for fingerprint in sorted(new.keys() - self._named_params)
        ]
        _PARAMS.run(db, rows)

    def _keep(self, db: Connection, day: datetime.date, accepted: Sequence[AcceptedReport]) -> None:
        """Store the noisy reports of metrics that keep them."""
        rows = [
            (report.metric, report.fingerprint, day, report.cohort, report.bits)
            for report in accepted
            if report.keep
        ]
        _KEPT.run(db, rows)

    def _refuse(
        self,
        db: Connection,
        shard: _Shard,
        fresh: Sequence[Submission],
        refusals: Refusals,
    ) -> Counter[tuple[str, str]]:
        """Write the new numbers of refusals, and return those of the whole shard."""
        added = Counter(refusals)
        for submission in fresh:
            if submission.refusals:  # few have any, and an update costs
                added.update(submission.refusals)
        totals = shard.refusals + added
        rows = [
            (shard.day, metric, reason, shard.id, totals[metric, reason])
            for metric, reason in added
        ]
        _REFUSALS.run(db, rows)
        return totals


def _new_shard(db: Connection, today: datetime.date) -> _Shard:
    row = db.execute(schema.shard.insert().values(day=today)).inserted_primary_key
    assert row is not None
    return _Shard(int(row[0]), today)
