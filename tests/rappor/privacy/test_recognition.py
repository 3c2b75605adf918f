"""Recognition of a device by two sets of its reports: the formula against enumerations.

An observer has a first set of n reports of one device, and second sets of all devices of its
cohort. The enumerations run the real randomizer for all coins. For larger parameters, the formula
is compared with a simulation (`test_linker`).
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from fractions import Fraction
from typing import Any

import pytest
from enumeration import enumerate_permanent_response, enumerate_reports

from rappor.privacy.recognition import recognition_limit, recognition_probability
from rappor.protocol.params import Params

pytestmark = pytest.mark.slow  # numerical work of seconds

FLAG: dict[str, Any] = {"k": 1, "encoding": "boolean"}
CHOICE: dict[str, Any] = {"k": 2, "encoding": "onehot", "categories": ("a", "b")}


def enumerate_recognition(params: Params, n: int, devices: int) -> Fraction:
    """Return the exact probability that an observer recognises the device, over all coins.

    All devices have a value that sets no bit, so only their permanent noise distinguishes them. The
    score of a second set is P(both sets | one device) / P(both sets | two devices). The observer
    names a device with the best score, one of them at random if several have it.
    """
    no_true_bits = bytes(params.n_bytes)
    one_set = enumerate_reports(no_true_bits, params, n)
    two_sets = enumerate_reports(no_true_bits, params, 2 * n)
    probability = Fraction(0)
    for first in one_set:
        # Second sets with equal scores lead to the same choice, so they are one case. `of_own` is
        # the joint probability of `first` and of a second set of the same device with this score,
        # and `of_other` the probability that another device has a second set with this score.
        of_own: dict[Fraction, Fraction] = defaultdict(Fraction)
        of_other: dict[Fraction, Fraction] = defaultdict(Fraction)
        for second in one_set:
            together = two_sets.get(first + second, Fraction(0))
            score = together / (one_set[first] * one_set[second])
            of_own[score] += together
            of_other[score] += one_set[second]
        for own, *others in itertools.product(of_other, repeat=devices):
            if own == max([own, *others]):
                weight = math.prod((of_other[other] for other in others), start=Fraction(1))
                probability += of_own[own] * weight / [own, *others].count(own)
    return probability


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize(
    "noise",
    [(0.5, 0.5, 0.25, 0.75), (0.2, 0.5, 0.1, 0.6), (0.9, 0.5, 0.0, 1.0), (0.6, 0.1, 0.1, 0.6)],
)
@pytest.mark.parametrize(("shape", "n"), [(FLAG, 1), (FLAG, 3), (CHOICE, 1), (CHOICE, 2)])
def test_few_bits_are_enumerated(
    shape: dict[str, Any], n: int, noise: tuple[float, float, float, float], devices: int
) -> None:
    """For few bits and reports, the formula equals the enumeration of all coins.

    `noise` is f, g, p and q.
    """
    f, g, p, q = noise
    params = Params(**shape, f=f, g=g, p=p, q=q)
    expected = float(enumerate_recognition(params, n, devices))
    assert recognition_probability(params, n, devices) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("g", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("f", [0.0, 0.2, 0.9])
@pytest.mark.parametrize(("k", "encoding"), [(4, "bloom"), (3, "onehot"), (1, "boolean")])
def test_permanent_responses_bound_every_observer(
    k: int, encoding: str, f: float, g: float
) -> None:
    """No number of reports recognises a device with a probability above `recognition_limit`.

    With very many reports an observer knows the permanent responses. Among devices with equal
    responses only a random choice is left. The limit is the probability that this choice is right.
    """
    names = ("a", "b", "c") if encoding == "onehot" else ()
    params = Params(k=k, encoding=encoding, categories=names, f=f, g=g, p=0.25, q=0.75)
    values = [1 << bit for bit in range(k)] if encoding == "bloom" else [0]
    responses: dict[bytes, Fraction] = {}
    for value in values:
        for response, weight in enumerate_permanent_response(bytes([value]), params).items():
            responses[response] = responses.get(response, Fraction(0)) + weight / len(values)
    for devices in (1, 2, 1_000):
        expected = sum((1 - (1 - share) ** devices) / devices for share in responses.values())
        limit = recognition_limit(params, devices)
        assert limit == pytest.approx(float(expected), rel=1e-9), devices
        for n in (1, 5, 100):
            assert recognition_probability(params, n, devices) <= limit, (devices, n)


def test_many_reports_show_the_permanent_response() -> None:
    """With a thousand reports, the normal approximation has nearly reached the limit.

    7,812 devices are a cohort of a million devices in 128 cohorts.
    """
    params = Params.profile("low-noise")
    assert recognition_limit(params, 7_812) < 0.9
    assert recognition_probability(params, 1000, 7_812) == pytest.approx(
        recognition_limit(params, 7_812), rel=0.01
    )


def test_the_largest_reports_are_computed() -> None:
    """The largest parameters give probabilities, without overflow and in the right order.

    They have 2,040 bits, 16 hash functions, a thousand reports and 10^15 devices. A single report
    recognises almost no device, and a thousand reports recognise most devices.
    """
    params = Params(k=2040, h=16, m=1, f=0.5, p=0.49, q=0.51)
    probabilities = [recognition_probability(params, n, 10**15) for n in (1, 100, 1000)]
    assert probabilities == sorted(probabilities)
    assert 0 <= probabilities[0] < 1e-9
    assert 0.5 < probabilities[-1] <= 1
