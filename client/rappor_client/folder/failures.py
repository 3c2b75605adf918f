"""What may go wrong on a device that is nobody's mistake: counted, logged now and then, not raised.

A host program hears of its own mistakes only: an unknown metric, a value of the wrong kind, an
argument outside its range. A disk that is full, a damaged database, a transport or a collector
that misbehaves: each of them is counted here and logged at most once a minute for each kind.
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
from rappor_client.folder.forking import Shared, unforked

_QUIET_SECONDS: Final = 60.0
_SHOWN_NAMES: Final = 5
_SHOWN_LETTERS: Final = 64
"""Largest number of names in one log line, and of letters of each name."""
_PRIMARY: Final = 0xFF
"""The bits of an extended result code of SQLite that hold the primary one."""
_OF_THE_SYSTEM: Final = frozenset(
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
"""What SQLite says of disks and locks; anything else it says of the file itself."""
_OF_THE_ROWS: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading a row raises that does not hold what this library wrote; others raise it, too."""


class DamagedError(Exception):
    """A file of the folder does not hold what this library wrote; the message names the failure."""


class Failures(Shared):
    """Counts the failures of one device and logs them, one line a minute for each kind."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Name the folder; `clock` returns seconds and is for tests."""
        self.n = 0
        self._folder = folder
        self._clock = clock
        self._logged: dict[str, float] = {}
        super().__init__()

    def note(self, error: Exception) -> None:
        """Count a failure; log it unless its kind was logged in the last minute."""
        kind = name_failure(error)
        with self._turn.lock:  # the handler of a signal may fail as well
            self.n += 1
        self._warn(kind, "telemetry failed in %s: %s", self._folder, kind)

    def tell_mistake(self, error: RapporError, *, metric: str) -> None:
        """Log a mistake of the host program, which is no failure, once a minute for each metric.

        A host has many calls of `record`; only the metric says which of them is wrong. An error
        about the metric itself, as an unknown one, names it already.
        """
        kind = type(error).__name__
        if isinstance(error, MetricError):
            self._warn(kind, "telemetry is wrong: %s", error)
        else:
            self._warn(f"{kind} {metric}", "telemetry is wrong: metric %s: %s", metric, error)

    def tell_unknown(self, names: Iterable[str]) -> None:
        """Log refused names that no metric has: the choice of the person has no effect there."""
        shown = ", ".join(ascii(name[:_SHOWN_LETTERS]) for name in sorted(names)[:_SHOWN_NAMES])
        if shown:
            self._warn("opted_out", "telemetry: opted_out has names that no metric has: %s", shown)

    def _warn(self, kind: str, text: str, *parts: object) -> None:
        """Log a line, unless one of its kind was logged in the last minute."""
        now = self._clock()
        with self._turn.lock:
            if now - self._logged.get(kind, now - _QUIET_SECONDS) < _QUIET_SECONDS:
                return
            self._logged[kind] = now
        warn(text, *parts)


def warn(text: str, *parts: object) -> None:
    """Log a line, where that can be: a device that never fails does not import `logging`.

    It cannot while another thread forks, while the interpreter ends, where no more files can be
    opened, nor in a signal's handler in the middle of that very import. A host's own handlers of
    log records may raise.
    """
    with contextlib.suppress(Exception):
        with unforked() as may_import:
            if not (may_import or "logging" in sys.modules):
                return
            import logging  # noqa: PLC0415 - 4 ms

            log = logging.getLogger("rappor_client")
        log.warning(text, *parts)


def is_damage(error: Exception) -> bool:
    """Return whether an error under a database may say that the file is not what it was.

    Disks and locks fail with errors of their own, and what a row does not hold raises one of a few
    others. Anything else comes from elsewhere, as what the handler of a signal raises.
    """
    if isinstance(error, sqlite3.ProgrammingError | RapporError):
        return False
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        if code in (sqlite3.SQLITE_CONSTRAINT_TRIGGER, None):  # a trigger is not ours
            return code is None
        return code == sqlite3.SQLITE_IOERR_SHORT_READ or code & _PRIMARY not in _OF_THE_SYSTEM
    return isinstance(error, _OF_THE_ROWS)


def is_refusal(error: Exception) -> bool:
    """Return whether SQLite does not open or write a file: the system's word, or the file's own."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & _PRIMARY in (
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
    )


def is_busy(error: Exception) -> bool:
    """Return whether an error says that another process holds a lock, while it recovers, too."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & _PRIMARY == sqlite3.SQLITE_BUSY


def name_failure(error: Exception) -> str:
    """Name a failure in a word; no message of a library is passed on."""
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
