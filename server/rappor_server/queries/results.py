"""Results of queries. Each result is computed once for all analysts and stored as files.

Theory of operation
-------------------
A result is identified by the key of its query (`query.py`). It is in one of these states:

    unknown   ->  running  ->  done      the files are stored (`result_files.py`)
                     |
                     +------>  failed    remembered in memory: 30 seconds, or an hour for a query
                     |                   that the collector started itself
                     +------>  unknown   stopped, or the candidates were edited meanwhile

A second request for a running query joins the query in progress. A query is started in one of three
ways, which differ in the end of the query:

- A page starts a query and shows its progress. The query continues when the reader closes the page,
  because the reader may open the page again.
- A program (a client of the API) waits for the result in its request. The query is cancelled when
  the last waiting program has disconnected, because no page would show the result.
- The collector computes the overviews of metrics in the background when blocks were closed, one
  after another, so that the first reader in the morning does not wait.

A token may have a limited number of queries in progress (`queries_per_token`). Joining a query that
another token has started does not count. A failure is remembered, because a page of progress
reloads itself, and would start a query that cannot succeed again and again.

All methods run in the thread of the event loop. Keys are computed and files are read in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
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

BACKGROUND: Final = ""
"""Owner of the queries that the collector starts itself. Any other query has the name of its token
as its owner."""

_BUSY_RUNS: Final = 2
"""Number of queries in progress at which the collector starts no further query in the background.
Two is the default number of processes that decode. A larger number makes readers wait while
processes compute pages in advance."""

FAILED_SECONDS: Final = 30.0
"""Time in seconds for which a page shows a failure before its query may run again. With a larger
value a page shows the failure for longer after its reason has gone, such as a database that was
away."""

_BACKGROUND_FAILED_SECONDS: Final = 3600.0
"""Time in seconds for which a failed query is not run again in the background. The background looks
every 30 seconds, so a query that exceeds its limit would otherwise occupy a process all the time.
With a larger value, an overview is missing for longer after its reason has gone."""

_MAX_FAILURES: Final = 1000
"""Largest number of failures in memory. The oldest failures are forgotten first, and their queries
may run again. A larger value uses more memory."""

LookUp = Callable[..., Awaitable[Any]]
"""Type of `Collector.look_up`. The function calls another function in a thread, with the engine of
the database as the first argument, and returns its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultState:
    """State of a result.

    Attributes
    ----------
    key : key of the query, 32 bytes
    state : "running", "done" or "failed"
    step : the present step of a running query, or the reason of a failed query
    status : HTTP status of a failed query
    began : start of a running query, in seconds since 1970
    page : page of a finished query as MessagePack; empty for a query of the API, whose result is a
        file
    """

    key: bytes
    state: Literal["running", "done", "failed"]
    step: str = ""
    status: int = HTTPStatus.OK
    began: float = 0.0
    page: bytes = b""


