"""The example project: a tool, a collector, 300 people and a public page."""

from __future__ import annotations

import json
import shutil
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
def test_the_commands_of_the_example_page_work(tmp_path: Path) -> None:
    """The commands of README.md run in order, as a reader pastes them into a shell.

    Each device counts once, and the shares of the public page are near the true shares.
    """
    folder = tmp_path / "kit"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    process = run_script(build_script(read_blocks(folder / "README.md")), folder)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "300 reports of 300 devices" in process.stdout
    (trend,) = (folder / "site" / "command").glob("*/trend.json")
    assert list(Registry.load(folder / "metrics.toml.shipped")) == ["command"]
    rows = json.loads(trend.read_text())["rows"]
    assert {row["candidate"] for row in rows} == set(TRUE_SHARES)
    for row in rows:  # Bernstein's inequality at 1e-9 a check: 300 reports of variance 0.19 at most
        assert abs(row["estimate"] - TRUE_SHARES[row["candidate"]]) < 0.2
