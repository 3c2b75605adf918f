"""The collector's own processes: what they say of bugs, and that they end."""

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


def test_a_bug_is_told_without_its_words(capfd: pytest.CaptureFixture[str]) -> None:
    """The log has the kind of the error in a line of JSON, and nothing of what it was about."""
    process = processes.start(os.chdir, "/secret")
    process.join(60)
    assert process.exitcode == 1
    assert not multiprocessing.active_children()
    said = capfd.readouterr().err
    (line,) = (each for each in said.splitlines() if "FileNotFoundError" in each)
    assert line.startswith("{")
    assert "secret" not in said


def test_a_process_that_does_not_end_is_killed_with_its_children() -> None:
    """It ends as failed, whatever it and they wait for."""
    ended = run_python("-c", _STUCK, code=1)
    assert "it did not stop in time" in ended.stderr
    assert not Path(f"/proc/{ended.stdout.strip()}").exists()
