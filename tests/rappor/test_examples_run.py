"""The programs in rappor/examples run as they stand, and show what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from rappor.cli.app import run as main

EXAMPLES = ROOT / "rappor" / "examples"


def run(name: str, folder: Path) -> str:
    """Run an example away from the repository and return what it prints."""
    answer = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.mark.slow
def test_the_notebook_of_an_analyst(tmp_path: Path) -> None:
    """It finds about as many words as planned, and 95 % of its intervals hold the truth."""
    printed = run("analyst_notebook.py", tmp_path)
    (planned,) = re.findall(r"find about (\d+) words", printed)
    (detected,) = re.findall(r"^(\d+) words detected", printed, flags=re.MULTILINE)
    (covered,) = re.findall(r"([\d.]+)% of 10,000 intervals contain the truth", printed)
    assert 0.7 < int(detected) / int(planned) < 1.4
    assert 94 < float(covered) < 96
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_program_of_a_researcher(tmp_path: Path) -> None:
    """Measured errors are near the closed form, and more devices find more words."""
    printed = run("researcher_population.py", tmp_path)
    errors = re.findall(r"^(?:one-hot|Bloom).* +1\.000 +(\d+) +(\d+)$", printed, re.MULTILINE)
    assert len(errors) == 4
    assert all(0.85 < int(measured) / int(closed) < 1.15 for closed, measured in errors)
    found = [int(n) for n in re.findall(r"^ *[\d,]+ +(\d+) +[\d.]+% ", printed, re.MULTILINE)]
    assert len(found) == 4
    assert found == sorted(set(found))


@pytest.mark.slow
def test_the_example_of_two_fields(tmp_path: Path) -> None:
    """Equal tuples have equal reports; every cell is within six standard errors of the truth."""
    printed = run("two_fields.py", tmp_path)
    assert len(set(re.findall(r"report (\w+) of parameters (\w+)", printed))) == 1
    cells = re.findall(r"([\d.]+)% \+- ([\d.]+)% \((\d+)%\)", printed)
    assert len(cells) == 9
    for share, error, truth in cells:
        # The printed numbers are rounded to .1 %.
        assert abs(float(share) - float(truth)) < 6 * (float(error) + 0.05) + 0.05
    (p_value,) = re.findall(r"p-value of independence: (.*)", printed)
    assert float(p_value) < 1e-9


def test_every_example_is_run() -> None:
    """No program lies beside these three without a test."""
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "analyst_notebook.py",
        "researcher_population.py",
        "two_fields.py",
    }


@pytest.mark.slow
def test_the_recipe_for_opendp_answers_each_line() -> None:
    """With eight bits."""
    answer = answers_of(sys.executable, "opendp_bits.py")
    assert answer.returncode == 0, answer.stderr
    assert re.fullmatch("([01]{8}\n){2}", answer.stdout)


def answers_of(python: str, recipe: str) -> subprocess.CompletedProcess[str]:
    """Ask a recipe about two letters."""
    words = [python, str(EXAMPLES / "audits" / recipe)]
    return subprocess.run(words, input="a\nh\n", capture_output=True, text=True, check=False)


@pytest.mark.acceptance
def test_the_recipe_for_multi_freq_ldpy_passes_its_audit(tmp_path: Path) -> None:
    """Its package is installed in an environment of its own, where pip can fetch it."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path)], check=True)
    python = str(tmp_path / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", "multi-freq-ldpy==0.2.5"]
    fetched = subprocess.run(install, capture_output=True, text=True, check=False)
    if fetched.returncode:
        pytest.skip(f"pip could not install it: {fetched.stderr.strip().splitlines()[-1]}")
    answer = answers_of(python, "multi_freq_ldpy_bits.py")
    assert answer.returncode == 0, answer.stderr
    assert re.fullmatch("([01]{8}\n){2}", answer.stdout)
    recipe = EXAMPLES / "audits" / "multi_freq_ldpy_bits.py"
    words = ["--registry", str(EXAMPLES / "audits" / "metrics.toml"), "twice"]
    words += ["--trials", "2000", "--command", f"{python} {recipe}"]
    assert main(["audit", *words]) == 0
