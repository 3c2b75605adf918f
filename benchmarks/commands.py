"""The complete cost of a command, with interpreter and imports: CPU seconds and memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.decode_once import N_REPORTS, N_TRUE, PARAMS
from benchmarks.record import read_processor
from benchmarks.tables import Table
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

_RAPPOR: Final = "import sys; from rappor.cli import main; sys.exit(main())"
_MEGABYTE: Final = 1e6


def commands(*, quick: bool) -> list[Table]:
    """Run `rappor demo`, and `rappor decode` with growing numbers of candidates.

    Each runs in a fresh process.
    """
    table = Table(
        title=f"commands: decode at k = 128, m = 64, {N_REPORTS:.0e} reports, "
        f"on {read_processor()}",
        columns=("command", "CPU seconds", "peak MB"),
        note="The best of three runs after one that compiles, user and system together.",
    )
    repeats = 1 if quick else 3
    with tempfile.TemporaryDirectory() as folder:
        table.rows.append(["demo", *_measure_cost(["demo"], repeats)])
        for n in (2000,) if quick else (2000, 100_000, 1_000_000):
            strings = [f"site{i:07}.example" for i in range(n)]
            population = Population(strings[:N_TRUE], [1 / (1 + i) for i in range(N_TRUE)])
            counts, listed = Path(folder, "c.counts"), Path(folder, "words.txt")
            simulate_counts(population, PARAMS, n_reports=N_REPORTS, seed=1).save(counts)
            listed.write_text("\n".join(strings), encoding="utf-8")
            words = ["decode", str(counts), "--candidates", str(listed), "--json"]
            table.rows.append([f"decode, {n:,} candidates", *_measure_cost(words, repeats)])
    return [table]


def _measure_cost(words: list[str], repeats: int) -> tuple[float, float]:
    """Return the smallest CPU seconds of several runs, and their largest peak memory in MB.

    The first run compiles modules, and is not counted.
    """
    runs = [_run(words) for _ in range(1 + repeats)][1:]
    return min(cpu for cpu, _ in runs), max(peak for _, peak in runs)


def _run(words: list[str]) -> tuple[float, float]:
    """Run a command once, and return its CPU seconds and its peak memory in MB."""
    command = [sys.executable, "-c", _RAPPOR, *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603  # ours
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    # macOS reports bytes, Linux reports KiB.
    unit = 1 if sys.platform == "darwin" else 1024
    return used.ru_utime + used.ru_stime, used.ru_maxrss * unit / _MEGABYTE
