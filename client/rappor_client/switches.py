"""Environment variables that disable a device, such as DO_NOT_TRACK.

The module imports nothing of the client, so a program may call it at each start.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

_OFF = ("", "0", "false", "no")
"""Contains the values, in lower case, with which a variable counts as not set."""


def find_disabling_variable(names: Iterable[str]) -> str:
    """Return the first variable that is set, as the clause of a sentence; empty if no one is set.

    Example: `the environment has CI=true`.
    """
    for name in names:
        if (text := os.environ.get(name, "")).lower() not in _OFF:
            return f"the environment has {name}={text}"
    return ""
