"""The example project: a tool, a collector, 300 people and a public page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from collectors import run_script
from places import ROOT
from readers import blocks, script_of

from rappor import Registry

SHIPPED = ROOT / "client" / "examples" / "kit"
USES = {"hello": 0.4, "hello --loud": 0.3, "bye": 0.2, "wave": 0.1}


@pytest.mark.slow
def test_the_page_of_the_example_runs_as_pasted(tmp_path: Path) -> None:
    """Each device counts once, and the shares of the public page are near the true shares."""
    folder = tmp_path / "kit"
    shutil.copytree(SHIPPED, folder, ignore=shutil.ignore_patterns("__pycache__"))
    answer = run_script(script_of(blocks(folder / "README.md")), folder)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "300 reports of 300 devices" in answer.stdout
    (edition,) = (folder / "site" / "command").glob("*/trend.json")
    assert list(Registry.load(folder / "metrics.toml.shipped")) == ["command"]
    rows = json.loads(edition.read_text())["rows"]
    assert {row["candidate"] for row in rows} == set(USES)
    for row in rows:  # Bernstein's inequality at 1e-9 a check: 300 answers of variance .19 at most
        assert abs(row["estimate"] - USES[row["candidate"]]) < 0.2
