"""A linker: an observer who recognises a device by two sets of its reports.

It draws the devices of a cohort and two sets of n reports of each, from one permanent response.
It scores each pair of sets by the exact log-likelihood ratio of every bit, one device against two,
and counts how often a device's own second set scores highest. `rappor.privacy.link` computes the
same by formula. Devices hold strings that differ: each sets bits anywhere, unknown to the linker.
Under every other encoding all hold a value that sets no bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rappor.ground.ranges import check_integer
from rappor.privacy.linkability import REPORTS
from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params
from rappor.simulation.keystream import Keystream

_MOST_DEVICES: Final = 1_000_000
_MOST_REPORTS: Final = 1000

_ROUNDING: Final = 1e-9
"""Difference of two scores that counts as none, relative to the score where it is above 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognised:
    """How often a device's own second set scored highest, with `reports` reports in each set.

    Each cohort has `devices` devices. `share` is the mean over those that were looked for; of
    several equal best scores each counts for its part. `std_error` is its standard error, from
    the differences between cohorts.
    """

    reports: int
    devices: int
    share: float
    std_error: float


def recognise(
    params: Params,
    *,
    devices: int,
    reports: Sequence[int] = REPORTS,
    cohorts: int = 20,
    targets: int = 50,
    seed: int | None = None,
) -> list[Recognised]:
    """Look for devices in cohorts of `devices` by two sets of reports, for each size of a set.

    Parameters
    ----------
    devices : devices of a cohort.
    reports : numbers of reports in each set.
    cohorts : cohorts to draw, each anew.
    targets : devices to look for in each cohort, or all if there are fewer.
    seed : makes the simulation repeatable.

    Raises
    ------
    ParamsError
        A number is outside its range: devices in [1, 1,000,000], reports in [1, 1,000], cohorts
        at least 2, targets at least 1.
    """
    check_integer("devices", devices, 1, _MOST_DEVICES)
    for n in reports:
        check_integer("reports", n, 1, _MOST_REPORTS)
    check_integer("cohorts", cohorts, 2)
    check_integer("targets", targets, 1)
    stream = Keystream(seed)
    return [
        _recognise(params, devices, n, cohorts, min(targets, devices), stream.spawn(i).generator())
        for i, n in enumerate(reports)
    ]


def _recognise(
    params: Params, devices: int, n: int, cohorts: int, targets: int, rng: np.random.Generator
) -> Recognised:
    ratios = _log_ratios(params, n)
    shares = [_share(params, devices, n, targets, ratios, rng) for _ in range(cohorts)]
    return Recognised(
        reports=n,
        devices=devices,
        share=float(np.mean(shares)),
        std_error=float(np.std(shares, ddof=1) / math.sqrt(cohorts)),
    )


def _share(
    params: Params,
    devices: int,
    n: int,
    targets: int,
    ratios: NDArray[np.float64],
    rng: np.random.Generator,
) -> float:
    """Draw one cohort and return how often the first devices of it are recognised."""
    ones = np.where(_permanent_responses(params, devices, rng), params.q, params.p)
    first, second = rng.binomial(n, ones[:targets]), rng.binomial(n, ones)
    cells = second + np.arange(params.k) * (n + 1)
    scores = (ratios[x].ravel()[cells].sum(axis=1) for x in first)
    return float(np.mean([_found(score, own) for own, score in enumerate(scores)]))


def _permanent_responses(
    params: Params, devices: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw (devices, k) permanent responses, of strings that are all unlike."""
    truth = np.zeros((devices, params.k), dtype=bool)
    if encoding_of(params).hashed:
        bits = rng.integers(params.k, size=(devices, params.h))
        np.put_along_axis(truth, bits, values=True, axis=1)
    u = rng.random(truth.shape)
    return (u < params.f1) | (truth & (u >= params.f))


def _found(scores: NDArray[np.float64], own: int) -> float:
    """Return 1 if a device's own score is the highest, less if others equal it, 0 otherwise."""
    tolerance = _ROUNDING * max(1.0, abs(scores[own]))
    if scores.max() > scores[own] + tolerance:
        return 0.0
    return 1 / np.count_nonzero(scores >= scores[own] - tolerance)


def _log_ratios(params: Params, n: int) -> NDArray[np.float64]:
    """Return (n + 1, n + 1) float64: ln of how much likelier two counts are of one device.

    Bits are scored one by one, with the share of devices whose value sets them.
    """
    density = params.density if encoding_of(params).hashed else 0.0
    share = params.f1 + density * (1 - params.f)
    shown = np.arange(n + 1)
    with np.errstate(divide="ignore", invalid="ignore"):  # what cannot happen speaks for none
        prior = np.log1p(-share), np.log(share)
        zero = prior[0] + stats.binom.logpmf(shown, n, params.p)
        one = prior[1] + stats.binom.logpmf(shown, n, params.q)
        two = np.logaddexp(zero, one)
        same = np.logaddexp(zero[:, None] + zero - prior[0], one[:, None] + one - prior[1])
        return np.asarray(np.nan_to_num(same - two[:, None] - two, neginf=-np.inf, posinf=np.inf))
