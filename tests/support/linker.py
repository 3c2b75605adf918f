"""Simulation of an observer who recognises devices by two sets of their reports.

The simulation draws the devices of a cohort, and for each device two sets of n reports from one
permanent response. It scores each pair of sets by the exact log-likelihood ratio of every bit, one
device against two. It counts how often the second set of a device has the best score. The function
`rappor.privacy.linkability` computes the same probability by a formula. Strings of two devices
differ: each sets random bits that the observer does not know. Under every other encoding all
devices have a value that sets no bit.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params

_ROUNDING: Final = 1e-9
"""Largest difference at which two scores count as equal, because rounding can cause it. For scores
above 1 the difference is relative."""


def recognise(
    params: Params, n: int, *, devices: int, cohorts: int, targets: int = 1
) -> NDArray[np.float64]:
    """Return the share of recognised devices in each simulated cohort.

    Parameters
    ----------
    params : the parameters of the reports.
    n : number of reports in each set.
    devices : number of devices of a cohort.
    cohorts : number of simulated cohorts.
    targets : number of devices of a cohort that the observer tries to recognise.

    Returns
    -------
    (cohorts,) float64. If several devices have the best score, the device counts as a fraction.
    """
    rng, ratios = np.random.default_rng(), _compute_log_ratios(params, n)
    return np.array(
        [_simulate_cohort(params, devices, n, targets, ratios, rng) for _ in range(cohorts)]
    )


def _simulate_cohort(
    params: Params,
    devices: int,
    n: int,
    targets: int,
    ratios: NDArray[np.float64],
    rng: np.random.Generator,
) -> float:
    """Draw one cohort, and return the share of its first devices that are recognised."""
    ones = np.where(_draw_responses(params, devices, rng), params.q, params.p)
    first, second = rng.binomial(n, ones[:targets]), rng.binomial(n, ones)
    cells = second + np.arange(params.k) * (n + 1)
    scores = (ratios[x].ravel()[cells].sum(axis=1) for x in first)
    return float(np.mean([_score_recognition(score, own) for own, score in enumerate(scores)]))


def _draw_responses(params: Params, devices: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draw (devices, k) permanent responses. Strings of two devices differ."""
    truth = np.zeros((devices, params.k), dtype=bool)
    if get_encoding(params).is_hashed:
        bits = rng.integers(params.k, size=(devices, params.h))
        np.put_along_axis(truth, bits, values=True, axis=1)
    u = rng.random(truth.shape)
    return (u < params.f1) | (truth & (u >= params.f))


def _score_recognition(scores: NDArray[np.float64], own: int) -> float:
    """Return 1 if the device's own score is the highest, less if others equal it, else 0."""
    tolerance = _ROUNDING * max(1.0, abs(scores[own]))
    if scores.max() > scores[own] + tolerance:
        return 0.0
    return 1 / np.count_nonzero(scores >= scores[own] - tolerance)


def _compute_log_ratios(params: Params, n: int) -> NDArray[np.float64]:
    """Return the log-likelihood ratios of two counts, one device against two.

    The result is (n + 1, n + 1) float64. Bits are scored independently, with the share of devices
    whose value sets them.
    """
    density = params.density if get_encoding(params).is_hashed else 0.0
    share = params.f1 + density * (1 - params.f)
    shown = np.arange(n + 1)
    # An outcome with probability 0 has the logarithm -inf, and its ratio is no evidence.
    with np.errstate(divide="ignore", invalid="ignore"):
        prior = np.log1p(-share), np.log(share)
        zero = prior[0] + stats.binom.logpmf(shown, n, params.p)
        one = prior[1] + stats.binom.logpmf(shown, n, params.q)
        two = np.logaddexp(zero, one)
        same = np.logaddexp(zero[:, None] + zero - prior[0], one[:, None] + one - prior[1])
        return np.asarray(np.nan_to_num(same - two[:, None] - two, neginf=-np.inf, posinf=np.inf))
