"""Devices without noise: all their responses to several values equal what is behind them.

With few bits one response does that often in a correct device. Several responses of one device do
it rarely, so that a device without noise shows among thousands, where a single response without
noise would not. The permanent responses to different patterns have coins of their own, and so have
all reports. Devices differ in how likely it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from rappor.auditing.check import Check, enough_of_rare, rare_p, verdict_of
from rappor.auditing.evidence import Answers, Bits
from rappor.auditing.pairs import Truth
from rappor.protocol.params import Params

_SURE: Final = 20
"""Devices without noise of which more than half are seen, but for a probability of 1e-5."""


def bare_checks(rounds: Sequence[Answers], truth: Truth, params: Params) -> list[Check]:
    """Count the devices whose permanent responses are the true bits, or whose reports are these.

    `rounds` are the answers of all devices about the first of the values, one after the other.
    """
    names = ("permanent: no device without noise", "report: no device without fresh noise")
    permanents = [each.permanents for each in rounds if each.permanents is not None]
    if not rounds or len(permanents) < len(rounds):
        detail = "no permanent responses were seen"
        return [Check(name=name, verdict="not seen", detail=detail) for name in names]
    cohorts, places = rounds[0].cohorts, np.arange(len(rounds))
    truths = [truth.bits(np.full(len(cohorts), place), cohorts) for place in places]
    unchanged = np.mean(_unchanged(truth, cohorts.tolist(), len(rounds), params))
    bare = max(1 - params.p, params.q) ** (params.k * len(rounds))
    return [
        _check(names[0], permanents, truths, float(unchanged)),
        _check(names[1], [each.reports for each in rounds], permanents, bare),
    ]


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


def _check(name: str, seen: Sequence[Bits], behind: Sequence[Bits], probability: float) -> Check:
    """Count the devices of which every response is what is behind it."""
    equal = [(bits == pattern).all(axis=1) for bits, pattern in zip(seen, behind, strict=True)]
    n, bare = len(equal[0]), int(np.logical_and.reduce(equal).sum())
    p_value = rare_p(bare, n, probability)
    rarest = math.floor(n / max(_SURE, 2 * enough_of_rare(n, probability)))
    if rarest < 2 and verdict_of(p_value) == "pass":
        detail = f"{n:,} devices without any noise would not be unusual"
        return Check(name=name, verdict="not seen", detail=detail)
    return Check(
        name=name,
        verdict=verdict_of(p_value),
        p_value=p_value,
        detail=f"{bare:,} of {n:,} devices show no noise in {len(seen)} responses, expected at "
        f"most {n * probability:.2g}; one of {rarest:,} would be found",
    )
