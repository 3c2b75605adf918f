"""P-values and intervals of proportions with 30 reports per device, against exact distributions.

A device keeps its permanent bit, so its 30 reports are not independent. The exact distribution of
the number of ones comes from its generating function, by an inverse Fourier transform.
"""

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

REPORTS_PER_DEVICE = 30
DEVICES = (100, 1_000, 10_000)
"""Numbers of devices. With more, the exact distribution takes longer, and the normal one is
near."""
TAIL = 5e-4
"""Probability of the tail at which p-values and ends of intervals are compared."""


def list_bit_params(profile: str) -> Iterator[Params]:
    """Yield the parameters of a profile: a boolean, 2 to 25 categories, and three buckets."""
    yield Params.profile(profile, encoding="boolean")
    for n in range(2, 26):
        names = tuple(f"{i}" for i in range(n))
        yield Params.profile(profile, encoding="onehot", categories=names)
    yield Params.profile(profile, encoding="buckets", categories=("0", "1"))


def compute_ones_distribution(params: Params, devices: int, share: float) -> NDArray[np.float64]:
    """Return the exact distribution of the number of ones of a bit in all reports.

    A share of the devices has the value of the bit. The generating function of one device is a
    mixture of two binomial ones, for the permanent bits 0 and 1. All devices together have its
    power.
    """
    n = devices * REPORTS_PER_DEVICE + 1
    turn = np.exp(-2j * np.pi * np.arange(n // 2 + 1) / n)
    permanent_mean = params.f1 + (1 - params.f) * share
    generating_of_zero, generating_of_one = (
        (1 - probability + probability * turn) ** REPORTS_PER_DEVICE
        for probability in (params.p, params.q)
    )
    return np.maximum(
        fft.irfft(
            ((1 - permanent_mean) * generating_of_zero + permanent_mean * generating_of_one)
            ** devices,
            n,
        ),
        0.0,
    )


def make_proportions(params: Params, devices: int, n_ones: NDArray[np.int64]) -> Proportions:
    """Return the proportions of one bit, with a column for each number of ones."""

    def make_column(number: float) -> NDArray[np.float64]:
        return np.full((1, 1), float(number))

    return Proportions(
        ones=n_ones[None].astype(float),
        reports=make_column(devices * REPORTS_PER_DEVICE),
        reports_per_device=make_column(REPORTS_PER_DEVICE),
        p_star=make_column(params.p_star),
        q_star=make_column(params.q_star),
        p=make_column(params.p),
        q=make_column(params.q),
    )


def find_indices_near(tail: NDArray[np.float64], level: float) -> NDArray[np.int64]:
    """Return seven indices around the first at which the decreasing tail is at most the level."""
    first = int(np.searchsorted(-tail, -level))
    return np.clip(np.arange(first - 3, first + 4), 0, len(tail) - 1)


@pytest.mark.slow  # exact distributions of up to 300,000 reports
@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "once"])
def test_p_values_equal_the_exact_tail(profile: str) -> None:
    """The p-value of an absent category is within 2 % of the exact probability of as many ones.

    It is compared at numbers of ones whose probability is about `TAIL`, for three numbers of
    devices. Parameters with equal thresholds of the permanent response are tested once.
    """
    for params in {
        (params.t_1, params.t_0): params for params in list_bit_params(profile)
    }.values():
        for devices in DEVICES:
            tail = np.cumsum(compute_ones_distribution(params, devices, 0.0)[::-1])[::-1]
            n_ones = find_indices_near(tail, TAIL)
            p_values = make_proportions(params, devices, n_ones).p_values()
            assert p_values == pytest.approx(tail[n_ones], rel=0.02), (params, devices)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "once"])
def test_intervals_miss_with_half_of_their_error_on_each_side(profile: str, share: float) -> None:
    """Each end of an interval excludes the true share with half of the error rate.

    For each number of ones near the tail, the lower end lies above the true share exactly if as
    many ones have a probability below `TAIL`, and the upper end in the same way. Tails within 2 %
    of `TAIL` may be on either side.
    """
    devices = DEVICES[0]
    for params in list(list_bit_params(profile))[::5]:
        distribution = compute_ones_distribution(params, devices, share)
        upper, lower = np.cumsum(distribution[::-1])[::-1], np.cumsum(distribution)
        for tail, side in ((upper, 0), (lower[::-1], 1)):
            indices = find_indices_near(tail, TAIL)
            n_ones = len(tail) - 1 - indices if side else indices
            ends = make_proportions(params, devices, n_ones).interval(2 * TAIL)[side]
            is_missed = ends > share if side == 0 else ends < share
            assert (is_missed <= (tail[indices] < 1.02 * TAIL)).all(), (params, side)
            assert (is_missed >= (tail[indices] < 0.98 * TAIL)).all(), (params, side)


@pytest.mark.parametrize("repeated", [1, 2, 30])
def test_two_collections_with_equal_parameters_have_the_tails_of_their_sum(repeated: int) -> None:
    """Two collections with the same parameters have the p-values and intervals of their sum.

    A division of the reports into collections is no information about the share.
    """
    params = Params.profile("low-noise", encoding="onehot", categories=("a", "b", "c"))
    parts = [
        make_proportions(params, n, np.array([n_ones])) for n, n_ones in ((100, 150), (300, 400))
    ]
    separate, together = (
        dataclasses.replace(
            parts[0],
            reports_per_device=np.full((n, 1), float(repeated)),
            **{name: join([getattr(part, name) for part in parts]) for name in ("ones", "reports")},
        )
        for n, join in ((2, np.vstack), (1, sum))
    )
    assert separate.p_values() == pytest.approx(together.p_values(), rel=1e-9)
    for separate_ends, together_ends in zip(
        separate.interval(0.05), together.interval(0.05), strict=True
    ):
        assert separate_ends == pytest.approx(together_ends, rel=1e-9)
