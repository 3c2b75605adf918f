"""Finished reports on their way: waiting, in an upload, and sent, for the person to see.

An upload's id and body are fixed before it first leaves and stay the same over all attempts.
There is one pending upload at a time. What has left stays as a record, the oldest first to go.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rappor.errors import ParamsError
from rappor.protocol.params import MAX_BITS, Params
from rappor.protocol.wire import Report, Upload
from rappor_client.periods import DAY, day_of
from rappor_client.state import count, kept_params

GIVE_UP_SECONDS: Final = 7 * DAY
"""The collector knows ids for 14 days; half of it is for clocks and delays."""

_SIZE: Final = "SELECT COUNT(*), COUNT(*) * 128 + TOTAL(LENGTH(bits)) FROM report"
"""Reports, and about the bytes that they take."""
_ENDS: Final = "SELECT (SELECT MIN(seq) FROM report), (SELECT MAX(seq) FROM report)"
_LARGEST_BYTES: Final = 128 + (MAX_BITS + 7) // 8
_UNANSWERED: Final = "unanswered"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolLimits:
    """How much may wait (reports, and bytes on disk, about) and how many uploads are remembered."""

    reports: int = 1000
    n_bytes: int = 1_000_000
    log: int = 1000

    def __post_init__(self) -> None:
        """Refuse what bounds nothing."""
        for name in ("reports", "n_bytes", "log"):
            limit = getattr(self, name)
            if type(limit) is not int or limit < 1:
                raise ParamsError(f"{name} must be an integer of at least 1, got {limit!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """An upload without an answer; times in seconds since 1970."""

    id: str
    body: bytes
    attempts: int
    first_attempt: float | None
    retry_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SentReport:
    """One report as it left, with the nats it added to the ledger and what became of it."""

    metric: str
    params: Params
    cohort: int
    bits: bytes
    nats: float
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One upload: the day (UTC, as 2026-11-30) and the very bytes that left the device."""

    day: str
    id: str
    attempts: int
    body: bytes
    reports: tuple[SentReport, ...]


def add(db: sqlite3.Connection, report: Report, nats: float) -> None:
    """Let a finished and charged report wait."""
    db.execute(
        "INSERT INTO report (metric, params, cohort, bits, nats) VALUES (?, ?, ?, ?, ?)",
        (report.metric, report.params, report.cohort, report.bits, nats),
    )
    count(db, "recorded")


