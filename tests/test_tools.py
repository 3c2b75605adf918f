"""Programs beside Python: a test finds its program, or is skipped or fails with its name."""

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


def test_an_installed_program_is_found() -> None:
    """`need` returns the path of the program."""
    assert need("java", find=Path, environment={"CI": "true"}) == Path("java")


@pytest.mark.parametrize("name", sorted(INSTALLED_BY))
def test_a_missing_program_skips_the_test_by_name(name: str) -> None:
    """On a person's machine the test is skipped with the program's name and its installer."""
    with pytest.raises(pytest.skip.Exception, match=f"{name} is missing; .+ installs it"):
        need(name, find=nowhere, environment={})


@pytest.mark.parametrize("name", sorted(INSTALLED_BY))
def test_a_missing_program_fails_the_test_in_ci(name: str) -> None:
    """Where the variable CI is set, the test fails instead of being skipped silently."""
    with pytest.raises(pytest.fail.Exception, match=f"{name} is missing; .+ installs it"):
        need(name, find=nowhere, environment={"CI": "true"})


def run_machine(folder: Path, *programs: str, ci: str = "") -> subprocess.CompletedProcess[str]:
    """Run tests/machine.sh where only the named programs exist. They succeed and do nothing."""
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
    """If all programs are installed, machine.sh installs nothing and prints nothing."""
    process = run_machine(tmp_path, *PROGRAMS, ci="true")
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")


def test_missing_programs_are_named(tmp_path: Path) -> None:
    """Without a package manager, machine.sh prints the missing programs and succeeds."""
    process = run_machine(tmp_path, "java")
    assert process.returncode == 0
    assert "chromium" in process.stderr
    assert "openjdk" not in process.stderr


def test_missing_programs_end_ci(tmp_path: Path) -> None:
    """Where the variable CI is set, missing programs are an error."""
    process = run_machine(tmp_path, ci="true")
    assert process.returncode == 1
    assert (
        "chromium debootstrap esbuild gcc libc6-dev openjdk-17-jre-headless pgbouncer systemd "
        "terser node-typescript" in process.stderr
    )
