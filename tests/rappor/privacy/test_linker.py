"""Recognition of devices in simulated cohorts, against the formula."""

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
NOISES = {
    "strict": (0.537883, 0.134471, 0.634471),
    "balanced": (0.238406, 0.059601, 0.559601),
    "low-noise": (0.035972, 0.008993, 0.508993),
}


def agrees(share: float, cohorts: int, expected: float) -> bool:
    """Return whether the mean share of several cohorts can have an expectation.

    By Hoeffding 1963, Theorem 1, a mean as far away has probability exp(-n KL) at most on each
    side.
    """
    expected = min(max(expected, 1e-12), 1 - 1e-12)
    distance = sum(
        x * math.log(x / y) for x, y in ((share, expected), (1 - share, 1 - expected)) if x
    )
    return cohorts * distance <= math.log(2 / FALSE_ALARM)


def compare_with_simulation(
    params: Params, n: int, *, devices: int, near: float, cohorts: int = 2000
) -> None:
    """Compare the formula with a simulation, and check that the comparison could fail."""
    share = float(recognise(params, n, devices=devices, cohorts=cohorts).mean())
    expected = recognition_probability(params, n, devices)
    low, high = max(0.0, expected - near), min(1.0, expected + near)
    assert agrees(share, cohorts, min(max(share, low), high))
    assert not agrees(share, cohorts, min(1.0, high + 0.12))


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("profile", sorted(NOISES))
def test_profiles(profile: str, n: int) -> None:
    """The formula holds for strings of 128 bits in cohorts of 50 devices."""
    params = Params.profile(profile)
    if recognition_probability(params, n, 50) < 0.85:
        compare_with_simulation(params, n, devices=50, near=NEAR)
    else:
        share = float(recognise(params, n, devices=50, cohorts=2000).mean())
        assert agrees(share, 2000, recognition_probability(params, n, 50))


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("profile", sorted(NOISES))
@pytest.mark.parametrize("shape", [CHOICE, FLAG], ids=["onehot", "boolean"])
def test_few_bits(shape: dict[str, Any], profile: str, n: int) -> None:
    """An enumerated probability agrees exactly.

    An approximated one agrees within the allowed error.
    """
    f, p, q = NOISES[profile]
    exact = shape is FLAG or n <= 2
    compare_with_simulation(
        Params(**shape, f=f, p=p, q=q), n, devices=50, near=0.0 if exact else NEAR
    )


@pytest.mark.parametrize("n", [1, 2, 5])
def test_short_strings(n: int) -> None:
    """The formula holds for eight bits and two hashes that may collide."""
    compare_with_simulation(Params(**WORD, f=0.5, p=0.25, q=0.75), n, devices=50, near=NEAR)


@pytest.mark.acceptance
@pytest.mark.parametrize("n", [1, 2, 5, 20])
@pytest.mark.parametrize("profile", sorted(NOISES))
def test_profiles_among_a_million(profile: str, n: int) -> None:
    """The formula holds in cohorts of 7,812 devices, as among a million with m = 128."""
    params = Params.profile(profile)
    shares = recognise(params, n, devices=7_812, cohorts=60, targets=100)
    error = shares.std(ddof=1) / math.sqrt(60)
    assert shares.mean() == pytest.approx(
        recognition_probability(params, n, 7_812), abs=NEAR + 6 * error
    )


def test_without_noise_of_reports_permanent_responses_are_compared() -> None:
    """One report without noise shows the permanent response. Equal responses are drawn by lot."""
    params = Params(**CHOICE, f=0.5, p=0.0, q=1.0)
    share = float(recognise(params, 1, devices=20, cohorts=2000).mean())
    assert agrees(share, 2000, recognition_limit(params, 20))


def test_without_permanent_noise_nobody_is_recognised() -> None:
    """Devices with one value and no permanent noise have equal scores."""
    params = Params(**FLAG, f=0.0, p=0.25, q=0.75)
    assert recognise(params, 5, devices=40, cohorts=3, targets=5) == pytest.approx(1 / 40)
