"""Finished reports on their way: waiting, in an upload, and sent, for the person to see.

A report has its upload's id since its bits were drawn, so that the same bytes go again over all
attempts. An upload that fails waits while others go. Uploads that have left stay in a log, which
forgets the oldest first.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rappor.protocol.params import MAX_BITS, Params
from rappor.protocol.wire import Report, Upload
from rappor_client.folder.counters import count, kept_params
from rappor_client.folder.failures import DamagedError
from rappor_client.periods import DAY, day_of
from rappor_client.settings import SpoolLimits

CLAIM_SECONDS: Final = 2.0
"""How long whoever has claimed an upload holds up the others, should it be killed."""
GIVE_UP_SECONDS: Final = 7 * DAY
"""The collector remembers ids for 14 days; the other half is for wrong clocks and delays."""

_SIZE: Final = "SELECT COUNT(*), COUNT(*) * 128 + TOTAL(LENGTH(bits)) FROM report"
"""The number of reports that wait, and about how many bytes they take."""
_ENDS: Final = "SELECT (SELECT MIN(seq) FROM report), (SELECT MAX(seq) FROM report)"
_LARGEST_BYTES: Final = 128 + (MAX_BITS + 7) // 8
ACCEPTED: Final = "accepted"
_UNANSWERED: Final = "unanswered"
_DROPPED_OLD: Final = "dropped_old"


class Pending(NamedTuple):
    """An upload without an answer; times are in seconds since 1970, `seq` is its place in the log.

    Before `claimed_until` somebody is sending it, and before `backoff_until` it waits because an
    attempt failed.
    """

    seq: int
    id: str
    body: bytes
    attempts: int = 0
    first_attempt: float | None = None
    claimed_until: float = 0.0
    backoff_until: float = 0.0

    @property
    def retry_at(self) -> float:
        """The moment from which the background sender tries again."""
        return max(self.claimed_until, self.backoff_until)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentReport:
    """One report as it left, and its status."""

    metric: str
    params: Params
    cohort: int
    bits: bytes
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One upload: its day (UTC, as 2026-11-30) and the very bytes that left the device."""

    day: str
    id: str
    attempts: int
    body: bytes
    reports: tuple[SentReport, ...]


def add(
    db: sqlite3.Connection,
    report: Report,
    upload_id: str,
    *,
    due: float = 0.0,
    is_counted: bool = False,
) -> None:
    """Append a finished report to those that wait; it is due at a moment, under this id.

    It counts as recorded, unless it was counted before.
    """
    db.execute(
        "INSERT INTO report (id, metric, params, cohort, bits, due) VALUES (?, ?, ?, ?, ?, ?)",
        (upload_id, report.metric, report.params, report.cohort, report.bits, due),
    )
    if not is_counted:
        count(db, "recorded")


