"""Child processes of the collector: their log lines for unexpected errors, and their end."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
from programs import run_python
from rappor_server.base import processes

_STUCK = """
import multiprocessing, time
from rappor_server.base import logs, processes

if __name__ == "__main__":
    logs.configure()
    child = processes.start(time.sleep, 600)
    print(child.pid, flush=True)
    processes.end_within(0.1)
    time.sleep(600)
"""


def test_message_of_unexpected_error_is_not_logged(capfd: pytest.CaptureFixture[str]) -> None:
    """The log has a JSON line with the class of the error, and not the message."""
    process = processes.start(os.chdir, "/secret")
    process.join(60)
    assert process.exitcode == 1
    assert not multiprocessing.active_children()
    log = capfd.readouterr().err
    (line,) = (line for line in log.splitlines() if "FileNotFoundError" in line)
    assert line.startswith("{")
    assert "secret" not in log


def test_a_process_that_does_not_end_is_killed_with_its_children() -> None:
    """The exit code is 1 even if the process and its children sleep."""
    result = run_python("-c", _STUCK, code=1)
    assert "it did not stop in time" in result.stderr
    assert not Path(f"/proc/{result.stdout.strip()}").exists()
