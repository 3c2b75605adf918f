"""Linkability: how well an observer recognises that two reports come from one device.

A scope is one metric in one epoch under one permanent response. Within a scope, a device stays in
its cohort and repeats its permanent response, so its reports agree more often than reports of two
devices. Reports of different scopes have nothing in common: other metrics and other epochs have
other cohorts and permanent responses. Only an upload, an address or the time links them.
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
"""Numbers of reports in each of two sets."""

_MOST_IN_A_SET: Final = 1000
_CERTAIN: Final = 0.99
_MOST_REPORTS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognition:
    """The probability that two sets of a device's reports are found to be its own.

    `reports` is the number of reports in each set, None for any number.
    """

    reports: int | None
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Linkability:
    """What links the reports of one device within one scope.

    A report names its cohort, so an observer compares a device with the `cohort_devices` of its
    own cohort only (devices / m). The probabilities in `recognised` are those of finding it among
    these, and so among all `devices`. Devices are taken to hold strings that differ; under other
    encodings, the same answer.

    `cohort_bits` is what the cohort tells about the device. `permanent_bits` is the entropy of the
    permanent response of a known value: what it tells once it is recovered, and 0 where f = 0.
    Both are in bits. After `reports_to_recover` reports all bits of a permanent response are known
    with 99 % probability; None if 10,000 reports are not enough.
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
    """Return what links the reports of one device among `devices` in all.

    Two sets of reports are compared, for each number of `reports` in a set, and at last for any
    number; `rappor.privacy.recognition` describes the observer. Raises ParamsError unless there is
    at least one device and every number of reports is in [1, 1,000].
    """
    check_integer("devices", devices, 1)
    for n in reports:
        check_integer("reports", n, 1, _MOST_IN_A_SET)
    cohort_devices, ones = max(1, round(devices / params.m)), count_true_bits(params)
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
        permanent_bits=(params.k - ones) * _entropy(params.f1) + ones * _entropy(params.f0),
        recognised=tuple(recognised),
        reports_to_recover=reports_to_recover(params),
    )


def cohort_bits(*params: Params) -> float:
    """Return the information of cohorts about the device, in bits: the sum of log2 m.

    Parameters
    ----------
    params : the parameters of all metrics that report in one upload.
    """
    return sum(math.log2(each.m) for each in params)


def reports_to_recover(params: Params) -> int | None:
    """Return the number of reports that reveal all k bits of a permanent response.

    This is the smallest number from which the likelier state of every bit is right with probability
    .99, if 0 and 1 are equally likely; None beyond ten thousand. The value behind the permanent
    response stays hidden, within epsilon_inf.
    """

    def enough(n: int) -> bool:
        # Half the overlap of both states is how often the reports of a bit mislead.
        zero, one = (
            [binomial_probability(n, x, p) for x in range(n + 1)] for p in (params.p, params.q)
        )
        misled = sum(map(min, zero, one)) / 2
        return params.k * math.log1p(-misled) >= math.log(_CERTAIN)

    if not enough(_MOST_REPORTS):
        return None
    # More reports never make the likelier state a worse guess.
    return 1 + bisect.bisect_left(range(1, _MOST_REPORTS), x=True, key=enough)


def _entropy(probability: float) -> float:
    """Return the entropy of one bit, in bits."""
    return sum(x * -math.log2(x) for x in (probability, 1 - probability) if 0 < x < 1)