def trim(db: sqlite3.Connection, limits: SpoolLimits) -> None:
    """Drop and count the oldest waiting reports until the others are within the limits."""
    first, last = db.execute(_ENDS).fetchone()
    if first is None or last - first < min(limits.reports, limits.n_bytes // _LARGEST_BYTES):
        return  # the span of the keys bounds the rows; counting them costs more than the report
    while True:
        reports, n_bytes = db.execute(_SIZE).fetchone()
        if reports <= limits.reports and n_bytes <= limits.n_bytes:
            return
        db.execute("DELETE FROM report WHERE seq = (SELECT MIN(seq) FROM report)")
        count(db, "dropped_full")


def waiting(db: sqlite3.Connection) -> int:
    """Return how many finished reports have no answer yet, those in the pending upload too."""
    (n_reports,) = db.execute("SELECT COUNT(*) FROM report").fetchone()
    rows = db.execute("SELECT reports FROM upload WHERE NOT settled").fetchall()
    return int(n_reports) + sum(len(json.loads(notes)) for (notes,) in rows)


def waiting_reports(db: sqlite3.Connection) -> list[Report]:
    """Return the reports that `waiting` counts, those in the pending upload first."""
    rows = db.execute("SELECT reports FROM upload WHERE NOT settled").fetchall()
    notes = [note for (text,) in rows for note in json.loads(text)]
    query = "SELECT metric, params, cohort, bits FROM report ORDER BY seq"
    return [
        *(_report(n["metric"], n["params"], n["cohort"], bytes.fromhex(n["bits"])) for n in notes),
        *(_report(*row) for row in db.execute(query)),
    ]


def due_times(db: sqlite3.Connection) -> list[float | None]:
    """Return, for each of `waiting_reports`, from when on it may leave; None in an upload."""
    rows = db.execute("SELECT reports FROM upload WHERE NOT settled").fetchall()
    query = "SELECT due FROM report ORDER BY seq"
    in_uploads = sum(len(json.loads(text)) for (text,) in rows)
    return [*[None] * in_uploads, *(due for (due,) in db.execute(query))]


def pending(db: sqlite3.Connection) -> list[Pending]:
    """Return the uploads without an answer, the oldest first."""
    query = (
        "SELECT seq, id, body, attempts, first_attempt, claimed_until, backoff_until "
        "FROM upload WHERE NOT settled ORDER BY seq"
    )
    return [
        Pending(
            seq=seq,
            id=upload_id,
            body=body,
            attempts=attempts,
            first_attempt=first_attempt,
            claimed_until=claimed_until,
            backoff_until=backoff_until,
        )
        for seq, upload_id, body, attempts, first_attempt, claimed_until, backoff_until in (
            db.execute(query)
        )
    ]


def build(
    db: sqlite3.Connection, *, due_by: float, stopped: Collection[str] = ()
) -> Pending | None:
    """Move the oldest report that is due into an upload of its own; None if there is none.

    An upload links what is in it, so it never holds two reports. Those of stopped metrics wait.
    """
    query = (
        "SELECT seq, id, metric, params, cohort, bits FROM report "  # noqa: S608 - places
        f"WHERE due <= ? AND {_not_of(stopped)} ORDER BY seq LIMIT 1"
    )
    row = db.execute(query, (due_by, *stopped)).fetchone()
    if row is None:
        return None
    seq, upload_id, metric, params, cohort, bits = row
    upload = Upload(id=upload_id, reports=(_report(metric, params, cohort, bits),))
    note = {"metric": metric, "params": params, "cohort": cohort, "bits": bits.hex()}
    body = upload.to_json()
    db.execute("DELETE FROM report WHERE seq = ?", (seq,))
    place = db.execute(
        "INSERT INTO upload (id, body, reports) VALUES (?, ?, ?)",
        (upload.id, body, json.dumps([note])),
    ).lastrowid
    assert place is not None
    return Pending(seq=place, id=upload.id, body=body)


def next_due(db: sqlite3.Connection, *, stopped: Collection[str] = ()) -> float | None:
    """Return the moment when the next report in no upload is due, None if there is none."""
    query = f"SELECT MIN(due) FROM report WHERE {_not_of(stopped)}"  # noqa: S608 - places
    (due,) = db.execute(query, tuple(stopped)).fetchone()
    return None if due is None else float(due)


def hasten(db: sqlite3.Connection, *, latest: float) -> None:
    """Let no report wait longer than until then: a later moment is of a clock that was wrong."""
    db.execute("UPDATE report SET due = ? WHERE due > ?", (latest, latest))


def claim(db: sqlite3.Connection, upload: Pending, *, first_attempt: float, until: float) -> None:
    """Note an attempt before it is made; other processes leave the upload alone until then."""
    db.execute(
        "UPDATE upload SET attempts = attempts + 1, claimed_until = ?, first_attempt = ? "
        "WHERE seq = ? AND id = ? AND NOT settled",
        (until, first_attempt, upload.seq, upload.id),
    )


def postpone(db: sqlite3.Connection, upload: Pending, *, until: float) -> None:
    """End the claim on an upload and let it wait for its next attempt."""
    db.execute(
        "UPDATE upload SET claimed_until = 0, backoff_until = ? "
        "WHERE seq = ? AND id = ? AND NOT settled",
        (until, upload.seq, upload.id),
    )


def settle(db: sqlite3.Connection, upload_id: str, statuses: str | Sequence[str]) -> None:
    """Close an upload with a status for each report, or one for all, and count them."""
    query = "SELECT seq, reports FROM upload WHERE id = ? AND NOT settled ORDER BY seq DESC"
    row = db.execute(query, (upload_id,)).fetchone()
    if row is None:  # another process got the answer first, or the person opted out
        return
    seq, text = row
    reports = json.loads(text)
    if isinstance(statuses, str):
        statuses = [statuses] * len(reports)
    for report, status in zip(reports, statuses, strict=True):
        report["status"] = status
        count(db, status)
    db.execute(
        "UPDATE upload SET settled = 1, reports = ? WHERE seq = ?", (json.dumps(reports), seq)
    )


def opt_out(db: sqlite3.Connection, names: Collection[str]) -> None:
    """Drop the reports of some metrics that wait, or that are in the pending upload."""
    for name in names:
        dropped = db.execute("DELETE FROM report WHERE metric = ?", (name,)).rowcount
        if dropped:
            count(db, "opted_out", dropped)
    for upload_id in uploads_of(db, names):
        settle(db, upload_id, "opted_out")


def drop(db: sqlite3.Connection) -> None:
    """Drop all that waits, because it is not known whether it has left already."""
    dropped = db.execute("DELETE FROM report").rowcount
    if dropped:
        count(db, _DROPPED_OLD, dropped)
    for upload_id, _ in _unsettled(db):
        settle(db, upload_id, _DROPPED_OLD)


def log(db: sqlite3.Connection) -> list[Sent]:
    """Return every remembered upload that has left the device, the oldest first."""
    query = (
        "SELECT id, body, attempts, first_attempt, reports FROM upload "
        "WHERE attempts > 0 ORDER BY seq"
    )
    return [_sent(db, *row) for row in db.execute(query).fetchall()]


def trim_log(db: sqlite3.Connection, limits: SpoolLimits) -> None:
    """Forget the oldest settled uploads beyond the number to remember."""
    db.execute(
        "DELETE FROM upload WHERE settled AND seq <= "
        "(SELECT seq FROM upload WHERE settled ORDER BY seq DESC LIMIT 1 OFFSET ?)",
        (limits.log,),
    )


def _not_of(names: Collection[str]) -> str:
    return f"metric NOT IN ({', '.join('?' * len(names))})"


def uploads_of(db: sqlite3.Connection, names: Collection[str]) -> list[str]:
    """Return the ids of the uploads without an answer that hold a report of some metrics."""
    if not names:
        return []
    return [upload_id for upload_id, metrics in _unsettled(db) if not metrics.isdisjoint(names)]


def _unsettled(db: sqlite3.Connection) -> list[tuple[str, set[str]]]:
    """Return the id of each upload without an answer, and the metrics in it: one report's."""
    rows = db.execute("SELECT id, reports FROM upload WHERE NOT settled").fetchall()
    return [(name, {report["metric"] for report in json.loads(notes)}) for name, notes in rows]


def _report(metric: str, params: str, cohort: int, bits: bytes) -> Report:
    return Report(metric=metric, params=params, cohort=cohort, bits=bits)


def _sent(
    db: sqlite3.Connection,
    upload_id: str,
    body: bytes,
    attempts: int,
    first_attempt: float,
    reports: str,
) -> Sent:
    notes = json.loads(reports)
    if not (isinstance(upload_id, str) and type(attempts) is int and body.decode() and notes):
        raise DamagedError("upload")
    return Sent(
        day=day_of(first_attempt).isoformat(),
        id=upload_id,
        attempts=attempts,
        body=body,
        reports=tuple(_sent_report(db, note) for note in notes),
    )


def _sent_report(db: sqlite3.Connection, note: dict[str, Any]) -> SentReport:
    return SentReport(
        metric=note["metric"],
        params=kept_params(db, note["params"]),
        cohort=note["cohort"],
        bits=bytes.fromhex(note["bits"]),
        status=note.get("status", _UNANSWERED),
    )
