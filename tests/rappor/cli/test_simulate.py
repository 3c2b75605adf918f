"""`rappor simulate`: counts and reports of a population."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from shell import Shell, ok, refused

from rappor import Counts, Registry
from rappor.engines import aggregate_parquet


def test_simulate_repeats_with_a_seed_and_differs_without(shell: Shell) -> None:
    """Equal seeds give equal files, and runs without a seed differ."""
    files = []
    for name, seed in (("a", ("--seed", "1")), ("b", ("--seed", "1")), ("c", ()), ("d", ())):
        path = shell.path(name)
        words = ("--population", "population.csv", "--reports", "1000", *seed, "--out", path)
        assert shell.metric("simulate", *words)[0] == 0
        files.append(Counts.load(path))
    assert files[0] == files[1]
    assert files[2] != files[3]  # equal with a probability below 1e-9: 16,384 binomials


def test_devices_report_again(shell: Shell) -> None:
    """Thirty reports of each device give thirty times the reports, and the counts contain S."""
    words = ("--population", "population.csv", "--devices", "1e4", "--reports-per-device", "30")
    answer = json.loads(ok(shell.metric("simulate", *words, "--out", shell.path("x"), "--json")))
    assert (answer["reports"], answer["devices"]) == (300_000, 10_000)
    assert Counts.load(shell.path("x")).reports_per_device == 30


def test_each_day_has_a_file_and_devices_come_and_go(shell: Shell) -> None:
    """Each of ten days has a file, and a decode of all days estimates the reports of a device."""
    words = ["--population", "population.csv", "--devices", "1e5", "--seed", "1"]
    words += ["--out", shell.path("day.counts"), "--days", "10"]
    files = json.loads(ok(shell.metric("simulate", *words, "--churn", "1", "--json")))["files"]
    assert files[0] == shell.path("day-01.counts")
    assert len(files) == 10
    changing = [Counts.load(file) for file in files]
    assert [(day.n_reports, day.reports_per_device) for day in changing] == [(100_000, 1)] * 10
    assert shell.metric("simulate", *words)[0] == 0
    staying = [Counts.load(file) for file in files]
    # Other devices on each day have another spread over the cohorts, the same ones have not.
    assert len({tuple(day.cohort_reports) for day in staying}) == 1
    assert len({tuple(day.cohort_reports) for day in changing}) == 10


@pytest.mark.parametrize("there", [False, True])
def test_reports_fill_a_folder_of_files(shell: Shell, there: bool) -> None:
    """A new or an empty folder gets files with the reports of one file."""
    words = ("--population", "population.csv", "--reports", "3e5", "--seed", "1")
    if there:
        (shell.place / "many").mkdir()
    many = shell.path("many") + "/" * (not there)
    assert shell.metric("simulate", *words, "--out", many)[0] == 0
    assert shell.metric("simulate", *words, "--out", shell.path("one.parquet"))[0] == 0
    files = sorted((shell.place / "many").iterdir())
    assert [file.name for file in files] == ["reports-000000.parquet"]
    metric = Registry.load(shell.place / "metrics.toml").metric("engine")
    sums = [
        aggregate_parquet(path, params=metric.params, metric="engine")
        for path in (files[0], shell.place / "one.parquet")
    ]
    assert sums[0] == sums[1]
    assert sums[0].n_reports == 300_000


def test_a_folder_with_something_in_it_is_left_alone(shell: Shell) -> None:
    """A folder with files is refused by its name, and its files stay."""
    (shell.place / "full").mkdir()
    (shell.place / "full" / "note").write_text("mine")
    words = ("--population", "population.csv", "--reports", "10", "--out", shell.path("full"))
    assert "there already" in refused(shell.metric("simulate", *words))
    assert [file.name for file in (shell.place / "full").iterdir()] == ["note"]


@pytest.mark.slow
@pytest.mark.parametrize("out", ["reports/", "reports.parquet"])
def test_an_interruption_leaves_nothing(shell: Shell, out: str) -> None:
    """Ctrl-C gives exit code 130 and one word, and leaves neither folder nor file."""
    # a shell may have told its background programs to ignore Ctrl-C
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{heed}; from rappor.cli import main; main()", "simulate"]
    command += ["--registry", shell.path("metrics.toml"), "engine", "--reports", "1e8"]
    command += ["--population", shell.path("population.csv"), "--out", f"{shell.place}/{out}"]
    before = set(shell.place.iterdir())
    start = n_bytes(shell.place)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        # reports are there, so kernels are compiled: llvmlite drops a Ctrl-C in its callbacks
        while n_bytes(shell.place) < start + 100_000 and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert (process.returncode, errors.strip()) == (130, "rappor: interrupted")
    assert set(shell.place.iterdir()) == before


def n_bytes(folder: Path) -> int:
    """Return the size of all files below a folder; 0 if a file disappears meanwhile."""
    try:
        return sum(path.stat().st_size for path in folder.rglob("*"))
    except FileNotFoundError:
        return 0


def test_devices_have_a_segment(shell: Shell) -> None:
    """The parameters of the counts contain the segment."""
    registry = shell.place / "metrics.toml"
    own = 'profile = "balanced"\nsegments = {version = ["1", "2"]}'
    registry.write_text(registry.read_text().replace('profile = "balanced"', own, 1))
    output = shell.simulated("a.counts", 100, "--segment", "version=2")
    assert Counts.load(output).params.segment == (("version", "2"),)


def test_the_folders_of_the_output_are_made(shell: Shell) -> None:
    """Missing folders of the output are created, for one file and for many."""
    words = ("--population", "population.csv", "--reports", "1e3")
    for out in ("days/of/d.counts", "rows/of/r.parquet", "parts/of/many/"):
        assert shell.metric("simulate", *words, "--out", shell.path(out))[0] == 0, out
        assert Path(shell.path(out)).exists()
