"""The noise that google/rappor's clients really add: each rounds f in its own way."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import Final, Literal

from rappor.base.errors import ParamsError

Client = Literal["python", "cpp", "java"]
CLIENTS: Final = ("python", "cpp", "java")

_LEVELS: Final = 128
"""Values of the seven bits that decide whether a bit is randomized."""


def effective_f(f: float, client: Client) -> float:
    """Return the f that a client really used: the nearest of its 128 levels, in its own way.

    Python compares with 128 f and so rounds up, C++ truncates 128 float32(f), Java rounds half
    up.

    Examples
    --------
    >>> [round(effective_f(0.3, client) * 128) for client in ("python", "cpp", "java")]
    [39, 38, 38]
    """
    return randomizing_levels(f, client) / _LEVELS


def randomizing_levels(f: float, client: Client) -> int:
    """Return how many of the 128 values of seven bits randomize a bit."""
    if not 0 <= f < 1:
        raise ParamsError(f"f must be in [0, 1), got {f!r}")
    if client == "python":
        return math.ceil(Fraction(f) * _LEVELS)
    if client == "cpp":
        (single,) = struct.unpack("<f", struct.pack("<f", f))
        return math.floor(Fraction(single) * _LEVELS)
    if client == "java":
        return math.floor(Fraction(f) * _LEVELS + Fraction(1, 2))
    raise ParamsError(f"client must be one of {', '.join(CLIENTS)}, got {client!r}")
