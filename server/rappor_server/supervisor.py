"""Several workers: started, watched, started again, and told of new inputs by one parent.

A worker gets the inputs that were last found good from its parent, never from the files, so a
registry that is wrong on the disk ends nobody.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Final

from prometheus_client import multiprocess

from rappor.ground.errors import RapporError
from rappor_server import logs, systemd
from rappor_server.input_files import InputFiles
from rappor_server.serving import Server, Sockets
from rappor_server.settings import Settings
from rappor_server.storage.database import utc_today

_CONTEXT: Final = multiprocessing.get_context("spawn")
_TICK_SECONDS: Final = 0.5
_RELOAD_SECONDS: Final = 30.0
"""After how long a worker that has not told its registry counts as not reached."""
_END_SECONDS: Final = 40.0
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_MOST_FAILURES: Final = 5
"""How often in a row each worker may end before it is ready, until the collector gives up."""


class _Worker:
    """One place for a process: the process that is in it, and what is known of it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: SpawnProcess | None = None
        self.link: Connection[Any, Any] | None = None
        self.is_ready = False
        self.n_failures = 0
        self.not_before = 0.0
        self.told_at: float | None = None
        """When new inputs were sent that it has not confirmed; None if there are none."""

    def start(self, settings: Settings, inputs: InputFiles, sockets: Sockets) -> None:
        """Start a process with the inputs that are in force."""
        self.link, other = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_work, args=(settings, inputs, sockets, other))
        self.process.start()
        other.close()
        self.is_ready, self.told_at = False, None

    def clear(self) -> int | None:
        """Take the ended process away and return its exit code."""
        assert self.process is not None
        assert self.link is not None
        self.process.join()
        code = self.process.exitcode
        self.link.close()
        self.n_failures = 0 if self.is_ready else self.n_failures + 1
        pause = min(_FIRST_PAUSE * 2.0 ** max(self.n_failures - 1, 0), _LONGEST_PAUSE)
        self.not_before = time.monotonic() + pause
        self.process = self.link = None
        self.is_ready, self.told_at = False, None
        return code


class Supervisor:
    """The parent of all workers; `run` is for the main thread."""

    def __init__(self, settings: Settings, inputs: InputFiles, sockets: Sockets) -> None:
        """Keep what the workers are started with; nothing is started yet."""
        self._settings = settings
        self._inputs = inputs
        self._sockets = sockets
        self._workers = [_Worker(number) for number in range(settings.workers)]
        self._was_ready = False
        self._wanted: list[int] = []

    def run(self) -> int:
        """Keep the workers running until a signal ends them; return the exit status."""
        with self._signals() as wake:
            try:
                return self._watch(wake)
            finally:
                systemd.notify("STOPPING=1")
                self._end()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[int]:
        """Note signals down while the block runs; yield a descriptor that they make readable."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write)
        before = {
            number: signal.signal(number, lambda got, _: self._wanted.append(got))
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        }
        try:
            yield read
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(-1)
            os.close(read)
            os.close(write)

    def _watch(self, wake: int) -> int:
        while True:
            self._start_missing()
            links = {w.link: w for w in self._workers if w.link is not None}
            ends = {w.process.sentinel: w for w in self._workers if w.process is not None}
            for ready in wait([wake, *links, *ends], timeout=_TICK_SECONDS):
                if ready == wake:
                    os.read(wake, 4096)
                elif ready in links:
                    self._hear(links[ready])
            for worker in self._workers:
                if worker.process is not None and not worker.process.is_alive():
                    self._bury(worker)
            wanted, self._wanted = self._wanted, []
            for number in wanted:
                if number != signal.SIGHUP:
                    return 0
                self._reload()
            self._check_reload()
            if all(worker.n_failures >= _MOST_FAILURES for worker in self._workers):
                logs.event("collector failed", level=logging.ERROR, reason="no worker starts")
                return 1

    def _start_missing(self) -> None:
        for worker in self._workers:
            if worker.process is None and time.monotonic() >= worker.not_before:
                worker.start(self._settings, self._inputs, self._own_sockets(worker))

    def _own_sockets(self, worker: _Worker) -> Sockets:
        """Return where a worker listens: the first one answers the operators' address."""
        admin = self._sockets.admin if worker.number == 0 else None
        return Sockets(public=self._sockets.public, admin=admin)

    def _hear(self, worker: _Worker) -> None:
        """Take down that a worker is ready, or which registry is in force there."""
        assert worker.link is not None
        try:
            told = worker.link.recv()
        except (EOFError, OSError):
            return  # it is ending; its sentinel says when
        worker.is_ready, worker.n_failures = True, 0
        if told == self._inputs.digest:
            worker.told_at = None
        if not self._was_ready and all(each.is_ready for each in self._workers):
            self._was_ready = True
            systemd.notify("READY=1")

    def _bury(self, worker: _Worker) -> None:
        """Take an ended worker away with its gauges; what it has counted stays."""
        assert worker.process is not None
        multiprocess.mark_process_dead(worker.process.pid)  # type: ignore[no-untyped-call]
        code = worker.clear()
        logs.event("worker ended", level=logging.ERROR, worker=worker.number, exit_code=code)

    def _reload(self) -> None:
        """Read all files; if they are good, send them to every worker, and to new ones later."""
        try:
            self._inputs = InputFiles.read(self._settings, today=utc_today())
        except RapporError as error:
            logs.refused_reload(error)
            return
        for worker in self._workers:
            if worker.link is not None:
                worker.told_at = time.monotonic()
                with contextlib.suppress(OSError):  # it has ended, and starts with these inputs
                    worker.link.send(self._inputs)

    def _check_reload(self) -> None:
        """Say which workers have not confirmed new inputs in time."""
        late = time.monotonic() - _RELOAD_SECONDS
        missed = [w for w in self._workers if w.told_at is not None and w.told_at < late]
        for worker in missed:
            worker.told_at = None
        if missed:
            numbers = [worker.number for worker in missed]
            logs.event("reload incomplete", level=logging.ERROR, workers=numbers)

    def _end(self) -> None:
        """Tell all workers to end; kill those that do not."""
        processes = [worker.process for worker in self._workers if worker.process is not None]
        for process in processes:
            process.terminate()
        until = time.monotonic() + _END_SECONDS
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def _work(
    settings: Settings, inputs: InputFiles, sockets: Sockets, link: Connection[Any, Any]
) -> None:
    """Be one worker, until a signal or the end of its parent."""
    logs.configure()
    Server(settings, inputs, sockets, link).run()
