"""`rappor-server healthy`: the health check of a container, for every kind of settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from collectors import free_port, run_command, serving_file
from sockets import certificate


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "admin", "tls"])
def test_a_running_collector_is_healthy(tmp_path: Path, kind: str) -> None:
    """The command asks the address and the scheme of the settings. Nothing else responds to it."""
    flags: list[str] = []
    if kind == "tls":
        chain, key = certificate(tmp_path)
        flags = ["--tls-certificate", str(chain), "--tls-key", str(key)]
    # With TLS, the tests learn at the admin address that the collector is ready.
    admin = 0 if kind == "plain" else free_port()
    with serving_file(tmp_path, *flags, admin=admin) as running:
        asked = ["--registry", str(tmp_path / "metrics.toml"), *flags, "--port", str(running.port)]
        if kind == "admin":
            asked += ["--admin", f"127.0.0.1:{admin}"]
        assert run_command("healthy", *asked, "--host", "0.0.0.0").returncode == 0  # noqa: S104
    gone = run_command("healthy", *asked)
    assert (gone.returncode, gone.stdout) == (1, "")
    assert gone.stderr.endswith("does not respond: ConnectionRefusedError\n")
