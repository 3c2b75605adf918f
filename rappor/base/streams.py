"""Standard output and standard error of every command, on terminals, pipes, files and nothing.

Four conditions of the environment would otherwise end a command with a traceback or a wrong exit
code:

- The encoding of a terminal or pipe, such as latin-1 or cp437, lacks most characters.
- A stream is closed before the program starts (`>&-`). Python's `sys.stdout` is None then.
- The reader of a pipe ends while the program writes (`| head`).
- The disk is full.

None of these may look like exit code 1, which means "no" for several commands.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

PIPE_CLOSED: Final = 141
"""Exit code if the reader of standard output has ended: 128 + 13, as for a process that SIGPIPE
ended."""

_FAILED: Final = 2
"""Exit code of a failure, such as a full disk."""


def run_command(name: str, run: Callable[[], int]) -> int:
    """Run a command with safe standard streams, and return its exit code.

    Parameters
    ----------
    name : name of the command in messages.
    run : the command, which returns an exit code or raises SystemExit.
    """
    prepare_streams()
    output = sys.stdout
    try:
        try:
            return run()
        finally:
            # The interpreter would flush at its end, where a failure becomes a traceback.
            sys.stdout.flush()
    except SystemExit:
        # If the pipe is closed, click replaces standard output and raises SystemExit(1).
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
    """Make standard output and standard error accept every text.

    Characters that the encoding lacks are escaped. Text for a closed stream is discarded.
    """
    for stream_name in ("stdout", "stderr"):
        stream = getattr(sys, stream_name)
        if stream is None:
            # The file stays open until the process ends, because any code may write to the stream.
            stream = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
            setattr(sys, stream_name, stream)
        # Streams of tests and notebooks are not text wrappers.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _end_without_reader() -> int:
    _discard_output()
    return PIPE_CLOSED


def _discard_output() -> None:
    """Redirect standard output to nothing.

    The interpreter flushes buffered text at its end, and would fail again at the closed pipe.
    """
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
