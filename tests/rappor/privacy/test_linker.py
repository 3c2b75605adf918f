"""Recognition of devices: the probability by the formula is compared with simulated cohorts.

An observer has n reports of one device, and later n reports of every device of its cohort. The
observer names the device with the best score. `linker` simulates this observer.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from linker import recognise

from rappor.privacy.recognition import recognition_limit, recognition_probability
from rappor.protocol.params import Params

FALSE_ALARM = 1e-9
"""Probability that one statistical check fails although the code is right."""

NEAR = 0.03
"""Largest accepted difference between the recognition probability by the formula and in the
simulation, in addition to the random error. The formula is a normal approximation, so the two
probabilities differ. A larger value accepts a worse formula."""

CHOICE: dict[str, Any] = {"k": 8, "encoding": "onehot", "categories": tuple("abcdefgh")}
FLAG: dict[str, Any] = {"k": 1, "encoding": "boolean"}
WORD: dict[str, Any] = {"k": 8, "h": 2}
"""Bits and encoding of a metric of eight categories, of a yes-or-no metric, and of a metric of
strings. A test adds the noise."""
NOISES = {
    "strict": (0.537883, 0.134471, 0.634471),
    "balanced": (0.238406, 0.059601, 0.559601),
    "low-noise": (0.035972, 0.008993, 0.508993),
}
"""Noise f, p and q with g = 1/2, by the profile that promises the same losses."""


def is_consistent(share: float, cohorts: int, expected: float) -> bool:
    """Return whether the mean share of recognised devices is consistent with an expected share.

    A share in [0, 1] is the result of each of n cohorts. By Hoeffding (1963), Theorem 1, their mean
    is as far from its expectation as `share`, or farther, with a probability of at most exp(-n KL)
    on each side. KL is the relative entropy of both shares.
    """
    expected = min(max(expected, 1e-12), 1 - 1e-12)
    distance = sum(
        x * math.log(x / y) for x, y in ((share, expected), (1 - share, 1 - expected)) if x
    )
    return cohorts * distance <= math.log(2 / FALSE_ALARM)


def compare_with_simulation(
    params: Params, n: int, *, devices: int, near: float, cohorts: int = 2000
) -> None:
    """Compare the formula with a simulation. `near` is the accepted error of the formula.

    The simulated share must be consistent with some probability within `near` of the formula. The
    last line checks the power: the share is not consistent with a probability that is 0.12 higher.
    """
    share = float(recognise(params, n, devices=devices, cohorts=cohorts).mean())
    expected = recognition_probability(params, n, devices)
    low, high = max(0.0, expected - near), min(1.0, expected + near)
    assert is_consistent(share, cohorts, min(max(share, low), high))
    assert not is_consistent(share, cohorts, min(1.0, high + 0.12))


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("profile", sorted(NOISES))
def test_profiles(profile: str, n: int) -> None:
    """The formula is right within NEAR for strings of 128 bits in cohorts of 50 devices.

    The check of the power needs a probability that is 0.15 higher. Above 0.85 none exists, so the
    share is compared with the formula alone.
    """
    params = Params.profile(profile)
    if recognition_probability(params, n, 50) < 0.85:
        compare_with_simulation(params, n, devices=50, near=NEAR)
    else:
        share = float(recognise(params, n, devices=50, cohorts=2000).mean())
        assert is_consistent(share, 2000, recognition_probability(params, n, 50))


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("profile", sorted(NOISES))
@pytest.mark.parametrize("shape", [CHOICE, FLAG], ids=["onehot", "boolean"])
def test_few_bits(shape: dict[str, Any], profile: str, n: int) -> None:
    """For few bits, an enumerated probability is exact, and an approximated one is within NEAR."""
    f, p, q = NOISES[profile]
    exact = shape is FLAG or n <= 2
    compare_with_simulation(
        Params(**shape, f=f, p=p, q=q), n, devices=50, near=0.0 if exact else NEAR
    )


@pytest.mark.parametrize("n", [1, 2, 5])
def test_short_strings(n: int) -> None:
    """The formula is right within NEAR for eight bits and two hashes that may collide."""
    compare_with_simulation(Params(**WORD, f=0.5, p=0.25, q=0.75), n, devices=50, near=NEAR)


@pytest.mark.acceptance
@pytest.mark.parametrize("n", [1, 2, 5, 20])
@pytest.mark.parametrize("profile", sorted(NOISES))
def test_profiles_among_a_million(profile: str, n: int) -> None:
    """The formula is right within NEAR in cohorts of 7,812 devices, as of a million in 128 cohorts.

    The random error is estimated from 60 cohorts. Six standard errors are never exceeded by chance.
    """
    params = Params.profile(profile)
    shares = recognise(params, n, devices=7_812, cohorts=60, targets=100)
    error = shares.std(ddof=1) / math.sqrt(60)
    assert shares.mean() == pytest.approx(
        recognition_probability(params, n, 7_812), abs=NEAR + 6 * error
    )


def test_reports_without_fresh_noise_reach_the_limit_of_recognition() -> None:
    """With p = 0 and q = 1, one report recognises a device with the probability of the limit.

    Such a report shows the permanent response, as very many noisy reports do. Of the devices with
    equal responses, the observer names one at random.
    """
    params = Params(**CHOICE, f=0.5, p=0.0, q=1.0)
    share = float(recognise(params, 1, devices=20, cohorts=2000).mean())
    assert is_consistent(share, 2000, recognition_limit(params, 20))


def test_without_permanent_noise_no_device_is_recognised() -> None:
    """Without permanent noise, the observer names one of 40 devices with equal values at random.

    Their reports have the same distribution, so all scores are equal.
    """
    params = Params(**FLAG, f=0.0, p=0.25, q=0.75)
    assert recognise(params, 5, devices=40, cohorts=3, targets=5) == pytest.approx(1 / 40)
