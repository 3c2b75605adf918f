"""A program that a test needs is found, or its name is said."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from places import ROOT
from tools import INSTALLED_BY, need

MACHINE = ROOT / "tests" / "machine.sh"
PROGRAMS = [name for name, who in INSTALLED_BY.items() if who == "tests/machine.sh"]


def nowhere(name: str) -> None:
    """Find no program."""


def test_a_program_that_is_there_is_found() -> None:
    """The test goes on with its path."""
    assert need("java", find=Path, environment={"CI": "true"}) == Path("java")


@pytest.mark.parametrize("name", sorted(INSTALLED_BY))
def test_a_missing_program_skips_the_test_by_name(name: str) -> None:
    """On a person's machine the test says what it would need, and who installs it."""
    with pytest.raises(pytest.skip.Exception, match=f"{name} is missing; .+ installs it"):
        need(name, find=nowhere, environment={})


@pytest.mark.parametrize("name", sorted(INSTALLED_BY))
def test_a_missing_program_fails_the_test_in_ci(name: str) -> None:
    """Where CI is set nothing is left out in silence."""
    with pytest.raises(pytest.fail.Exception, match=f"{name} is missing; .+ installs it"):
        need(name, find=nowhere, environment={"CI": "true"})


def run_machine(folder: Path, *programs: str, ci: str = "") -> subprocess.CompletedProcess[str]:
    """Run tests/machine.sh where only the named programs exist; they succeed and do nothing."""
    for name in programs:
        (folder / name).write_text("#!/bin/sh\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    bash = shutil.which("bash")
    assert bash is not None
    return subprocess.run(
        [bash, str(MACHINE)],
        env={"PATH": str(folder), "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_complete_machine_is_left_alone(tmp_path: Path) -> None:
    """Where all programs are there, nothing is installed and nothing said."""
    answer = run_machine(tmp_path, *PROGRAMS, ci="true")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """Without a package manager a person reads the names, and tests may go on."""
    answer = run_machine(tmp_path, "java")
    assert answer.returncode == 0
    assert "chromium" in answer.stderr
    assert "openjdk" not in answer.stderr


def test_what_is_missing_ends_ci(tmp_path: Path) -> None:
    """Where CI is set the same is an error."""
    answer = run_machine(tmp_path, ci="true")
    assert answer.returncode == 1
    assert (
        "chromium debootstrap esbuild gcc libc6-dev openjdk-17-jre-headless pgbouncer systemd "
        "terser node-typescript" in answer.stderr
    )
