"""Failures of a device: counted, logged once a minute for each kind, and never raised to the host.

A failure is whatever the host program did not cause: a full disk, a damaged database, a transport
or a collector that misbehaves. Mistakes of the host, such as an unknown metric, raise or are logged
(`log_mistake`), and do not count.

The module also decides what an exception of SQLite or of a row means:

    is_busy      another process holds a lock: try again
    is_damage    the file does not contain what this library wrote: remove it and begin anew
    is_refusal   SQLite does not open or write the file: the header of the file decides
    otherwise    the disk failed, or the exception comes from elsewhere: keep the file

The last line matters most. A database that is taken for damaged loses all queued reports. A
ValueError from a signal's handler in the middle of a transaction once cost a device its spool.
"""

from __future__ import annotations

import contextlib
import errno
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from rappor.base.errors import FileError, MetricError, RapporError
from rappor_client.folder.forking import Shared, block_forks

_QUIET_SECONDS: Final = 60.0
"""Time between two log lines of one kind, in seconds. A shorter time fills the log of a host beside
a disk that fails."""
_MAX_NAMES: Final = 5
"""Largest number of names in one log line."""
_MAX_LETTERS: Final = 64
"""Largest number of letters of a name in a log line. A host may pass anything as a name."""
_PRIMARY: Final = 0xFF
"""Mask that selects the primary result code in an extended result code of SQLite."""
_SYSTEM_CODES: Final = frozenset(
    {
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
    }
)
"""Result codes of SQLite for failures of disks and locks. All other codes describe the file."""
_ROW_ERRORS: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions that parsing a damaged row raises. Other code raises them, too."""


class DamagedError(Exception):
    """A file of the folder does not contain what this library wrote.

    The message is a short name of the failure.
    """


class Failures(Shared):
    """Counts the failures of one device and logs them, one line a minute for each kind.

    Parameters
    ----------
    folder
        Folder of the device, for the log.
    clock
        Returns seconds of a monotonic clock; for tests.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.n = 0
        self._folder = folder
        self._clock = clock
        self._logged: dict[str, float] = {}
        super().__init__()

    def note(self, error: Exception) -> None:
        """Count a failure; log it unless its kind was logged in the last minute."""
        kind = name_failure(error)
        with self._turn.lock:  # reentrant: the handler of a signal may fail in the middle of it
            self.n += 1
        self._warn(kind, "telemetry failed in %s: %s", self._folder, kind)

    def log_mistake(self, error: RapporError, *, metric: str) -> None:
        """Log a mistake of the host program, once a minute for each metric.

        A host has many calls of `record`, and the name of the metric identifies the wrong one. A
        MetricError, such as that of an unknown metric, needs no name: the name may be a value.
        """
        kind = type(error).__name__
        if isinstance(error, MetricError):
            self._warn(kind, "telemetry is wrong: %s", error)
        else:
            self._warn(f"{kind} {metric}", "telemetry is wrong: metric %s: %s", metric, error)

    def log_unknown_names(self, names: Iterable[str]) -> None:
        """Log refused names that no metric has: with a misspelt name, the refusal has no effect."""
        text = ", ".join(ascii(name[:_MAX_LETTERS]) for name in sorted(names)[:_MAX_NAMES])
        if text:
            self._warn("opted_out", "telemetry: opted_out has names that no metric has: %s", text)

    def _warn(self, kind: str, text: str, *parts: object) -> None:
        """Log a line, unless a line of its kind was logged in the last minute."""
        now = self._clock()
        with self._turn.lock:
            if now - self._logged.get(kind, now - _QUIET_SECONDS) < _QUIET_SECONDS:
                return
            self._logged[kind] = now
        warn(text, *parts)


def warn(text: str, *parts: object) -> None:
    """Log a line if that is possible.

    A device that never fails does not import `logging`. The import is impossible while another
    thread forks, while the interpreter ends, without free file handles, and in a signal's handler
    in the middle of the same import. Log handlers of the host may raise anything. In all these
    cases the line is lost.
    """
    with contextlib.suppress(Exception):
        with block_forks() as may_import:
            if not (may_import or "logging" in sys.modules):
                return
            import logging  # noqa: PLC0415 - 4 ms

            log = logging.getLogger("rappor_client")
        log.warning(text, *parts)


def is_damage(error: Exception) -> bool:
    """Return whether an exception inside a transaction may come from a damaged database.

    Failures of disks and locks have result codes of their own. A damaged row raises one of a few
    exceptions when it is parsed. Any other exception comes from elsewhere, for example from the
    handler of a signal.
    """
    # The handler of a signal has closed the connection, or the host has made a mistake.
    if isinstance(error, sqlite3.ProgrammingError | RapporError):
        return False
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        # Python raises an error without a code for a column that it cannot convert.
        if code is None:
            return True
        # The schema has no trigger, so another program has created one. The rows are sound.
        if code == sqlite3.SQLITE_CONSTRAINT_TRIGGER:
            return False
        # A short read is a truncated file, although SQLite calls it a failure of the disk.
        return code == sqlite3.SQLITE_IOERR_SHORT_READ or code & _PRIMARY not in _SYSTEM_CODES
    return isinstance(error, _ROW_ERRORS)


def is_refusal(error: Exception) -> bool:
    """Return whether SQLite refuses to open or write a file.

    Either the system refuses, or the header of the file forbids it.
    """
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & _PRIMARY in (
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
    )


def is_busy(error: Exception) -> bool:
    """Return whether another process holds a lock, also while that process recovers the log."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & _PRIMARY == sqlite3.SQLITE_BUSY


def name_failure(error: Exception) -> str:
    """Return a short name of a failure.

    The message of a library may contain data, so it is not used.
    """
    match error:
        case DamagedError():
            return f"damaged, {error}"
        case sqlite3.Error():
            return str(getattr(error, "sqlite_errorname", type(error).__name__))
        case OSError(errno=int() as number):
            return errno.errorcode.get(number, type(error).__name__)
        case FileError():
            return error.reason
        case _:
            return type(error).__name__
