"""The example project: a tool, a collector, 300 people and a public page."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from collectors import run_script
from places import ROOT
from readers import build_script, read_blocks

from rappor import Registry

EXAMPLE = ROOT / "client" / "examples" / "kit"
TRUE_SHARES = {"hello": 0.4, "hello --loud": 0.3, "bye": 0.2, "wave": 0.1}
"""The people of the example draw their uses with these probabilities."""


@pytest.mark.slow
def test_the_simulated_people_may_be_few_and_a_failure_has_its_reason(tmp_path: Path) -> None:
    """`users.py` simulates as many people as `USES` has, and prints why no report was accepted.

    Fewer than 300 people ended in a traceback, and a failure had no reason.
    """
    folder = tmp_path / "kit"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    users = (folder / "users.py").read_text(encoding="utf-8")
    few = re.sub(r"^USES = .*$", 'USES = {"hello": 1, "bye": 1}', users, flags=re.MULTILINE)
    (folder / "users.py").write_text(few, encoding="utf-8")
    # No server listens on this port.
    variables = {"GREET_COLLECTOR": "http://127.0.0.1:9", "PYTHONDONTWRITEBYTECODE": "1"}
    disabling = ("CI", "DO_NOT_TRACK", "RAPPOR_DISABLED", "PYTEST_CURRENT_TEST")
    environment = {name: text for name, text in os.environ.items() if name not in disabling}
    outputs = [
        subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=environment | variables,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for words in (
            ["greet.py", "telemetry", "init", "--owner", "a@example.org"],
            ["users.py"],
        )
    ]
    first, second = outputs[1].splitlines()
    assert first == "0 reports of 2 devices"
    assert second.startswith("2 devices: the collector was not reached")


@pytest.mark.slow
def test_the_commands_of_the_example_page_work(tmp_path: Path) -> None:
    """The commands of README.md run in order, as a reader pastes them into a shell.

    Each device counts once, and the shares of the public page are near the true shares.
    """
    folder = tmp_path / "kit"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    process = run_script(build_script(read_blocks(folder / "README.md")), folder)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "300 reports of 300 devices" in process.stdout
    assert "<title>greet: what was found</title>" in (folder / "site" / "index.html").read_text()
    (trend,) = (folder / "site" / "command").glob("*/trend.json")
    assert list(Registry.load(folder / "metrics.toml.shipped")) == ["command"]
    rows = json.loads(trend.read_text())["rows"]
    assert {row["candidate"] for row in rows} == set(TRUE_SHARES)
    for row in rows:  # Bernstein's inequality at 1e-9 a check: 300 reports of variance 0.19 at most
        assert abs(row["estimate"] - TRUE_SHARES[row["candidate"]]) < 0.2
