"""Pending reports: the table of the spool that remembers the report of each open interval.

`Admission` (`budget/admission.py`) decides which event an interval has, and calls the functions of
this module, which contain all queries of the table. Each function takes the open transaction.

The table has the name `held`, which is older than the term "pending". Folders of devices contain
it. It has one row for each interval that may still take an event:

    column      contents
    metric      name of the metric
    epoch       name of the scope's epoch, such as 2026-Q4; empty for a metric for life
    ends        end of the interval, in seconds since 1970
    seconds     length of the interval, in seconds
    tag         tag of the pending event, minus 2^63
    report      the pending report (`AdmissionRequest.to_text`), NULL after the decision

The life of a row:

    an event begins the interval           a row with a report
    an event with a smaller tag            the same row with another report
    the interval is over and decided       the row is deleted, or, if it is the newest row of its
                                           metric and epoch, its report becomes NULL
    a later interval is decided            the row with NULL is deleted

The row with NULL remembers that the interval has had its report, in case the clock is set back.

Example: the row of a daily metric after an event of November 18 and an event of November 19. The
interval of November 18 was decided, so its row was deleted. The interval of November 19 ends on
2026-11-20 at 00:00.

    metric   epoch     ends                 seconds   tag             report
    page     2026-Q4   1795132800           86400     -6391...        ["a3f1...", ...]
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from rappor.protocol.wire import Report, Upload
from rappor_client.budget.metric_rules import MetricRules
from rappor_client.budget.prepared_report import PreparedReport
from rappor_client.folder.spool_tables import add_count, load_params, store_params

N_TAGS: Final = 1 << 64
"""Number of tags. A tag is an integer in [0, 2^64). Two events of an interval have the same tag
with a negligible probability."""
_TAG_OFFSET: Final = 1 << 63
"""Number that is subtracted from a stored tag, because the integers of SQLite have a sign."""
_EMPTY_ROW: Final = "UPDATE held SET report = NULL"

RowKey = tuple[str, str, float]
"""Metric, epoch and end of the interval, which are the primary key of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRequest:
    """The report of an event, as it was drawn when the event happened.

    Attributes
    ----------
    rules
        Rules of the metric on the day of the event.
    prepared
        The report.
    upload_id
        Id of the upload that the report becomes.
    """

    rules: MetricRules
    prepared: PreparedReport = field(repr=False)
    upload_id: str

    def to_text(self) -> str:
        """Return the request as a JSON list, for a row of the table.

        The list has the id of the upload, the rules, the fingerprint of the parameters, the cohort,
        and the bits of the report and of the permanent response as hex digits.
        """
        report = self.prepared.report
        fields = (self.upload_id, self.rules.to_json(), report.params, report.cohort)
        return json.dumps([*fields, report.bits.hex(), self.prepared.permanent.hex()])

    @classmethod
    def from_text(cls, db: sqlite3.Connection, metric: str, epoch: str, text: str) -> Self:
        """Read a request that `to_text` has written, and its parameters from the spool.

        Raises ValueError, TypeError, LookupError or DamagedError for another text, which only a
        damaged spool contains.
        """
        upload_id, rules, fingerprint, cohort, *data = json.loads(text)
        bits, permanent = map(bytes.fromhex, data)
        prepared = PreparedReport(
            params=load_params(db, fingerprint),
            epoch=epoch,
            permanent=permanent,
            report=Report(metric=metric, params=fingerprint, cohort=cohort, bits=bits),
        )
        return cls(rules=MetricRules.from_json(rules), prepared=prepared, upload_id=upload_id)


@dataclass(frozen=True, slots=True)
class IntervalRow:
    """A row of the table: an interval, and its pending report if it is not decided.

    Attributes
    ----------
    metric, epoch
        Names of the metric and of the scope's epoch.
    end
        End of the interval, in seconds since 1970.
    seconds
        Length of the interval.
    tag
        Tag of the pending event, in [0, 2^64).
    report
        The pending report as text, None after the decision.
    """

    metric: str
    epoch: str
    end: float
    seconds: float
    tag: int
    report: str | None = field(repr=False)

    @property
    def key(self) -> RowKey:
        """Metric, epoch and end."""
        return self.metric, self.epoch, self.end

    def read_request(self, db: sqlite3.Connection) -> AdmissionRequest:
        """Return the pending report; raises as `AdmissionRequest.from_text`."""
        assert self.report is not None
        return AdmissionRequest.from_text(db, self.metric, self.epoch, self.report)


class PendingReport(NamedTuple):
    """The pending report of an open interval, as people may see it.

    Attributes
    ----------
    metric
        Name of the metric.
    interval_end
        End of the interval, in seconds since 1970.
    body
        The upload that the report becomes, unless the report is drawn again.
    """

    metric: str
    interval_end: float
    body: bytes


