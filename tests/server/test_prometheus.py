"""Several workers look like one collector to those who watch it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from collectors import Running, serving, upload_of
from prometheus_client.parser import text_string_to_metric_families

SCRAPES = 12
"""Connections; that one worker takes all of them has probability 2^-11."""


def figure(running: Running, name: str, **labels: str) -> float:
    """Return one number of /metrics."""
    for family in text_string_to_metric_families(running.get("/metrics").text):
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


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_whichever_worker_is_asked_counts_for_all(tmp_path: Path, database: str) -> None:
    """Every scrape shows the totals of all workers, also after one was killed."""
    with serving(tmp_path, database, "--suspicious", "accept", "--workers", "2") as running:
        for _ in range(40):
            assert running.post(upload_of()).status_code == 200
        seen = {figure(running, "rappor_uploads_total", status="200") for _ in range(SCRAPES)}
        assert seen == {40.0}
        assert figure(running, "rappor_reports_total", metric="page") == 40
        assert figure(running, "rappor_commit_seconds_count") > 0
        before = workers_of(running)
        os.kill(before[0], signal.SIGKILL)
        wait_for_another(running, before)
        assert running.post(upload_of()).status_code == 200
        seen = {figure(running, "rappor_uploads_total", status="200") for _ in range(SCRAPES)}
        assert seen == {41.0}
        assert figure(running, "rappor_queue_uploads") == 0
