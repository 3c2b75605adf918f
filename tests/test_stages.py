"""Stages of the tests: the fast stage has the tests of three folders, and reads no other folder."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from places import ROOT
from stages import may_have_slow_test
from tools import PACKAGES

FAST = {"tests/rappor/protocol", "tests/rappor/registry", "tests/rappor/privacy"}

LEFT_OUT = [path for path in (ROOT / "tests").rglob("test_*.py") if not may_have_slow_test(path)]
"""Files that `pytest -m slow` does not import."""


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
    process = collect("-m", "fast and (slow or acceptance)", *sorted(FAST))
    assert process.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, process.stdout
    # The folders have such tests, so the stage leaves them out.
    texts = [path.read_text("utf-8") for folder in FAST for path in (ROOT / folder).glob("*.py")]
    assert any("@pytest.mark.slow\n" in text for text in texts)
    assert any("pytest.mark.acceptance" in text for text in texts)


@pytest.mark.slow
def test_slow_stage_has_every_slow_test() -> None:
    """The stage of slow tests is the same set of tests with and without the files that it skips.

    pytest collects the skipped files alone, and finds no slow test in them. The parentheses keep
    the expression from being recognised as a stage, so pytest imports all these files.
    """
    assert len(LEFT_OUT) > 50
    process = collect("-v", "-m", "(slow)", *map(str, LEFT_OUT))
    assert process.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, process.stdout
    assert "deselected" in process.stdout


def test_stage_without_a_slow_file() -> None:
    """A file is skipped unless its text or a fixture of a folder above it has the marker."""
    assert ROOT / "tests" / "client" / "test_periods.py" in LEFT_OUT
    assert Path(__file__) not in LEFT_OUT
    # The fixture `database` of tests/server/conftest.py marks the tests on PostgreSQL.
    assert not any(path.is_relative_to(ROOT / "tests" / "server") for path in LEFT_OUT)


def test_every_helper_is_explained() -> None:
    """The table of tests/README.md contains each file of tests/support."""
    explained = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "tests" / "support").glob("*.py"):
        assert f"`{path.name}`" in explained, path.name


def test_files_that_need_the_extra_dev_are_slow() -> None:
    """The first stage, whose environment lacks their packages, has no test of these files."""
    for name in PACKAGES:
        text = (ROOT / "tests" / name).read_text(encoding="utf-8")
        assert "\npytestmark = pytest.mark.slow" in text, name


@pytest.mark.slow
def test_packages_of_the_extra_dev_are_installed_in_the_second_stage() -> None:
    """No test of the second stage is skipped because a package of the extra is missing."""
    installed = {canonicalize_name(item.name) for item in importlib.metadata.distributions()}
    assert list_packages("dev") - installed == set()


def list_packages(extra: str) -> set[str]:
    """Return the names of the packages of an extra of pyproject.toml, and of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = set[str]()
    for requirement in map(Requirement, project["optional-dependencies"][extra]):
        if requirement.name == "rappor":
            packages.update(*(list_packages(name) for name in requirement.extras))
        else:
            packages.add(canonicalize_name(requirement.name))
    return packages
