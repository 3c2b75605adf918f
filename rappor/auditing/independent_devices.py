"""Checks of independent devices: shared secrets, and devices that omit their noise.

The input is the responses of n devices, all to the same few values. The output is three checks.
They need visible permanent responses, and are "not seen" without them.

*Shared secrets* (`secrets: devices differ`). The secret of a device decides its cohort and its
permanent responses. Two devices with one secret have the same cohort, and the same permanent
response to every value. If secrets have only b random bits, about n^2 / 2^(b+1) pairs of devices
share one. So the check counts the devices that respond exactly like an earlier device. With 32-byte
secrets, two devices of a cohort respond alike only by chance, with probability at most

    product over the distinct bit patterns of the values of
    max(f1, 1 - f1)^zeros max(f0, 1 - f0)^ones,

the probability of the most likely permanent response to a pattern. f1 and f0 are the probabilities
that a permanent bit is 1 although the true bit is 0, and 0 although the true bit is 1.

*Missing noise* (`permanent: no device without noise`, `report: no device without fresh noise`).
With few bits, a noisy response often equals its input by chance. A device that adds no noise is
recognised because every one of its responses equals its input. The permanent responses to different
patterns use independent coins, and so do reports, so the probabilities of the responses of one
device multiply. They differ from cohort to cohort, because the bits of a value do.

False alarms: each check errs with probability at most `FALSE_ALARM_RATE`. The message of a check
states its limits: the largest number of random bits of a secret that it finds, and the rarest
faulty device ("one of 600").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from rappor.auditing.check import (
    FALSE_ALARM_RATE,
    Check,
    check_p_value,
    compute_rare_p_value,
    compute_rare_threshold,
    mark_not_seen,
)
from rappor.auditing.evidence import ResponseBatch
from rappor.auditing.pairs import TrueBits
from rappor.counts.arrays import Booleans, Integers
from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params

_NAMES: Final = (
    "secrets: devices differ",
    "permanent: no device without noise",
    "report: no device without fresh noise",
)

_MIN_NOISELESS: Final = 20
"""Expected number of noiseless devices from which the check promises to find the fault.

If 20 are expected and 10 are enough for a fault, the check finds the fault in 99.5 % of audits.
"""

_MAX_VALUES: Final = 64
"""Largest number of values that are sent to each device.

The limit bounds the time of the audit. More values make chance agreement of two devices rarer.
"""

_EXPECTED_PAIRS: Final = 20
"""Expected number of pairs with equal secrets that a test needs to find the fault.

With 20 expected pairs, fewer than two occur with probability 5e-8.
"""

_MAX_ACCIDENTAL_REPEATS: Final = 1e-3
"""Largest expected number of pairs of devices with equal responses by chance.

