"""Processes that `recording_process` starts: an ended process is reaped, and leaves no zombie."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from rappor_client.kit import recording_process


def test_ended_children_are_reaped_and_running_children_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ended children are reaped. A child that runs longer is reaped after its own end.

    Such a child waits for a slow collector, for example.
    """
    # This child runs until its standard input is closed.
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    running = subprocess.Popen(command, stdin=subprocess.PIPE)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    wait_for_end(ended.pid)
    monkeypatch.setattr(recording_process, "_started", [running.pid, ended.pid])

    recording_process._reap_ended_children()
    assert recording_process._started == [running.pid]
    with pytest.raises(ChildProcessError):
        os.waitpid(ended.pid, os.WNOHANG)

    assert running.stdin is not None
    running.stdin.close()
    wait_for_end(running.pid)
    recording_process._reap_ended_children()
    assert recording_process._started == []
    with pytest.raises(ChildProcessError):
        os.waitpid(running.pid, os.WNOHANG)
    # `Popen` warns about a child whose end it has not seen.
    running.returncode = ended.returncode = 0


def wait_for_end(child: int) -> None:
    """Wait until a child has ended, and leave it to be reaped."""
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
