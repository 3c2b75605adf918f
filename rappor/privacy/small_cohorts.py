"""How many cohorts hold enough reports to be shown: a sum of one device is that device.

A collector shows a block of a cohort once it holds `min_cohort` reports for each interval. Devices
fall into cohorts at random, so of n active devices a cohort holds a binomial number, with
probability 1/m for each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_PLENTY: Final = 2
"""Expected reports of a cohort in an interval, as a multiple of `min_cohort`, that suffice: at 20
expected, 99.5 % of the cohorts hold 10."""

_LIST_PLENTY: Final = 3
"""Expected reports of a cohort in an interval, as a multiple of `min_cohort`, in a planned metric
with a list: the number of devices is a guess, and every cohort should close its blocks."""

_LEAST_LIST_COHORTS, _MOST_LIST_COHORTS = 4, 128
"""With fewer cohorts, two of a thousand strings may have the same bits in all of them. More than
128 gain a list little, and link the reports of a device more."""


def choose_list_cohorts(reports: float, *, min_cohort: int) -> int:
    """Return the cohorts of a string metric with a list, a power of 2 from 4 to 128.

    It is the largest that gives each cohort three times `min_cohort` expected reports.

    Parameters
    ----------
    reports : expected reports in an interval; of a metric with parts, those of its smallest part.
    min_cohort : reports of an interval below which no block of a cohort is released.

    Examples
    --------
    >>> cohorts_of_list(300, min_cohort=10), cohorts_of_list(1e6, min_cohort=10)
    (8, 128)
    """
    m = _MOST_LIST_COHORTS
    while m > _LEAST_LIST_COHORTS and reports < _LIST_PLENTY * min_cohort * m:
        m //= 2
    return m


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortFilling:
    """How the devices that are active in one interval fill m cohorts.

    `devices` are those that report in an interval, such as a day; for a metric that reports every
    event they are reports of those days that are read together.
    """

    devices: int
    m: int
    min_cohort: int

    @property
    def is_m_too_large(self) -> bool:
        """Return whether fewer cohorts would show more."""
        return self.m > self.largest_m

    @property
    def largest_m(self) -> int:
        """The number of cohorts that the devices fill well, at least 1."""
        return max(self.devices // (_PLENTY * self.min_cohort), 1)

    @property
    def share(self) -> float:
        """The expected share of cohorts that hold `min_cohort` reports in an interval."""
        n, m = self.devices, self.m
        if m == 1:
            return float(n >= self.min_cohort)
        below = (
            math.exp(
                math.lgamma(n + 1)
                - math.lgamma(i + 1)
                - math.lgamma(n - i + 1)
                - i * math.log(m)
                + (n - i) * math.log1p(-1 / m)
            )
            for i in range(min(self.min_cohort, n + 1))
        )
        return max(0.0, 1.0 - math.fsum(below))

    @property
    def summary(self) -> str:
        """How many cohorts can be shown, and the m that would do."""
        return (
            f"of {self.m:,} cohorts, {100 * self.share:.0f} % have at least {self.min_cohort:,} "
            f"reports in an interval; m = {self.largest_m:,} would do"
        )
