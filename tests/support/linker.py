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

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params

_ROUNDING: Final = 1e-9
"""Largest difference at which two scores count as equal, because rounding can cause it. For scores
above 1 the difference is relative."""

_BATCH_BITS: Final = 1 << 15
"""Number of bits of the devices of the cohorts that are drawn at once. With more bits, the arrays
do not fit into the cache of a processor."""


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
    distributions = np.asarray(stats.binom.cdf(np.arange(n)[:, None], n, [params.p, params.q]))
    simulator = _Simulator(params, n, devices, targets, ratios, distributions, rng)
    batch = max(1, _BATCH_BITS // (devices * params.k))
    sizes = [min(batch, cohorts - start) for start in range(0, cohorts, batch)]
    return np.concatenate([simulator.simulate(size) for size in sizes])


class _Simulator(NamedTuple):
    """Settings of simulated cohorts.

    `ratios` are the log-likelihood ratios of a bit. `distributions` are the probabilities of at
    most 0, 1, ..., n - 1 reports with a 1, for a permanent bit of 0 and of 1: (n, 2).
    """

    params: Params
    n: int
    devices: int
    targets: int
    ratios: NDArray[np.float64]
    distributions: NDArray[np.float64]
    rng: np.random.Generator

    def simulate(self, cohorts: int) -> NDArray[np.float64]:
        """Draw cohorts, and return the share of the first devices that are recognised in each."""
        responses = self._draw_responses(cohorts)
        # The number of reports with a 1, of each cohort, device and bit, in both sets.
        first = self._draw_counts(responses[:, : self.targets])
        second = self._draw_counts(responses)
        shares = np.empty((cohorts, self.targets))
        for device in range(self.targets):
            cells = first[:, device, None] * (self.n + 1) + second
            scores = self.ratios.ravel()[cells].sum(axis=-1)
            shares[:, device] = _score_recognition(scores, device)
        return np.asarray(shares.mean(axis=1))

    def _draw_responses(self, cohorts: int) -> NDArray[np.bool_]:
        """Draw (cohorts, devices, k) permanent responses. Strings of two devices differ."""
        params, rng = self.params, self.rng
        true_bits = np.zeros((cohorts, self.devices, params.k), dtype=bool)
        if get_encoding(params).is_hashed:
            indices = rng.integers(params.k, size=(cohorts, self.devices, params.h))
            np.put_along_axis(true_bits, indices, values=True, axis=-1)
        # With probability f1 a bit is forced to 1, with f0 = f - f1 to 0. Otherwise it keeps its
        # value.
        u = rng.random(true_bits.shape)
        return (u < params.f1) | (true_bits & (u >= params.f))

    def _draw_counts(self, responses: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Draw the number of reports with a 1 among n reports, for each permanent bit.

        The number is binomial with p or q. It is the number of values of the distribution function
        that a uniform number exceeds. numpy draws numbers with a probability each ten times slower.
        """
        u = self.rng.random(responses.shape)
        counts = np.zeros(responses.shape, dtype=np.int64)
        for low, high in self.distributions:
            counts += u >= np.where(responses, high, low)
        return counts


def _score_recognition(scores: NDArray[np.float64], device: int) -> NDArray[np.float64]:
    """Return for each cohort 1 if the score of the device is the highest, else 0.

    The result is a fraction if other devices have the same score. `scores` is (cohorts, devices):
    the scores of the second sets of all devices, for the first set of this device.
    """
    own = scores[:, device]
    tolerance = _ROUNDING * np.maximum(1.0, np.abs(own))
    is_best = scores.max(axis=1) <= own + tolerance
    n_equal = np.count_nonzero(scores >= (own - tolerance)[:, None], axis=1)
    return np.asarray(is_best / n_equal)


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