@dataclass(eq=False, slots=True, kw_only=True)
class _Run:
    """A query in progress.

    Attributes
    ----------
    owner : name of the token that started the query, or `BACKGROUND`
    address : URL of the page that started the query; empty if a program or the collector started
        the query
    began : seconds since 1970
    step : the present step; empty before the first step
    n_waiting : number of programs' requests that wait for the result
    task : task of the event loop that computes and stores the result
    """

    owner: str
    address: str
    began: float
    step: str = ""
    n_waiting: int = 0
    task: asyncio.Task[QueryResult] = field(init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """A failed query.

    Attributes
    ----------
    reason : sentence for the reader
    status : HTTP status for the reader
    timestamp : time of the failure, in seconds since 1970
    """

    reason: str
    status: int
    timestamp: float


class Results:
    """The results of one process. The methods run in the thread of the event loop."""

    def __init__(self, pool: Pool, look_up: LookUp, files: ResultFiles, *, per_owner: int) -> None:
        """Prepare to run queries.

        Parameters
        ----------
        pool : worker processes, which `close` closes
        look_up : calls a function with the engine of the database, in a thread
        files : stored results
        per_owner : largest number of queries in progress that one owner has started
        """
        self._pool = pool
        self._look_up = look_up
        self._files = files
        self._per_owner = per_owner
        self._runs: dict[bytes, _Run] = {}  # queries in progress by key
        self._failures: dict[bytes, _Failure] = {}  # failed queries by key, the oldest first
        self._prepared: dict[str, str] = {}  # repr of the last prepared query by name of the metric

    @property
    def is_busy(self) -> bool:
        """Whether so many queries are in progress that none should start in the background."""
        return len(self._runs) >= _BUSY_RUNS

    def may_start(self, owner: str) -> bool:
        """Return whether an owner may start another query."""
        return sum(run.owner == owner for run in self._runs.values()) < self._per_owner

    def list_addresses(self, owner: str) -> list[str]:
        """Return the URLs of the pages whose results are in progress for an owner."""
        runs = self._runs.values()
        return [run.address for run in runs if run.owner == owner and run.address]

    async def find(self, query: Query) -> ResultState | None:
        """Return the state of a page's result, or None if the result is unknown."""
        return await self._find(await self._look_up(query.compute_key))

    async def read_files(self, result: ResultState) -> dict[str, bytes]:
        """Return the files of a page by name."""
        return await asyncio.to_thread(self._files.read_files, result.key)

    async def find_or_start(
        self, query: Query, *, owner: str, address: str = "", wait: float = 0.0
    ) -> ResultState | None:
        """Return the state of a page's result, and start the query if the result is unknown.

        Parameters
        ----------
        query : the query
        owner : name of the token that requests the result, or `BACKGROUND`
        address : URL of the page
        wait : seconds to wait for a query that was started, so that a quick result needs no page of
            progress

        Returns
        -------
        The state, or None if the owner may not start another query.
        """
        key = await self._look_up(query.compute_key)
        is_background = owner == BACKGROUND
        limit = _BACKGROUND_FAILED_SECONDS if is_background else FAILED_SECONDS
        state = await self._find(key, failed_seconds=limit)
        if state is not None:
            return state
        if not is_background and not self.may_start(owner):
            return None
        run = self._start(query, key, owner=owner, address=address)
        await asyncio.wait({run.task}, timeout=wait)
        return await self._find(key)

    async def compute(self, query: Query, *, owner: str) -> dict[str, bytes]:
        """Wait for a query of the API, and return the files of its result by media type.

        Cancelling this call ends the waiting. The query is stopped if no other program waits.

        Raises
        ------
        LimitError
            The owner may not start another query (429).
        StoreError
            The collector is shutting down (503).

        Other errors of the query are raised as they are.
        """
        key = await self._look_up(query.compute_key)
        if files := await asyncio.to_thread(self._files.read_files, key):
            return files
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
            # `shield`: the query goes on for other programs when this call is cancelled.
            return (await asyncio.shield(run.task)).files
        except asyncio.CancelledError:
            # Two cases: the collector is shutting down and has cancelled the query while the client
            # is still connected, or the client has disconnected and only this call is cancelled.
            if run.task.cancelled():
                raise StoreError("the query was stopped") from None
            # No page waits for this query: the queries of pages have other keys, because the repr
            # of a query begins with its class. If this run has ended in the same moment, another
            # program may have started a new run with the same key, which must continue.
            if run.n_waiting == 1 and self._runs.get(key) is run:
                self._stop(key)
            raise
        finally:
            run.n_waiting -= 1

    async def cancel(self, query: Query) -> None:
        """Stop a page's query."""
        self._stop(await self._look_up(query.compute_key))

    async def prepare(self, query: Query) -> None:
        """Compute the result of a page in advance, unless it was prepared before.

        At most one query of each metric is prepared. The method is called every 30 seconds for each
        metric. It passes over a query whose repr has not changed since it was prepared, because
        computing the key would read the file of candidates each time.
        """
        name, text = query.metric.name, repr(query)
        if self._prepared.get(name) == text:
            return
        state = await self.find_or_start(query, owner=BACKGROUND)
        if state is not None and state.key in self._runs:
            await asyncio.wait({self._runs[state.key].task})
            state = await self._find(state.key, failed_seconds=_BACKGROUND_FAILED_SECONDS)
        # The query was stopped, or a reader has started the query again in the meantime. The next
        # call of this method looks again.
        if state is None or state.state == "running":
            return
        # A status of 500 or more is a fault of the server, such as a database that is away. The
        # query is tried again, and may succeed then.
        if state.status < HTTPStatus.INTERNAL_SERVER_ERROR:
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
        """Return the state of a result; a failure older than `failed_seconds` is ignored."""
        page = None
        if key not in self._runs:
            page = await asyncio.to_thread(self._files.find, key)
        # The query may have started while the thread read the file.
        if (run := self._runs.get(key)) is not None:
            return ResultState(key=key, state="running", step=run.step, began=run.began)
        if page is not None:
            return ResultState(key=key, state="done", page=page)
        failure = self._failures.get(key)
        # The absolute value is for a clock that was set back by hours: the failure would otherwise
        # be remembered for these hours.
        if failure is None or abs(time.time() - failure.timestamp) > failed_seconds:
            return None
        return ResultState(key=key, state="failed", step=failure.reason, status=failure.status)

    def _start(self, query: Query, key: bytes, *, owner: str, address: str = "") -> _Run:
        """Start a query, or return the query in progress with this key.

        There must be no `await` between a caller's `may_start` and this call. Otherwise several
        requests of one owner would all find that one more query is allowed.
        """
        if (run := self._runs.get(key)) is not None:
            return run
        run = self._runs[key] = _Run(owner=owner, address=address, began=time.time())
        run.task = asyncio.create_task(self._run(query, key, run))
        # Retrieve the exception, or asyncio logs that it was never retrieved.
        run.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return run

    async def _run(self, query: Query, key: bytes, run: _Run) -> QueryResult:
        """Compute a result, and store it unless its key has changed during the computation."""

        def report_step(step: str) -> None:
            run.step = step

        self._failures.pop(key, None)
        try:
            data = await self._pool.run(query, report_step)
            result = msgspec.msgpack.decode(data, type=QueryResult)
            # An operator may have edited the file of candidates while the query ran. The result may
            # be of the new candidates then, and must not be stored under the key of the old ones.
            if await self._look_up(query.is_current, key):
                await self._save(key, result)
        except RapporError as error:
            self._record_failure(key, error)
            raise
        finally:
            # After `_stop`, another run may have the same key. It must stay.
            if self._runs.get(key) is run:
                del self._runs[key]
        return result

    async def _save(self, key: bytes, result: QueryResult) -> None:
        """Store a result. If the disk is full, a waiting program still gets the result."""
        try:
            await asyncio.to_thread(self._files.save, key, result)
        except StoreError as error:
            logs.log_event("result not kept", level=logging.WARNING, reason=str(error))
            # The page finds no stored result. Without the failure, it would compute the result
            # again and again while the disk is full.
            self._record_failure(key, error)

    def _record_failure(self, key: bytes, error: RapporError) -> None:
        """Remember a failure. Beyond the largest number, the oldest failures are forgotten."""
        problem = convert_error(error)
        while len(self._failures) >= _MAX_FAILURES:
            self._failures.pop(next(iter(self._failures)))
        self._failures[key] = _Failure(
            reason=problem.detail, status=problem.status.value, timestamp=time.time()
        )

    def _stop(self, key: bytes) -> None:
        """Stop the query in progress with a key, or do nothing if no such query is in progress.

        The run is removed at once, so that its owner may start another query before the process of
        this one has ended.
        """
        if (run := self._runs.pop(key, None)) is not None:
            run.task.cancel()
