"""A pool of worker processes for analysis tasks, each with a limit of time and memory.

A task reads counts or computes estimates for one request. A large task must not take threads,
memory or time from the reception of uploads, so each task runs in a worker process. A process is
reused for the next task. All processes end with their parent.

    event loop            thread of the pool            worker process
    Pool.run(task)   ->   _Worker.run          ->       _serve: task.run(engine, report_step)
                          waits on the pipe    <-       ("step", name), ...
    result           <-                        <-       ("result" | "bytes" | "error", content)

A task ends in one of these ways:

- It returns a result or raises an error. The process waits for the next task.
- It sends nothing for longer than the limit. The thread kills the process.
- It reports steps, and takes some seconds longer than the limit in all. The process kills itself.
- It needs more memory than the limit. The process reports it, or the system kills the process.
- Its client has gone. The event loop cancels `Pool.run`, and the process is killed.
- The parent hangs or was killed. The process kills itself in the same way, or when the pipe closes.

After a killed process, the next task starts another one.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from rappor_server.storage.schema_versions import open_checked

ReportStep = Callable[[str], None]
"""Callback that shows progress. A task calls it with the name of each step that begins."""

_START_SECONDS: Final = 60.0
"""Longest time that a process may take to start and to import its modules, in seconds. The imports
take about a second. The limit is large for a machine that starts many processes at once; a larger
value lets an analyst wait longer for the error of a process that never starts."""
_GRACE_SECONDS: Final = 5.0
"""Time after the limit of a task at which a process kills itself, in seconds. The parent usually
kills it earlier: as soon as the process has sent nothing for the whole limit. The timer is for a
parent that hangs, and for a task that reports a step from time to time. A larger value lets such a
process compute longer."""


class Task(Protocol):
    """A unit of analysis work. Task and result are pickled between processes."""

    def run(self, engine: Engine, report_step: ReportStep) -> Any:
        """Return the result; call `report_step` at the beginning of each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one task.

    Attributes
    ----------
    seconds : longest duration of a task (setting `decode_seconds`)
    n_bytes : largest memory of a task in bytes, in addition to the memory of its process at the
        start (setting `decode_bytes`)
    """

    seconds: float
    n_bytes: int

    def exceeded_error(self) -> DecodeError:
        """Return the error for a task that exceeded a limit and whose process has ended."""
        return DecodeError(
            f"a result must take at most {self.seconds:g} seconds and "
            f"{self.n_bytes / 1e6:,.0f} MB of memory: request fewer days or candidates"
        )


class Pool:
    """A fixed number of worker processes. Each runs one task at a time; a bounded number waits.

    `run`, `stop_idle` and `close` belong to the event loop.
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

        Parameters
        ----------
        name : name of the processes and threads
        database : URL of the database
        size : number of processes
        limits : limits of each task
        max_waiting : largest number of tasks that wait for a process
        module : module that a process imports before its first task, so that the import does not
            count towards the time limit
        """
        self._threads = ThreadPoolExecutor(size, thread_name_prefix=name)
        self._max_waiting = max_waiting
        self._n_waiting = 0
        self._workers = [_Worker(name, database, limits, module) for _ in range(size)]
        # The queue returns the process that was used last, because it has imported its modules.
        # With few requests the other processes never start, and need no memory.
        self._free: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()
        for worker in self._workers:
            self._free.put_nowait(worker)

    async def run(self, task: Task, report_step: ReportStep = lambda _: None) -> Any:
        """Return the result of a task. Cancelling the call kills the task's process.

        Parameters
        ----------
        task : the task
        report_step : called in the event loop with the name of each step that begins

        Raises
        ------
        StoreError
            Too many tasks wait (503); the client may retry.
        DecodeError
            The task exceeded a limit (422).

        Other errors of the task are raised as they are.
        """
        # Without the limit, the last request of a burst would wait longer than any client does.
        if self._free.empty() and self._n_waiting >= self._max_waiting:
            raise StoreError("too many requests are waiting for a result")
        self._n_waiting += 1
        try:
            worker = await self._free.get()
        finally:
            self._n_waiting -= 1
        loop = asyncio.get_running_loop()

        def report_from_thread(step: str) -> None:
            loop.call_soon_threadsafe(report_step, step)

        # A cancelled call must not free the worker before its thread has ended: two threads would
        # read from one pipe. The thread is therefore shielded from the cancellation, and the end of
        # the thread frees the worker.
        cancelled = threading.Event()
        result = loop.run_in_executor(
            self._threads, worker.run, task, report_from_thread, cancelled
        )
        result.add_done_callback(lambda future: self._release(worker, future))
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            cancelled.set()
            if not result.done():  # a finished process may run the next task already
                worker.kill()
            raise

    def _release(self, worker: _Worker, future: asyncio.Future[Any]) -> None:
        """Make a worker available for the next task, after its thread has ended."""
        # Retrieve the exception, or asyncio logs that it was never retrieved.
        if not future.cancelled():
            future.exception()
        self._free.put_nowait(worker)

    async def stop_idle(self) -> None:
        """End the processes that run no task, and free their memory.

        The next task starts a process again. Example: each day after midnight, a pool of one
        process closes the blocks of reports (`operations/closing.py`). The task takes some seconds,
        and the process would take memory for the rest of the day.
        """
        # All idle workers are taken before the first of them is returned. The queue returns the
        # worker that was put into it last, so a loop that takes and returns one worker at a time
        # would end the same process again and again.
        idle = [self._free.get_nowait() for _ in range(self._free.qsize())]
        loop = asyncio.get_running_loop()
        try:
            for worker in idle:
                await loop.run_in_executor(self._threads, worker.end)
        finally:
            # Case: the call is cancelled, or the end of a process fails. A worker that is not
            # returned would never run a task again.
            for worker in idle:
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
        # This is the process that `kill` has killed last. A flag would not be enough, because it
        # could belong to the process that was started after the killed one.
        self._killed: SpawnProcess | None = None

    def run(self, task: Task, report_step: ReportStep, cancelled: threading.Event) -> Any:
        """Return the result of a task that runs in the process; start the process if needed.

        The calling thread waits on the pipe. If the process has ended, the result is the error of
        an exceeded limit: a process that the system has killed cannot report the reason.
        """
        try:
            return self._exchange(task, report_step, cancelled)
        except (EOFError, OSError):
            # The process has ended without a message: `kill` was called, or the system killed the
            # process because of its memory.
            self.end()
            raise self._limits.exceeded_error() from None

    def kill(self) -> None:
        """Kill the process and its task; the next task starts another process."""
        if (process := self._process) is not None:
            self._killed = process  # `is_alive` may stay True for a moment after the signal
            process.kill()

    def _exchange(self, task: Task, report_step: ReportStep, cancelled: threading.Event) -> Any:
        """Send a task to the process, and receive steps until the result or an error arrives."""
        connection = self._ensure_process()
        # The client may have disconnected while the process was starting, when `kill` had nothing
        # to kill.
        if cancelled.is_set():
            raise StoreError("nobody waits for the result")
        connection.send(task)
        while connection.poll(self._limits.seconds):
            kind, content = connection.recv()
            if kind == "step":
                report_step(content)
            elif kind == "error":
                raise content
            elif kind == "bytes":
                # Unpickling a large result would copy it while the event loop waits for the GIL:
                # 84 MB once delayed the endpoint of readiness by a third of a second.
                return connection.recv_bytes()
            else:
                return content
        # No message has arrived within the limit. Each step restarts the wait here, but not the
        # process's own timer, which limits the whole task.
        self.end()
        raise self._limits.exceeded_error()

    def _ensure_process(self) -> Connection[Any, Any]:
        """Return the connection to a living process that has imported its modules."""
        if self._connection is not None and self._process is not None:
            is_alive = self._process is not self._killed and self._process.is_alive()
            # A process sends nothing between two tasks. Readable data therefore means the end of
            # the pipe: the process is ending.
            if is_alive and not self._connection.poll():
                return self._connection
            self.end()
        self._connection, child_end = multiprocessing.Pipe()
        self._process = processes.start_child(_serve, child_end, *self._setup)
        child_end.close()  # otherwise the end of the process would not close the pipe
        if not self._connection.poll(_START_SECONDS):
            self.end()
            raise StoreError("the analysis process does not start")
        self._connection.recv()  # "ready": the modules are imported
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
    """Run tasks until the parent process has ended. This is the program of a worker process.

    Parameters
    ----------
    connection : end of a pipe. Tasks arrive, and pairs (kind, content) are sent (`_send`)
    name : name of the process
    database : URL of the database
    limits : limits of each task
    module : module to import before the first task, or None
    """
    processes.set_up_child(name)
    if module is not None:
        importlib.import_module(module)
    _limit_memory(limits.n_bytes)
    # A parent that is killed, for example by the kernel for lack of memory, closes its end of the
    # pipe at any time. Reading then raises EOFError and writing BrokenPipeError. Neither is a fault
    # of the program, so neither is logged.
    with contextlib.suppress(EOFError, ConnectionError):
        connection.send("ready")
        _run_tasks(connection, database, limits)


def _run_tasks(connection: Connection[Any, Any], database: str, limits: Limits) -> None:
    """Run the tasks that arrive; raise EOFError or ConnectionError once the parent has ended."""
    engine: Engine | None = None
    while True:
        task: Task = connection.recv()
        # Without a handler, SIGALRM ends the process.
        signal.setitimer(signal.ITIMER_REAL, limits.seconds + _GRACE_SECONDS)
        try:
            # The database is opened with the first task. A database that is away then fails the
            # task with its own error, and not the start of the process.
            engine = engine or open_checked(database)
            message = ("result", task.run(engine, lambda step: connection.send(("step", step))))
        except MissingExtraError as error:
            # Unpickling in the parent would call the constructor with the message in place of the
            # name of the extra, and would compose another message.
            message = ("error", DecodeError(str(error)))
        except RapporError as error:
            message = ("error", error)
        except ConnectionError:  # the parent has ended while the task reported a step
            raise
        except MemoryError:
            message = ("error", limits.exceeded_error())
        except Exception as error:  # noqa: BLE001 - a fault of the program must not end the process
            # Only the name of the class is logged and sent. The message may contain candidates.
            logs.log_event("analysis failed", level=logging.ERROR, kind=type(error).__name__)
            message = ("error", DecodeError(f"the analysis has failed: {type(error).__name__}"))
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(connection, *message)


def _send(connection: Connection[Any, Any], kind: str, content: Any) -> None:
    """Send a pair (kind, content) to the parent. Bytes follow as a message without pickling.

    Kinds: "step" (name of a step), "result", "error" (an exception), "bytes" (bytes follow).
    """
    if isinstance(content, bytes):
        connection.send(("bytes", None))
        connection.send_bytes(content)
    else:
        connection.send((kind, content))


def _limit_memory(n_bytes: int) -> None:
    """Limit the address space of the process to its present size plus `n_bytes`, on Linux only.

    An allocation beyond the limit raises MemoryError. On other systems there is no limit, and a
    large query may use all memory of the machine.
    """
    try:
        import resource  # noqa: PLC0415 - not on every system

        # The first field of the file is the size of the address space, in pages.
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError):
        return
    max_bytes = pages * resource.getpagesize() + n_bytes
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
