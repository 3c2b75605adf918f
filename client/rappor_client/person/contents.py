"""Contents of a device's folder at the time of reading, for people, commands and tests.

The contents reveal no recorded value: reports are noisy, the scopes contain noisy bits, and of the
secret only its existence is shown.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rappor.base.errors import FileError
from rappor.protocol.wire import Report
from rappor_client.budget import pending_reports, reservation_record
from rappor_client.budget.identity import read_state
from rappor_client.budget.pending_reports import PendingReport
from rappor_client.budget.privacy_spent import NOTHING_SPENT, PrivacySpent
from rappor_client.budget.scopes import Scope
from rappor_client.folder import spool
from rappor_client.folder.access import UnusableError
from rappor_client.folder.failures import DamagedError, name_failure
from rappor_client.folder.identity_folder import NAME, BusyError
from rappor_client.folder.spool import QueuedUpload, SentUpload
from rappor_client.folder.spool_tables import read_counters
from rappor_client.folder.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Contents of a device's folder.

    Attributes
    ----------
    has_secret : bool
        Whether the folder has a valid secret.
    queued_reports : tuple of Report
        Finished reports without a result from the collector. Reports that were tried come first.
    send_after : tuple of float or None
        Time from which each queued report may be sent, in seconds since 1970. None for a report
        that was tried.
    tried_uploads : tuple of QueuedUpload
        Uploads of the queued reports that were tried, in the same order.
    pending_reports : tuple of PendingReport
        Reports of open intervals. A later event may still replace the report of its interval.
    scopes : tuple of Scope
        Scopes that have reported, from which `spent` is computed.
    spent : PrivacySpent
        Privacy loss so far, in nats.
    sent_uploads : tuple of SentUpload
        Log of the uploads that have left the device.
    bodies : tuple of bytes
        Bodies of all uploads that may leave: of queued reports, then of pending reports.
    counters : mapping of str to int
        Numbers of values and reports by what happened to them, for example "recorded" (values) and
        "accepted" (reports). The device never sends the counters.
    """

    has_secret: bool
    queued_reports: tuple[Report, ...] = ()
    send_after: tuple[float | None, ...] = ()
    tried_uploads: tuple[QueuedUpload, ...] = ()
    pending_reports: tuple[PendingReport, ...] = ()
    scopes: tuple[Scope, ...] = ()
    spent: PrivacySpent = NOTHING_SPENT
    sent_uploads: tuple[SentUpload, ...] = ()
    bodies: tuple[bytes, ...] = field(default=(), repr=False)
    counters: Mapping[str, int]


def read_contents(folder: str | os.PathLike[str]) -> Contents:
    """Read the contents of a device's folder.

    A folder without a device, and a folder that does not exist, have empty contents. Raises
    FileError if the folder cannot be read.
    """
    path = Path(folder).expanduser()
    with _translate_errors(path):
        state_and_spool = read_state(path)
        spent = read_spent(path)
        if state_and_spool is None:
            return Contents(has_secret=False, spent=spent, counters={})
        state, spool_path = state_and_spool
        scopes = tuple(state.scopes.values())
        store = Store(spool_path)
        if not store.exists():
            return Contents(has_secret=True, scopes=scopes, spent=spent, counters={})
        try:
            with store.reading() as db:
                pending = tuple(pending_reports.list_pending(db))
                rows = spool.list_queued(db)
                return Contents(
                    has_secret=True,
                    queued_reports=tuple(report for report, _, _ in rows),
                    send_after=tuple(send_after for _, send_after, _ in rows),
                    tried_uploads=tuple(spool.list_tried_uploads(db)),
                    pending_reports=pending,
                    scopes=scopes,
                    spent=spent,
                    sent_uploads=tuple(spool.list_sent_uploads(db)),
                    bodies=(*(body for _, _, body in rows), *(report.body for report in pending)),
                    counters=read_counters(db),
                )
        finally:
            store.close()


def read_spent(folder: Path) -> PrivacySpent:
    """Read the privacy loss of a folder's device.

    After a withdrawal there is no state. Then the result has the reserved nats of the record only.
    """
    state_and_spool = read_state(folder)
    if state_and_spool is None:
        return PrivacySpent.of((), reservation_record.read(folder, 0))
    state, _ = state_and_spool
    return PrivacySpent.of(state.scopes.values(), state.reservations.sum_by_year())


def check_device_folder(folder: Path) -> None:
    """Raise FileError for a folder without a device, and without a record of reserved nats.

    A misspelt path would otherwise look like a device that has sent nothing. Raises FileError also
    if the system does not let this process look into the folder.
    """
    with _translate_errors(folder):
        has_telemetry = any((folder / name).exists() for name in (NAME, reservation_record.NAME))
    if not has_telemetry:
        raise FileError(folder, "there is no telemetry in it")


@contextlib.contextmanager
def _translate_errors(folder: Path) -> Iterator[None]:
    """Raise FileError for a failure of the disk, the database or a lock.

    The message names the kind of failure. A message of SQLite might quote a row.
    """
    try:
        yield
    except UnusableError as error:
        raise FileError(folder, str(error)) from None
    except (sqlite3.Error, OSError, DamagedError, BusyError) as error:
        raise FileError(folder, name_failure(error)) from None
