"""Finished reports on their way: waiting, in an upload, and sent, for the person to see.

A report has its upload's id, and the upload its bytes, since its bits were drawn: so the same bytes
go again over all attempts. An upload links what is in it, so it never holds two reports. One that
fails waits while others go. Those that have left stay in a log, which forgets the oldest first.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from rappor.protocol.params import Params
from rappor.protocol.wire import Report, Upload, decode_base64url
from rappor_client.folder.counters import count, kept_params
from rappor_client.folder.failures import DamagedError
from rappor_client.periods import DAY, LAST, day_of
from rappor_client.settings import QueueLimits

CLAIM_SECONDS: Final = 2.0
"""How long whoever has claimed an upload holds up the others, should it be killed."""
GIVE_UP_SECONDS: Final = 7 * DAY
"""The collector remembers ids for 14 days; the other half is for wrong clocks and delays."""
ACCEPTED: Final = "accepted"
_UNANSWERED: Final = "unanswered"
_DROPPED_OLD: Final = "dropped_old"
_GIVEN_UP: Final = "given_up"
_UNTRIED: Final = "status IS NULL AND attempts = 0"
_TRIED: Final = "status IS NULL AND attempts > 0"


class QueuedUpload(NamedTuple):
    """An upload without an answer; times are in seconds since 1970.

    Before `claimed_until` somebody is sending it, and before `backoff_until` it waits because an
    attempt failed.
    """

    id: str
    metric: str
    body: bytes
    attempts: int = 0
    first_attempt: float | None = None
    claimed_until: float = 0.0
    backoff_until: float = 0.0


_PENDING: Final = f"SELECT {', '.join(QueuedUpload._fields)} FROM report WHERE"  # noqa: S608 - our own words


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRecord:
    """One report as it left, and its status."""

    metric: str
    params: Params
    cohort: int
    bits: bytes
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SentUpload:
    """One upload: its day (UTC, as 2026-11-30) and the very bytes that left the device."""

    day: str
    id: str
    attempts: int
    body: bytes
    reports: tuple[ReportRecord, ...]


def add(
    db: sqlite3.Connection,
    report: Report,
    upload_id: str,
    *,
    due: float,
    leaves_before: float,
) -> None:
    """Append a finished report to the waiting ones, under the id of its upload.

    It leaves from `due` on and before `leaves_before`, both in seconds since 1970, or never.
    """
    body = Upload(id=upload_id, reports=(report,)).to_json()
    query = (
        "INSERT INTO report (id, metric, params, body, due, leaves_before) "
        "VALUES (?, ?, ?, ?, ?, ?)"
    )
    db.execute(query, (upload_id, report.metric, report.params, body, due, leaves_before))


def trim(db: sqlite3.Connection, limits: QueueLimits) -> None:
    """Drop and count the oldest untried reports until the others are within the limits."""
    query = f"SELECT COUNT(*), TOTAL(LENGTH(body)) FROM report WHERE {_UNTRIED}"  # noqa: S608
    while True:
        reports, n_bytes = db.execute(query).fetchone()
        if reports <= limits.reports and n_bytes <= limits.n_bytes:
            return
        oldest = f"SELECT MIN(seq) FROM report WHERE {_UNTRIED}"  # noqa: S608 - our own words
        db.execute(f"DELETE FROM report WHERE seq = ({oldest})")  # noqa: S608 - likewise
        count(db, "dropped_full")


def waiting(db: sqlite3.Connection) -> int:
    """Return how many finished reports have no answer yet."""
    (n_reports,) = db.execute("SELECT COUNT(*) FROM report WHERE status IS NULL").fetchone()
    return int(n_reports)


def waiting_rows(db: sqlite3.Connection) -> list[tuple[Report, float | None, bytes]]:
    """Return the reports that `waiting` counts, those that were tried first.

    With each are the moment from which it may leave, None where it was tried, and the body of its
    upload.
    """
    due = "CASE WHEN attempts = 0 THEN due END"
    query = f"SELECT {due}, body FROM report WHERE status IS NULL ORDER BY attempts = 0, seq"  # noqa: S608 - our own words
    return [(read_report(body), due, body) for due, body in db.execute(query)]


def pending(db: sqlite3.Connection) -> list[QueuedUpload]:
    """Return the uploads that were tried and have no answer, the oldest first."""
    return [QueuedUpload(*row) for row in db.execute(f"{_PENDING} {_TRIED} ORDER BY seq")]


def oldest(
    db: sqlite3.Connection, *, due_by: float, stopped: Collection[str] = ()
) -> QueuedUpload | None:
    """Return the oldest untried upload that is due; those of stopped metrics wait."""
    query = f"{_PENDING} {_UNTRIED} AND due <= ? AND {_not_of(stopped)} ORDER BY seq LIMIT 1"
    row = db.execute(query, (due_by, *stopped)).fetchone()
    return None if row is None else QueuedUpload(*row)


def dues(db: sqlite3.Connection) -> dict[str, float]:
    """Return when the first untried upload of each metric is due."""
    query = f"SELECT metric, MIN(due) FROM report WHERE {_UNTRIED} GROUP BY metric"  # noqa: S608
    return dict(db.execute(query).fetchall())


def give_up(db: sqlite3.Connection, metric: str, *, since: float, before: float) -> None:
    """Drop and count the untried reports of a metric that were due at such a time, but the last."""
    last = f"SELECT MAX(seq) FROM report WHERE {_UNTRIED} AND metric = ?"  # noqa: S608 - our own words
    late = f"{_UNTRIED} AND metric = ? AND due >= ? AND due < ? AND seq < ({last})"
    query = f"DELETE FROM report WHERE {late}"  # noqa: S608 - likewise
    if n_dropped := db.execute(query, (metric, since, before, metric)).rowcount:
        count(db, _GIVEN_UP, n_dropped)


def give_up_late(db: sqlite3.Connection, *, now: float) -> None:
    """Drop and count the reports whose time to leave is over, tried or not."""
    _drop(db, _GIVEN_UP, "AND leaves_before <= ?", now)


def waiting_params(db: sqlite3.Connection, metric: str) -> list[Params]:
    """Return the parameter sets of the reports of a metric that have no answer yet."""
    query = "SELECT DISTINCT params FROM report WHERE status IS NULL AND metric = ?"
    return [kept_params(db, name) for (name,) in db.execute(query, (metric,)).fetchall()]


def hasten(db: sqlite3.Connection, *, latest: float) -> None:
    """Let no report wait longer than until then: a later moment is of a clock that was wrong."""
    query = f"UPDATE report SET due = ? WHERE {_UNTRIED} AND due > ?"  # noqa: S608 - our own words
    db.execute(query, (latest, latest))


def claim(
    db: sqlite3.Connection, upload: QueuedUpload, *, first_attempt: float, until: float
) -> None:
    """Note an attempt before it is made; other processes leave the upload alone until then."""
    db.execute(
        "UPDATE report SET attempts = attempts + 1, claimed_until = ?, first_attempt = ? "
        "WHERE id = ? AND status IS NULL",
        (until, first_attempt, upload.id),
    )


def postpone(db: sqlite3.Connection, upload: QueuedUpload, *, until: float) -> None:
    """End the claim on an upload and let it wait for its next attempt."""
    db.execute(
        "UPDATE report SET claimed_until = 0, backoff_until = ? WHERE id = ? AND status IS NULL",
        (until, upload.id),
    )


def settle(db: sqlite3.Connection, upload_id: str, status: str) -> None:
    """Close an upload with a status; nothing if it has one. It is counted without its reason."""
    query = "UPDATE report SET status = ? WHERE id = ? AND status IS NULL"
    if n_settled := db.execute(query, (status, upload_id)).rowcount:
        count(db, status.partition(":")[0], n_settled)


def opt_out(db: sqlite3.Connection, names: Collection[str]) -> None:
    """Drop the reports of some metrics that wait, tried or not."""
    for name in names:
        _drop(db, "opted_out", "AND metric = ?", name)


def drop(db: sqlite3.Connection) -> None:
    """Drop all that waits, because it is not known whether it has left already."""
    _drop(db, _DROPPED_OLD, "")


def log(db: sqlite3.Connection) -> list[SentUpload]:
    """Return every remembered upload that has left the device, the oldest first."""
    query = (
        "SELECT id, body, attempts, first_attempt, status FROM report "
        "WHERE attempts > 0 ORDER BY seq"
    )
    return [_sent(db, *row) for row in db.execute(query).fetchall()]


def trim_log(db: sqlite3.Connection, limits: QueueLimits) -> None:
    """Forget the oldest settled uploads beyond the number to remember."""
    db.execute(
        "DELETE FROM report WHERE status IS NOT NULL AND seq <= (SELECT seq FROM report "
        "WHERE status IS NOT NULL ORDER BY seq DESC LIMIT 1 OFFSET ?)",
        (limits.log,),
    )


def read_report(body: bytes) -> Report:
    """Return the report of an upload; whatever else the bytes are raises what its parts raise."""
    (entry,) = json.loads(body)["reports"]
    return Report(**entry | {"bits": decode_base64url("bits", entry["bits"])})


def _drop(db: sqlite3.Connection, status: str, condition: str, *values: object) -> None:
    query = f"DELETE FROM report WHERE {_UNTRIED} {condition}"  # noqa: S608 - our own words
    n_dropped = db.execute(query, values).rowcount
    query = f"UPDATE report SET status = ? WHERE status IS NULL {condition}"  # noqa: S608 - likewise
    n_dropped += db.execute(query, (status, *values)).rowcount
    if n_dropped:
        count(db, status, n_dropped)


def latest_year(path: Path) -> int:
    """Return the latest year in which a spool was certainly used, 0 if it cannot be read.

    Attempts and open intervals have a date. A finished report leaves within a week after its
    interval, so `due` names a time at most a week too late.
    """
    times = """
        SELECT max(first_attempt) FROM report UNION ALL SELECT max(due) - ? FROM report
        UNION ALL SELECT max(ends - seconds) FROM held
    """
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
            found = [time for (time,) in db.execute(times, (7 * DAY,))]
    except sqlite3.Error:  # a spool that is damaged, or no database at all
        return 0
    # A damaged spool may have a text or a number that no calendar has in the place of a time.
    plausible = [time for time in found if isinstance(time, float) and 0 <= time < LAST]
    return max((day_of(time).year for time in plausible), default=0)


def _not_of(names: Collection[str]) -> str:
    return f"metric NOT IN ({', '.join('?' * len(names))})"


def _sent(db: sqlite3.Connection, upload_id: str, body: bytes, *rest: Any) -> SentUpload:
    attempts, first_attempt, status = rest
    if not (isinstance(upload_id, str) and type(attempts) is int):
        raise DamagedError("upload")
    report = read_report(body)
    return SentUpload(
        day=day_of(first_attempt).isoformat(),
        id=upload_id,
        attempts=attempts,
        body=body,
        reports=(
            ReportRecord(
                metric=report.metric,
                params=kept_params(db, report.params),
                cohort=report.cohort,
                bits=report.bits,
                status=status or _UNANSWERED,
            ),
        ),
    )
