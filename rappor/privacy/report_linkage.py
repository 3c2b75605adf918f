"""Linkability: how well an observer recognises that two reports come from one device.

A report contains no name of a device. Within a scope (one metric in one epoch), however, a device
stays in its cohort, and all its reports repeat one permanent response: the noisy bits that the
device drew once. Its reports therefore agree more often than reports of two devices. Reports of
different scopes have independent cohorts and permanent responses. Only a common upload, a network
address or the time of sending can link such reports.

The input is a parameter set and a number of devices. The output has four measures: information of
the cohort, entropy of the permanent response, probability of recognition, and number of reports
that reveal the permanent response.
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
"""Default numbers of reports in a set. The observer compares two sets of the same size, and
`linkability` computes a probability for each size. A convention: one report, the first days of a
daily metric, and most of a month."""

_MOST_IN_A_SET: Final = 1000
"""Largest number of reports in a set, almost three years of daily reports. The limit bounds the
time of the computation, which grows with the square of the number."""

_CERTAIN: Final = 0.99
"""Probability that all bits of a permanent response are recovered correctly. `reports_to_recover`
searches the number of reports that reaches the probability. A convention."""

_MOST_REPORTS: Final = 10_000
"""Largest number of reports that `reports_to_recover` tries, 27 years of daily reports. It returns
None if more reports are necessary."""


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
    If values are strings, all devices are assumed to have different strings. If values are
    categories, numbers or booleans, all devices are assumed to have the same value, so only the
    permanent noise distinguishes them.

    Attributes
    ----------
    devices : number of devices in all.
    cohort_devices : expected number of devices of one cohort: devices / m, rounded, at least 1.
    cohort_bits : information of the cohort about the device, log2 m bits.
    permanent_bits : entropy of the permanent response if the value is known, in bits. An observer
        who recovers the permanent response learns this information about the device. The entropy
        is 0 for bits with f = 0, because the device then draws no permanent noise. Generalized
        randomized response has `keep` in place of f, and its entropy is above 0.
    recognised : probability of recognition for each number of reports in a set. The last entry is
        for the largest sets: half of the reports of a scope, or any number if a scope has no limit.
        Empty if a device sends one report in a scope.
    reports_to_recover : number of reports after which all bits of a permanent response are
        recovered with 99 % probability; None if the reports of a scope, or 10,000 reports, are not
        enough.
    """

    devices: int
    cohort_devices: int
    cohort_bits: float
    permanent_bits: float
    recognised: tuple[Recognition, ...]
    reports_to_recover: int | None


def linkability(
    params: Params,
    devices: int = 1_000_000,
    reports: Sequence[int] = REPORTS,
    *,
    most_reports: int | None = None,
) -> Linkability:
    """Compute how well an observer links reports of one device.

    `rappor.privacy.recognition` describes the observer and the assumptions.

    Parameters
    ----------
    params : the parameters of the reports.
    devices : number of devices among which a device is recognised, in all cohorts together.
    reports : numbers of reports in each of the two sets that the observer compares.
    most_reports : largest number of reports of a device in one scope (`registry.budget`); None
        without a limit. Reports of two scopes are not linked by their noise, so both sets together
        have at most this number of reports.

    Returns
    -------
    Linkability. `recognised` has an entry for each number of reports of which a scope allows two
    sets, and a last entry for the largest sets.

    Raises
    ------
    ParamsError
        devices is not a positive integer, or a number of reports, or half of `most_reports`, is not
        in [1, 1,000].

    Examples
    --------
    >>> result = linkability(Params.profile("balanced"), devices=1_000_000, reports=[2])
    >>> result.cohort_devices, f"{result.recognised[0].probability:.0%}"
    (7812, '20%')
    >>> weekly = linkability(Params.profile("balanced"), most_reports=14)  # weeks of a quarter
    >>> [(row.reports, f"{row.probability:.0%}") for row in weekly.recognised]
    [(1, '1%'), (2, '20%'), (5, '78%'), (7, '88%')]
    """
    check_integer("devices", devices, 1)
    for n in reports:
        check_integer("reports", n, 1, _MOST_IN_A_SET)
    sizes = _limit_sizes(reports, most_reports)
    n_true = count_true_bits(params)
    # Case: fewer devices than cohorts. The device is alone in its cohort and always recognised.
    cohort_devices = max(1, round(devices / params.m))
    recognised = [
        Recognition(reports=n, probability=recognition_probability(params, n, cohort_devices))
        for n in sizes
    ]
    if most_reports is None:
        limit = recognition_limit(params, cohort_devices)
        recognised.append(Recognition(reports=None, probability=limit))
    if params.response.is_exclusive:
        # Case: generalized randomized response. The permanent response names one of k buckets. Each
        # of the n buckets of the device's value is named with probability q*, and each of the other
        # k - n buckets with probability p*. The entropy of the named bucket is the sum of
        # -P log2 P over all buckets.
        n = params.items
        permanent_bits = -n * params.q_star * math.log2(params.q_star)
        permanent_bits -= (params.k - n) * params.p_star * math.log2(params.p_star)
    else:
        # Given the value, the permanent bits are independent, so their entropies add. n_true bits
        # of the value are 1, and each becomes a permanent 0 with probability f0. The other bits are
        # 0, and each becomes a permanent 1 with probability f1.
        entropy_of_zeros = (params.k - n_true) * _compute_entropy(params.f1)
        permanent_bits = entropy_of_zeros + n_true * _compute_entropy(params.f0)
    return Linkability(
        devices=devices,
        cohort_devices=cohort_devices,
        cohort_bits=cohort_bits(params),
        permanent_bits=permanent_bits,
        recognised=tuple(recognised),
        reports_to_recover=_recover_within(params, most_reports),
    )


