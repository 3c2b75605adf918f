"""The one question, on a terminal only: after a program's own output, and never in its way."""

from __future__ import annotations

import os
import sys

from rappor_client.kit import answer
from rappor_client.kit.answer import Answer


def is_answerable() -> bool:
    """Return whether a person sits before this program: a terminal, in the foreground."""
    try:
        if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
            return False
        return not hasattr(os, "tcgetpgrp") or os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, OSError, ValueError):  # a stream is closed, or none at all
        return False


def ask(text: str, folder: str, today: int) -> bool | None:
    """Put the question; None if it was not answered, or could not be remembered to be put.

    That it is put is on the disk before, so whoever ends the program here is not asked at once.
    """
    before = answer.read(folder)
    try:
        answer.write(folder, Answer("asked", (*before.days, today)))
    except OSError:
        return None
    try:
        sys.stderr.write(f"\n{text} [y/N] ")
        sys.stderr.flush()
        said = sys.stdin.readline()
    except (KeyboardInterrupt, OSError, ValueError):
        said = ""
    if not said:  # the end of the input is no answer either
        sys.stderr.write("\n")
        return None
    return said.strip().lower() in ("y", "yes")
