"""The programs in rappor/examples run without a warning, and print results near the expected ones.

Three programs show the library to analysts and researchers. The programs in `audits` are encoders
of other packages, which `rappor audit --command` can test.
"""

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
    process = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.slow
def test_the_notebook_of_an_analyst(tmp_path: Path) -> None:
    """The notebook detects about as many words as it plans, and 95 % of its intervals are right.

    The plan assumes Zipf's law, and the frequencies of English words differ from it, so the numbers
    of words may differ by a factor of 1.4. An interval is right if it contains the true share. The
    proportion of 10,000 independent intervals has a standard deviation of .22 %, so 1 % is four and
    a half standard deviations. The example has a fixed seed.
    """
    printed = run("analyst_notebook.py", tmp_path)
    (planned,) = re.findall(r"find about (\d+) words", printed)
    (detected,) = re.findall(r"^(\d+) words detected", printed, flags=re.MULTILINE)
    (covered,) = re.findall(r"([\d.]+)% of 10,000 intervals contain the truth", printed)
    assert 0.7 < int(detected) / int(planned) < 1.4
    assert 94 < float(covered) < 96
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_program_of_a_researcher(tmp_path: Path) -> None:
    """Measured errors are near those of a formula, and more devices detect more words.

    A measured error is a root mean square of 500 errors, with a relative standard deviation of
    1 / sqrt(2 * 500) = 3.2 %. So 15 % are more than four standard deviations. They also allow for
    collisions of strings, which the formula does not contain.
    """
    printed = run("researcher_population.py", tmp_path)
    # A row has the name of a design, its epsilon, and the error by the formula and as measured.
    errors = re.findall(r"^(?:one-hot|Bloom).* +1\.000 +(\d+) +(\d+)$", printed, re.MULTILINE)
    assert len(errors) == 4
    assert all(
        0.85 < int(measured_error) / int(predicted_error) < 1.15
        for predicted_error, measured_error in errors
    )
    # A row has the number of devices, the number of detected words, and the coverage in per cent.
    n_detected = [int(n) for n in re.findall(r"^ *[\d,]+ +(\d+) +[\d.]+% ", printed, re.MULTILINE)]
    assert len(n_detected) == 4
    assert n_detected == sorted(set(n_detected))


@pytest.mark.slow
def test_the_example_of_two_fields(tmp_path: Path) -> None:
    """Two equal tuples have the same report, and each estimated share is near the true share.

    The tuples have their fields in different orders. The estimates are those of the nine
    combinations of an editor and a system. Each is within six standard errors of the share in the
    simulated population, which the example prints in parentheses.
    """
    printed = run("two_fields.py", tmp_path)
    first, second = re.findall(r"report (\w+) of parameters (\w+)", printed)
    assert first == second
    cells = re.findall(r"([\d.]+)% \+- ([\d.]+)% \((\d+)%\)", printed)
    assert len(cells) == 9
    for share, error, truth in cells:
        # Share and error are printed with one decimal, so each may be wrong by 0.05 %.
        largest_error = float(error) + 0.05
        assert abs(float(share) - float(truth)) < 6 * largest_error + 0.05
    (p_value,) = re.findall(r"p-value of independence: (.*)", printed)
    assert float(p_value) < 1e-9


def test_every_example_is_run() -> None:
    """The folder contains the three programs that are tested above, and no other program."""
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "analyst_notebook.py",
        "researcher_population.py",
        "two_fields.py",
    }


@pytest.mark.slow
def test_the_encoder_of_opendp_writes_eight_bits_for_each_line() -> None:
    """The program reads two letters, and writes two lines of eight bits."""
    process = encode_two_letters(sys.executable, "opendp_bits.py")
    assert process.returncode == 0, process.stderr
    assert re.fullmatch("([01]{8}\n){2}", process.stdout)


def encode_two_letters(python: str, encoder: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the folder `audits` with the letters a and h, one in each line of its input.

    `python` is the path of the interpreter.
    """
    words = [python, str(EXAMPLES / "audits" / encoder)]
    return subprocess.run(words, input="a\nh\n", capture_output=True, text=True, check=False)


@pytest.mark.acceptance
def test_the_encoder_of_multi_freq_ldpy_passes_its_audit(tmp_path: Path) -> None:
    """The encoder writes eight bits for each line, and the audit of its privacy losses passes.

    The test installs the package into a new virtual environment, and is skipped if pip cannot
    download the package. `twice` is the metric with the losses of the encoder. The documented audit
    has 20,000 trials, and 2,000 are enough to show that the program and the metric fit together.
    """
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path)], check=True)
    python = str(tmp_path / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", "multi-freq-ldpy==0.2.5"]
    fetched = subprocess.run(install, capture_output=True, text=True, check=False)
    if fetched.returncode:
        reason = fetched.stderr.strip().splitlines()[-1]
        pytest.skip(f"pip could not install multi-freq-ldpy: {reason}")
    process = encode_two_letters(python, "multi_freq_ldpy_bits.py")
    assert process.returncode == 0, process.stderr
    assert re.fullmatch("([01]{8}\n){2}", process.stdout)
    encoder = EXAMPLES / "audits" / "multi_freq_ldpy_bits.py"
    words = ["--registry", str(EXAMPLES / "audits" / "metrics.toml"), "twice"]
    words += ["--trials", "2000", "--command", f"{python} {encoder}"]
    assert main(["audit", *words]) == 0
