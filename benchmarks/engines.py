"""Engines: reports a second of one process, all cores, Spark classic and Spark over Connect.

An engine is a way to add up reports that are stored in Parquet files. `benchmarks.engines_once`
lists the engines. Every engine adds up the same folders in a fresh process, after a run that is not
timed.

An empty job takes seconds to start, so the time of an almost empty folder is subtracted. The slope
is that of log(seconds) over log(reports) after the subtraction. A slope of 1 means that the time is
in proportion to the reports. A second table computes the number of reports from which on a cluster
is faster than this machine.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.engines_data import write_report_files
from benchmarks.tables import Cell, Table

_MEGABYTE: Final = 1e6
_EMPTY: Final = 1000
"""Number of reports of the folder that stands for an empty job: its time is the start-up."""


def engines(*, quick: bool) -> list[Table]:
    """Measure each engine on folders of 1e7 and 1e8 reports."""
    sizes = (1_000_000, 4_000_000) if quick else (10_000_000, 100_000_000)
    cores = os.cpu_count() or 1
    names = ["kernel", f"files:{cores}", "classic:1", "classic:2", f"connect:{cores}"]
    names += ["bytes:1", "frame:1"]
    columns = [
        "engine",
        "empty, s",
        *(f"{n:.0e}, s" for n in sizes),
        "reports/s",
        "slope",
        "peak MB",
    ]
    table = Table(
        title="engines: reports of 128 bits in 128 cohorts, in files of a million",
        columns=columns,
        note="reports/s and slope without the time of an empty job. The peak is the sum over "
        "processes, Java's among them. kernel: one thread, one file after the other. classic, "
        "connect: workers open the files; bytes: Spark passes them; frame: a data frame.",
    )
    with tempfile.TemporaryDirectory() as folder:
        folders = [write_report_files(Path(folder) / str(n), n) for n in (_EMPTY, *sizes)]
        figures_by_engine = {name: _measure(name, folders) for name in names}
    for name, figures in figures_by_engine.items():
        table.rows.append(_build_row(name, figures, sizes))
    return [table, _describe_break_even(figures_by_engine, sizes)]


def _measure(name: str, folders: list[Path]) -> dict[str, Any]:
    """Run one engine in a fresh process on all folders, and return its seconds and memory."""
    command = [sys.executable, "-m", "benchmarks.engines_once", name, *map(str, folders)]
    root = Path(__file__).resolve().parents[1]
    process = subprocess.run(command, cwd=root, capture_output=True, check=True)  # noqa: S603  # ours
    document: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return document


def _build_row(name: str, figures: dict[str, Any], sizes: tuple[int, ...]) -> list[Cell]:
    """Return the cells of a row. Rate and slope are without the time of the empty job."""
    empty, *seconds = (run["seconds"] for run in figures["runs"])
    net = [max(time - empty, 1e-9) for time in seconds]
    slope = math.log(net[-1] / net[0]) / math.log(sizes[-1] / sizes[0])
    return [name, empty, *seconds, sizes[-1] / net[-1], slope, figures["peak"] / _MEGABYTE]


def _describe_break_even(figures_by_engine: dict[str, Any], sizes: tuple[int, ...]) -> Table:
    """Compute from how many reports on a cluster is faster than all cores of this machine.

    The time of an engine with n reports is start + n * (seconds for each report). The executors of
    a cluster share the reports, so a cluster of e executors needs 1 / e of the seconds of one
    executor for each report. Both times are equal at

        n = (start of the cluster - start of the machine) / (gain for each report),

    where the gain is the machine's seconds for each report minus the cluster's. Without a gain the
    cluster is never faster.
    """

    def compute_rate(name: str) -> tuple[float, float]:
        """Return the seconds of an empty job, and the seconds of a report."""
        empty, *_, last = (run["seconds"] for run in figures_by_engine[name]["runs"])
        return empty, (last - empty) / sizes[-1]

    machine = next(name for name in figures_by_engine if name.startswith("files"))
    start, per_report = compute_rate(machine)
    table = Table(
        title="engines: when a cluster pays",
        columns=("executors", "reports from which it is faster than this machine"),
        note="From the figures above, if each executor is as fast as the single one here.",
    )
    spark_start, spark_per_report = compute_rate("classic:1")
    for executors in (2, 10, 100, 1000):
        gain = per_report - spark_per_report / executors
        cell: Cell = (spark_start - start) / gain if gain > 0 else "never"
        table.rows.append([str(executors), cell])
    return table
