"""Child processes of the collector: their log lines for unexpected errors, and their end."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
from programs import run_python
from rappor_server.base import processes

_HANGING_PROGRAM = """
import multiprocessing, time
from rappor_server.base import logs, processes

if __name__ == "__main__":
    logs.configure()
    child = processes.start_child(time.sleep, 600)
    print(child.pid, flush=True)
    processes.start_kill_timer(0.1)
    time.sleep(600)
"""
"""Program that hangs for ten minutes, like its child process, and calls `start_kill_timer`.
The program prints the process id of the child."""


def test_message_of_unexpected_error_is_not_logged(capfd: pytest.CaptureFixture[str]) -> None:
    """A child process that raises writes the class of the error to the log, without the message.

    The message of this error contains the path "/secret", which does not exist. A message in a real
    child could contain uploaded data.
    """
    process = processes.start_child(os.chdir, "/secret")
    process.join(60)
    assert process.exitcode == 1
    assert not multiprocessing.active_children()
    log = capfd.readouterr().err
    (line,) = (line for line in log.splitlines() if "FileNotFoundError" in line)
    assert line.startswith("{")
    assert "secret" not in log


def test_a_process_that_does_not_end_is_killed_with_its_children() -> None:
    """`start_kill_timer` ends a process and its children, although all of them hang.

    A child that survived would keep the database locked for the next start. An entry of /proc shows
    whether the child still runs.
    """
    result = run_python("-c", _HANGING_PROGRAM, code=1)
    assert "it did not stop in time" in result.stderr
    assert not Path(f"/proc/{result.stdout.strip()}").exists()
