"""What the client costs its host: time of record(), import, memory."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.tables import Table

_MEGABYTE = 1e6
_WAYS = (
    ("make", "without the disk: a finished report in memory"),
    ("record", "one value again and again"),
    ("sending", "one value, while another thread sends without a pause"),
    ("distinct", "a new value each time, which repeats the first"),
)


def device(*, quick: bool) -> list[Table]:
    """Measure record() with its durable write and without, k = 128, default settings."""
    runs = [_device_apart(200 if quick else 900) for _ in range(1 if quick else 5)]

    def middle(key: str) -> float:
        return statistics.median(run[key] for run in runs)

    calls = Table(
        title="device: record(), k = 128, microseconds",
        columns=("what", "median", "99 %", "worst"),
        note="Median over fresh processes. SQLite's checkpoints fall on the worst calls.",
    )
    for key, label in _WAYS:
        calls.rows.append(
            [label, *(middle(f"{key} {place}") for place in ("median", "p99", "worst"))]
        )
    host = Table(
        title="device: what the host pays",
        columns=("import, ms", "memory, MB"),
        note="Memory: growth by importing, opening and recording, with the sender's thread.",
    )
    host.rows.append([1e3 * middle("import"), middle("memory") / _MEGABYTE])
    return [calls, host]


def _device_apart(n_records: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.device_once", str(n_records)]
    root = Path(__file__).resolve().parents[1]
    answer = subprocess.run(command, cwd=root, capture_output=True, check=True)  # noqa: S603  # ours
    document: dict[str, float] = json.loads(answer.stdout)
    return document
