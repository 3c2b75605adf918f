"""Prefixes that hold more than the strings that were found for them."""

from __future__ import annotations

from typing import Final

import numpy as np

from rappor.decoding.estimates import Estimates
from rappor.discovery.discoveries import Unfinished
from rappor.protocol.parts import cut

_BEYOND: Final = 4.0
"""Standard errors by which a prefix holds more than its strings: of prefixes whose strings were all
found, one in 30,000 is that far off."""


def find_unfinished(part: str, prefixes: Estimates, found: Estimates) -> tuple[Unfinished, ...]:
    """Compare detected prefixes of a part with the detected strings, the largest rest first."""
    shares: dict[str, tuple[float, float]] = {}
    for i in np.flatnonzero(found.detected):
        prefix = cut(part, found.candidates[i])
        share, variance = shares.get(prefix, (0.0, 0.0))
        shares[prefix] = (share + found.proportion[i], variance + found.std_error[i] ** 2)
    compared = [
        _compare(prefixes, int(i), *shares.get(prefixes.candidates[i], (0.0, 0.0)))
        for i in np.flatnonzero(prefixes.detected)
    ]
    unfinished = [each for each in compared if each.rest > _BEYOND * each.rest_std_error]
    return tuple(sorted(unfinished, key=lambda each: each.rest, reverse=True))


def _compare(prefixes: Estimates, i: int, share: float, variance: float) -> Unfinished:
    return Unfinished(
        prefix=prefixes.candidates[i],
        proportion=float(prefixes.proportion[i]),
        std_error=float(prefixes.std_error[i]),
        found=float(share),
        found_std_error=float(variance**0.5),
    )
