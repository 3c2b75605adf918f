"""Standard output and standard error of every command, whatever they are connected to.

A terminal or a pipe may have an encoding without most characters, as latin-1 or cp437. It may be
closed before the program starts (`>&-`: Python has None then), or while it writes (`| head`). A
disk may be full. None of these is an answer of the command, and none may look like exit code 1.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

PIPE_CLOSED: Final = 141
"""Exit code where the reader of standard output has gone, as of a process that SIGPIPE ended."""

_FAILED: Final = 2


def run_command(name: str, run: Callable[[], int]) -> int:
    """Run a command on streams that take every text, and return its exit code.

    `run` returns an exit code or raises SystemExit. What it has written is flushed here, because a
    failure at the interpreter's end would be a traceback.
    """
    prepare_streams()
    output = sys.stdout
    try:
        try:
            return run()
        finally:
            sys.stdout.flush()
    except SystemExit:
        # Where the pipe is closed click puts another stream in the place of standard output, and
        # ends the program by exit code 1, which means "no" here.
        if sys.stdout is output:
            raise
        sys.stdout = output
        return _end_without_reader()
    except BrokenPipeError:
        return _end_without_reader()
    except OSError as error:
        _discard_output()
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{name}: standard output: {error.strerror or error}\n")
        return _FAILED


def prepare_streams() -> None:
    """Let both streams take every text: escaped where the encoding lacks it, lost where closed."""
    for stream_name in ("stdout", "stderr"):
        stream = getattr(sys, stream_name)
        if stream is None:
            # Open until the process ends: whatever writes to the stream later may do so.
            stream = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
            setattr(sys, stream_name, stream)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _end_without_reader() -> int:
    _discard_output()
    return PIPE_CLOSED


def _discard_output() -> None:
    """Let nothing that is still buffered reach the closed pipe when the interpreter flushes it."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