def _limit_sizes(reports: Sequence[int], most_reports: int | None) -> tuple[int, ...]:
    """Return the sizes of two equal sets of reports that one scope allows, the largest one last."""
    if most_reports is None:
        return tuple(reports)
    largest = most_reports // 2
    # Case: one report in a scope. No scope has two sets of reports.
    if not largest:
        return ()
    check_integer("half of most_reports", largest, 1, _MOST_IN_A_SET)
    return (*(n for n in reports if n < largest), largest)


def _recover_within(params: Params, most_reports: int | None) -> int | None:
    """Return `reports_to_recover`, or None if a scope allows fewer reports."""
    needed = reports_to_recover(params)
    if needed is None or (most_reports is not None and needed > most_reports):
        return None
    return needed


def cohort_bits(*params: Params) -> float:
    """Compute the information of cohorts about the device, in bits: the sum of log2 m.

    Parameters
    ----------
    params : the parameters of each metric whose cohort an observer links to the device. m is the
        number of cohorts of a metric.
    """
    return sum(math.log2(parameter_set.m) for parameter_set in params)


def reports_to_recover(params: Params) -> int | None:
    """Compute the number of reports from which all k bits of a permanent response are recovered.

    The observer guesses every permanent bit from its number of ones in n reports. Before the
    reports, 0 and 1 are equally likely. The result is the smallest n for which all k guesses are
    right with probability 0.99. The permanent response is itself noisy. So even an observer who
    recovers all its bits learns about the value at most the privacy loss epsilon_inf.

    Returns
    -------
    The number of reports, or None if 10,000 reports are not enough.
    """

    def is_recovered(n: int) -> bool:
        """Return whether n reports reveal all bits with probability 0.99."""
        # Distributions of the number of ones if the permanent bit is 0 and if it is 1. The guess is
        # wrong with half the sum of the smaller probabilities.
        if_zero, if_one = (
            [binomial_probability(n, x, p) for x in range(n + 1)] for p in (params.p, params.q)
        )
        error = sum(map(min, if_zero, if_one)) / 2
        # All k guesses are right with probability (1 - error)^k.
        return params.k * math.log1p(-error) >= math.log(_CERTAIN)

    # Both searches need a monotone function: more reports never make the guess of a bit worse. The
    # first search doubles n, because one evaluation takes time in proportion to n.
    too_few, enough = 0, 1
    while not is_recovered(enough):
        if enough == _MOST_REPORTS:
            return None
        too_few, enough = enough, min(2 * enough, _MOST_REPORTS)
    return too_few + 1 + bisect.bisect_left(range(too_few + 1, enough), x=True, key=is_recovered)


def _compute_entropy(probability: float) -> float:
    """Compute the entropy of one bit, in bits."""
    return sum(x * -math.log2(x) for x in (probability, 1 - probability) if 0 < x < 1)