def list_undecided(db: sqlite3.Connection) -> list[IntervalRow]:
    """Return the rows with a pending report, by metric and end of the interval."""
    return _select_rows(db, "report IS NOT NULL ORDER BY metric, ends, epoch")


def find_newest(db: sqlite3.Connection, metric: str, epoch: str) -> IntervalRow | None:
    """Return the row of a metric's epoch whose interval ends last, None without a row."""
    rows = _select_rows(db, "metric = ? AND epoch = ? ORDER BY ends DESC LIMIT 1", metric, epoch)
    return rows[0] if rows else None


def list_of_other_epochs(
    db: sqlite3.Connection, metric: str, epoch: str, *, end_after: float
) -> list[IntervalRow]:
    """Return the rows of a metric in other epochs whose interval ends after a time."""
    return _select_rows(db, "metric = ? AND epoch <> ? AND ends > ?", metric, epoch, end_after)


def is_pending(db: sqlite3.Connection, metric: str, tag: int, timestamp: float) -> bool:
    """Return whether the event with a tag is the pending event of the interval that has a time."""
    condition = "metric = ? AND tag = ? AND report IS NOT NULL AND ends - seconds <= ? AND ends > ?"
    return bool(_select_rows(db, condition, metric, tag - _TAG_OFFSET, timestamp, timestamp))


def write_row(
    db: sqlite3.Connection,
    request: AdmissionRequest,
    *,
    epoch: str,
    end: float,
    seconds: float,
    tag: int,
) -> None:
    """Write the row of an interval with a pending report, in place of an earlier row.

    `epoch` is the scope's epoch, which is another one than the report's after some changes of a
    registry. The other arguments are the columns of the table.
    """
    prepared = request.prepared
    store_params(db, prepared.report.params, prepared.params)
    row = (prepared.report.metric, epoch, end, seconds, tag - _TAG_OFFSET, request.to_text())
    db.execute("INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?, ?, ?)", row)


def delete_row(db: sqlite3.Connection, key: RowKey) -> None:
    """Delete the row of an interval."""
    db.execute("DELETE FROM held WHERE metric = ? AND epoch = ? AND ends = ?", key)


def delete_later_rows(db: sqlite3.Connection, key: RowKey) -> None:
    """Delete the rows of a metric's epoch whose intervals end after the interval of the key."""
    db.execute("DELETE FROM held WHERE metric = ? AND epoch = ? AND ends > ?", key)


def finish_row(db: sqlite3.Connection, key: RowKey) -> None:
    """Remove the report of a decided interval: delete its row, or empty the row.

    The newest row of an epoch stays, without its report. A clock that is set back into this
    interval must find that the interval has had its report.
    """
    later = "SELECT 1 FROM held WHERE metric = ? AND epoch = ? AND ends > ?"
    if db.execute(later, key).fetchone():
        delete_row(db, key)
    else:
        db.execute(f"{_EMPTY_ROW} WHERE metric = ? AND epoch = ? AND ends = ?", key)


def drop_pending(db: sqlite3.Connection, metric: str) -> None:
    """Drop the pending reports of a metric. Their intervals stay used, and take no other event.

    They are not counted, because the counter `opted_out` counts queued reports only.
    """
    db.execute(f"{_EMPTY_ROW} WHERE metric = ?", (metric,))


def drop_all_pending(db: sqlite3.Connection) -> None:
    """Drop and count the pending reports of all metrics. Their intervals stay used."""
    if n_pending := db.execute(f"{_EMPTY_ROW} WHERE report IS NOT NULL").rowcount:
        add_count(db, "dropped_old", n_pending)


def list_pending(db: sqlite3.Connection) -> list[PendingReport]:
    """Return all pending reports as people may see them, by metric and end of the interval."""
    pending = []
    for row in list_undecided(db):
        request = row.read_request(db)
        upload = Upload(id=request.upload_id, reports=(request.prepared.report,))
        pending.append(PendingReport(row.metric, row.end, upload.to_json()))
    return pending


def find_next_end(db: sqlite3.Connection) -> float | None:
    """Return the end of the first interval with a pending report, None without pending reports."""
    (end,) = db.execute("SELECT MIN(ends) FROM held WHERE report IS NOT NULL").fetchone()
    return None if end is None else float(end)


def _select_rows(db: sqlite3.Connection, condition: str, *values: object) -> list[IntervalRow]:
    """Return the rows that fulfil a condition of SQL, whose question marks `values` replace."""
    query = f"SELECT metric, epoch, ends, seconds, tag, report FROM held WHERE {condition}"  # noqa: S608 - our own words
    return [
        IntervalRow(metric, epoch, end, seconds, stored_tag + _TAG_OFFSET, report)
        for metric, epoch, end, seconds, stored_tag, report in db.execute(query, values).fetchall()
    ]
