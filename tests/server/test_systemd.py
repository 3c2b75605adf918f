"""Telling systemd, as it listens: over a datagram socket."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from pathlib import Path

from collectors import REGISTRY, command, free_port
from rappor_server.systemd import notify


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
    """Ready means that it listens; its last word comes before it closes."""
    (tmp_path / "metrics.toml").write_text(REGISTRY)
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard,
        (tmp_path / "log").open("wb") as log,
    ):
        heard.bind(f"{folder}/notify")
        heard.settimeout(90)
        process = subprocess.Popen(
            command("serve", str(tmp_path / "metrics.toml"), "--port", str(free_port())),
            env={**os.environ, "NOTIFY_SOCKET": f"{folder}/notify"},
            stderr=log,
        )
        try:
            assert heard.recv(100) == b"READY=1"
            events = [json.loads(line)["event"] for line in _lines(tmp_path / "log")]
            assert "collector started" in events
            process.terminate()
            assert heard.recv(100) == b"STOPPING=1"
            process.wait(60)
        finally:
            process.kill()
            process.wait()


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()
