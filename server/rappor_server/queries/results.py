"""Results of queries: computed once, whoever asks, and kept as files.

A query of a page goes on when its reader leaves, and the page shows its step. A program waits for
the result in its request; the query is cancelled when the last request for it hangs up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Literal

import msgspec

from rappor.base.errors import RapporError
from rappor_server.base import logs
from rappor_server.base.errors import LimitError, StoreError
from rappor_server.base.problems import convert_error
from rappor_server.queries.query import Query, QueryResult
from rappor_server.queries.result_files import ResultFiles
from rappor_server.queries.worker import Pool

NIGHT: Final = ""
"""The owner of results that nobody has asked for yet."""

_MOST_AT_NIGHT: Final = 2
"""Queries in progress with which no further one is started for the night."""

FAILED_SECONDS: Final = 30.0
"""How long a page shows a failure before its query may run again."""

_KNOWN_SECONDS: Final = 3600.0
"""How long the night does not run a query again that has failed."""

_MOST_FAILURES: Final = 1000

LookUp = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultState:
    """A result as it stands: its page once it is done, else its step, or why it failed.

    `began` is in seconds since 1970.
    """

    key: bytes
    state: Literal["running", "done", "failed"]
    step: str = ""
    status: int = HTTPStatus.OK
    began: float = 0.0
    page: bytes = b""


@dataclass(eq=False, slots=True, kw_only=True)
class _Run:
    """A query in progress; `address` is its page's, `n_waiting` counts requests of programs."""

    owner: str
    address: str
    began: float
    step: str = ""
    n_waiting: int = 0
    task: asyncio.Task[QueryResult] = field(init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    reason: str
    status: int
    timestamp: float


class Results:
    """The results of one process; for the thread of the event loop."""

    def __init__(self, pool: Pool, look_up: LookUp, files: ResultFiles, *, per_owner: int) -> None:
        """Run queries in a pool, at most `per_owner` of one owner at a time.

        `look_up` calls a function with the database's engine, in a thread.
        """
        self._pool = pool
        self._look_up = look_up
        self._files = files
        self._per_owner = per_owner
        self._runs: dict[bytes, _Run] = {}
        self._failures: dict[bytes, _Failure] = {}
        self._prepared: dict[str, str] = {}

    @property
    def is_busy(self) -> bool:
        """Whether no query should be started that nobody has asked for."""
        return len(self._runs) >= _MOST_AT_NIGHT

    def may_start(self, owner: str) -> bool:
        """Return whether an owner may start another query."""
        return sum(run.owner == owner for run in self._runs.values()) < self._per_owner

    def addresses(self, owner: str) -> list[str]:
        """Return the addresses of the pages whose results are in progress for an owner."""
        runs = self._runs.values()
        return [run.address for run in runs if run.owner == owner and run.address]

    async def find(self, query: Query) -> ResultState | None:
        """Return the result of a page as it stands, None if nobody has asked for it."""
        return await self._find(await self._look_up(query.key))

    async def files(self, found: ResultState) -> dict[str, bytes]:
        """Return the downloads of a page by name."""
        return await asyncio.to_thread(self._files.files, found.key)

    async def ask(
        self, query: Query, *, owner: str, address: str = "", wait: float = 0.0
    ) -> ResultState | None:
        """Return a page's result; without one, start its query and wait at most `wait` seconds.

        None if the owner has as many queries in progress as it may.
        """
        key = await self._look_up(query.key)
        limit = _KNOWN_SECONDS if owner == NIGHT else FAILED_SECONDS
        found = await self._find(key, failed_seconds=limit)
        if found is not None:
            return found
        if owner != NIGHT and not self.may_start(owner):
            return None
        run = self._start(query, key, owner=owner, address=address)
        await asyncio.wait({run.task}, timeout=wait)
        return await self._find(key)

    async def compute(self, query: Query, *, owner: str) -> dict[str, bytes]:
        """Return the files of a program's result; whoever is cancelled here leaves the query.

        Raises LimitError if the owner has as many queries in progress as it may, and otherwise what
        the query raises.
        """
        key = await self._look_up(query.key)
        if kept := await asyncio.to_thread(self._files.files, key):
            return kept
        run = self._runs.get(key)
        if run is None:
            if not self.may_start(owner):
                raise LimitError(
                    f"a token must have at most {self._per_owner:,} requests for estimates in "
                    "progress: wait for one"
                )
            run = self._start(query, key, owner=owner)
        run.n_waiting += 1
        try:
            return (await asyncio.shield(run.task)).files
        except asyncio.CancelledError:
            if run.task.cancelled():  # the collector ends: nobody has hung up
                raise StoreError("the query was stopped") from None
            if run.n_waiting == 1:
                self._stop(key)
            raise
        finally:
            run.n_waiting -= 1

    async def cancel(self, query: Query) -> None:
        """Stop a page's query."""
        self._stop(await self._look_up(query.key))

    async def prepare(self, queries: Iterable[Query]) -> None:
        """Compute results of pages that nobody has asked for yet, one after another.

        A prepared result is not looked up again until its query changes.
        """
        for query in queries:
            name, text = query.metric.name, repr(query)
            if self._prepared.get(name) == text:
                continue
            found = await self.ask(query, owner=NIGHT)
            if found is not None and found.key in self._runs:
                await asyncio.wait({self._runs[found.key].task})
                found = await self._find(found.key, failed_seconds=_KNOWN_SECONDS)
            if found is None or found.state == "running":
                continue
            if found.status < HTTPStatus.INTERNAL_SERVER_ERROR:  # another time it may succeed
                self._prepared[name] = text

    async def close(self) -> None:
        """Stop all queries."""
        runs = list(self._runs.values())
        for run in runs:
            run.task.cancel()
        for run in runs:
            with contextlib.suppress(asyncio.CancelledError, RapporError):
                await run.task
        self._pool.close()

    async def _find(
        self, key: bytes, *, failed_seconds: float = FAILED_SECONDS
    ) -> ResultState | None:
        page = None
        if key not in self._runs:
            page = await asyncio.to_thread(self._files.find, key)
        if (run := self._runs.get(key)) is not None:
            return ResultState(key=key, state="running", step=run.step, began=run.began)
        if page is not None:
            return ResultState(key=key, state="done", page=page)
        failure = self._failures.get(key)
        if failure is None or abs(time.time() - failure.timestamp) > failed_seconds:
            return None
        return ResultState(key=key, state="failed", step=failure.reason, status=failure.status)

    def _start(self, query: Query, key: bytes, *, owner: str, address: str = "") -> _Run:
        """Start a query; between a look for its key and this call there must be no await."""
        if (run := self._runs.get(key)) is not None:
            return run
        run = self._runs[key] = _Run(owner=owner, address=address, began=time.time())
        run.task = asyncio.create_task(self._run(query, key, run))
        run.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return run

    async def _run(self, query: Query, key: bytes, run: _Run) -> QueryResult:
        """Compute a result and keep it, unless its candidates were edited meanwhile."""

        def report_step(step: str) -> None:
            run.step = step

        self._failures.pop(key, None)
        try:
            data = await self._pool.run(query, report_step)
            result = msgspec.msgpack.decode(data, type=QueryResult)
            if await self._look_up(query.has_key, key):
                await self._keep(key, result)
        except RapporError as error:
            self._note_failure(key, error)
            raise
        finally:
            if self._runs.get(key) is run:
                del self._runs[key]
        return result

    async def _keep(self, key: bytes, result: QueryResult) -> None:
        try:
            await asyncio.to_thread(self._files.keep, key, result)
        except StoreError as error:
            logs.log_event("result not kept", level=logging.WARNING, reason=str(error))
            self._note_failure(key, error)  # or its page would compute it again and again

    def _note_failure(self, key: bytes, error: RapporError) -> None:
        problem = convert_error(error)
        while len(self._failures) >= _MOST_FAILURES:
            self._failures.pop(next(iter(self._failures)))
        self._failures[key] = _Failure(
            reason=problem.detail, status=problem.status.value, timestamp=time.time()
        )

    def _stop(self, key: bytes) -> None:
        """Stop a query, if it is in progress; its place is free at once."""
        if (run := self._runs.pop(key, None)) is not None:
            run.task.cancel()
