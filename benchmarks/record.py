"""Origin of a result (versions, machine, commit), and the files of recorded results.

`write` stores tables with their origin as JSON. `read` returns the tables of a benchmark that were
recorded in `results/`.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.tables import Table

PACKAGES = ("rappor", "numpy", "scipy", "scikit-learn", "numba")
"""Packages whose versions are recorded, because they change results or speed."""


def describe_machine() -> dict[str, Any]:
    """Return versions, processor and commit."""
    return {
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "system": platform.platform(),
        "processor": read_processor(),
        "cpu_count": os.cpu_count(),
        "commit": _read_commit(),
    }


def write(path: Path, tables: Sequence[Table], *, quick: bool) -> None:
    """Write all tables and their origin as one JSON object."""
    document = {
        "quick": quick,
        "machine": describe_machine(),
        "tables": [table.to_dict() for table in tables],
    }
    path.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read(name: str) -> list[Table]:
    """Return the tables of `results/`, or no tables if this benchmark has no file there."""
    path = Path(__file__).parent / "results" / f"{name}.json"
    if not path.exists():
        return []
    return [Table.from_dict(table) for table in json.loads(path.read_text("utf-8"))["tables"]]


def read_processor() -> str:
    """Return the processor's name if the system has one."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _read_commit() -> str | None:
    """Return the commit of the source tree; None outside a repository or without git."""
    try:
        process = subprocess.run(
            ["git", "rev-parse", "HEAD"],  # noqa: S607  # whichever git the user has
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return process.stdout.strip()
