"""Forks and threads: nothing hangs, nothing is sent twice, and everybody goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import forking_child
import pytest
from devices import Opener
from rappor_client import Client
from rappor_client.testing import MemoryTransport

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


def fork_while_recording(folder: Path, rounds: int, way: str) -> None:
    """Run the host; it ends, or the time given to this test does."""
    paths = [str(Path(forking_child.__file__).parent), *filter(None, sys.path)]
    ended = subprocess.run(
        [sys.executable, forking_child.__file__, str(folder), str(rounds), way],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) >= 2 * rounds


@pytest.mark.parametrize("way", ["os", "multiprocessing"])
def test_two_threads_fork_while_a_third_records(way: str, tmp_path: Path) -> None:
    """Parent and children go on recording: 20 forks of each thread."""
    fork_while_recording(tmp_path / "device", 20, way)


@pytest.mark.acceptance
@pytest.mark.parametrize("way", ["os", "multiprocessing"])
def test_two_threads_fork_while_a_third_records_in_full(way: str, tmp_path: Path) -> None:
    """500 forks of each thread, a thousand rounds in all."""
    fork_while_recording(tmp_path / "device", 500, way)


def test_threads_that_start_together_share_one_sender(open_client: Opener) -> None:
    """However the interpreter switches between them: 20 clients, 8 threads each."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for i in range(20):
            client = open_client(
                folder=str(i), transport=MemoryTransport(), background=True, max_delay=3600.0
            )
            assert len(senders_of(client, n_threads=8)) == 1
            client.close()
    finally:
        sys.setswitchinterval(before)
    assert not [thread for thread in threading.enumerate() if thread.name == "rappor-sender"]


def senders_of(client: Client, n_threads: int) -> set[int]:
    """Let threads record at the same moment; return who would send for each."""
    start = threading.Barrier(n_threads)
    met: set[int] = set()

    def work() -> None:
        start.wait()
        client.record("page", "x")
        sending = client._sending()
        assert sending is not None
        met.add(id(sending.sender))

    threads = [threading.Thread(target=work) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return met
