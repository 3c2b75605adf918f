"""`rappor-server healthy`: the health check of a container, for every kind of settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from collectors import call_command, find_free_port, run_file_collector
from sockets import write_certificate


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "admin", "tls"])
def test_a_running_collector_is_healthy(tmp_path: Path, kind: str) -> None:
    """`healthy` exits with 0 while the collector responds, and with 1 after its process has ended.

    A container engine restarts a container at exit code 1. The command must therefore use the
    address and the scheme (HTTP or HTTPS) under which `serve` listens with the same settings.
    The cases are one HTTP address ("plain"), a second address for operators ("admin"), and HTTPS
    on the public address ("tls").
    """
    flags: list[str] = []
    if kind == "tls":
        chain, key = write_certificate(tmp_path)
        flags = ["--tls-certificate", str(chain), "--tls-key", str(key)]
    # `run_file_collector` waits until the collector responds to plain HTTP. With TLS, only the
    # admin address is plain HTTP. The command does not get this address here, so it has to use TLS.
    admin = 0 if kind == "plain" else find_free_port()
    with run_file_collector(tmp_path, *flags, admin=admin) as running:
        arguments = [
            "--registry",
            str(tmp_path / "metrics.toml"),
            *flags,
            "--port",
            str(running.port),
        ]
        if kind == "admin":
            arguments += ["--admin", f"127.0.0.1:{admin}"]
        # A collector in a container listens on 0.0.0.0, which is no address to connect to.
        arguments_in_container = [*arguments, "--host", "0.0.0.0"]  # noqa: S104
        assert call_command("healthy", *arguments_in_container).returncode == 0
    result = call_command("healthy", *arguments)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.endswith("does not respond: ConnectionRefusedError\n")
