"""Notifications to systemd over a datagram socket."""

from __future__ import annotations

import signal
import socket
import tempfile
from pathlib import Path

import pytest
from collectors import build_upload, launch
from rappor_server.app.serving import notify_systemd


def test_states_reach_a_listener() -> None:
    """A state is sent to the socket that NOTIFY_SOCKET names: a path or an abstract address.

    An abstract address has no file, and its first byte is NUL. NOTIFY_SOCKET has an @ in its place.
    Without a listener nothing happens.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener,
    ):
        path = f"{folder}/notify"
        listener.bind(path)
        notify_systemd("READY=1", environment={"NOTIFY_SOCKET": path})
        assert listener.recv(100) == b"READY=1"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("")  # Linux gives it an address without a file
        name = listener.getsockname()[1:].decode()
        notify_systemd("STOPPING=1", environment={"NOTIFY_SOCKET": f"@{name}"})
        assert listener.recv(100) == b"STOPPING=1"
    notify_systemd("READY=1", environment={})
    notify_systemd("READY=1", environment={"NOTIFY_SOCKET": "/nowhere/notify"})


@pytest.mark.slow
def test_a_collector_notifies_its_start_and_its_stop(tmp_path: Path) -> None:
    """READY is sent after the sockets listen, STOPPING before the collector closes."""
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener,
    ):
        listener.bind(f"{folder}/notify")
        listener.settimeout(90)
        address = f"sqlite:///{tmp_path / 'counts.sqlite3'}"
        flags = ("--suspicious", "accept")
        running = launch(tmp_path, address, *flags, NOTIFY_SOCKET=f"{folder}/notify")
        try:
            assert listener.recv(100) == b"READY=1"
            assert running.events("collector started")
            assert running.post(build_upload()).status_code == 200
            running.process.terminate()
            assert listener.recv(100) == b"STOPPING=1"
            # A process that ends by itself has code 0. uvicorn may raise the signal again at its
            # end.
            assert running.process.wait(60) in (0, -signal.SIGTERM)
            (received,) = running.events("uploads received")
            assert [received[key] for key in ("uploads", "reports", "refused")] == [1, 1, 0]
            assert running.events("collector stopped")
        finally:
            running.kill()
