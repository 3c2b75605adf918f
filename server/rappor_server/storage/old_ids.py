"""Which ids of earlier days may be stored: a look into memory in place of one into each table.

Nearly every upload is new, and to look for its id in the tables of 14 days costs more than to store
it. These tables no longer change (`day_tables`), so the beginnings of their ids are read once, in
small steps, and joined by a thread. An id whose beginning is not among them is new. Any other one
is looked up in the database, as all are in a table that is not read yet.
"""

from __future__ import annotations

import contextlib
import datetime
import operator
import threading
from collections.abc import Callable, Sequence, Set
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, text

from rappor_server.storage import day_tables

_BEGINNING: Final = np.dtype(">u4")
_REST: Final = b"\xff" * (32 - _BEGINNING.itemsize)
_JOINED: Final = {
    "sqlite": "group_concat(hex(beginning), '')",
    "postgresql": "encode(string_agg(beginning, ''), 'hex')",
}
_STEP: Final = 4000
"""Ids that are read at once: uploads wait for a millisecond or two."""
_MOST: Final = 16_000_000
"""Ids whose beginnings are kept, in 8 bytes each."""
_Array = NDArray[np.uint32]


def _run_beside(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()


class OldIds:
    """The beginnings of the ids in the tables of earlier days; for one thread."""

    def __init__(
        self,
        *,
        step: int = _STEP,
        most: int = _MOST,
        run: Callable[[Callable[[], None]], None] = _run_beside,
    ) -> None:
        """Read a step at once, and nothing more once there are `most` ids; join them by `run`."""
        self._run = run
        self._joined: tuple[Sequence[_Array], _Array] = (), np.empty(0, np.uint32)
        self._step = step
        self._most = most
        self._days: list[datetime.date] | None = None
        self._read: dict[datetime.date, _Array] = {}  # sorted
        self._parts: list[_Array] = []
        self._last = b""
        self._is_full = False

    def expect(self, days: Sequence[datetime.date]) -> None:
        """Be about the tables of these days, the newest first, and forget others."""
        if days != self._days:
            self._days = list(days)
            self._read = {day: self._read[day] for day in days if day in self._read}
            self._is_full = False
            self._begin_table()

    def unread(self) -> list[datetime.date]:
        """Return the days whose tables are not read to their end."""
        return [day for day in self._days or () if day not in self._read]

    def is_done(self) -> bool:
        """Return whether there is nothing more to read."""
        return self._days is not None and (self._is_full or not self.unread())

    def are_new(self, days: Sequence[datetime.date], ids: Set[bytes]) -> bool:
        """Return whether it is certain, without a look, that no table of these days has the ids."""
        return days == self._days and not self.unread() and not self.suspects(ids)

    def suspects(self, ids: Set[bytes]) -> list[bytes]:
        """Return those of the ids that a table which is read may hold."""
        given = sorted(ids)
        beginnings = _beginnings(given)
        is_suspect = np.zeros(len(given), bool)
        for known in self._arrays():
            if len(known):
                nearest = known.take(known.searchsorted(beginnings), mode="clip")
                is_suspect |= nearest == beginnings
        return [given[i] for i in np.flatnonzero(is_suspect)]

    def _arrays(self) -> Sequence[_Array]:
        """Return what was read: one array where all of it is joined, else one for each table."""
        apart = tuple(self._read.values())
        parts, joined = self._joined
        is_joined = len(parts) == len(apart) and all(map(operator.is_, parts, apart))
        return (joined,) if is_joined else apart

    def _join(self) -> None:
        """Join all arrays, which takes a tenth of a second for millions of ids.

        Where there is no thread or no memory for that, they stay apart.
        """
        parts = tuple(self._read.values())

        def work() -> None:
            with contextlib.suppress(MemoryError):
                self._joined = parts, np.sort(np.concatenate(parts), kind="stable")

        if parts:
            with contextlib.suppress(RuntimeError):
                self._run(work)

    def read_step(self, db: Connection) -> None:
        """Read some more ids, those of the newest day first, and no more where memory is short."""
        if self.is_done():
            return
        try:
            self._read_some(db, self.unread()[0])
        except MemoryError:
            self._stop()

    def _read_some(self, db: Connection, day: datetime.date) -> None:
        name = day_tables.table_of(day_tables.UPLOAD, day).name
        some = f"SELECT substr(id, 1, {_BEGINNING.itemsize}) AS beginning FROM {name}"  # noqa: S608
        some += f" WHERE id > :last ORDER BY id LIMIT {self._step}"
        joined = f"SELECT {_JOINED[db.dialect.name]} FROM ({some}) AS found"  # noqa: S608
        data = bytes.fromhex(db.execute(text(joined), {"last": self._last}).scalar() or "")
        part = np.frombuffer(data, _BEGINNING).astype(np.uint32)
        self._parts.append(part)
        if sum(map(len, (*self._read.values(), *self._parts))) > self._most:
            self._stop()
        elif len(part) == self._step:
            self._last = int(part.max()).to_bytes(_BEGINNING.itemsize) + _REST
        else:
            in_order = np.concatenate(self._parts)  # nearly: a sort for that takes no time
            self._read[day] = np.sort(in_order, kind="stable")
            self._begin_table()

    def _stop(self) -> None:
        """Read nothing more until the days change."""
        self._is_full = True
        self._begin_table()

    def _begin_table(self) -> None:
        self._parts = []
        self._last = b""
        if self.is_done():
            self._join()


def _beginnings(ids: Sequence[bytes]) -> NDArray[np.uint32]:
    data = b"".join([each[: _BEGINNING.itemsize] for each in ids])
    return np.frombuffer(data, _BEGINNING).astype(np.uint32)
