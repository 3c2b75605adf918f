"""Fixtures of the command line: a shell in a folder of its own, and counts in the folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from shell import Shell, write_inputs


@pytest.fixture
def shell(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Shell:
    """A shell in a folder with a registry, a population and candidates."""
    write_inputs(tmp_path)
    return Shell(tmp_path, capfd)


@pytest.fixture
def counts(shell: Shell) -> str:
    """Counts of 50,000 devices."""
    return shell.simulate("engine.counts", 50_000, "--seed", "3")
