"""Reading, in processes of their own with limits of time and memory.

A process stays between tasks and is killed when one takes too long, or is not wanted any more.
So no question, however large, takes threads, memory or time from receiving. Processes end with
their parent.
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

Tell = Callable[[str], None]
"""Called with the name of each step that a task begins."""

_START_SECONDS: Final = 60.0
_GRACE_SECONDS: Final = 5.0
"""How much later than its parent a process ends itself."""


class Task(Protocol):
    """A question that a process answers; it can be pickled, and so can the answer."""

    def run(self, engine: Engine, tell: Tell) -> Any:
        """Answer the question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one task may cost: seconds, and bytes of memory beyond what the process starts with."""

    seconds: float
    n_bytes: int

    def exceeded(self) -> DecodeError:
        """Return the error of a task that has ended its process, or was ended with it."""
        return DecodeError(
            f"an answer must take at most {self.seconds:g} seconds and "
            f"{self.n_bytes / 1e6:,.0f} MB of memory; ask for less"
        )


class Pool:
    """Processes that answer one task each; further tasks wait, up to a number of them."""

    def __init__(
        self,
        name: str,
        *,
        database: str,
        size: int,
        limits: Limits,
        most_waiting: int,
        module: str | None = None,
    ) -> None:
        """Start no process yet; each loads the module before the clock of its first task runs."""
        self._threads = ThreadPoolExecutor(size, thread_name_prefix=name)
        self._most_waiting = most_waiting
        self._n_waiting = 0
        self._workers = [_Worker(name, database, limits, module) for _ in range(size)]
        self._free: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()
        for worker in self._workers:
            self._free.put_nowait(worker)

    async def run(self, task: Task, tell: Tell = lambda _: None) -> Any:
        """Return a task's answer; whoever stops waiting ends it, and its place is free at once.

        Raises a retryable StoreError when too many tasks wait, DecodeError for one that exceeds a
        limit, and otherwise what the task raises.
        """
        if self._free.empty() and self._n_waiting >= self._most_waiting:
            raise StoreError("too many requests are waiting for an answer")
        self._n_waiting += 1
        try:
            worker = await self._free.get()
        finally:
            self._n_waiting -= 1
        loop = asyncio.get_running_loop()

        def tell_loop(step: str) -> None:
            loop.call_soon_threadsafe(tell, step)

        is_unwanted = threading.Event()
        answer = loop.run_in_executor(self._threads, worker.run, task, tell_loop, is_unwanted)
        answer.add_done_callback(lambda done: self._release(worker, done))
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            is_unwanted.set()
            if not answer.done():  # or the process may have the next task by now
                worker.kill()
            raise

    def _release(self, worker: _Worker, done: asyncio.Future[Any]) -> None:
        done.cancelled() or done.exception()  # looked at, so that nobody reports it as lost
        self._free.put_nowait(worker)

    async def rest(self) -> None:
        """End the processes that have nothing to do; the next task starts one again."""
        loop = asyncio.get_running_loop()
        for _ in range(self._free.qsize()):
            worker = self._free.get_nowait()
            await loop.run_in_executor(self._threads, worker.end)
            self._free.put_nowait(worker)

    def close(self) -> None:
        """End the processes, and with them every task."""
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Worker:
    """One place for a process: `run` is for one thread at a time, `kill` for any."""

    def __init__(self, name: str, database: str, limits: Limits, module: str | None) -> None:
        self._setup = (name, database, limits, module)
        self._limits = limits
        self._process: SpawnProcess | None = None
        self._connection: Connection[Any, Any] | None = None
        self._killed: SpawnProcess | None = None

    def run(self, task: Task, tell: Tell, is_unwanted: threading.Event) -> Any:
        """Answer a task in the process, which is started if there is none."""
        try:
            return self._exchange(task, tell, is_unwanted)
        except (EOFError, OSError):
            self.end()
            raise self._limits.exceeded() from None

    def kill(self) -> None:
        """End the process and what it does; the next task starts another."""
        if (process := self._process) is not None:
            self._killed = process  # it may look alive for a moment
            process.kill()

    def _exchange(self, task: Task, tell: Tell, is_unwanted: threading.Event) -> Any:
        connection = self._ready()
        if is_unwanted.is_set():  # since before there was a process to kill
            raise StoreError("nobody waits for the answer")
        connection.send(task)
        while connection.poll(self._limits.seconds):
            kind, content = connection.recv()
            if kind == "step":
                tell(content)
            elif kind == "error":
                raise content
            elif kind == "bytes":  # unpickled they would be copied while all other threads wait
                return connection.recv_bytes()
            else:
                return content
        self.end()
        raise self._limits.exceeded()

    def _ready(self) -> Connection[Any, Any]:
        """Return the connection to a process that is alive and has imported what it needs."""
        if self._connection is not None and self._process is not None:
            is_alive = self._process is not self._killed and self._process.is_alive()
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
        """End the process, if there is one; for the thread that runs tasks."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None


def _serve(
    connection: Connection[Any, Any], name: str, database: str, limits: Limits, module: str | None
) -> None:
    """Answer tasks until the parent process is gone."""
    processes.begin(name)
    if module is not None:
        importlib.import_module(module)
    _limit_memory(limits.n_bytes)
    connection.send("ready")
    engine: Engine | None = None
    while True:
        try:
            task: Task = connection.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_REAL, limits.seconds + _GRACE_SECONDS)  # kills by itself
        try:
            engine = engine or open_checked(database)
            answer = ("answer", task.run(engine, lambda step: connection.send(("step", step))))
        except MissingExtraError as error:
            answer = ("error", DecodeError(str(error)))
        except RapporError as error:
            answer = ("error", error)
        except MemoryError:
            answer = ("error", limits.exceeded())
        except Exception as error:  # noqa: BLE001 - a bug must not end the process
            logs.event("analysis failed", level=logging.ERROR, kind=type(error).__name__)
            answer = ("error", DecodeError(f"the analysis has failed: {type(error).__name__}"))
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(connection, *answer)


def _send(connection: Connection[Any, Any], kind: str, content: Any) -> None:
    """Send an answer or an error; long bytes go as they are."""
    if isinstance(content, bytes):
        connection.send(("bytes", None))
        connection.send_bytes(content)
    else:
        connection.send((kind, content))


def _limit_memory(n_bytes: int) -> None:
    """Let the process take this much more address space than it has; Linux only."""
    try:
        import resource  # noqa: PLC0415 - not on every system

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError):
        return
    most = pages * resource.getpagesize() + n_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
