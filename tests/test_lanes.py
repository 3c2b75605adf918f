"""The fast lane runs what it says, and reads nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

FAST = {"tests/rappor/protocol", "tests/rappor/registry", "tests/rappor/privacy"}


def collect(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Let pytest say which files have tests for these arguments."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_fast_lane_is_three_folders() -> None:
    """`pytest -m fast` has tests of each of them, and of no other."""
    lines = [line for line in collect("-m", "fast").stdout.splitlines() if line]
    assert {str(Path(line.split(":")[0]).parent) for line in lines} == FAST


@pytest.mark.slow
def test_slow_tests_are_not_in_the_fast_lane() -> None:
    """A test with either marker stays out, wherever it lies."""
    answer = collect("-m", "fast and (slow or acceptance)", *sorted(FAST))
    assert answer.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, answer.stdout
    assert collect("-m", "slow", *sorted(FAST)).returncode == pytest.ExitCode.OK


def test_every_helper_is_explained() -> None:
    """tests/README.md says what each file of tests/support is for."""
    explained = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "tests" / "support").glob("*.py"):
        assert f"`{path.name}`" in explained, path.name