With so few, two such pairs are a clear sign of shared secrets. A smaller number needs more values.
"""


def choose_n_values(params: Params, devices: int) -> int:
    """Choose the number of values for which chance repeats among `devices` devices are rare.

    The number is the smallest with devices^2 / 2 * P^values below `_MAX_ACCIDENTAL_REPEATS`, where
    P is the probability of the most likely permanent response to one value.
    """
    pairs, true_bits = devices**2 / 2, get_encoding(params).true_bit_counts
    match_probability = max(
        _compute_max_probability(params, ones) for ones in (true_bits[0], true_bits[-1])
    )
    for n_values in range(1, _MAX_VALUES):
        if pairs * match_probability**n_values < _MAX_ACCIDENTAL_REPEATS:
            return n_values
    return _MAX_VALUES


def check_independent_devices(
    rounds: Sequence[ResponseBatch], truth: TrueBits, params: Params
) -> list[Check]:
    """Test for devices with equal secrets and for devices without noise.

    `rounds[i]` contains the responses of all devices to value i of `truth`. The checks are not seen
    if the permanent responses are invisible.
    """
    permanents = [batch.permanents for batch in rounds if batch.permanents is not None]
    if not rounds or len(permanents) < len(rounds):
        return [mark_not_seen(name, "no permanent responses were seen") for name in _NAMES]
    cohorts, value_indices = rounds[0].cohorts, np.arange(len(rounds))
    true_bits = [truth.bits(np.full(len(cohorts), index), cohorts) for index in value_indices]
    p_permanent_copies = np.mean(
        _compute_noiseless_probabilities(truth, cohorts.tolist(), len(rounds), params)
    )
    # Upper bound on the probability that all reports of a device equal its permanent responses.
    p_report_copies = max(1 - params.p, params.q) ** (params.k * len(rounds))
    reports = [batch.reports for batch in rounds]
    return [
        _check_secrets(
            cohorts, permanents, _compute_expected_repeats(rounds, truth, params), params
        ),
        _check_noise(_NAMES[1], permanents, true_bits, float(p_permanent_copies)),
        _check_noise(_NAMES[2], reports, permanents, p_report_copies),
    ]


def _check_secrets(
    cohorts: Integers, permanents: Sequence[Booleans], mean: float, params: Params
) -> Check:
    """Count the devices that respond exactly like an earlier device.

    `cohorts` is (n,). `permanents` has an (n, k) array for each value. `mean` is an upper bound on
    the expected number of such devices under a correct encoder.
    """
    if params.f == 0:
        # With f = 0 the permanent response is the true bits. It contains no noise that could reveal
        # a secret.
        return mark_not_seen(_NAMES[0], "no permanent responses with noise were seen")
    n = len(cohorts)
    # A row is everything that the secret decides: the permanent responses to all values, then the
    # cohort as 4 bytes.
    patterns = np.packbits(np.hstack(permanents), axis=1)
    keys = np.hstack([patterns, cohorts.astype("<u4").view(np.uint8).reshape(n, 4)])
    repeated = n - len(np.unique(keys, axis=0))
    p_value, enough = (
        compute_rare_p_value(repeated, n, mean / n),
        compute_rare_threshold(n, mean / n),
    )
    # Secrets of b bits give n (n - 1) / 2^(b + 1) pairs. The check finds the fault if there are at
    # least `_EXPECTED_PAIRS` pairs, and at least twice the number of repeats that is a fault. Solve
    # for b.
    bits = math.floor(math.log2(n * (n - 1) / 2 / max(_EXPECTED_PAIRS, 2 * enough)))
    # With few bits, chance repeats are so frequent that no number of devices would be a sign of
    # shared secrets.
    if bits < 1 and repeated <= enough:
        return mark_not_seen(_NAMES[0], f"{n:,} devices can give too few different responses")
    detail = (
        f"{repeated:,} of {n:,} devices respond like an earlier one, expected at most {mean:.2g}"
    )
    return check_p_value(_NAMES[0], p_value, f"{detail}; secrets of {bits} bits would be found")


def _compute_expected_repeats(
    rounds: Sequence[ResponseBatch], truth: TrueBits, params: Params
) -> float:
    """Compute an upper bound on the expected number of devices that repeat another device.

    The bound is the sum over cohorts with n_j devices of n_j (n_j - 1) / 2 times the product, over
    the distinct patterns of the values, of the largest probability of a permanent response.
    """
    indices, mean = np.arange(len(rounds)), 0.0
    for cohort, n in zip(*np.unique(rounds[0].cohorts, return_counts=True), strict=True):
        bits = truth.bits(indices, np.full(len(indices), cohort))
        match_probability = [
            _compute_max_probability(params, ones) for ones in np.unique(bits, axis=0).sum(axis=1)
        ]
        mean += float(n) * (float(n) - 1) / 2 * math.prod(match_probability)
    return mean


def _compute_max_probability(params: Params, ones: int) -> float:
    """Compute the probability of the most likely permanent response to a pattern with `ones` ones.

    The probability is max(f1, 1 - f1)^(k - ones) max(f0, 1 - f0)^ones.
    """
    f1, f0 = params.f1, params.f0
    return float(max(f1, 1 - f1) ** (params.k - ones) * max(f0, 1 - f0) ** ones)


def _compute_noiseless_probabilities(
    truth: TrueBits, cohorts: Sequence[int], n_values: int, params: Params
) -> list[float]:
    """Compute, by device, the probability that all permanent responses equal their true bits.

    The probability is (1 - f0)^ones (1 - f1)^zeros, with the ones and zeros of the distinct
    patterns of the values in the device's cohort. Values with one pattern share a permanent
    response, so each pattern counts once.
    """
    indices, by_cohort = np.arange(n_values), {}
    for cohort in set(cohorts):
        patterns = np.unique(truth.bits(indices, np.full(n_values, cohort)), axis=0)
        ones = int(patterns.sum())
        by_cohort[cohort] = (1 - params.f0) ** ones * (1 - params.f1) ** (patterns.size - ones)
    return [by_cohort[cohort] for cohort in cohorts]


def _check_noise(
    name: str, responses: Sequence[Booleans], inputs: Sequence[Booleans], probability: float
) -> Check:
    """Count the devices whose responses all equal their inputs.

    `responses` and `inputs` have an (n, k) array for each value. `probability` is an upper bound on
    the mean probability of such a device under a correct encoder.
    """
    equal = [(bits == pattern).all(axis=1) for bits, pattern in zip(responses, inputs, strict=True)]
    n, n_noiseless = len(equal[0]), int(np.logical_and.reduce(equal).sum())
    p_value = compute_rare_p_value(n_noiseless, n, probability)
    # One faulty device in `rarest` gives at least `_MIN_NOISELESS` faulty devices, and at least
    # twice the number that is a fault.
    rarest = math.floor(n / max(_MIN_NOISELESS, 2 * compute_rare_threshold(n, probability)))
    # Even if no device added noise, the count could be chance: this check cannot find a fault.
    if rarest < 2 and p_value >= FALSE_ALARM_RATE:
        return mark_not_seen(name, f"even if all {n:,} devices had no noise, that may be chance")
    detail = f"{n_noiseless:,} of {n:,} devices show no noise in {len(responses)} responses"
    mean = f"expected at most {n * probability:.2g}"
    return check_p_value(name, p_value, f"{detail}, {mean}; one of {rarest:,} would be found")
