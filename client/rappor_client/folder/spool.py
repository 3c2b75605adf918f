"""The spool: the queue of a device's complete reports, and the log of its uploads.

A report enters the queue when its interval has ended and its bits no longer change. It stays in the
log after the collector has responded.

The spool is a table of the device's SQLite database. The other tables of the database are in
`folder/spool_tables.py` and `budget/pending_reports.py`. Each function takes an open transaction
(`db`) and commits nothing.

Each report is sent as an upload of its own. An upload with two reports would show the collector
that both came from one device. The bytes of the upload are written once, when the report is queued.
All attempts send the same bytes under the same id, so the collector counts the report once.

A row of the table `report` is in one of these states:

    state       status   attempts   changed by
    untried     NULL     0          `add_report`
    tried       NULL     > 0        `claim` (before each attempt), `postpone` (after a failure)
    finished    a text   > 0        `record_result`, or a function whose name begins with `drop`

A finished row has one of these statuses:

    accepted           the collector has counted the report
    refused: REASON    the collector has refused the report
    given_up           the time in which the report may leave has passed
    opted_out          the person refuses the metric
    dropped_old        the spool was restored from a backup, so the report may have been sent before

"Queued" means untried or tried. A finished row stays as an entry of the upload log. The log shows
the person whose device this is everything that has left the device. `trim_log` deletes the oldest
entries. An untried report that is dropped has never left the device, so its row is deleted at once.

Example: `queue_limits.reports = 1000`, and a device without network. The 1,001st untried report
drops the oldest one, which is counted as `dropped_full`.
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
from rappor_client.folder.failures import DamagedError
from rappor_client.folder.spool_tables import add_count, load_params
from rappor_client.folder.void_log import remove_void_log
from rappor_client.periods import DAY, LAST_TIME, day_of
from rappor_client.settings import QueueLimits

CLAIM_SECONDS: Final = 2.0
"""Duration of a claim, in seconds. A process claims an upload before it sends the upload, and no
other process sends a claimed upload. If the claiming process is killed, the upload waits for the
end of the claim, so a longer claim delays the upload longer. If an exchange takes longer than the
claim, another process may send the same upload again. The collector counts it once."""
GIVE_UP_SECONDS: Final = 7 * DAY
"""Time after which an upload is given up, in seconds. The collector remembers ids for 14 days. The
other 7 days are left for wrong clocks and slow networks. A larger value risks that a report is
counted twice."""
ACCEPTED: Final = "accepted"
"""Status of a report that the collector has accepted."""
_UNANSWERED: Final = "unanswered"
"""Shown in the log for an upload that was tried and has no status yet."""
_DROPPED_OLD: Final = "dropped_old"
"""Status of a tried report in a spool that was restored from a backup. Such a spool is older than
the state of the device, and its reports may have left the device already."""
_GIVEN_UP: Final = "given_up"
"""Status of a tried report whose time to leave has passed."""
# Conditions of SQL for two of the states of the table above.
_UNTRIED: Final = "status IS NULL AND attempts = 0"
_TRIED: Final = "status IS NULL AND attempts > 0"


class QueuedUpload(NamedTuple):
    """An upload without a result from the collector. Times are in seconds since 1970.

    Attributes
    ----------
    id
        Id of the upload.
    metric
        Metric of its report.
    body
        The bytes to send.
    attempts
        Number of attempts.
    first_attempt
        Time of the first attempt, None before it.
    claimed_until
        End of the claim of the process that sends the upload.
    backoff_until
        End of the wait after a failed attempt.
    """

    id: str
    metric: str
    body: bytes
    attempts: int = 0
    first_attempt: float | None = None
    claimed_until: float = 0.0
    backoff_until: float = 0.0


_SELECT_QUEUED: Final = f"SELECT {', '.join(QueuedUpload._fields)} FROM report WHERE"  # noqa: S608 - only names of columns


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRecord:
    """A report that has left the device, as the log shows it.

    Attributes
    ----------
    metric : str
        Name of the metric.
    params : Params
        Parameters of the report.
    cohort : int
        Cohort of the device.
    bits : bytes
        The noisy bits that were sent.
    status : str
        "accepted", "refused: REASON", "unanswered", or why the report was dropped.
    """

    metric: str
    params: Params
    cohort: int
    bits: bytes
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SentUpload:
    """An upload that has left the device, as the log shows it.

    Attributes
    ----------
    day : str
        Day of the first attempt (UTC), such as 2026-11-30.
    id : str
        Id of the upload.
    attempts : int
        Number of attempts.
    body : bytes
        The bytes that were sent.
    reports : tuple of ReportRecord
        The reports in the upload.

    Examples
    --------
    >>> upload = SentUpload(day="2026-11-30", id="a", attempts=1, body=b"{}", reports=())
    >>> upload.day, upload.attempts
    ('2026-11-30', 1)
    """

    day: str
    id: str
    attempts: int
    body: bytes
    reports: tuple[ReportRecord, ...]


def add_report(
    db: sqlite3.Connection,
    report: Report,
    upload_id: str,
    *,
    send_after: float,
    leaves_before: float,
) -> None:
    """Queue a complete report as an upload.

    Parameters
    ----------
    db
        The open transaction.
    report
        The report.
    upload_id
        Id of its upload. The id and the noisy bits were drawn together, and both are on the disk
        before this call. So a call that is repeated after a kill queues the same bytes under the
        same id.
    send_after
        Time from which the background sender may send it, in seconds since 1970.
    leaves_before
        Time at which the report is given up, in seconds since 1970; infinity for a report that
        may leave at any time.
    """
    body = Upload(id=upload_id, reports=(report,)).to_json()
    query = (
        "INSERT INTO report (id, metric, params, body, send_after, leaves_before) "
        "VALUES (?, ?, ?, ?, ?, ?)"
    )
    db.execute(query, (upload_id, report.metric, report.params, body, send_after, leaves_before))


def trim_queue(db: sqlite3.Connection, limits: QueueLimits) -> None:
    """Drop and count the oldest untried reports until the untried reports are within the limits."""
    query = f"SELECT COUNT(*), TOTAL(LENGTH(body)) FROM report WHERE {_UNTRIED}"  # noqa: S608
    while True:
        reports, n_bytes = db.execute(query).fetchone()
        if reports <= limits.reports and n_bytes <= limits.n_bytes:
            return
        # Only untried reports are dropped. A tried report may have reached the collector already,
        # and its row is part of the log.
        oldest = f"SELECT MIN(seq) FROM report WHERE {_UNTRIED}"  # noqa: S608 - a constant
        db.execute(f"DELETE FROM report WHERE seq = ({oldest})")  # noqa: S608 - a constant
        add_count(db, "dropped_full")


def count_queued(db: sqlite3.Connection) -> int:
    """Return the number of queued reports, untried or tried."""
    (n_reports,) = db.execute("SELECT COUNT(*) FROM report WHERE status IS NULL").fetchone()
    return int(n_reports)


def list_queued(db: sqlite3.Connection) -> list[tuple[Report, float | None, bytes]]:
    """Return the queued reports, the tried reports first.

    Each report comes with its send_after (None if it was tried) and the body of its upload.
    """
    send_after = "CASE WHEN attempts = 0 THEN send_after END"
    query = f"SELECT {send_after}, body FROM report WHERE status IS NULL ORDER BY attempts = 0, seq"  # noqa: S608 - a constant
    return [(read_report(body), timestamp, body) for timestamp, body in db.execute(query)]


def list_tried_uploads(db: sqlite3.Connection) -> list[QueuedUpload]:
    """Return the uploads that were tried and have no result, the oldest first."""
    return [QueuedUpload(*row) for row in db.execute(f"{_SELECT_QUEUED} {_TRIED} ORDER BY seq")]


def find_untried(
    db: sqlite3.Connection, *, send_after: float, except_for: Collection[str] = ()
) -> QueuedUpload | None:
    """Return the oldest untried upload whose send_after is not later than a time.

    Uploads of the metrics in `except_for` are ignored. The result is None if no such upload exists.
    """
    names = f"metric NOT IN ({', '.join('?' * len(except_for))})"
    query = f"{_SELECT_QUEUED} {_UNTRIED} AND send_after <= ? AND {names} ORDER BY seq LIMIT 1"
    row = db.execute(query, (send_after, *except_for)).fetchone()
    return None if row is None else QueuedUpload(*row)


def read_send_after(db: sqlite3.Connection) -> dict[str, float]:
    """Return the earliest send_after of the untried uploads of each metric."""
    query = f"SELECT metric, MIN(send_after) FROM report WHERE {_UNTRIED} GROUP BY metric"  # noqa: S608
    return dict(db.execute(query).fetchall())


def drop_late(db: sqlite3.Connection, metric: str, *, since: float, before: float) -> None:
    """Drop and count the late untried reports of a metric: those with since <= send_after < before.

    A late report missed the week in which its upload was due, but it may still leave. A report that
    must not leave any more is dropped by `drop_expired`.

    Two kinds of late reports stay:

    - A report with a send_after before `since`. The caller sets `since` to a year ago. A
      report hardly waits for a year, so the clock was probably wrong, either when the report was
      made or now. The age of the report is then unknown.
    - The newest report of the metric. Case: a program starts once a month. The report of its last
      start is late at each start. If it were dropped, the program would never send a report.
    """
    last = f"SELECT MAX(seq) FROM report WHERE {_UNTRIED} AND metric = ?"  # noqa: S608 - a constant
    late = f"{_UNTRIED} AND metric = ? AND send_after >= ? AND send_after < ? AND seq < ({last})"
    query = f"DELETE FROM report WHERE {late}"  # noqa: S608 - constants
    if n_dropped := db.execute(query, (metric, since, before, metric)).rowcount:
        add_count(db, _GIVEN_UP, n_dropped)


def drop_expired(db: sqlite3.Connection, *, now: float) -> None:
    """Drop and count the queued reports whose `leaves_before` has passed, for example by its epoch.

    Reports that are late, but may still leave, are dropped by `drop_late`.
    """
    _drop(db, _GIVEN_UP, "AND leaves_before <= ?", now)


def list_queued_params(db: sqlite3.Connection, metric: str) -> list[Params]:
    """Return the parameter sets of the queued reports of a metric."""
    query = "SELECT DISTINCT params FROM report WHERE status IS NULL AND metric = ?"
    fingerprints = db.execute(query, (metric,)).fetchall()
    return [load_params(db, fingerprint) for (fingerprint,) in fingerprints]


def limit_send_after(db: sqlite3.Connection, *, latest: float) -> None:
    """Replace every later send_after by `latest`: it was computed by a clock that was ahead."""
    query = f"UPDATE report SET send_after = ? WHERE {_UNTRIED} AND send_after > ?"  # noqa: S608 - a constant
    db.execute(query, (latest, latest))


def claim(
    db: sqlite3.Connection, upload: QueuedUpload, *, first_attempt: float, until: float
) -> None:
    """Record an attempt before it is made, and keep other processes from sending the upload.

    The claim ends at the time `until`, or when `postpone` or `record_result` ends it.
    """
    db.execute(
        "UPDATE report SET attempts = attempts + 1, claimed_until = ?, first_attempt = ? "
        "WHERE id = ? AND status IS NULL",
        (until, first_attempt, upload.id),
    )


def postpone(db: sqlite3.Connection, upload: QueuedUpload, *, until: float) -> None:
    """End the claim on an upload, and let it wait for its next attempt."""
    db.execute(
        "UPDATE report SET claimed_until = 0, backoff_until = ? WHERE id = ? AND status IS NULL",
        (until, upload.id),
    )


def record_result(db: sqlite3.Connection, upload_id: str, status: str) -> None:
    """Store the final status of an upload and count it; do nothing if the upload has a status.

    The name of the counter is the status up to the colon, such as "refused". Reasons come from the
    collector. When names of counters contained them, the number of counters grew without bound.
    """
    # Another process may have sent the same upload after the claim had ended. The first result
    # stays.
    query = "UPDATE report SET status = ? WHERE id = ? AND status IS NULL"
    if n_finished := db.execute(query, (status, upload_id)).rowcount:
        add_count(db, status.partition(":")[0], n_finished)


def drop_metrics(db: sqlite3.Connection, names: Collection[str]) -> None:
    """Drop and count the queued reports of some metrics, because the person refuses them."""
    for name in names:
        _drop(db, "opted_out", "AND metric = ?", name)


def drop_all(db: sqlite3.Connection) -> None:
    """Drop and count all queued reports of a spool that was restored from a backup.

    Some of them may have left the device after the backup was made. The restored spool does not
    contain these attempts, so the same uploads would leave again. The collector counts an upload
    once, but it forgets the id of the upload after 14 days. An upload from an older backup would be
    counted as a second report of its interval.
    """
    _drop(db, _DROPPED_OLD, "")


def list_sent_uploads(db: sqlite3.Connection) -> list[SentUpload]:
    """Return the uploads of the log that have left the device, the oldest first."""
    query = (
        "SELECT id, body, attempts, first_attempt, status FROM report "
        "WHERE attempts > 0 ORDER BY seq"
    )
    return [_make_sent_upload(db, *row) for row in db.execute(query).fetchall()]


def trim_log(db: sqlite3.Connection, limits: QueueLimits) -> None:
    """Delete the oldest finished uploads, until the log is within its limit."""
    # The subquery skips the newest rows, which the log keeps, and returns the row before them. If
    # the log has no more rows than its limit, the subquery returns nothing, and nothing is deleted.
    db.execute(
        "DELETE FROM report WHERE status IS NOT NULL AND seq <= (SELECT seq FROM report "
        "WHERE status IS NOT NULL ORDER BY seq DESC LIMIT 1 OFFSET ?)",
        (limits.log,),
    )


def read_report(body: bytes) -> Report:
    """Return the report of an upload.

    Raises ValueError, TypeError or LookupError for bytes that are no upload.
    """
    # An upload of this client contains one report. Another number raises ValueError.
    (entry,) = json.loads(body)["reports"]
    return Report(**entry | {"bits": decode_base64url("bits", entry["bits"])})


def _drop(db: sqlite3.Connection, status: str, condition: str, *values: object) -> None:
    """Delete the untried reports that fulfil a condition, and give the tried reports a status.

    Tried reports stay as entries of the upload log, because they may have left the device.
    `condition` continues the WHERE clause of SQL, and `values` replace its question marks.
    """
    query = f"DELETE FROM report WHERE {_UNTRIED} {condition}"  # noqa: S608 - no values
    n_dropped = db.execute(query, values).rowcount
    query = f"UPDATE report SET status = ? WHERE status IS NULL {condition}"  # noqa: S608 - no values
    n_dropped += db.execute(query, (status, *values)).rowcount
    if n_dropped:
        add_count(db, status, n_dropped)


def find_latest_year(path: Path) -> int:
    """Return the latest calendar year in which a spool was certainly used, 0 if unknown.

    A device that has lost its state cannot know how much of its yearly budget it has used. It takes
    the budget of this year as used.

    Three columns of the spool contain times:

        first_attempt     time of an attempt
        send_after        at most a week after the end of the report's interval, so a week is
                          subtracted
        ends - seconds    start of an interval in which the device recorded an event (the table
                          `held`, see `budget/pending_reports.py`)
    """
    times = """
        SELECT max(first_attempt) FROM report UNION ALL SELECT max(send_after) - ? FROM report
        UNION ALL SELECT max(ends - seconds) FROM held
    """
    # SQLite builds an index of the write-ahead log even for a read-only connection. If the log has
    # no valid frame, SQLite would write old memory of this process, which may contain secrets, to
    # the file of the index (`folder/void_log.py`). So such a log is removed first.
    remove_void_log(path)
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
            timestamps = [timestamp for (timestamp,) in db.execute(times, (7 * DAY,))]
    except sqlite3.Error:  # a damaged spool, or no database at all
        return 0
    # A column of a damaged spool may contain a text, or a number outside of Python's calendar.
    plausible = [time for time in timestamps if isinstance(time, float) and 0 <= time < LAST_TIME]
    return max((day_of(time).year for time in plausible), default=0)


def _make_sent_upload(
    db: sqlite3.Connection, upload_id: str, body: bytes, *columns: Any
) -> SentUpload:
    """Return the upload of a row; DamagedError for a row with columns of other types.

    `columns` are attempts, first_attempt and status.
    """
    attempts, first_attempt, status = columns
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
                params=load_params(db, report.params),
                cohort=report.cohort,
                bits=report.bits,
                status=status or _UNANSWERED,
            ),
        ),
    )
