"""A shell in a folder of its own, and counts in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from shell import Shell, fill


@pytest.fixture
def shell(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Shell:
    """A shell in a folder with a registry, a population and candidates."""
    fill(tmp_path)
    return Shell(tmp_path, capfd)


@pytest.fixture
def counts(shell: Shell) -> str:
    """Counts of 50,000 devices."""
    name = shell.path("engine.counts")
    simulated = ("--population", "population.csv", "--reports", "50000", "--seed", "3")
    assert shell.metric("simulate", *simulated, "--out", name)[0] == 0
    return name
