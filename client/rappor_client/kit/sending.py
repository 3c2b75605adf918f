"""Starts a process that sends what waits, `python -m rappor_client.kit`, and leaves it alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable


def start(folder: str, registry: str, collector: str, switches: Iterable[str]) -> None:
    """Start it: it ends within seconds, and nobody waits for it."""
    words = (os.path.abspath(folder), os.path.abspath(registry), collector, *switches)
    child = subprocess.Popen(  # noqa: S603 - this interpreter
        # -P: a module of the folder in which the person works is never imported
        [sys.executable, "-P", "-m", __package__, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )
    child.returncode = 0  # it is not ours to wait for, and no warning is due
