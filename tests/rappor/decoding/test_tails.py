"""P-values and intervals of proportions with 30 reports per device, against exact distributions.

A device repeats its permanent bit, so its 30 reports are not independent, and the number of ones is
no binomial count. Its exact distribution is computed from its generating function, by an inverse
Fourier transform. `rappor.estimator.tail_probabilities` approximates the tails of the distribution.
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

REPEATING_PROFILES = [name for name in PROFILES if name != "once"]
"""Profiles under which a device may report more than once. Under `once`, a device sends one report
in an epoch."""

DEVICES = (100, 1_000, 10_000)
"""Numbers of devices. With more devices, the exact distribution takes longer to compute, and the
normal approximation is already good."""
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

    The proportion `share` of the devices has the value that sets the bit. A device with the
    permanent bit 0 has Binomial(30, p) ones, and a device with the permanent bit 1 has
    Binomial(30, q) ones. The generating function G of one device is therefore a mixture of two
    binomial generating functions. Devices are independent, so the generating function of the number
    of ones of all devices is G to the power of the number of devices.
    """
    n_outcomes = devices * REPORTS_PER_DEVICE + 1  # from no one to a one in every report
    # Points on the unit circle. The second half of them is conjugate to the first half.
    points = np.exp(-2j * np.pi * np.arange(n_outcomes // 2 + 1) / n_outcomes)
    p_permanent_one = params.f1 + (1 - params.f) * share
    generating_of_zero, generating_of_one = (
        (1 - probability + probability * points) ** REPORTS_PER_DEVICE
        for probability in (params.p, params.q)
    )
    of_device = (1 - p_permanent_one) * generating_of_zero + p_permanent_one * generating_of_one
    distribution = fft.irfft(of_device**devices, n_outcomes)
    # Rounding makes some of the smallest probabilities negative.
    return np.maximum(distribution, 0.0)


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


def compute_tails(
    distribution: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return P(at least n ones) and P(at most n ones) for each number n of ones."""
    p_at_least = np.cumsum(distribution[::-1])[::-1]
    return p_at_least, np.cumsum(distribution)


def find_counts_near(tail: NDArray[np.float64], level: float) -> NDArray[np.int64]:
    """Return seven numbers of ones around the number at which a tail crosses a level.

    `tail` is the tail probability by the number of ones. P(at least n ones) decreases with n, and
    P(at most n ones) increases. The middle of the seven numbers is the number with the largest
    tail probability that is at most the level.
    """
    is_increasing = tail[0] < tail[-1]
    if is_increasing:
        middle = int(np.searchsorted(tail, level, side="right")) - 1
    else:
        middle = int(np.searchsorted(-tail, -level))
    return np.clip(np.arange(middle - 3, middle + 4), 0, len(tail) - 1)


@pytest.mark.slow  # exact distributions of up to 300,000 reports
@pytest.mark.parametrize("profile", REPEATING_PROFILES)
def test_p_values_equal_the_exact_tail(profile: str) -> None:
    """The p-value of an absent category is within 2 % of the exact tail probability.

    The tail probability is the probability of at least as many ones, if no device has the category.
    The test compares numbers of ones with a tail probability near `TAIL`, for three numbers of
    devices. The tail depends on the thresholds of the permanent response, so parameters with equal
    thresholds are tested once.
    """
    params_by_thresholds = {(params.t_1, params.t_0): params for params in list_bit_params(profile)}
    for params in params_by_thresholds.values():
        for devices in DEVICES:
            p_at_least, _ = compute_tails(compute_ones_distribution(params, devices, 0.0))
            n_ones = find_counts_near(p_at_least, TAIL)
            p_values = make_proportions(params, devices, n_ones).p_values()
            assert p_values == pytest.approx(p_at_least[n_ones], rel=0.02), (params, devices)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("profile", REPEATING_PROFILES)
def test_intervals_miss_with_half_of_their_error_on_each_side(profile: str, share: float) -> None:
    """Each end of an interval excludes the true share with half of the error rate.

    The interval has the error rate 2 `TAIL`. Its lower end must lie above the true share if the
    probability of at least as many ones is below `TAIL`. Its upper end must lie below the true
    share if the probability of at most as many ones is below `TAIL`. The tails of the intervals are
    approximate. So if the exact probability is within 2 % of `TAIL`, the end may be on either side.
    """
    devices = DEVICES[0]
    for params in list(list_bit_params(profile))[::5]:
        tails = compute_tails(compute_ones_distribution(params, devices, share))
        for side, tail in enumerate(tails):  # 0: lower end, 1: upper end
            n_ones = find_counts_near(tail, TAIL)
            ends = make_proportions(params, devices, n_ones).interval(2 * TAIL)[side]
            is_missed = ends > share if side == 0 else ends < share
            must_miss = tail[n_ones] < 0.98 * TAIL
            may_miss = tail[n_ones] < 1.02 * TAIL
            assert is_missed[must_miss].all(), (params, side)
            assert not is_missed[~may_miss].any(), (params, side)


@pytest.mark.parametrize("repeated", [1, 2, 30])
def test_two_collections_with_equal_parameters_have_the_tails_of_their_sum(repeated: int) -> None:
    """Two collections with the same parameters have the p-values and intervals of their sum.

    With the same parameters, the report of a device is equally likely in both collections. So the
    division into two collections contains no information about the share.
    """
    params = Params.profile("low-noise", encoding="onehot", categories=("a", "b", "c"))
    first, second = (
        make_proportions(params, devices, np.array([n_ones]))
        for devices, n_ones in ((100, 150), (300, 400))
    )
    # A row is a collection.
    separate = dataclasses.replace(
        first,
        ones=np.vstack([first.ones, second.ones]),
        reports=np.vstack([first.reports, second.reports]),
        reports_per_device=np.full((2, 1), float(repeated)),
    )
    together = dataclasses.replace(
        first,
        ones=first.ones + second.ones,
        reports=first.reports + second.reports,
        reports_per_device=np.full((1, 1), float(repeated)),
    )
    assert separate.p_values() == pytest.approx(together.p_values(), rel=1e-9)
    separate_ends, together_ends = separate.interval(0.05), together.interval(0.05)
    assert separate_ends[0] == pytest.approx(together_ends[0], rel=1e-9)
    assert separate_ends[1] == pytest.approx(together_ends[1], rel=1e-9)
