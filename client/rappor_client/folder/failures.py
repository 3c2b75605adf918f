"""Failures of a device: counted, logged once a minute for each kind, and never raised to the host.

A failure is a fault that the host program did not cause: a full disk, a damaged database, a
transport or a collector that misbehaves. Mistakes of the host, such as an unknown metric, raise or
are logged (`log_mistake`), and do not count.

The module also decides what an exception means that SQLite raises, or the code that parses a row of
the database:

    is_busy      another process holds a lock: try again
    is_damage    the file does not contain what this library wrote: remove it and begin anew
    is_refusal   SQLite refuses to open or write the file. The caller (`folder/store.py`) reads the
                 header of the file. A wrong header is damage. With a sound header the system has
                 refused the access, so the file is kept
    otherwise    the disk failed, or the exception comes from elsewhere: keep the file

The last line matters most. A database that is taken for damaged is removed with all queued reports.
Once a sound database was removed: the handler of a signal raised ValueError in the middle of a
transaction, and the error was taken for a damaged row.

Python runs the handlers of signals in the main thread. Transactions therefore run in a thread of
their own (`folder/folder_thread.py`), where no handler interrupts them. A handler that raises now
only ends the main thread's wait for the transaction. If the process cannot start a thread, the
caller itself runs the transaction, and a handler may still interrupt it.
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
"""Shortest time between two log lines of one kind, in seconds. While a disk fails, each call fails.
A shorter time would fill the log of the host with equal lines."""
_MAX_NAMES: Final = 5
"""Largest number of names in one log line. More names would hide the rest of the log."""
_MAX_LETTERS: Final = 64
"""Largest number of characters of a name in a log line. A host may pass any text as a name."""
_PRIMARY: Final = 0xFF
"""Mask of the primary result code. SQLite returns extended result codes: the lowest eight bits are
the primary code, and the higher bits describe the case."""
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
"""Result codes of SQLite for causes outside the contents of the file: the disk, a lock, missing
memory, a refused access, or an interruption. All other codes are damage of the file."""
_ROW_ERRORS: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions that the parser of a damaged row raises. Other code raises them, too. The module
docstring explains how the handlers of signals are kept out of transactions."""


class DamagedError(Exception):
    """A file of the folder does not contain what this library wrote.

    The message is a short name of the damaged part, such as "counters", for the log.
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
        self.count = 0
        self._folder = folder
        self._clock = clock
        self._logged: dict[str, float] = {}
        super().__init__()

    def note(self, error: Exception) -> None:
        """Count a failure; log it unless its kind was logged in the last minute."""
        kind = name_failure(error)
        # `_turn.lock` is the lock of `Shared`. A fork acquires it as well, so that the child never
        # inherits a locked lock. The lock is reentrant: a signal may arrive while this thread holds
        # the lock, and the handler of the signal may note a failure, too.
        with self._turn.lock:
            self.count += 1
        self._warn(kind, "telemetry failed in %s: %s", self._folder, kind)

    def log_mistake(self, error: RapporError, *, metric: str) -> None:
        """Log a mistake of the host program, once a minute for each metric.

        A host has many calls of `record`, and the name of the metric helps to find the wrong call.
        The line of a MetricError (an unknown metric) contains no name. In a call with swapped
        arguments, `record(value, name)`, the supposed name is a value, and no value may be logged.
        """
        kind = type(error).__name__
        # A handler of the log may keep the arguments of a line. The frames of the exception contain
        # the value, so the argument is its message.
        message = str(error)
        if isinstance(error, MetricError):
            self._warn(kind, "telemetry is wrong: %s", message)
        else:
            self._warn(f"{kind} {metric}", "telemetry is wrong: metric %s: %s", metric, message)

    def log_unknown_names(self, names: Iterable[str]) -> None:
        """Log the names in the argument `opted_out` that are no names of metrics.

        A person refuses metrics by `opted_out`. With a misspelt name the metric is still reported.
        """
        text = ", ".join(ascii(name[:_MAX_LETTERS]) for name in sorted(names)[:_MAX_NAMES])
        if text:
            self._warn("opted_out", "telemetry: opted_out has names that no metric has: %s", text)

    def _warn(self, kind: str, text: str, *parts: object) -> None:
        """Log a line, unless a line of its kind was logged in the last minute."""
        now = self._clock()
        with self._turn.lock:
            last = self._logged.get(kind)
            if last is not None and now - last < _QUIET_SECONDS:
                return
            self._logged[kind] = now
        warn(text, *parts)


def warn(text: str, *parts: object) -> None:
    """Log a line if that is possible, and lose the line otherwise.

    The module `logging` is imported here, so that a device without failures does not import it. In
    four cases the import is impossible, and the line is lost:

    - Another thread forks.
    - The interpreter ends.
    - No file handle is free.
    - The handler of a signal has interrupted the same import.

    A log handler of the host may raise any exception. The exception is suppressed.
    """
    with contextlib.suppress(Exception):
        # `may_import` is False while another thread forks. The child of the fork would wait without
        # end for a module that is being imported.
        with block_forks() as may_import:
            if not (may_import or "logging" in sys.modules):
                return
            import logging  # noqa: PLC0415 - takes 4 ms

            log = logging.getLogger("rappor_client")
        log.warning(text, *parts)


def is_damage(error: Exception) -> bool:
    """Return whether an exception inside a transaction may come from a damaged database.

    Failures of disks and locks have result codes of their own. A damaged row raises one of a few
    exceptions when it is parsed. Any other exception comes from elsewhere, for example from the
    handler of a signal.
    """
    # ProgrammingError: the handler of a signal has closed the connection. RapporError: the host has
    # made a mistake, such as a value outside the categories.
    if isinstance(error, sqlite3.ProgrammingError | RapporError):
        return False
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        # Python raises an error without a code for a column that it cannot convert.
        if code is None:
            return True
        # Another program has created a trigger in the database, and the trigger refuses the change.
        # This library creates no triggers. The rows are sound, so the file is kept.
        if code == sqlite3.SQLITE_CONSTRAINT_TRIGGER:
            return False
        # SQLite reports a file that ends too early as a failure of the disk (SHORT_READ). The file
        # is truncated, so it is damaged.
        return code == sqlite3.SQLITE_IOERR_SHORT_READ or code & _PRIMARY not in _SYSTEM_CODES
    return isinstance(error, _ROW_ERRORS)


def is_refusal(error: Exception) -> bool:
    """Return whether SQLite refuses to open or write a file.

    There are two causes: the system denies the access, or the header of the file has a format that
    this SQLite must not write or read. The result codes do not tell the causes apart.
    """
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & _PRIMARY in (
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
    )


def is_busy(error: Exception) -> bool:
    """Return whether another process holds a lock of the database.

    It may hold the lock for a transaction, or while it recovers the write-ahead log of SQLite after
    a kill (SQLITE_BUSY_RECOVERY).
    """
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & _PRIMARY == sqlite3.SQLITE_BUSY


def name_failure(error: Exception) -> str:
    """Return a short name of a failure, such as "ENOSPC" or "SQLITE_FULL", for the log.

    The message of an exception may contain a path or a value, so the name does not contain it. The
    message of a DamagedError is a fixed text of this library.
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
