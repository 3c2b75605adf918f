"""`rappor-server demo`: from nothing to a full dashboard, and back to nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from collectors import command, run_command
from plain_http import NO_CERTIFICATES
from rappor_server.cli.demo_metrics import STREAMS, WEEKS, Stream

PATIENCE = 300.0
"""Seconds to the first answer on a machine that does other things, too."""


@pytest.mark.slow
def test_the_demo_fills_a_dashboard_and_leaves_nothing(tmp_path: Path) -> None:
    """The link signs in once, every metric has its eight weeks, and Ctrl-C ends it all."""
    with subprocess.Popen(
        command("demo", "--no-browser"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as process:
        try:
            assert process.stdout is not None
            shown = []
            for line in process.stdout:
                shown.append(line)
                if found := re.search(r"http://\S+", line):
                    break
            assert len(shown) == 2 + WEEKS  # a line for each week: this is no terminal
            assert found is not None
            with httpx.Client(
                verify=NO_CERTIFICATES, follow_redirects=True, timeout=PATIENCE
            ) as http:
                page = http.get(found.group())
                assert page.status_code == 200
                deadline = time.monotonic() + PATIENCE
                while "leads with" not in page.text:
                    assert time.monotonic() < deadline, page.text
                    time.sleep(0.5)
                    page = http.get(page.url)
                for name in {stream.metric for stream in STREAMS}:
                    assert f"/pages/metrics/{name}" in page.text
                    health = http.get(page.url.join(f"/pages/metrics/{name}/health")).text
                    assert f"<h1>{name}: good</h1>" in health
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    """`--keep` takes an empty folder only."""
    (tmp_path / "mine").touch()
    answer = run_command("demo", "--keep", str(tmp_path))
    assert answer.returncode == 2
    assert "must be an empty folder" in answer.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("stream", STREAMS, ids=lambda each: each.metric + each.segment)
def test_every_week_has_values(stream: Stream) -> None:
    """No weight is below zero."""
    weeks = [stream.population(week) for week in range(WEEKS)]
    assert all(week.startswith("value,weight") and "-" not in week for week in weeks)
