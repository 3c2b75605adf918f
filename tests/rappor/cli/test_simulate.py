"""`rappor simulate`: counts and reports of a population."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from accepting_collector import run_accepting_collector
from shell import Shell, expect_refusal, expect_success
from warm_commands import locate_commands

from rappor import Counts, Registry
from rappor.engines import aggregate_parquet


def test_a_seed_repeats_a_simulation(shell: Shell) -> None:
    """Runs with equal seeds write equal counts. Runs without a seed differ."""
    files = []
    for name, seed in (("a", ("--seed", "1")), ("b", ("--seed", "1")), ("c", ()), ("d", ())):
        path = shell.path(name)
        words = ("--population", "population.csv", "--reports", "1000", *seed, "--out", path)
        assert shell.run_on_metric("simulate", *words)[0] == 0
        files.append(Counts.load(path))
    assert files[0] == files[1]
    assert files[2] != files[3]  # equal with a probability below 1e-9: 16,384 binomials


def test_devices_report_again(shell: Shell) -> None:
    """With --reports-per-device 30, each of 10,000 devices sends 30 reports.

    The counts contain the sum of the squared numbers of reports of the devices. This sum divided by
    the number of reports is 30 if every device has sent 30 reports.
    """
    words = ("--population", "population.csv", "--devices", "1e4", "--reports-per-device", "30")
    document = json.loads(
        expect_success(shell.run_on_metric("simulate", *words, "--out", shell.path("x"), "--json"))
    )
    assert (document["reports"], document["devices"]) == (300_000, 10_000)
    assert Counts.load(shell.path("x")).reports_per_device == 30


def test_each_day_has_a_file_and_devices_come_and_go(shell: Shell) -> None:
    """Each of ten days has a file of counts, with one report of each device.

    Without --churn, all days have the same devices. With --churn 1, each day has other devices.
    """
    words = ["--population", "population.csv", "--devices", "1e5", "--seed", "1"]
    words += ["--out", shell.path("day.counts"), "--days", "10"]
    files = json.loads(
        expect_success(shell.run_on_metric("simulate", *words, "--churn", "1", "--json"))
    )["files"]
    assert files[0] == shell.path("day-01.counts")
    assert len(files) == 10
    changing = [Counts.load(file) for file in files]
    assert [(day.n_reports, day.reports_per_device) for day in changing] == [(100_000, 1)] * 10
    assert shell.run_on_metric("simulate", *words)[0] == 0
    staying = [Counts.load(file) for file in files]
    # A device stays in its cohort, so the same devices give the same number of reports in each
    # cohort on every day.
    assert len({tuple(day.cohort_reports) for day in staying}) == 1
    assert len({tuple(day.cohort_reports) for day in changing}) == 10


@pytest.mark.parametrize("exists", [False, True])
def test_reports_are_written_to_a_folder(shell: Shell, exists: bool) -> None:
    """A folder, new or empty, gets the reports that --out with a file name writes to one file."""
    words = ("--population", "population.csv", "--reports", "3e5", "--seed", "1")
    if exists:
        (shell.folder / "many").mkdir()
    # Only the slash at the end tells that a new name is a folder.
    many = shell.path("many") + "/" * (not exists)
    assert shell.run_on_metric("simulate", *words, "--out", many)[0] == 0
    assert shell.run_on_metric("simulate", *words, "--out", shell.path("one.parquet"))[0] == 0
    files = sorted((shell.folder / "many").iterdir())
    assert [file.name for file in files] == ["reports-000000.parquet"]
    metric = Registry.load(shell.folder / "metrics.toml").metric("engine")
    sums = [
        aggregate_parquet(path, params=metric.params, metric="engine")
        for path in (files[0], shell.folder / "one.parquet")
    ]
    assert sums[0] == sums[1]
    assert sums[0].n_reports == 300_000


def test_a_collector_gets_the_upload_key_of_a_file(shell: Shell) -> None:
    """With --to, the reports are sent with the upload key of --key-file, which needs --to."""
    (shell.folder / "key").write_text("open-sesame-open\n")
    words = ["--population", "population.csv", "--reports", "10", "--key-file", shell.path("key")]
    with run_accepting_collector(Registry.load(shell.folder / "metrics.toml")) as collector:
        expect_success(shell.run_on_metric("simulate", *words, "--to", collector.url))
    assert collector.keys == ["Bearer open-sesame-open"]
    assert len(collector.reports) == 10
    refused = shell.run_on_metric("simulate", *words, "--out", shell.path("x"))
    assert "--key-file needs --to" in expect_refusal(refused)


@pytest.mark.slow
@pytest.mark.parametrize("out", ["reports/", "reports.parquet"])
def test_an_interruption_leaves_nothing(shell: Shell, out: str) -> None:
    """Ctrl-C gives exit code 130 and one word, and leaves neither folder nor file."""
    command = [str(locate_commands() / "rappor"), "simulate"]
    command += ["--registry", shell.path("metrics.toml"), "engine", "--reports", "1e8"]
    command += ["--population", shell.path("population.csv"), "--out", f"{shell.folder}/{out}"]
    before = set(shell.folder.iterdir())
    start = measure_size(shell.folder)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        # After the first reports are written, all loops are compiled. Before, llvmlite may drop a
        # KeyboardInterrupt in its callbacks.
        while measure_size(shell.folder) < start + 100_000 and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert (process.returncode, errors.strip()) == (130, "rappor: interrupted")
    assert set(shell.folder.iterdir()) == before


def measure_size(folder: Path) -> int:
    """Return the size in bytes of all files below a folder, or 0 if a file disappears meanwhile."""
    try:
        return sum(path.stat().st_size for path in folder.rglob("*"))
    except FileNotFoundError:
        return 0


def test_devices_have_a_segment(shell: Shell) -> None:
    """With --segment, the parameters of the counts have the segment."""
    registry = shell.folder / "metrics.toml"
    lines = 'profile = "balanced"\nsegments = {version = ["1", "2"]}'
    registry.write_text(registry.read_text().replace('profile = "balanced"', lines, 1))
    output = shell.simulate("a.counts", 100, "--segment", "version=2")
    assert Counts.load(output).params.segment == (("version", "2"),)


def test_the_folders_of_the_output_are_made(shell: Shell) -> None:
    """Missing folders of the output are created, for one file and for many."""
    words = ("--population", "population.csv", "--reports", "1e3")
    for out in ("days/of/d.counts", "rows/of/r.parquet", "parts/of/many/"):
        assert shell.run_on_metric("simulate", *words, "--out", shell.path(out))[0] == 0, out
        assert Path(shell.path(out)).exists()
