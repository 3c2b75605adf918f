"""Several workers look like one collector to those who watch it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import plain_http
import pytest
from collectors import Running, free_port, serving, upload_of, wait_until_ready
from prometheus_client.parser import text_string_to_metric_families
from rappor_server.prometheus import shared_by_workers


def figure(running: Running, name: str, **labels: str) -> float:
    """Return one number of /metrics."""
    scraped = plain_http.get(f"{running.admin_url}/metrics", timeout=60).text
    for family in text_string_to_metric_families(scraped):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    return 0.0


def workers_of(running: Running) -> list[int]:
    """Return the worker processes of a collector."""
    command = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(running.process.pid)]
    lines = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
    return [int(line.split()[0]) for line in lines if "multiprocessing-fork" in line]


def wait_for_another(running: Running, known: list[int]) -> None:
    """Wait until there are as many workers as before, and not the same ones."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        now = workers_of(running)
        if len(now) == len(known) and now != known:
            return
        time.sleep(0.1)
    raise AssertionError(running.log.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_the_worker_that_is_asked_counts_for_all(tmp_path: Path, database: str) -> None:
    """Every scrape shows the totals of all workers, also after each of them was killed."""
    flags = ("--suspicious", "accept", "--workers", "2")
    with serving(tmp_path, database, *flags, admin=free_port()) as running:
        for _ in range(40):
            assert running.post(upload_of()).status_code == 200
        assert figure(running, "rappor_uploads_total", status="200") == 40
        assert figure(running, "rappor_reports_total", metric="page") == 40
        assert figure(running, "rappor_commit_seconds_count") > 0
        for victim in workers_of(running):
            before = workers_of(running)
            os.kill(victim, signal.SIGKILL)
            wait_for_another(running, before)
            wait_until_ready(running)
        assert running.post(upload_of()).status_code == 200
        assert figure(running, "rappor_uploads_total", status="200") == 41
        assert figure(running, "rappor_queue_uploads") == 0


MEMORY = Path("/dev/shm")  # noqa: S108 - looked at only


@pytest.mark.skipif(not MEMORY.exists(), reason="needs files in memory")
def test_counters_of_workers_need_no_disk() -> None:
    """A full disk would end every process that counts."""
    with shared_by_workers():
        assert Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]).parent == MEMORY
