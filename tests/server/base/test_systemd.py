"""Telling systemd, as it listens: over a datagram socket."""

from __future__ import annotations

import signal
import socket
import tempfile
from pathlib import Path

from collectors import launch, upload_of
from rappor_server.base.systemd import notify


def test_states_reach_who_listens() -> None:
    """By a path, and by an address without a file; without a listener nothing happens."""
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard,
    ):
        path = f"{folder}/notify"
        heard.bind(path)
        notify("READY=1", environment={"NOTIFY_SOCKET": path})
        assert heard.recv(100) == b"READY=1"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind("")  # Linux gives it an address without a file
        name = heard.getsockname()[1:].decode()
        notify("STOPPING=1", environment={"NOTIFY_SOCKET": f"@{name}"})
        assert heard.recv(100) == b"STOPPING=1"
    notify("READY=1", environment={})
    notify("READY=1", environment={"NOTIFY_SOCKET": "/nowhere/notify"})


def test_a_collector_says_when_it_is_ready_and_when_it_ends(tmp_path: Path) -> None:
    """Ready means that it listens; its last word comes before it closes and tells the rest."""
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard,
    ):
        heard.bind(f"{folder}/notify")
        heard.settimeout(90)
        address = f"sqlite:///{tmp_path / 'counts.sqlite3'}"
        flags = ("--suspicious", "accept")
        running = launch(tmp_path, address, *flags, NOTIFY_SOCKET=f"{folder}/notify")
        try:
            assert heard.recv(100) == b"READY=1"
            assert running.events("collector started")
            assert running.post(upload_of()).status_code == 200
            running.process.terminate()
            assert heard.recv(100) == b"STOPPING=1"
            assert running.process.wait(60) in (0, -signal.SIGTERM)
            (received,) = running.events("uploads received")
            assert [received[key] for key in ("uploads", "reports", "refused")] == [1, 1, 0]
            assert running.events("collector stopped")
        finally:
            running.kill()
