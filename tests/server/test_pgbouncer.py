"""A collector that reaches PostgreSQL through PgBouncer and TLS, as at managed services."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from collectors import build_upload, find_free_port, make_token, run_collector
from programs import wait_until
from rappor_server.storage.database import parse_url
from sockets import write_certificate
from tools import need

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]
SETTINGS = """
[databases]
* = host={socket} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = session
client_tls_sslmode = require
client_tls_cert_file = {folder}/cert.pem
client_tls_key_file = {folder}/key.pem
"""
"""Settings of PgBouncer, which the test completes."""


@dataclass
class Pooler:
    """A PgBouncer in front of the PostgreSQL of the tests, with a certificate for TLS."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start PgBouncer."""
        command = [str(need("pgbouncer")), str(self.folder / "pgbouncer.ini")]
        user = "nobody" if os.geteuid() == 0 else None
        self.process = subprocess.Popen(command, user=user)

    def stop(self) -> None:
        """Kill PgBouncer, which ends all connections, as in a failover."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)


@pytest.fixture
def pooler(tmp_path_factory: pytest.TempPathFactory, postgres: str) -> Iterator[Pooler]:
    """A PgBouncer that has not been started."""
    folder = tmp_path_factory.mktemp("pgbouncer")
    write_certificate(folder)
    pgbouncer = Pooler(folder, find_free_port())
    socket_folder = parse_url(postgres).query["host"]
    text = SETTINGS.format(socket=socket_folder, port=pgbouncer.port, folder=folder)
    (folder / "pgbouncer.ini").write_text(text)
    if os.geteuid() == 0:  # PgBouncer refuses to run as root
        for path in (folder, *folder.iterdir()):
            shutil.chown(path, "nobody")
        for parent in {
            *folder.parents,
            Path(str(socket_folder)),
            *Path(str(socket_folder)).parents,
        }:
            parent.chmod(parent.stat().st_mode | 0o011)
    yield pgbouncer
    if pgbouncer.process is not None and pgbouncer.process.poll() is None:
        pgbouncer.stop()


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_collector_works_through_pgbouncer(tmp_path: Path, database: str, pooler: Pooler) -> None:
    """Uploads, retries and queries work over verified TLS.

    Uploads get 503 while PgBouncer is stopped, and succeed after it has started again.
    """
    name = parse_url(database).database
    address = f"postgresql://postgres@127.0.0.1:{pooler.port}/{name}"
    address += f"?sslmode=verify-full&sslrootcert={pooler.folder}/cert.pem"
    pooler.start()
    bodies = [build_upload() for _ in range(20)]
    with run_collector(tmp_path, address, "--commit-seconds", "3") as running:
        assert {running.post(body).status_code for body in bodies * 2} == {200}
        pooler.stop()
        late_upload = build_upload()
        assert running.post(late_upload).status_code == 503
        pooler.start()
        wait_until(lambda: running.post(late_upload).status_code == 200)
        token = make_token(address)
        response = running.get("/v1/metrics/page/counts", token)
        assert response.json()["reports"] == len(bodies) + 1
