"""Linkability: how well an observer recognises that two reports come from one device.

A scope is one metric in one epoch under one permanent response. Within a scope, a device stays in
its cohort and repeats its permanent response, so its reports agree more often than reports of two
devices. Reports of different scopes have nothing in common: other metrics and other epochs have
other cohorts and permanent responses. Only an upload, an address or the time links such reports.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rappor.base.ranges import check_integer
from rappor.privacy.recognition import (
    binomial_probability,
    count_true_bits,
    recognition_limit,
    recognition_probability,
)
from rappor.protocol.params import Params

REPORTS: Final = (1, 2, 5, 20)
"""Numbers of reports in each of two sets for which `linkability` computes a probability."""

_MOST_IN_A_SET: Final = 1000
"""Largest number of reports in a set. The time of the computation grows with its square."""

_CERTAIN: Final = 0.99
"""Probability with which all bits of a permanent response are recovered."""

_MOST_REPORTS: Final = 10_000
"""Largest number of reports from which a permanent response is recovered: a daily report for 27
years. More reports are reported as "never"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognition:
    """Probability that an observer recognises a device by two sets of its reports.

    Attributes
    ----------
    reports : number of reports in each set; None for any number.
    probability : probability of recognition among the devices of the cohort.
    """

    reports: int | None
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Linkability:
    """Measures of how well reports of one device can be linked within one scope.

    A report names its cohort, so an observer compares a device only with the devices of its cohort.
    Strings of two devices are assumed to differ. Under other encodings all devices are assumed to
    have the same value.

    Attributes
    ----------
    devices : number of devices in all.
    cohort_devices : expected number of devices of one cohort, devices / m.
    cohort_bits : information of the cohort about the device, in bits.
    permanent_bits : entropy of the permanent response of a known value, in bits. An observer learns
        this information by recovering the permanent response. 0 if f = 0.
    recognised : probability of recognition by numbers of reports in a set. The last entry is for
        any number of reports.
    reports_to_recover : number of reports after which all bits of a permanent response are
        recovered with 99 % probability; None if 10,000 reports are not enough.
    """

    devices: int
    cohort_devices: int
    cohort_bits: float
    permanent_bits: float
    recognised: tuple[Recognition, ...]
    reports_to_recover: int | None


def linkability(
    params: Params, devices: int = 1_000_000, reports: Sequence[int] = REPORTS
) -> Linkability:
    """Compute how well an observer links reports of one device.

    `rappor.privacy.recognition` describes the observer and the assumptions.

    Parameters
    ----------
    params : the parameters of the reports.
    devices : number of devices among which a device is recognised, in all cohorts together.
    reports : numbers of reports in each of the two sets that the observer compares.

    Returns
    -------
    Linkability, with an entry of `recognised` for each number of reports, and a last entry for any
    number.

    Raises
    ------
    ParamsError
        devices is not a positive integer, or a number of reports is not in [1, 1,000].

    Examples
    --------
    >>> result = linkability(Params.profile("balanced"), devices=1_000_000, reports=[2])
    >>> result.cohort_devices, f"{result.recognised[0].probability:.0%}"
    (7812, '20%')
    """
    check_integer("devices", devices, 1)
    for n in reports:
        check_integer("reports", n, 1, _MOST_IN_A_SET)
    # A report names its cohort. Fewer devices than cohorts leave the device alone in its cohort.
    cohort_devices, n_true = max(1, round(devices / params.m)), count_true_bits(params)
    recognised = [
        Recognition(reports=n, probability=recognition_probability(params, n, cohort_devices))
        for n in reports
    ]
    recognised.append(
        Recognition(reports=None, probability=recognition_limit(params, cohort_devices))
    )
    return Linkability(
        devices=devices,
        cohort_devices=cohort_devices,
        cohort_bits=cohort_bits(params),
        # The permanent bits are independent given the value, so their entropies add.
        permanent_bits=(params.k - n_true) * _entropy(params.f1) + n_true * _entropy(params.f0),
        recognised=tuple(recognised),
        reports_to_recover=reports_to_recover(params),
    )


def cohort_bits(*params: Params) -> float:
    """Compute the information of cohorts about the device, in bits: the sum of log2 m.

    Parameters
    ----------
    params : the parameters of all metrics that report in one upload.
    """
    return sum(math.log2(parameter_set.m) for parameter_set in params)


def reports_to_recover(params: Params) -> int | None:
    """Compute the number of reports from which all k bits of a permanent response are recovered.

    The observer guesses the likelier state of every bit, with 0 and 1 equally likely. The result is
    the smallest number of reports for which all guesses are right with probability 0.99. The value
    behind the permanent response stays protected by epsilon_inf.

    Returns
    -------
    The number of reports, or None if 10,000 reports are not enough.
    """

    def is_recovered(n: int) -> bool:
        # The guess of a bit is wrong with half the overlap of the two distributions.
        zero, one = (
            [binomial_probability(n, x, p) for x in range(n + 1)] for p in (params.p, params.q)
        )
        error = sum(map(min, zero, one)) / 2
        return params.k * math.log1p(-error) >= math.log(_CERTAIN)

    if not is_recovered(_MOST_REPORTS):
        return None
    # Bisection needs a monotone function: more reports never make the guess of a bit worse.
    return 1 + bisect.bisect_left(range(1, _MOST_REPORTS), x=True, key=is_recovered)


def _entropy(probability: float) -> float:
    """Compute the entropy of one bit, in bits."""
    return sum(x * -math.log2(x) for x in (probability, 1 - probability) if 0 < x < 1)
