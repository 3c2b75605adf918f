"""Programs of Python in processes of their own, and what they do after a while."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")


CLIENT: Final = ("-c", "import sys; from rappor_client.cli import main; sys.exit(main())")
"""Words for Python that are the command `rappor-client`."""


def run_python(
    *words: str, folder: Path | None = None, text: str | None = None, code: int = 0, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run Python to its end, with the packages and helpers of this test; it ends with this code.

    `text` is its input, `more` is added to its environment.
    """
    paths = os.pathsep.join(filter(None, sys.path))
    ended = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths, **more},
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended


def on_day(days: int, program: str) -> str:
    """Return the source of a program whose clock is ahead by some days."""
    return f"import time\nnow = time.time\ntime.time = lambda: now() + {days * 86_400}\n{program}"


def until(is_so: Callable[[], T], seconds: float = 120.0) -> T:
    """Wait until something is so, and return it; fail if it does not happen in time."""
    end = time.monotonic() + seconds
    while not (found := is_so()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
    return found


async def become(is_so: Callable[[], object], seconds: float = 120.0) -> None:
    """Let the event loop turn until something is so; fail if it does not happen in time."""
    async with asyncio.timeout(seconds):
        while not is_so():
            await asyncio.sleep(0.001)