def trim(db: sqlite3.Connection, limits: SpoolLimits) -> None:
    """Drop and count the oldest waiting reports until the rest is within bounds."""
    first, last = db.execute(_ENDS).fetchone()
    if first is None or last - first < min(limits.reports, limits.n_bytes // _LARGEST_BYTES):
        return  # at most so many rows: counting them would cost more than the report
    while True:
        reports, n_bytes = db.execute(_SIZE).fetchone()
        if reports <= limits.reports and n_bytes <= limits.n_bytes:
            return
        db.execute("DELETE FROM report WHERE seq = (SELECT MIN(seq) FROM report)")
        count(db, "dropped_full")


def waiting(db: sqlite3.Connection) -> int:
    """Return how many finished reports have no answer yet, those in the pending upload too."""
    (reports,) = db.execute("SELECT COUNT(*) FROM report").fetchone()
    rows = db.execute("SELECT reports FROM upload WHERE NOT settled").fetchall()
    return int(reports) + sum(len(json.loads(notes)) for (notes,) in rows)


def pending(db: sqlite3.Connection) -> Pending | None:
    """Return the upload to send next, built of the oldest report of each metric if need be."""
    query = (
        "SELECT id, body, attempts, first_attempt, retry_at FROM upload "
        "WHERE NOT settled ORDER BY seq LIMIT 1"
    )
    row = db.execute(query).fetchone()
    if row is None and _build(db):
        row = db.execute(query).fetchone()
    if row is None:
        return None
    upload_id, body, attempts, first_attempt, retry_at = row
    return Pending(
        id=upload_id, body=body, attempts=attempts, first_attempt=first_attempt, retry_at=retry_at
    )


def claim(db: sqlite3.Connection, upload: Pending, *, now: float, until: float) -> None:
    """Note an attempt before it is made; other processes keep away until the time given."""
    db.execute(
        "UPDATE upload SET attempts = attempts + 1, retry_at = ?, "
        "first_attempt = COALESCE(first_attempt, ?) WHERE id = ? AND NOT settled",
        (until, now, upload.id),
    )


def postpone(db: sqlite3.Connection, upload: Pending, until: float) -> None:
    """Let an upload wait for its next attempt."""
    db.execute("UPDATE upload SET retry_at = ? WHERE id = ? AND NOT settled", (until, upload.id))


def settle(db: sqlite3.Connection, upload: Pending, statuses: str | Sequence[str]) -> None:
    """Close an upload with a status for each report, or one for all, and count them."""
    query = "SELECT reports FROM upload WHERE id = ? AND NOT settled"
    row = db.execute(query, (upload.id,)).fetchone()
    if row is None:  # another process had the answer first, or the person opted out
        return
    reports = json.loads(row[0])
    if isinstance(statuses, str):
        statuses = [statuses] * len(reports)
    for report, status in zip(reports, statuses, strict=True):
        report["status"] = status
        count(db, status)
    db.execute(
        "UPDATE upload SET settled = 1, reports = ? WHERE id = ?", (json.dumps(reports), upload.id)
    )


def opt_out(db: sqlite3.Connection, names: Collection[str]) -> None:
    """Drop what waits of some metrics, and the pending upload if it holds any of them."""
    for name in names:
        dropped = db.execute("DELETE FROM report WHERE metric = ?", (name,)).rowcount
        if dropped:
            count(db, "opted_out", dropped)
    rows = db.execute("SELECT id, reports FROM upload WHERE NOT settled").fetchall()
    for upload_id, reports in rows:
        if {report["metric"] for report in json.loads(reports)} & set(names):
            upload = Pending(id=upload_id, body=b"", attempts=0, first_attempt=None, retry_at=0.0)
            settle(db, upload, "opted_out")


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


def _build(db: sqlite3.Connection) -> bool:
    """Move the oldest report of each metric into a new upload; False if none waits."""
    query = (
        "SELECT seq, metric, params, cohort, bits, nats FROM report "
        "WHERE seq IN (SELECT MIN(seq) FROM report GROUP BY metric) ORDER BY metric"
    )
    rows = db.execute(query).fetchall()
    if not rows:
        return False
    reports = tuple(
        Report(metric=metric, params=params, cohort=cohort, bits=bits)
        for _, metric, params, cohort, bits, _ in rows
    )
    upload = Upload(id=Upload.new_id(), reports=reports)
    notes = [
        {"metric": metric, "params": params, "cohort": cohort, "bits": bits.hex(), "nats": nats}
        for _, metric, params, cohort, bits, nats in rows
    ]
    db.execute(
        "INSERT INTO upload (id, body, reports) VALUES (?, ?, ?)",
        (upload.id, upload.to_json(), json.dumps(notes)),
    )
    db.executemany("DELETE FROM report WHERE seq = ?", [(row[0],) for row in rows])
    return True


def _sent(
    db: sqlite3.Connection,
    upload_id: str,
    body: bytes,
    attempts: int,
    first_attempt: float,
    reports: str,
) -> Sent:
    return Sent(
        day=day_of(first_attempt).isoformat(),
        id=upload_id,
        attempts=attempts,
        body=body,
        reports=tuple(_sent_report(db, note) for note in json.loads(reports)),
    )


def _sent_report(db: sqlite3.Connection, note: dict[str, Any]) -> SentReport:
    return SentReport(
        metric=note["metric"],
        params=kept_params(db, note["params"]),
        cohort=note["cohort"],
        bits=bytes.fromhex(note["bits"]),
        nats=note["nats"],
        status=note.get("status", _UNANSWERED),
    )
