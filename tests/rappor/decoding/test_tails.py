"""Tests and intervals of proportions with repeated reports, against exact distributions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import fft

from rappor.estimator.proportion_tests import Proportions
from rappor.protocol.params import Params
from rappor.protocol.profiles import PROFILES

REPORTS = 30
DEVICES = (100, 1_000, 10_000)
ALLOWED = 5e-4


def rows(profile: str) -> Iterator[Params]:
    """Yield the responses of all profiles with a bit for each category."""
    yield Params.profile(profile, encoding="boolean")
    for n in range(2, 26):
        names = tuple(f"{i}" for i in range(n))
        yield Params.profile(profile, encoding="onehot", categories=names)
    yield Params.profile(profile, encoding="buckets", categories=("0", "1"))


def ones_of(params: Params, devices: int, share: float) -> NDArray[np.float64]:
    """Return the distribution of the number of ones at a bit, from that of one device's reports."""
    n = devices * REPORTS + 1
    turn = np.exp(-2j * np.pi * np.arange(n // 2 + 1) / n)
    level = params.f1 + (1 - params.f) * share
    zero, one = (
        (1 - probability + probability * turn) ** REPORTS for probability in (params.p, params.q)
    )
    return np.maximum(fft.irfft(((1 - level) * zero + level * one) ** devices, n), 0.0)


def proportions(params: Params, devices: int, ones: NDArray[np.int64]) -> Proportions:
    def column(number: float) -> NDArray[np.float64]:
        return np.full((1, 1), float(number))

    return Proportions(
        ones=ones[None].astype(float),
        reports=column(devices * REPORTS),
        reports_per_device=column(REPORTS),
        p_star=column(params.p_star),
        q_star=column(params.q_star),
        p=column(params.p),
        q=column(params.q),
    )


def around(tail: NDArray[np.float64], allowed: float) -> NDArray[np.int64]:
    """Return the indices near the first at which this falling tail is allowed."""
    first = int(np.searchsorted(-tail, -allowed))
    return np.clip(np.arange(first - 3, first + 4), 0, len(tail) - 1)


@pytest.mark.slow  # exact distributions of up to 300,000 reports
@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "once"])
def test_p_values_are_what_they_say(profile: str) -> None:
    """By exact sums, the p-value of an absent category is below x with probability x at most."""
    for params in {(row.t_1, row.t_0): row for row in rows(profile)}.values():
        for devices in DEVICES:
            tail = np.cumsum(ones_of(params, devices, 0.0)[::-1])[::-1]
            ones = around(tail, ALLOWED)
            p_values = proportions(params, devices, ones).p_values()
            assert p_values == pytest.approx(tail[ones], rel=0.02), (params, devices)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "once"])
def test_intervals_miss_as_often_as_they_say(profile: str, share: float) -> None:
    """By exact sums, intervals miss on each side with half of their error, or a little less."""
    devices = DEVICES[0]
    for params in list(rows(profile))[::5]:
        distribution = ones_of(params, devices, share)
        upper, lower = np.cumsum(distribution[::-1])[::-1], np.cumsum(distribution)
        for tail, side in ((upper, 0), (lower[::-1], 1)):
            places = around(tail, ALLOWED)
            ones = len(tail) - 1 - places if side else places
            ends = proportions(params, devices, ones).interval(2 * ALLOWED)[side]
            missed = ends > share if side == 0 else ends < share
            assert (missed <= (tail[places] < 1.02 * ALLOWED)).all(), (params, side)
            assert (missed >= (tail[places] < 0.98 * ALLOWED)).all(), (params, side)


@pytest.mark.parametrize("repeated", [1, 2, 30])
def test_collections_of_one_noise_are_one_collection(repeated: int) -> None:
    """Two groups of devices with equal parameters have the tails of their sum."""
    params = Params.profile("low-noise", encoding="onehot", categories=("a", "b", "c"))
    parts = [proportions(params, n, np.array([ones])) for n, ones in ((100, 150), (300, 400))]
    apart, together = (
        dataclasses.replace(
            parts[0],
            reports_per_device=np.full((n, 1), float(repeated)),
            **{name: join([getattr(part, name) for part in parts]) for name in ("ones", "reports")},
        )
        for n, join in ((2, np.vstack), (1, sum))
    )
    assert apart.p_values() == pytest.approx(together.p_values(), rel=1e-9)
    for one, other in zip(apart.interval(0.05), together.interval(0.05), strict=True):
        assert one == pytest.approx(other, rel=1e-9)
