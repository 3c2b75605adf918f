"""Recognition: the formula against enumerations of all coins of the real randomizer."""

from __future__ import annotations

import itertools
import math
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
    """Return the exact probability that an observer recognises the device, over all coins."""
    nothing = bytes(params.n_bytes)
    one_set = enumerate_reports(nothing, params, n)
    two_sets = enumerate_reports(nothing, params, 2 * n)
    probability = Fraction(0)
    for first in one_set:

        def score(second: bytes, first: bytes = first) -> Fraction:
            return two_sets.get(first + second, 0) / (one_set[first] * one_set[second])

        for own, *others in itertools.product(one_set, repeat=devices):
            best = max(map(score, [own, *others]))
            if score(own) == best:
                equal = sum(score(second) == best for second in [own, *others])
                weight = math.prod((one_set[second] for second in others), start=Fraction(1))
                probability += two_sets.get(first + own, 0) * weight / equal
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
    """The formula equals the enumeration of all coins."""
    f, g, p, q = noise
    params = Params(**shape, f=f, g=g, p=p, q=q)
    expected = float(enumerate_recognition(params, n, devices))
    assert recognition_probability(params, n, devices) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("devices", [1, 2, 1_000])
@pytest.mark.parametrize("g", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("f", [0.0, 0.2, 0.9])
@pytest.mark.parametrize(("k", "encoding"), [(4, "bloom"), (3, "onehot"), (1, "boolean")])
def test_permanent_responses_bound_every_observer(
    k: int, encoding: str, f: float, g: float, devices: int
) -> None:
    """The limit is the probability of a draw by lot among devices with equal responses.

    No number of reports exceeds the limit.
    """
    names = ("a", "b", "c") if encoding == "onehot" else ()
    params = Params(k=k, encoding=encoding, categories=names, f=f, g=g, p=0.25, q=0.75)
    values = [1 << bit for bit in range(k)] if encoding == "bloom" else [0]
    responses: dict[bytes, Fraction] = {}
    for value in values:
        for response, weight in enumerate_permanent_response(bytes([value]), params).items():
            responses[response] = responses.get(response, Fraction(0)) + weight / len(values)
    expected = sum((1 - (1 - share) ** devices) / devices for share in responses.values())
    assert recognition_limit(params, devices) == pytest.approx(float(expected), rel=1e-9)
    for n in (1, 5, 100):
        assert recognition_probability(params, n, devices) <= recognition_limit(params, devices)


def test_many_reports_show_the_permanent_response() -> None:
    """The normal approximation converges to the limit."""
    params = Params.profile("low-noise")
    assert recognition_limit(params, 7_812) < 0.9
    assert recognition_probability(params, 1000, 7_812) == pytest.approx(
        recognition_limit(params, 7_812), rel=0.01
    )


def test_the_largest_reports_are_computed() -> None:
    """Probabilities exist for 2,040 bits, 16 hashes, a thousand reports and 10^15 devices."""
    params = Params(k=2040, h=16, m=1, f=0.5, p=0.49, q=0.51)
    probabilities = [recognition_probability(params, n, 10**15) for n in (1, 100, 1000)]
    assert probabilities == sorted(probabilities)
    assert 0 <= probabilities[0] < 1e-9
    assert 0.5 < probabilities[-1] <= 1
