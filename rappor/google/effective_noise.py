"""Effective probability f of the clients of google/rappor, each of which rounds f in its own way.

The effective f is needed to decode reports of these clients. f is the probability that the client
replaces a bit by a random bit in the first step of RAPPOR, the permanent randomized response. A
client of google/rappor makes this decision by seven random bits, a number from 0 to 127. So only
multiples of 1/128 are possible, and each client rounds the f of `params.csv` to a multiple:

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
"""A client of google/rappor, named by its programming language. Each of the three clients rounds f
in its own way."""

CLIENTS: Final = ("python", "cpp", "java")
"""All values of `Client`. The message about an unknown client lists them in this order."""

_LEVELS: Final = 128
"""All three clients decide with seven random bits, which have this number of values."""


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
    """Count the values of the seven random bits for which a client replaces a bit by a random bit.

    Raises ParamsError if f is outside [0, 1), or the client is unknown.
    """
    # `Fraction` computes 128 f exactly for every float: `ceil` and `floor` see no rounding error.
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
