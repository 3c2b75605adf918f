"""Stages of the tests: the fast stage has the tests of three folders, and reads no other folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

FAST = {"tests/rappor/protocol", "tests/rappor/registry", "tests/rappor/privacy"}


def collect(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Let pytest list the files that have tests for these arguments."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_fast_stage_is_three_folders() -> None:
    """`pytest -m fast` runs tests of each of the three folders, and of no other folder."""
    lines = [line for line in collect("-m", "fast").stdout.splitlines() if line]
    assert {str(Path(line.split(":")[0]).parent) for line in lines} == FAST


@pytest.mark.slow
def test_slow_tests_are_not_in_the_fast_stage() -> None:
    """A test of the three folders with the marker `slow` or `acceptance` does not run."""
    answer = collect("-m", "fast and (slow or acceptance)", *sorted(FAST))
    assert answer.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, answer.stdout
    assert collect("-m", "slow", *sorted(FAST)).returncode == pytest.ExitCode.OK


def test_every_helper_is_explained() -> None:
    """The table of tests/README.md contains each file of tests/support."""
    explained = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "tests" / "support").glob("*.py"):
        assert f"`{path.name}`" in explained, path.name
