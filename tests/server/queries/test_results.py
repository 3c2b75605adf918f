"""Results of queries: computed once for everybody, prepared in the background, and cancelled.

`find_or_start` is for a page: it returns a state, and the page asks again until the result is
there. `compute` is for a program, which waits for the result. The owner of a query is
the name of a token. An owner may have `per_owner` queries in progress.

A stub takes the place of the pool of processes. The tests hold its results back by an event, so
that no test depends on time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import pytest
from collectors import build_metric, require_found
from programs import wait_in_event_loop
from rappor_server.base.errors import LimitError, StoreError
from rappor_server.queries.query import Query, QueryResult
from rappor_server.queries.result_files import ResultFiles
from rappor_server.queries.results import BACKGROUND, Results
from rappor_server.queries.worker import Pool, Task

from rappor.base.errors import ParamsError

RESULT = QueryResult(page=b"<p>", files={"a.csv": b"a"})
"""The result that every successful stub returns."""
pytestmark = pytest.mark.anyio


class StubQuery:
    """The methods of a query that `Results` calls. `name` is the key of the query."""

    metric = build_metric("page")

    def __init__(self, name: bytes, run: Callable[[], bytes]) -> None:
        self.name = name
        self.run = run

    def compute_key(self, engine: object) -> bytes:
        """Return the name."""
        del engine
        return self.name

    def is_current(self, engine: object, key: bytes) -> bool:
        """Return whether the name is still the same."""
        return self.compute_key(engine) == key


class StubPool:
    """A pool that runs a query at once, or when the event `may_finish` is set.

    Attributes
    ----------
    names : names of the queries that were started, in their order
    n_cancelled : number of queries that were cancelled
    may_finish : event for which each query waits; it is set at first
    """

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self.n_cancelled = 0
        self.may_finish = asyncio.Event()
        self.may_finish.set()

    async def run(self, task: Task, report_step: Callable[[str], None]) -> bytes:
        """Run a query in this thread."""
        query = cast("StubQuery", task)
        self.names.append(query.name)
        report_step("decoding")
        try:
            await self.may_finish.wait()
        except asyncio.CancelledError:
            self.n_cancelled += 1
            raise
        return query.run()

    def close(self) -> None:
        """Do nothing: there are no processes."""


class Process(NamedTuple):
    """The results of a process, and its pool."""

    results: Results
    pool: StubPool


@contextlib.asynccontextmanager
async def process(folder: Path, *, per_owner: int = 1) -> AsyncIterator[Process]:
    """Run queries of one process."""
    pool = StubPool()

    async def look_up(function: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(0)  # another task may run, as while a thread works
        return function(None, *arguments)

    files = ResultFiles(folder)
    results = Results(cast("Pool", pool), look_up, files, per_owner=per_owner)
    try:
        yield Process(results, pool)
    finally:
        await results.close()


def query(name: bytes = b"k", run: Callable[[], bytes] | None = None) -> Query:
    """Return a query with a page."""
    return cast("Query", StubQuery(name, run or (lambda: msgspec.msgpack.encode(RESULT))))


def count_waiting(results: Results) -> int:
    """Return the number of requests of programs that wait for a query in progress."""
    return sum(run.n_waiting for run in results._runs.values())


def fail() -> bytes:
    """Fail as a query whose days are wrong."""
    raise ParamsError("from must be a day")


async def test_a_gone_program_stops_no_other_run(tmp_path: Path) -> None:
    """A program that disconnects when its query ends stops no later query of the same key.

    The result is not stored, because the key has changed since the query began. Directly after the
    query has ended, another program starts it again, and the first program disconnects.
    """
    async with process(tmp_path, per_owner=2) as (results, pool):
        pool.may_finish.clear()
        requested = query()
        cast("StubQuery", requested).is_current = lambda *_: False  # type: ignore[method-assign]
        first = asyncio.create_task(results.compute(requested, owner="a"))
        await wait_in_event_loop(lambda: results._runs)
        second: list[Any] = []

        def start_again(_: object) -> None:
            pool.may_finish.clear()
            second.append(results._start(requested, b"k", owner="b"))
            first.cancel()

        results._runs[b"k"].task.add_done_callback(start_again)
        pool.may_finish.set()
        with pytest.raises(asyncio.CancelledError):
            await first
        pool.may_finish.set()
        assert await second[0].task == RESULT
        assert pool.n_cancelled == 0


async def test_a_query_runs_once(tmp_path: Path) -> None:
    """Later requests, in this process or another one, get the stored result."""
    async with (
        process(tmp_path) as (first_process, pool),
        process(tmp_path) as (second_process, idle_pool),
    ):
        pool.may_finish.clear()
        first = require_found(
            await first_process.find_or_start(query(), owner="a", address="/there")
        )
        assert (
            first.state,
            first_process.list_addresses("a"),
            first_process.list_addresses("b"),
        ) == (
            "running",
            ["/there"],
            [],
        )
        second = require_found(await first_process.find_or_start(query(), owner="b"))
        assert (second.state, second.step) == ("running", "decoding")
        pool.may_finish.set()
        await first_process.prepare(query())
        result = require_found(await second_process.find_or_start(query(), owner="b"))
        assert (result.state, result.page) == ("done", RESULT.page)
        assert await second_process.read_files(result) == RESULT.files
        assert await second_process.compute(query(), owner="c") == RESULT.files
        assert (pool.names, idle_pool.names) == ([b"k"], [])


async def test_results_are_prepared_one_after_another(tmp_path: Path) -> None:
    """A query that fails is not prepared again, and stops no other query."""
    async with process(tmp_path) as (results, pool):
        for prepared in (query(b"bad", fail), query(b"a"), query(b"b")):
            await results.prepare(prepared)
        assert pool.names == [b"bad", b"a", b"b"]
        await results.prepare(query(b"bad", fail))
        assert pool.names == [b"bad", b"a", b"b"]
        failed = require_found(await results.find(query(b"bad")))
        assert (failed.state, failed.step, failed.status) == ("failed", "from must be a day", 422)
        finished = require_found(await results.find_or_start(query(b"b"), owner=BACKGROUND))
        assert finished.state == "done"


async def test_a_result_of_other_candidates_is_not_stored(tmp_path: Path) -> None:
    """A result is thrown away if the file of candidates was edited after its key was computed."""
    async with process(tmp_path) as (results, pool):
        pool.may_finish.clear()
        edited = query()
        await results.find_or_start(edited, owner="a", address="/there")
        cast("StubQuery", edited).name = b"edited"
        pool.may_finish.set()
        await wait_in_event_loop(lambda: not results.list_addresses("a"))
        assert await results.find(query()) is None


async def test_a_result_that_cannot_be_stored_is_a_failure_of_its_page(tmp_path: Path) -> None:
    """A page shows the failure, and does not compute the result again and again.

    A program still gets the result.
    """
    (tmp_path / "file").touch()  # a file in place of the folder: nothing can be written
    async with process(tmp_path / "file") as (results, pool):
        result = require_found(await results.find_or_start(query(), owner="a", wait=10))
        assert (result.state, result.status) == ("failed", 503)
        assert await results.compute(query(), owner="a") == RESULT.files
        assert pool.names == [b"k", b"k"]


async def test_a_page_is_cancelled(tmp_path: Path) -> None:
    """A cancelled page stops its query, and its owner may start another query at once."""
    async with process(tmp_path) as (results, pool):
        pool.may_finish.clear()
        await results.find_or_start(query(), owner="a")
        await results.cancel(query())
        assert results.may_start("a")
        assert await results.find(query()) is None
        await wait_in_event_loop(lambda: pool.n_cancelled == 1)


async def test_requests_at_the_same_time_do_not_exceed_the_limit(tmp_path: Path) -> None:
    """Of three requests of an owner that may have one query in progress, one query starts."""
    async with process(tmp_path) as (results, pool):
        pool.may_finish.clear()
        names = [b"a", b"b", b"c"]
        states = await asyncio.gather(
            *(results.find_or_start(query(name), owner="a") for name in names)
        )
        assert sorted(state is not None for state in states) == [False, False, True]
        assert not results.may_start("a")
        with pytest.raises(LimitError, match="at most 1 request"):
            await results.compute(query(b"d"), owner="a")
        (running,) = pool.names
        assert await results.find_or_start(query(b"e"), owner="b") is not None
        assert pool.names == [running, b"e"]


async def test_the_last_client_that_disconnects_cancels_the_query(tmp_path: Path) -> None:
    """Of two requests for one result, the first that ends leaves the query to the other one."""
    async with process(tmp_path) as (results, pool):
        pool.may_finish.clear()
        first, second = (asyncio.create_task(results.compute(query(), owner="a")) for _ in range(2))
        await wait_in_event_loop(lambda: count_waiting(results) == 2)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert not results.may_start("a")
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert results.may_start("a")
        await wait_in_event_loop(lambda: pool.n_cancelled == 1)
        pool.may_finish.set()
        assert await results.compute(query(), owner="a") == RESULT.files


async def test_a_failure_is_raised_for_a_program_and_not_remembered(tmp_path: Path) -> None:
    """A program gets the error of a failed query. Its next request runs the query again."""
    async with process(tmp_path) as (results, pool):
        for _ in range(2):
            with pytest.raises(ParamsError, match="from must be a day"):
                await results.compute(query(b"bad", fail), owner="a")
        assert pool.names == [b"bad", b"bad"]


async def test_the_end_of_a_collector_is_a_retryable_error(tmp_path: Path) -> None:
    """A request that waits when the collector ends gets a StoreError, after which it may retry."""
    async with process(tmp_path) as (results, pool):
        pool.may_finish.clear()
        waiting = asyncio.create_task(results.compute(query(), owner="a"))
        await wait_in_event_loop(lambda: count_waiting(results) == 1)
        await results.close()
        with pytest.raises(StoreError, match="the query was stopped"):
            await waiting
