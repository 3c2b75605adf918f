"""kill -9 under load: acknowledged uploads count once, and the retries of others too."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import load_child
import pytest
from collectors import Running, free_port, make_token, start

_LEAST = 20
"""Uploads that each collector stores before it is killed; of the 8 senders' last one each may be
without its answer."""


def start_load(port: int) -> subprocess.Popen[str]:
    """Start senders that continue through every crash."""
    folder = Path(load_child.__file__)
    paths = os.pathsep.join([str(folder.parent), *filter(None, sys.path)])
    return subprocess.Popen(
        [sys.executable, str(folder), str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )


def crash(folder: Path, database: str, kills: int) -> None:
    """Kill the collector again and again under load, then account for every upload."""
    port = free_port()
    flags = ["--suspicious", "accept"]
    load = start_load(port)
    try:
        for number in range(kills):
            running = start(folder, database, *flags, port=port)
            wait_for_load(running)
            time.sleep(random.uniform(0, 0.6))  # noqa: S311
            if number % 2:
                os.kill(running.children()["rappor-writer"], signal.SIGKILL)
                time.sleep(random.uniform(0, 0.6))  # noqa: S311
            if number % 3:
                running.kill()
            else:  # its writer sees the end of its parent later
                running.process.kill()
                running.process.wait(30)
        running = start(folder, database, *flags, port=port)
        try:
            output, _ = load.communicate("", timeout=60)
            account(json.loads(output), running, make_token(database), kills)
        finally:
            running.kill()
    finally:
        load.kill()
        load.wait(30)


def wait_for_load(running: Running) -> None:
    """Wait until a collector has stored some uploads, however slow the machine is."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        stored = re.search(r'^rappor_reports_total\{metric="page"\} (\d+)', metrics(running), re.M)
        if stored and int(stored[1]) >= _LEAST:
            return
        time.sleep(0.02)
    raise AssertionError("the senders do not reach the collector")


def metrics(running: Running) -> str:
    """Return the collector's counters."""
    return running.get("/metrics").text


def account(load: dict[str, Any], running: Any, token: str, kills: int) -> None:
    """Compare the counters, bit by bit and cohort by cohort, with the acknowledged uploads."""
    acknowledged: list[int] = load["acknowledged"]
    assert len(acknowledged) == len(set(acknowledged))
    assert len(acknowledged) > 10 * kills, "hardly any load"
    for number, body in load["open"]:
        assert running.post(body.encode()).status_code == 200
        acknowledged.append(number)
    counts = running.get("/v1/metrics/page/counts", token).json()
    (entry,) = counts["collections"]
    by_cohort = Counter(n % 4 for n in acknowledged)
    assert entry["reports"] == [by_cohort[j] for j in range(4)]
    for j in range(4):
        own = [n for n in acknowledged if n % 4 == j]
        assert entry["ones"][j] == [sum(n >> i & 1 for n in own) for i in range(16)]


def test_killed_collector_loses_nothing_and_doubles_nothing(tmp_path: Path, database: str) -> None:
    """After five kills every acknowledged upload is counted once."""
    crash(tmp_path, database, 5)


@pytest.mark.acceptance
@pytest.mark.timeout(7200)
def test_killed_collector_loses_nothing_in_full(tmp_path: Path, database: str) -> None:
    """After a hundred kills every acknowledged upload is counted once."""
    crash(tmp_path, database, 100)
