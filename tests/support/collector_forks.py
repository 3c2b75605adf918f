"""Collectors as forks of one process that has imported the collector.

An import takes most of the CPU time of a start, and the tests start a hundred collectors. `fork` is
called in a test. `main` is the program of the process that forks:

    test     -> program     arguments, environment and log file as JSON, and the end of a pipe
    program  -> test        process id, and later the exit code, each a line in the pipe

A fork differs from `rappor-server` in a shell only in its imports. Tests of the start itself run
the command (`collectors.launch`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final, NoReturn

_MODULES: Final = (
    *("rappor_server.cli.command_group", "rappor_server.cli.serve", "rappor_server.app.serving"),
    *("rappor_server.pages.page_routes", "sqlalchemy.dialects.sqlite", "alembic.command"),
    *("uvicorn.protocols.http.httptools_impl", "uvicorn.lifespan.on", "logging.config"),
)
"""Modules that a collector imports while it starts."""
_MESSAGE_BYTES: Final = 1_000_000
"""Largest message of a test. The environment is most of it."""


class Fork:
    """A process with the methods of `subprocess.Popen` that tests use.

    The program is its parent, so its exit code comes through a pipe.
    """

    def __init__(self, status: int) -> None:
        """Read the process id from the pipe."""
        self._status = os.fdopen(status, "r")
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None if the process runs. A signal has a negative number."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, at most some seconds, and return its exit code."""
        if self.returncode is None:
            # `select` refuses file descriptors above 1,023, which a worker of pytest may have.
            poll = select.poll()
            poll.register(self._status, select.POLLIN)
            if not poll.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired("rappor-server", timeout or 0)
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if the process has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """End the process by SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)


def fork(arguments: list[str], log: Path, environment: dict[str, str]) -> Fork:
    """Start the command `rappor-server` in a session of its own, with its output in a log."""
    reader, writer = os.pipe()
    message = json.dumps([arguments, str(log), environment]).encode()
    socket.send_fds(_start_program(), [message], [writer])
    os.close(writer)
    return Fork(reader)


@functools.cache
def _start_program() -> socket.socket:
    """Start the program, and return the connection to it. The program ends with this process."""
    connection, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    paths = os.pathsep.join(filter(None, sys.path))
    subprocess.Popen(
        # Children of a collector would import a main module that is a file.
        [sys.executable, "-c", f"import {__name__}; {__name__}.main({child_end.fileno()})"],
        stdin=subprocess.DEVNULL,
        pass_fds=[child_end.fileno()],
        env={**os.environ, "PYTHONPATH": paths},
    ).returncode = 0  # nobody waits for it
    child_end.close()
    return connection


def main(connection_number: int) -> None:
    """Fork a collector for each message, until the test process ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel removes supervisors that have ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=connection_number)
    for name in _MODULES:
        importlib.import_module(name)
    while True:
        message, ends, *_ = socket.recv_fds(connection, _MESSAGE_BYTES, 1)
        if not message:  # the test process has ended
            return
        (status,) = ends
        if os.fork() == 0:
            connection.close()
            _supervise(status, *json.loads(message))
        os.close(status)


def _supervise(
    status: int, arguments: list[str], log: str, environment: dict[str, str]
) -> NoReturn:
    """Fork a collector, write its process id and its exit code, and end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if (child := os.fork()) == 0:
        os.close(status)
        _run_collector(arguments, log, environment)
    os.write(status, f"{child}\n".encode())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(BrokenPipeError):  # the test process has ended
        os.write(status, f"{code}\n".encode())
    os._exit(0)


def _run_collector(arguments: list[str], log: str, environment: dict[str, str]) -> NoReturn:
    """Run the command `rappor-server` as a shell would start it, and exit."""
    from rappor_server.cli import main as run_command  # noqa: PLC0415 - not in the tests

    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["rappor-server", *arguments]
    run_command()
    sys.exit(0)
