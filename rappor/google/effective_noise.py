"""Effective probability f of the clients of google/rappor, each of which rounds f in its own way.

For readers of a collection that google/rappor's clients made. f is the probability that the
permanent response forces a bit. A client of google/rappor decides by seven random bits, a number
from 0 to 127, whether it forces a bit. So only multiples of 1/128 are possible, and the f of
`params.csv` is rounded:

    client    effective 128 f                     128 * 0.3 = 38.4
    python    ceil(128 f)                         39
    cpp       floor(128 f), f as 32-bit float     38
    java      round(128 f), half up               38

Counts that are decoded with the f of the file, instead of the effective f, have biased estimates.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import Final, Literal

from rappor.base.errors import ParamsError

Client = Literal["python", "cpp", "java"]
"""Programming language of a client of google/rappor, which decides how the client rounds f."""

CLIENTS: Final = ("python", "cpp", "java")
"""All values of `Client`, in the order of the message about an unknown client."""

_LEVELS: Final = 128
"""Number of values of the seven random bits with which all three clients decide."""


def compute_effective_f(f: float, client: Client) -> float:
    """Compute the f that a client uses: a multiple of 1/128.

    Parameters
    ----------
    f : float
        The f of the parameters, in [0, 1).
    client : {"python", "cpp", "java"}
        The client that sent the reports.

    Returns
    -------
    float

    Raises
    ------
    ParamsError
        If f is outside [0, 1), or the client is unknown.

    Examples
    --------
    >>> [round(compute_effective_f(0.3, client) * 128) for client in ("python", "cpp", "java")]
    [39, 38, 38]
    """
    return count_randomizing_values(f, client) / _LEVELS


def count_randomizing_values(f: float, client: Client) -> int:
    """Count the values of the seven random bits for which a client randomizes a bit.

    Raises ParamsError if f is outside [0, 1), or the client is unknown.
    """
    # `Fraction` computes 128 f exactly, so that f = 3/128, for example, is never rounded up to 4.
    if not 0 <= f < 1:
        raise ParamsError(f"f must be in [0, 1), got {f!r}")
    if client == "python":
        # The client compares the random value with 128 f: `value < 128 f` holds for ceil(128 f)
        # values.
        return math.ceil(Fraction(f) * _LEVELS)
    if client == "cpp":
        # The client stores f as a 32-bit float, multiplies by 128 and truncates.
        (single,) = struct.unpack("<f", struct.pack("<f", f))
        return math.floor(Fraction(single) * _LEVELS)
    if client == "java":
        # The client calls Math.round, which rounds half up.
        return math.floor(Fraction(f) * _LEVELS + Fraction(1, 2))
    raise ParamsError(f"client must be one of {', '.join(CLIENTS)}, got {client!r}")
