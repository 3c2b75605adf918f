"""A store whose commits run in a process of their own.

Reading requests and writing the database would otherwise take turns: after every statement a
writer's thread waits until the event loop releases the interpreter.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import math
import pickle
import select
import socket
import struct
import time
from collections.abc import AsyncIterator, Sequence
from multiprocessing.context import SpawnProcess
from typing import BinaryIO, Final

from rappor_server import logs, processes
from rappor_server.errors import ConflictError, StoreError
from rappor_server.ingest.validate import Submission
from rappor_server.storage.database import erase_traces, open_engine
from rappor_server.storage.group_commit import failed
from rappor_server.storage.store import Refusals, Store

_LENGTH: Final = struct.Struct("<Q")
"""What goes before each question and answer: how many bytes it has."""
_TRACE_SECONDS: Final = 20.0
"""How long the database's log may hold what anybody has written: less than a minute, also by
retries."""
_RETRY_SECONDS: Final = 1.0
_READ_SECONDS: Final = 0.001
"""Between two steps of reading, in which other writers of the database find room."""
_READY: Final = b"."


class _EndedError(StoreError):
    """The process has ended, or nobody knows what it would answer next."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"the process that writes the database has ended: {kind}")


class StoreProcess:
    """What a `Writer` needs of a store, done by another process; for one task at a time."""

    def __init__(self, database: str, *, trace_seconds: float = _TRACE_SECONDS) -> None:
        """Start the process, which empties the database's log every `trace_seconds`."""
        self._setup = database, trace_seconds
        self._link: socket.socket | None = None
        self._process: SpawnProcess | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._start()

    async def ready(self) -> None:
        """Wait until the process has loaded what it needs; it may have ended meanwhile."""
        with contextlib.suppress(_EndedError):
            async with self._ending():
                await self._connect()

    async def commit(
        self, submissions: Sequence[Submission], refusals: Refusals, *, today: datetime.date
    ) -> list[bytes | ConflictError]:
        """Store a group of uploads as `Store.commit` does.

        If the process ends meanwhile, another one stores the group again: what was stored before
        is not counted twice.
        """
        question = pickle.dumps((submissions, refusals, today), pickle.HIGHEST_PROTOCOL)
        try:
            results = await self._ask(question)
        except _EndedError:
            results = await self._ask(question)
        if isinstance(results, StoreError):
            raise results
        return results

    async def rest(self) -> None:
        """Replace a process that has ended while there was nothing to store.

        What it has left in the database's log is then emptied in time.
        """
        if self._process is not None and not self._process.is_alive():
            await self._end()
            await self.ready()

    async def close(self) -> None:
        """End the process; what it does is done first."""
        self._hang_up()
        if self._process is not None:
            await asyncio.to_thread(self._process.join)

    async def _ask(self, question: bytes) -> list[bytes | ConflictError] | StoreError:
        async with self._ending():
            reader, writer = await self._connect()
            writer.writelines((_LENGTH.pack(len(question)), question))
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            data = await reader.readexactly(length)
            results: list[bytes | ConflictError] | StoreError = pickle.loads(data)  # noqa: S301 - our own
            return results

    @contextlib.asynccontextmanager
    async def _ending(self) -> AsyncIterator[None]:
        """End the process if the block fails, whose next answer may be to the last question."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - event loops differ in what they raise
            await self._end()
            raise _EndedError(type(error).__name__) from None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the way to the process, which is started if there is none."""
        if self._process is None:
            self._start()
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(sock=self._link)
            await self._streams[0].readexactly(len(_READY))
        return self._streams

    def _start(self) -> None:
        self._link, other = socket.socketpair()
        with other:
            self._process = processes.start(_serve, other, *self._setup)

    async def _end(self) -> None:
        """Kill the process, if there is one, and say so."""
        self._hang_up()
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await asyncio.to_thread(process.join)
            logs.event("writer ended", level=logging.ERROR, exit_code=process.exitcode)

    def _hang_up(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None
        if self._link is not None:
            self._link.close()
            self._link = None


def _serve(link: socket.socket, database: str, trace_seconds: float) -> None:
    """Commit what comes through the link, until the parent process is gone."""
    processes.begin("rappor-writer")
    desk = _Desk(database, trace_seconds)
    poll = select.poll()  # whatever the number of the link, which select() would bound
    poll.register(link, select.POLLIN)
    with link, link.makefile("rb") as questions, contextlib.suppress(EOFError, OSError):
        link.sendall(_READY)
        while True:
            if poll.poll(math.ceil(1000 * desk.rest())):
                (length,) = _LENGTH.unpack(_read(questions, _LENGTH.size))
                question = pickle.loads(_read(questions, length))  # noqa: S301 - our own
                answer = pickle.dumps(desk.commit(*question), pickle.HIGHEST_PROTOCOL)
                link.sendall(_LENGTH.pack(len(answer)) + answer)


def _read(stream: BinaryIO, length: int) -> bytes:
    """Read `length` bytes; EOFError where there is nobody to send them."""
    if len(data := stream.read(length)) < length:
        raise EOFError
    return data


class _Desk:
    """The store in its process, and when its log is to be emptied."""

    def __init__(self, database: str, trace_seconds: float) -> None:
        self._database = database
        self._trace_seconds = trace_seconds
        self._store: Store | None = None
        with contextlib.suppress(StoreError):  # the first question tries again
            self._store = Store.open(database)
        self._engine = open_engine(database)
        self._erase_at = time.monotonic() + trace_seconds  # of what one before may have left

    def commit(
        self, submissions: Sequence[Submission], refusals: Refusals, today: datetime.date
    ) -> list[bytes | ConflictError] | StoreError:
        """Store a group; return the results, or why there are none."""
        try:
            self._store = self._store or Store.open(self._database)
            return self._store.commit(submissions, refusals, today=today)
        except StoreError as error:
            return error
        except Exception as error:  # noqa: BLE001 - the process must live
            return failed(error)

    def rest(self) -> float:
        """Do a step of what can wait; return the seconds until the next one.

        The log is emptied when it is time, and tried again every second while it is read: other
        processes write too, when they close blocks or delete what is old. Ids of earlier days are
        read until a question comes.
        """
        if time.monotonic() >= self._erase_at:
            pause = self._trace_seconds if self._erase() else _RETRY_SECONDS
            self._erase_at = time.monotonic() + pause
        if self._read_old_ids():
            return _READ_SECONDS
        return max(self._erase_at - time.monotonic(), 0.0)

    def _read_old_ids(self) -> bool:
        """Return whether there are more to read; after a failure not before the next question."""
        try:
            return self._store is not None and self._store.read_old_ids()
        except StoreError:
            return False

    def _erase(self) -> bool:
        try:
            return erase_traces(self._engine, wait=0)
        except StoreError:
            return False
