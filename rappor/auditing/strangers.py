"""Many devices that answer about the same values: their secrets, and devices without noise.

Two devices with one secret give the same permanent responses. Among n devices with secrets of b
bits there are about n^2 / 2^(b+1) such pairs. With secrets of 32 bytes a device repeats an earlier
one of its cohort only if the noise falls alike: with the probability of the likeliest permanent
response at most, for each true pattern that it was asked about.

A device without noise shows in all its responses to several values, where with few bits a single
response equals what is behind it often. The permanent responses to different patterns have coins of
their own, and so have all reports. Devices differ in how likely it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from rappor.auditing.check import ALARM, Check, enough_of_rare, measured, rare_p, unseen
from rappor.auditing.evidence import Answers
from rappor.auditing.pairs import Truth
from rappor.counts.arrays import Booleans, Integers
from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params

_NAMES: Final = (
    "secrets: devices differ",
    "permanent: no device without noise",
    "report: no device without fresh noise",
)

_SURE: Final = 20
"""Devices without noise of which more than half are seen, but for a probability of 1e-5."""

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


def stranger_checks(rounds: Sequence[Answers], truth: Truth, params: Params) -> list[Check]:
    """Count devices that respond like an earlier one, and those that show no noise.

    `rounds` are the answers of all devices about the first of the values, one after the other.
    """
    permanents = [each.permanents for each in rounds if each.permanents is not None]
    if not rounds or len(permanents) < len(rounds):
        return [unseen(name, "no permanent responses were seen") for name in _NAMES]
    cohorts, places = rounds[0].cohorts, np.arange(len(rounds))
    truths = [truth.bits(np.full(len(cohorts), place), cohorts) for place in places]
    unchanged = np.mean(_unchanged(truth, cohorts.tolist(), len(rounds), params))
    bare = max(1 - params.p, params.q) ** (params.k * len(rounds))
    return [
        _secrets(cohorts, permanents, _mean(rounds, truth, params), params),
        _without_noise(_NAMES[1], permanents, truths, float(unchanged)),
        _without_noise(_NAMES[2], [each.reports for each in rounds], permanents, bare),
    ]


def _secrets(
    cohorts: Integers, permanents: Sequence[Booleans], mean: float, params: Params
) -> Check:
    """Count the devices that respond like an earlier one, `mean` expected."""
    if params.f == 0:
        return unseen(_NAMES[0], "no permanent responses with noise were seen")
    n = len(cohorts)
    patterns = np.packbits(np.hstack(permanents), axis=1)
    keys = np.hstack([patterns, cohorts.astype("<u4").view(np.uint8).reshape(n, 4)])
    repeated = n - len(np.unique(keys, axis=0))
    p_value, enough = rare_p(repeated, n, mean / n), enough_of_rare(n, mean / n)
    bits = math.floor(math.log2(n * (n - 1) / 2 / max(_ENOUGH, 2 * enough)))
    if bits < 1 and repeated <= enough:
        return unseen(_NAMES[0], f"{n:,} devices can give too few different responses")
    like = f"{repeated:,} of {n:,} devices respond like an earlier one, expected at most {mean:.2g}"
    return measured(_NAMES[0], p_value, f"{like}; secrets of {bits} bits would be found")


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


def _unchanged(truth: Truth, cohorts: Sequence[int], n_values: int, params: Params) -> list[float]:
    """Return the probability, for each device, that no permanent response differs from its value.

    Values with one pattern in the device's cohort share a permanent response.
    """
    places, by_cohort = np.arange(n_values), {}
    for cohort in set(cohorts):
        patterns = np.unique(truth.bits(places, np.full(n_values, cohort)), axis=0)
        ones = int(patterns.sum())
        by_cohort[cohort] = (1 - params.f0) ** ones * (1 - params.f1) ** (patterns.size - ones)
    return [by_cohort[cohort] for cohort in cohorts]


def _without_noise(
    name: str, seen: Sequence[Booleans], behind: Sequence[Booleans], probability: float
) -> Check:
    """Count the devices of which every response is what is behind it."""
    equal = [(bits == pattern).all(axis=1) for bits, pattern in zip(seen, behind, strict=True)]
    n, bare = len(equal[0]), int(np.logical_and.reduce(equal).sum())
    p_value = rare_p(bare, n, probability)
    rarest = math.floor(n / max(_SURE, 2 * enough_of_rare(n, probability)))
    if rarest < 2 and p_value >= ALARM:
        return unseen(name, f"{n:,} devices without any noise would not be unusual")
    shown = f"{bare:,} of {n:,} devices show no noise in {len(seen)} responses"
    mean = f"expected at most {n * probability:.2g}"
    return measured(name, p_value, f"{shown}, {mean}; one of {rarest:,} would be found")
