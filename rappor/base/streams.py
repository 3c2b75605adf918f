"""Safe standard streams of commands: output to terminals, pipes, files and closed streams.

Four conditions of the environment would otherwise end a command with a traceback or a wrong exit
code:

- The encoding of a terminal or pipe, such as latin-1 or cp437, lacks most characters. Missing
  characters are escaped.
- A stream is closed before the program starts (`>&-`), and Python sets `sys.stdout` to None. Text
  for the stream is discarded.
- The reader of a pipe ends while the program writes (`| head`). The exit code is 141, without a
  message.
- The disk is full. The command writes one sentence, and the exit code is 2.

None of the four conditions may look like exit code 1, which means "no" for several commands.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

PIPE_CLOSED: Final = 141
"""Exit code if the reader of standard output has ended. Shells report 128 and the number of the
signal, and SIGPIPE has the number 13."""

_FAILED: Final = 2
"""Exit code after a failure of the environment, such as a full disk. It equals the exit code of
wrong input."""


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
            # The interpreter flushes at its end as well, but a failure there becomes a traceback.
            sys.stdout.flush()
    except SystemExit:
        # Case: click has found the pipe closed. It replaces standard output and raises
        # SystemExit(1), which would look like the answer "no".
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
    """Prepare standard output and standard error, so that writing any text raises no error.

    Characters that the encoding lacks are escaped. Text for a closed stream is discarded.
    """
    for stream_name in ("stdout", "stderr"):
        stream = getattr(sys, stream_name)
        # Python sets a stream to None that was closed before the program started. The program may
        # also have closed its stream itself.
        if stream is None or getattr(stream, "closed", False):
            # The file stays open until the process ends, because any code may write to the stream.
            stream = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
            setattr(sys, stream_name, stream)
        # Case: tests and notebooks replace the streams by objects without `reconfigure`.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _end_without_reader() -> int:
    """Discard the remaining output, and return the exit code for a closed pipe."""
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
