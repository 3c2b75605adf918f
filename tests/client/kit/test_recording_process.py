"""Processes that `recording_process` starts: their input, and their end without a zombie."""

from __future__ import annotations

import io
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from rappor_client.kit import recording_process
from rappor_client.kit.host import Host


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "cp437", "utf-16"])
def test_the_name_of_a_use_does_not_depend_on_the_locale(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process reads UTF-8, as `start_process` writes it, whatever its locale is.

    Bad case: under another encoding the name of a command with an umlaut became another name, and
    the device reported that a name outside the registry was used.
    """
    names: list[str] = []
    monkeypatch.setattr(Host, "start_cooldown", lambda _: True)
    monkeypatch.setattr(Host, "record_and_send", lambda _, name: names.append(name))
    stream = io.TextIOWrapper(io.BytesIO("pr\u00fcfen --\u5168".encode()), encoding=encoding)
    monkeypatch.setattr(sys, "stdin", stream)
    monkeypatch.setattr(sys, "argv", ["kit", str(tmp_path), "metrics.toml", "", ""])
    program = Path(recording_process.__file__).with_name("__main__.py")
    runpy.run_path(str(program), run_name="__main__")
    assert names == ["pr\u00fcfen --\u5168"]


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
