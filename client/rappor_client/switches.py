"""The variables by which an environment disables a device; what a program may ask at each start."""

from __future__ import annotations

import os
from collections.abc import Iterable

_OFF = ("", "0", "false", "no")
"""What a variable says when it is not set."""


def switched_off(names: Iterable[str]) -> str:
    """Return the first of the variables that is set, in words; empty if none is."""
    for name in names:
        if (text := os.environ.get(name, "")).lower() not in _OFF:
            return f"the environment has {name}={text}"
    return ""
