"""The cost of the client for its host program: time of record(), import and memory.

Each run is a fresh process (`benchmarks.device_once`). The table has a row for each situation of a
call of record(). For comparison, a computation without client, lock or thread is timed in turn.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.tables import Table

_MEGABYTE = 1e6
_SITUATIONS = (
    ("make", "without the disk: a finished report in memory"),
    ("record", "the first event of a day, one value again and again"),
    ("sending", "the same, while another thread sends without a pause"),
    ("distinct", "the same with a new value each time, which repeats the first value"),
    ("repeated", "an event that can only repeat its interval's response"),
    ("frozen", "the first event of a day, while a stopped process keeps the lock"),
    ("computing", "in turn with these: computing alone, without client, lock or thread"),
)
"""Each row has a key of the figures of `benchmarks.device_once`, and a description. The table shows
the median, two high quantiles and the largest duration of the calls of each key."""


def device(*, quick: bool) -> list[Table]:
    """Measure record() in several ways, with k = 128 and default settings."""
    with tempfile.TemporaryDirectory() as bytecode:
        # The first process compiles the modules, which installing them does otherwise.
        _measure_in_process(1, bytecode)
        runs = [
            _measure_in_process(200 if quick else 900, bytecode) for _ in range(1 if quick else 7)
        ]

    def compute_median(key: str) -> float:
        """Return the median of a figure over the processes."""
        return statistics.median(run[key] for run in runs)

    calls = Table(
        title="device: record(), k = 128, microseconds",
        columns=("what", "median", "99 %", "99.9 %", "worst"),
        note=(
            "Median over fresh processes. The other thread sent "
            f"{compute_median('uploads'):.0f} reports meanwhile. 2,000 repeated events wrote "
            f"{compute_median('repeated bytes'):.0f} bytes."
        ),
    )
    for key, label in _SITUATIONS:
        calls.rows.append(
            [
                label,
                *(compute_median(f"{key} {name}") for name in ("median", "p99", "p99.9", "worst")),
            ]
        )
    host = Table(
        title="device: what the host pays",
        columns=("import, ms", "first opening, ms", "memory, MB"),
        note="Memory: growth by importing, opening and recording, with the sender's thread.",
    )
    host.rows.append(
        [
            1e3 * compute_median("import"),
            1e3 * compute_median("open"),
            compute_median("memory") / _MEGABYTE,
        ]
    )
    return [calls, host]


def _measure_in_process(n_records: int, bytecode: str) -> dict[str, float]:
    """Measure in a fresh process, whose modules are compiled in a folder."""
    # Bytecode in a folder of its own, so that the checkout's state does not change the result.
    variables = os.environ | {"PYTHONPYCACHEPREFIX": bytecode}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "benchmarks.device_once", str(n_records)]
    root = Path(__file__).resolve().parents[1]
    process = subprocess.run(  # noqa: S603 - ours
        command, cwd=root, env=variables, capture_output=True, check=True
    )
    document: dict[str, float] = json.loads(process.stdout)
    return document
