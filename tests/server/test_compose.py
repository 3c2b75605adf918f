"""The trial of `compose.yaml`, tested without containers: its files and commands."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import plain_http
import pytest
import yaml  # type: ignore[import-untyped]
from collectors import (
    Running,
    build_command,
    find_free_port,
    run_command,
    run_script,
    wait_until_ready,
)
from places import ROOT
from tools import need

FOLDER = ROOT / "server" / "packaging"
HOST = f"127.{os.getpid() // 251 % 251 + 2}.{os.getpid() % 251}.1"
"""Address of this machine on which the collector of this test has the port 8080 for itself."""
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "compose.yaml").read_text())[
    "services"
]
"""Services that the trial by Docker Compose starts, by name."""


@pytest.mark.parametrize("name", SERVICES)
def test_files_and_dependencies_of_a_service_exist(name: str) -> None:
    """Every mounted or built path exists, and a service waits only for existing services."""
    service = SERVICES[name]
    for volume in service.get("volumes", ()):
        assert (FOLDER / volume.partition(":")[0]).exists(), volume
    build = service.get("build")
    assert build is None or (FOLDER / build["context"] / build["dockerfile"]).is_file()
    assert set(service.get("depends_on", ())) <= set(SERVICES)
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_prometheus_scrapes_the_collector() -> None:
    """Prometheus scrapes the collector under the job name that the alerts use."""
    configuration = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    (job,) = configuration["scrape_configs"]
    port = SERVICES["collector"]["environment"]["RAPPOR_SERVER_ADMIN"].rpartition(":")[2]
    assert job["static_configs"][0]["targets"] == [f"collector:{port}"]
    assert job["job_name"] == "rappor"
    assert all((FOLDER / name).is_file() for name in configuration["rule_files"])


@pytest.mark.slow
def test_compose_file_conforms_to_its_schema() -> None:
    """The file conforms to the schema of the Compose Specification."""
    need("check_jsonschema")
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    checked = subprocess.run(
        [*check, str(FOLDER / "compose.yaml")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_devices_report_to_the_collector(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings and the command of the file send reports that are counted."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root, as in a container")
    data, port, admin = tmp_path / "data", 8080, find_free_port()
    shutil.copytree(FOLDER / "trial", data)
    replacements = {
        "/data": str(data),
        "postgresql://rappor:trial@database/rappor": database,
        "0.0.0.0:9090": f"127.0.0.1:{admin}",
    }
    for name, value in SERVICES["collector"]["environment"].items():
        for address_in_file, local_address in replacements.items():
            value = value.replace(address_in_file, local_address)  # noqa: PLW2901 - each name in turn
        monkeypatch.setenv(name, value)
    log = tmp_path / "collector.log"
    with log.open("wb") as output:
        served = build_command(
            "serve", str(data / "metrics.toml"), "--host", HOST, "--port", str(port)
        )
        process = subprocess.Popen(served, stdout=output, stderr=output, start_new_session=True)
    running = Running(process, port, data, log, admin, database)
    try:
        wait_until_ready(running)
        check = (FOLDER / "Dockerfile").read_text(encoding="utf-8").partition("HEALTHCHECK")[2]
        program, *arguments = json.loads(check.partition("CMD")[2].splitlines()[0])
        assert program == "rappor-server"
        words = [argument.replace("/data", str(data)) for argument in arguments]
        assert run_command(*words).returncode == 0
        assert plain_http.get(f"{running.admin_url}/pages/sign-in").status_code == 200
        # The address of the collector stays as it is in the file: a refused address was not seen
        # while the test replaced it. The hosts file resolves the name, as Docker's network does.
        shell, flag, line = SERVICES["devices"]["command"]
        assert (shell, flag) == ("sh", "-c")
        hosts = tmp_path / "hosts"
        hosts.write_text(f"{HOST} collector\n")
        single_run = line.replace("while sleep 60; do ", "").removesuffix("; done")
        resolved = f"mount --bind {hosts} /etc/hosts && {single_run.replace('/data', str(data))}"
        script = f"unshare --mount {shell} {flag} {shlex.quote(resolved)}"
        sent = run_script(script, tmp_path)
        assert "2,000 reports of search_engine were accepted" in sent.stdout, sent.stderr
    finally:
        running.kill()
