"""The linker: what is recognised in simulated cohorts is what the formula says."""

from __future__ import annotations

import math
from typing import Any

import pytest
from linker import recognise

from rappor.ground.errors import ParamsError
from rappor.privacy.recognition import recognition, recognition_inf
from rappor.protocol.params import Params

FALSE_ALARM = 1e-9
"""Probability that one statistical check fails although the code is right."""

NEAR = 0.03
"""How far the formula by normal distributions may be from the truth."""

CHOICE: dict[str, Any] = {"k": 8, "encoding": "onehot", "categories": tuple("abcdefgh")}
FLAG: dict[str, Any] = {"k": 1, "encoding": "boolean"}
WORD: dict[str, Any] = {"k": 8, "h": 2}
NOISES = {
    "strict": (0.537883, 0.134471, 0.634471),
    "balanced": (0.238406, 0.059601, 0.559601),
    "low-noise": (0.035972, 0.008993, 0.508993),
}


def agrees(share: float, cohorts: int, expected: float) -> bool:
    """Return whether the mean share of these cohorts can have this expectation.

    Hoeffding 1963, Theorem 1: a mean as far off has probability exp(-n KL) at most, each way.
    """
    expected = min(max(expected, 1e-12), 1 - 1e-12)
    distance = sum(
        x * math.log(x / y) for x, y in ((share, expected), (1 - share, 1 - expected)) if x
    )
    return cohorts * distance <= math.log(2 / FALSE_ALARM)


def check(params: Params, n: int, *, devices: int, near: float, cohorts: int = 2000) -> None:
    """Compare simulation and formula, and see that the comparison can fail."""
    (found,) = recognise(params, devices=devices, reports=(n,), cohorts=cohorts, targets=1)
    expected = recognition(params, n, devices)
    low, high = max(0.0, expected - near), min(1.0, expected + near)
    assert agrees(found.share, cohorts, min(max(found.share, low), high))
    assert not agrees(found.share, cohorts, min(1.0, high + 0.12))


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("profile", sorted(NOISES))
def test_profiles(profile: str, n: int) -> None:
    """Strings of 128 bits in cohorts of 50 devices."""
    params = Params.profile(profile)
    if recognition(params, n, 50) < 0.85:
        check(params, n, devices=50, near=NEAR)
    else:
        (found,) = recognise(params, devices=50, reports=(n,), cohorts=2000, targets=1)
        assert agrees(found.share, 2000, recognition(params, n, 50))


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("profile", sorted(NOISES))
@pytest.mark.parametrize("shape", [CHOICE, FLAG], ids=["onehot", "boolean"])
def test_few_bits(shape: dict[str, Any], profile: str, n: int) -> None:
    """What is enumerated agrees without allowance, what is not within the formula's."""
    f, p, q = NOISES[profile]
    exact = shape is FLAG or n <= 2
    check(Params(**shape, f=f, p=p, q=q), n, devices=50, near=0.0 if exact else NEAR)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_short_strings(n: int) -> None:
    """Eight bits and two hashes, some of which agree."""
    check(Params(**WORD, f=0.5, p=0.25, q=0.75), n, devices=50, near=NEAR)


@pytest.mark.acceptance
@pytest.mark.parametrize("n", [1, 2, 5, 20])
@pytest.mark.parametrize("profile", sorted(NOISES))
def test_profiles_among_a_million(profile: str, n: int) -> None:
    """Cohorts of 7,812 devices, as among a million with m = 128."""
    params = Params.profile(profile)
    (found,) = recognise(params, devices=7_812, reports=(n,), cohorts=60, targets=100)
    assert found.share == pytest.approx(
        recognition(params, n, 7_812), abs=NEAR + 6 * found.std_error
    )


def test_without_noise_of_reports_permanent_responses_are_compared() -> None:
    """One report shows the permanent response whole; equal ones are drawn by lot."""
    params = Params(**CHOICE, f=0.5, p=0.0, q=1.0)
    (found,) = recognise(params, devices=20, reports=(1,), cohorts=2000, targets=1)
    assert agrees(found.share, 2000, recognition_inf(params, 20))


def test_without_permanent_noise_nobody_is_recognised() -> None:
    """All devices of one answer score the same, whatever they report."""
    params = Params(**FLAG, f=0.0, p=0.25, q=0.75)
    for found in recognise(params, devices=40, cohorts=3, targets=5):
        assert found.share == pytest.approx(1 / 40)
        assert found.std_error == pytest.approx(0)


def test_a_seed_repeats_it() -> None:
    """The same seed gives the same shares, another one others; a device alone is found."""
    params = Params.profile("balanced")
    one, same, other = (
        recognise(params, devices=30, reports=(1, 2), cohorts=5, seed=seed) for seed in (1, 1, 2)
    )
    assert one == same != other
    assert [each.reports for each in one] == [1, 2]
    assert one[0].devices == 30
    assert recognise(params, devices=1, reports=(1,), cohorts=2)[0].share == 1


def test_standard_error_is_the_spread_of_repetitions() -> None:
    """Over 40 repetitions, within what their own number admits (F test)."""
    params = Params(**CHOICE, f=0.5, p=0.25, q=0.75)
    runs = [
        recognise(params, devices=10, reports=(2,), cohorts=50, targets=10)[0] for _ in range(40)
    ]
    mean = sum(each.share for each in runs) / len(runs)
    spread = math.sqrt(sum((each.share - mean) ** 2 for each in runs) / (len(runs) - 1))
    claimed = sum(each.std_error for each in runs) / len(runs)
    assert 0.4 < spread / claimed < 2.2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"devices": 0}, r"devices must be an integer in \[1, 1,000,000\], got 0"),
        ({"devices": 2_000_000}, "devices must be"),
        ({"reports": (1, 0)}, r"reports must be an integer in \[1, 1,000\], got 0"),
        ({"reports": (1001,)}, "reports must be"),
        ({"cohorts": 1}, "cohorts must be an integer of at least 2, got 1"),
        ({"targets": 0}, "targets must be an integer of at least 1, got 0"),
        ({"seed": "x"}, "seed must be an integer or None"),
    ],
)
def test_nonsense_is_refused(wrong: dict[str, Any], said: str) -> None:
    """One sentence for each number outside its range."""
    with pytest.raises(ParamsError, match=said):
        recognise(Params.profile("balanced"), **({"devices": 10} | wrong))
