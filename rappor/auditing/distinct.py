"""Whether devices have secrets of their own: a birthday test.

Two devices with one secret give the same permanent responses. Among n devices with secrets of b
bits there are about n^2 / 2^(b+1) such pairs. With secrets of 32 bytes a device repeats an earlier
one of its cohort only if the noise falls alike: with the probability of the likeliest permanent
response at most, for each true pattern that it was asked about.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from rappor.auditing.check import Check, enough_of_rare, rare_p, verdict_of
from rappor.auditing.evidence import Answers
from rappor.auditing.pairs import Truth
from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params

_NAME: Final = "secrets: devices differ"

_MOST_VALUES: Final = 64
"""Values that a device is asked about at most."""

_ENOUGH: Final = 20
"""Pairs of devices with one secret that are sure to show: fewer than 2 have probability 5e-8."""

_ACCIDENTS: Final = 1e-3
"""Devices that may be expected to repeat an earlier one by accident; more values give fewer."""


def values_needed(params: Params, devices: int) -> int:
    """Return about how many values distinguish devices."""
    pairs, true_bits = devices**2 / 2, encoding_of(params).true_bits
    alike = max(_most_likely(params, ones) for ones in (true_bits[0], true_bits[-1]))
    for n_values in range(1, _MOST_VALUES):
        if pairs * alike**n_values < _ACCIDENTS:
            return n_values
    return _MOST_VALUES


def secrets_check(rounds: Sequence[Answers], truth: Truth, params: Params) -> Check:
    """Count the devices that respond like an earlier one.

    `rounds` are the answers of all devices about the first of the values, one after the other.
    """
    visible = [each.permanents for each in rounds if each.permanents is not None]
    if not rounds or len(visible) < len(rounds) or params.f == 0:
        detail = "no permanent responses with noise were seen"
        return Check(name=_NAME, verdict="not seen", detail=detail)
    cohorts = rounds[0].cohorts
    n = len(cohorts)
    patterns = np.packbits(np.hstack(visible), axis=1)
    keys = np.hstack([patterns, cohorts.astype("<u4").view(np.uint8).reshape(n, 4)])
    repeated = n - len(np.unique(keys, axis=0))
    mean = _mean(rounds, truth, params)
    p_value, enough = rare_p(repeated, n, mean / n), enough_of_rare(n, mean / n)
    bits = math.floor(math.log2(n * (n - 1) / 2 / max(_ENOUGH, 2 * enough)))
    if bits < 1 and repeated <= enough:
        detail = f"{n:,} devices can give too few different responses"
        return Check(name=_NAME, verdict="not seen", detail=detail)
    return Check(
        name=_NAME,
        verdict=verdict_of(p_value),
        p_value=p_value,
        detail=f"{repeated:,} of {n:,} devices respond like an earlier one, expected at most "
        f"{mean:.2g}; secrets of {bits} bits would be found",
    )


def _mean(rounds: Sequence[Answers], truth: Truth, params: Params) -> float:
    """Return how many devices at most repeat an earlier one on average, given their cohorts."""
    places, mean = np.arange(len(rounds)), 0.0
    for cohort, n in zip(*np.unique(rounds[0].cohorts, return_counts=True), strict=True):
        bits = truth.bits(places, np.full(len(places), cohort))
        alike = [_most_likely(params, ones) for ones in np.unique(bits, axis=0).sum(axis=1)]
        mean += float(n) * (float(n) - 1) / 2 * math.prod(alike)
    return mean


def _most_likely(params: Params, ones: int) -> float:
    """Return the probability of the likeliest permanent response to a pattern of this many ones."""
    f1, f0 = params.f1, params.f0
    return float(max(f1, 1 - f1) ** (params.k - ones) * max(f0, 1 - f0) ** ones)
