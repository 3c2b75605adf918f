"""Python programs in processes of their own, and waiting for a condition."""

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
"""Arguments of Python that run the command `rappor-client`. An installed program is not necessary,
because the interpreter of the tests runs the command."""


def run_python(
    *words: str, folder: Path | None = None, text: str | None = None, code: int = 0, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with the import path of this test, and check its exit code.

    Parameters
    ----------
    words : arguments of Python.
    text : standard input of the program.
    code : expected exit code.
    more : additional environment variables.
    """
    paths = os.pathsep.join(filter(None, sys.path))
    result = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths, **more},
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result


def shift_clock(days: int, program: str) -> str:
    """Return the source of a program whose clock is ahead by some days."""
    return f"import time\nnow = time.time\ntime.time = lambda: now() + {days * 86_400}\n{program}"


def wait_until(condition: Callable[[], T], seconds: float = 120.0) -> T:
    """Call a function until its result is true, and return the result; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
    return result


async def wait_in_event_loop(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Let the event loop run until a function returns true; fail after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)
