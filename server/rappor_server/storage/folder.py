"""The folder: a process beside each collector that folds the inbox when it is worth it.

A fold costs what its cells cost, so it waits until there are several reports for each of them;
but no report waits for a minute, and none for long when nothing more comes. Whoever of several
folders sees it first folds. At the end of the collector, however it ends, it folds once more.
What a reader kept from being erased after a fold is erased within seconds of the reader's end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import multiprocessing
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Final, NamedTuple

from rappor_server.base import logs, processes
from rappor_server.base.errors import StoreError
from rappor_server.storage.database import LockedError, open_engine
from rappor_server.storage.fold import Folded, fold, retry_failed
from rappor_server.storage.inbox import PIECE_BYTES, Inbox, Waiting, open_inbox

_LOOK_SECONDS: Final = 0.25
_QUIET_SECONDS: Final = 1.0
_OLD_SECONDS: Final = 50.0
"""So that a report is gone within a minute."""
_REPORTS_OF_A_CELL: Final = 16
_FEWEST_REPORTS: Final = 4096
"""Before a fold is worth it while more come."""
_AGAIN_SECONDS: Final = 1.0
_TIDY_SECONDS: Final = 5.0
"""After which it tries again what readers may have held up."""


class Schedule:
    """When to fold: it is told what waits, and what folds came to; times are arguments."""

    def __init__(self, now: float) -> None:
        """Begin with a fold of whatever waits."""
        self._enough = self._groups = 0
        self._changed = self._since = now

    def is_due(self, waiting: Waiting, now: float) -> bool:
        """Return whether it is worth it to fold what waits."""
        groups = waiting.groups
        if groups < self._groups or not self._groups:  # the first ones, or somebody has folded
            self._since = now
        if groups != self._groups:
            self._changed, self._groups = now, groups
        if not groups:
            self._enough = max(self._enough, _FEWEST_REPORTS)
            return False
        is_quiet = now - self._changed >= _QUIET_SECONDS
        is_old = now - self._since >= _OLD_SECONDS
        is_much = waiting.reports >= self._enough or waiting.n_bytes >= PIECE_BYTES
        return is_much or is_old or is_quiet

    def folded(self, cells: int) -> None:
        """Note how many counters a fold has written."""
        self._enough = max(_REPORTS_OF_A_CELL * cells, _FEWEST_REPORTS)

    def oldest(self, now: float) -> float:
        """Return for how many seconds a group waits at most, as far as is known here."""
        return now - self._since if self._groups else 0.0


class State(NamedTuple):
    """What a folder tells its collector: what waits, since when, what was folded, what is wrong."""

    waiting: Waiting
    oldest_seconds: float
    folded: Folded
    trouble: str


class Folder:
    """The folder of a collector, started again if it ends; for the event loop."""

    def __init__(self, database: str, tell: Callable[[State], None]) -> None:
        """Start the process; `tell` is called with every state."""
        self._database = database
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._start()

    def _start(self) -> None:
        self._link, other = multiprocessing.Pipe()
        with other:
            self._process: SpawnProcess = processes.start(_serve, other, self._database)
        self._loop.add_reader(self._link.fileno(), self._hear)

    def _hear(self) -> None:
        try:
            state = self._link.recv()
        except (EOFError, OSError):
            self._hang_up()
            self._process.join()  # it has closed its end, so it has ended
            logs.event("folder ended", level=logging.ERROR, exit_code=self._process.exitcode)
            self._timer = self._loop.call_later(_AGAIN_SECONDS, self._start)
        else:
            self._tell(state)

    def _hang_up(self) -> None:
        self._loop.remove_reader(self._link.fileno())
        self._link.close()

    async def close(self) -> None:
        """Let the process fold once more, and end."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._link.closed:
            self._hang_up()
        await asyncio.to_thread(self._process.join)


def _serve(link: Connection[Any, Any], database: str) -> None:
    """Fold when it is due, until the collector is gone, and then once more."""
    processes.begin("rappor-folder")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever ends the collector ends this
    work = _Work(database)
    with contextlib.suppress(OSError):  # the collector has ended meanwhile
        while not link.poll(_AGAIN_SECONDS if work.trouble else _LOOK_SECONDS):
            link.send(work.look(waits=False))
    work.look(waits=True)


class _Work:
    """What a folder does, look by look."""

    def __init__(self, database: str) -> None:
        self.trouble = ""
        self._engine = open_engine(database)
        self._inbox: Inbox | None = None
        self._schedule = Schedule(time.monotonic())
        self._tidied = -math.inf
        self._retried: Inbox | None = None
        self._waiting = Waiting(0, 0, 0, 0)

    def look(self, *, waits: bool) -> State:
        """Fold if it is due, or all if the last look waits for others; nothing of it is raised."""
        folded = Folded()
        try:
            folded = self._fold(waits=waits)
            self.trouble = ""
        except StoreError as error:
            self.trouble = str(error)
        except Exception as error:  # noqa: BLE001 - the next look may do better
            logs.unexpected(error)
            self.trouble = f"folding failed: {type(error).__name__}"
        if self.trouble and self._inbox is not None:
            self._inbox.close()
            self._inbox = None
        return State(self._waiting, self._schedule.oldest(time.monotonic()), folded, self.trouble)

    def _fold(self, *, waits: bool) -> Folded:
        if self._inbox is None:
            self._inbox = open_inbox(self._engine)
        if time.monotonic() >= self._tidied + _TIDY_SECONDS:
            self._tidy(self._inbox)
        self._waiting = self._inbox.waiting()
        if not self._schedule.is_due(self._waiting, time.monotonic()) and not waits:
            return Folded()
        folded = fold(self._engine, self._inbox, waits=waits)
        if folded.uploads or folded.doubles:
            self._schedule.folded(folded.cells)
        return folded

    def _tidy(self, inbox: Inbox) -> None:
        """Fold once what was set apart before, and erase what remains of anybody's folds."""
        self._tidied = time.monotonic()
        if self._retried is not inbox:
            with contextlib.suppress(LockedError):
                retry_failed(self._engine)
                self._retried = inbox
        inbox.clear()
