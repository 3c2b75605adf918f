"""A pool of worker processes for analysis tasks, each with a limit of time and memory.

A large query must not take threads, memory or time from the reception of uploads, so each task runs
in a process of its own. A process is reused for the next task. All processes end with their parent.

    event loop            thread of the pool            worker process
    Pool.run(task)   ->   _Worker.run          ->       _serve: task.run(engine, report_step)
                          waits on the pipe    <-       ("step", name), ...
    result           <-                        <-       ("result" | "bytes" | "error", content)

A task ends in one of these ways:

- It returns a result or raises an error. The process waits for the next task.
- It takes longer than the limit. The thread kills the process.
- It needs more memory than the limit. The process reports it, or the system kills the process.
- Its client has gone. The event loop cancels `Pool.run`, and the process is killed.
- The parent hangs or was killed. The process kills itself after the limit and some seconds more, or
  finds the pipe closed.

After a killed process, the next task starts another one.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import multiprocessing
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final, Protocol

from sqlalchemy import Engine

from rappor.base.errors import DecodeError, MissingExtraError, RapporError
from rappor_server.base import logs, processes
from rappor_server.base.errors import StoreError
from rappor_server.storage.database import open_checked

ReportStep = Callable[[str], None]
"""Callback for progress: a task calls it with the name of each step that begins."""

_START_SECONDS: Final = 60.0
"""Longest time that a process may take to start and to import its modules."""
_GRACE_SECONDS: Final = 5.0
"""Time after the limit at which a process kills itself. The parent kills it first unless the parent
hangs."""


class Task(Protocol):
    """A unit of analysis work. Task and result are pickled between processes."""

    def run(self, engine: Engine, report_step: ReportStep) -> Any:
        """Return the result; call `report_step` at the beginning of each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one task: seconds, and bytes of memory in addition to the memory at its start."""

    seconds: float
    n_bytes: int

    def exceeded_error(self) -> DecodeError:
        """Return the error for a task that exceeded a limit and whose process has ended."""
        return DecodeError(
            f"an answer must take at most {self.seconds:g} seconds and "
            f"{self.n_bytes / 1e6:,.0f} MB of memory; ask for less"
        )


class Pool:
    """A fixed number of processes.

    Each runs one task at a time; a bounded number of tasks waits.
    """

    def __init__(
        self,
        name: str,
        *,
        database: str,
        size: int,
        limits: Limits,
        max_waiting: int,
        module: str | None = None,
    ) -> None:
        """Prepare the pool. A process starts with its first task.

        A process imports `module` before the time of its first task is measured.
        """
        self._threads = ThreadPoolExecutor(size, thread_name_prefix=name)
        self._max_waiting = max_waiting
        self._n_waiting = 0
        self._workers = [_Worker(name, database, limits, module) for _ in range(size)]
        # Last in, first out: the process used last has imported its modules, others may be idle
        # and never start.
        self._free: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()
        for worker in self._workers:
            self._free.put_nowait(worker)

    async def run(self, task: Task, report_step: ReportStep = lambda _: None) -> Any:
        """Return the result of a task. Cancelling the call kills the task's process.

        Raises
        ------
        StoreError
            Too many tasks wait; the client may retry.
        DecodeError
            The task exceeded a limit.

        Other errors of the task are raised as they are.
        """
        # Without the limit, a burst of requests would wait longer than any client does.
        if self._free.empty() and self._n_waiting >= self._max_waiting:
            raise StoreError("too many requests are waiting for an answer")
        self._n_waiting += 1
        try:
            worker = await self._free.get()
        finally:
            self._n_waiting -= 1
        loop = asyncio.get_running_loop()

        def report_from_thread(step: str) -> None:
            loop.call_soon_threadsafe(report_step, step)

        # A cancelled call must not free the worker before its thread has ended. So the thread is
        # shielded, and its end frees the worker.
        cancelled = threading.Event()
        result = loop.run_in_executor(
            self._threads, worker.run, task, report_from_thread, cancelled
        )
        result.add_done_callback(lambda done: self._release(worker, done))
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            cancelled.set()
            if not result.done():  # a finished process may run the next task already
                worker.kill()
            raise

    def _release(self, worker: _Worker, done: asyncio.Future[Any]) -> None:
        # Retrieve the exception, or asyncio logs that it was never retrieved.
        if not done.cancelled():
            done.exception()
        self._free.put_nowait(worker)

    async def stop_idle(self) -> None:
        """End the processes that run no task, and free their memory.

        The next task starts one again.
        """
        loop = asyncio.get_running_loop()
        for _ in range(self._free.qsize()):
            worker = self._free.get_nowait()
            await loop.run_in_executor(self._threads, worker.end)
            self._free.put_nowait(worker)

    def close(self) -> None:
        """End all processes and their tasks."""
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Worker:
    """One process of the pool, started when needed.

    One thread at a time may call `run` and `end`; any thread may call `kill`.
    """

    def __init__(self, name: str, database: str, limits: Limits, module: str | None) -> None:
        self._setup = (name, database, limits, module)
        self._limits = limits
        self._process: SpawnProcess | None = None
        self._connection: Connection[Any, Any] | None = None
        self._killed: SpawnProcess | None = None
        """The process that `kill` has killed last. Its successor must not be taken for it."""

    def run(self, task: Task, report_step: ReportStep, cancelled: threading.Event) -> Any:
        """Run a task in the process. Start the process if it is not running."""
        try:
            return self._exchange(task, report_step, cancelled)
        except (EOFError, OSError):
            # The process has ended without a word: `kill` was called, or the system killed the
            # process because of its memory.
            self.end()
            raise self._limits.exceeded_error() from None

    def kill(self) -> None:
        """Kill the process and its task; the next task starts another process."""
        if (process := self._process) is not None:
            self._killed = process  # `is_alive` may stay True for a moment
            process.kill()

    def _exchange(self, task: Task, report_step: ReportStep, cancelled: threading.Event) -> Any:
        connection = self._ensure_process()
        if cancelled.is_set():  # `kill` may have come before there was a process
            raise StoreError("nobody waits for the result")
        connection.send(task)
        while connection.poll(self._limits.seconds):
            kind, content = connection.recv()
            if kind == "step":
                report_step(content)
            elif kind == "error":
                raise content
            elif kind == "bytes":  # unpickling would copy them under the GIL
                return connection.recv_bytes()
            else:
                return content
        self.end()
        raise self._limits.exceeded_error()

    def _ensure_process(self) -> Connection[Any, Any]:
        """Return the connection to a living process that has imported its modules."""
        if self._connection is not None and self._process is not None:
            is_alive = self._process is not self._killed and self._process.is_alive()
            # Data before the first request means that the process is ending.
            if is_alive and not self._connection.poll():
                return self._connection
            self.end()
        self._connection, other = multiprocessing.Pipe()
        self._process = processes.start(_serve, other, *self._setup)
        other.close()
        if not self._connection.poll(_START_SECONDS):
            self.end()
            raise StoreError("the analysis process does not start")
        self._connection.recv()
        return self._connection

    def end(self) -> None:
        """End the process if it is running."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None


