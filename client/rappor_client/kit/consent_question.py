"""The consent question: shown on a terminal only, after the output of the program."""

from __future__ import annotations

import os
import sys

from rappor_client.kit.consent_file import Consent, read_consent, write_consent


def is_answerable() -> bool:
    """Return whether a person can respond: a terminal, and this program in its foreground.

    A question to a script, a pipe or a job in the background would block it, or would be answered
    by data.
    """
    try:
        if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
            return False
        return not hasattr(os, "tcgetpgrp") or os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, OSError, ValueError):  # a stream is closed, or does not exist
        return False


def ask_consent(text: str, folder: str, today: int) -> bool | None:
    """Show the question and return the response; None without a response.

    The file is written with "asked" before the question appears. If a person ends the program at
    the question, the next start therefore does not show it again. If the file cannot be written,
    the question is not shown at all, because it would appear at every start.

    Parameters
    ----------
    text
        The question.
    folder
        Folder with the file of the consent.
    today
        Day, in days since 1970.
    """
    before = read_consent(folder)
    try:
        write_consent(folder, Consent("asked", (*before.days, today)))
    except OSError:
        return None
    try:
        sys.stderr.write(f"\n{text} [y/N] ")
        sys.stderr.flush()
        line = sys.stdin.readline()
    except (KeyboardInterrupt, OSError, ValueError):
        line = ""
    if not line:  # end of the input, Ctrl-C or a closed terminal: the person has not responded
        sys.stderr.write("\n")
        return None
    return line.strip().lower() in ("y", "yes")
