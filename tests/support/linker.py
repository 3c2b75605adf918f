"""Simulation of an observer who recognises devices by two sets of their reports.

The simulation checks `rappor.privacy.linkability`, which computes the probability of recognition by
a formula. It does not use the formula.

The simulation draws the devices of a cohort, and for each device two sets of n reports from one
permanent response. The observer knows the first set of a device and compares it with the second
sets of all devices. The score of a pair of sets is its log-likelihood ratio: the probability of
the pair if one device made both sets, against the probability if two devices made them. The
simulation counts how often the second set of the same device has the best score.

Two devices have different strings: each string sets random bits that the observer does not know.
Under every other encoding all devices have a value that sets no bit, so that only their noise
distinguishes them.
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
    (cohorts,) float64. If several devices have the best score, the observer guesses among them, so
    a device counts as a fraction.
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
    probabilities = np.where(_draw_responses(params, devices, rng), params.q, params.p)
    # The number of reports with a 1, of each device and bit, in the first and in the second set.
    first = rng.binomial(n, probabilities[:targets])
    second = rng.binomial(n, probabilities)
    # Index of each bit's score in a flattened table of (k, n + 1) scores.
    cells = second + np.arange(params.k) * (n + 1)
    all_scores = (ratios[counts].ravel()[cells].sum(axis=1) for counts in first)
    return float(
        np.mean([_score_recognition(scores, device) for device, scores in enumerate(all_scores)])
    )


def _draw_responses(params: Params, devices: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draw (devices, k) permanent responses. Strings of two devices differ."""
    true_bits = np.zeros((devices, params.k), dtype=bool)
    if get_encoding(params).is_hashed:
        indices = rng.integers(params.k, size=(devices, params.h))
        np.put_along_axis(true_bits, indices, values=True, axis=1)
    # With probability f1 a bit is forced to 1, with f0 = f - f1 to 0. Otherwise it keeps its value.
    u = rng.random(true_bits.shape)
    return (u < params.f1) | (true_bits & (u >= params.f))


def _score_recognition(scores: NDArray[np.float64], device: int) -> float:
    """Return 1 if the score of the device is the highest, a fraction if others equal it, else 0.

    `scores` belong to the second sets of all devices, for the first set of this device.
    """
    tolerance = _ROUNDING * max(1.0, abs(scores[device]))
    if scores.max() > scores[device] + tolerance:
        return 0.0
    return 1 / np.count_nonzero(scores >= scores[device] - tolerance)


def _compute_log_ratios(params: Params, n: int) -> NDArray[np.float64]:
    """Return the log-likelihood ratio of each pair of counts of one bit, one device against two.

    Entry [a, b] is the ratio if the bit is 1 in a reports of the first set and in b reports of the
    second set. It is ln P(a, b) - ln P(a) - ln P(b). The permanent bit is 1 with the share of all
    devices, and given the permanent bit, a and b are binomial and independent. The result is
    (n + 1, n + 1) float64.
    """
    density = params.density if get_encoding(params).is_hashed else 0.0
    share = params.f1 + density * (1 - params.f)
    counts = np.arange(n + 1)
    # An outcome with probability 0 has the logarithm -inf, and its ratio is no evidence.
    with np.errstate(divide="ignore", invalid="ignore"):
        log_prior_0, log_prior_1 = np.log1p(-share), np.log(share)
        joint_0 = log_prior_0 + stats.binom.logpmf(counts, n, params.p)
        joint_1 = log_prior_1 + stats.binom.logpmf(counts, n, params.q)
        marginal = np.logaddexp(joint_0, joint_1)
        one_device = np.logaddexp(
            joint_0[:, None] + joint_0 - log_prior_0, joint_1[:, None] + joint_1 - log_prior_1
        )
        ratios = one_device - marginal[:, None] - marginal
        return np.asarray(np.nan_to_num(ratios, neginf=-np.inf, posinf=np.inf))