def _serve(
    connection: Connection[Any, Any], name: str, database: str, limits: Limits, module: str | None
) -> None:
    """Run tasks until the parent process has ended."""
    processes.begin(name)
    if module is not None:
        importlib.import_module(module)
    _limit_memory(limits.n_bytes)
    connection.send("ready")
    engine: Engine | None = None
    while True:
        try:
            task: Task = connection.recv()
        except EOFError:  # the parent has ended
            return
        signal.setitimer(signal.ITIMER_REAL, limits.seconds + _GRACE_SECONDS)  # SIGALRM kills
        try:
            # Opened with the first task: a database that is away fails the task, and not the start
            # of the process.
            engine = engine or open_checked(database)
            message = ("result", task.run(engine, lambda step: connection.send(("step", step))))
        except MissingExtraError as error:
            message = ("error", DecodeError(str(error)))
        except RapporError as error:
            message = ("error", error)
        except MemoryError:
            message = ("error", limits.exceeded_error())
        except Exception as error:  # noqa: BLE001 - a bug must not end the process
            logs.log_event("analysis failed", level=logging.ERROR, kind=type(error).__name__)
            message = ("error", DecodeError(f"the analysis has failed: {type(error).__name__}"))
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(connection, *message)


def _send(connection: Connection[Any, Any], kind: str, content: Any) -> None:
    """Send a result or an error; send bytes without pickling."""
    if isinstance(content, bytes):
        connection.send(("bytes", None))
        connection.send_bytes(content)
    else:
        connection.send((kind, content))


def _limit_memory(n_bytes: int) -> None:
    """Limit the address space of the process to its present size plus `n_bytes`, on Linux only."""
    try:
        import resource  # noqa: PLC0415 - not on every system

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError):
        return
    max_bytes = pages * resource.getpagesize() + n_bytes
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
