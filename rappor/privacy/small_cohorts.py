"""Share of the cohorts with enough reports for a release, and a good number of cohorts.

A cohort is a group of devices with the same hash functions, and a device draws its cohort at
random. An interval is the time in which a device sends at most one report: a day, a week or an
epoch. The collector releases a block (whole days of one cohort) only if the block has at least
`min_cohort` reports for each interval, because the sum of one device would be the report of the
device. Too many cohorts therefore delay or prevent releases.

Two multiples of `min_cohort` occur. A metric in operation gets a warning if its cohorts expect
fewer than twice `min_cohort` reports (`CohortFilling.is_m_too_large`). A plan, and the number that
the warning recommends, have three times as many, because their number of devices is a guess. Both
are the result of `choose_list_cohorts`: 8 cohorts for 300 devices and `min_cohort` 10. The warning
once recommended 15, the largest number without a warning, while a plan had 8.

Of n devices that report in an interval, a cohort has Binomial(n, 1/m) devices, m being the number
of cohorts. Example: with 1,000 devices and 128 cohorts, a cohort has 7.8 devices on average, and
26 % of the cohorts have 10.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_PLENTY: Final = 2
"""Expected number of reports of a cohort in an interval, as a multiple of `min_cohort`, that
suffices for a release. With the default `min_cohort` 10, the multiple 2 gives 20 expected reports,
and 99.5 % of the cohorts have at least 10. A larger multiple warns of more metrics."""

_LIST_PLENTY: Final = 3
"""Expected number of reports of a cohort in an interval, as a multiple of `min_cohort`, for a
planned metric with a list of candidates. The margin is larger than `_PLENTY`, because the expected
number of a plan is a guess. With half of the guessed devices, most cohorts still have `min_cohort`
reports."""

_LEAST_LIST_COHORTS, _MOST_LIST_COHORTS = 4, 128
"""Smallest and largest number of cohorts of a planned metric with a list. With fewer cohorts, two
of a thousand strings may have the same bits in all cohorts, and counts could not distinguish them.
More cohorts gain little accuracy, and a rarer cohort links the reports of a device better."""


def choose_list_cohorts(
    reports: float, *, min_cohort: int, largest_m: int = _MOST_LIST_COHORTS
) -> int:
    """Choose the number of cohorts of a metric of strings or sets.

    The choice is the largest power of 2 from 4 to `largest_m` that gives each cohort three times
    `min_cohort` expected reports. It is 4 if no power of 2 does.

    Parameters
    ----------
    reports : expected reports in an interval. For a metric with parts, expected reports of its
        smallest part.
    min_cohort : number of reports in an interval below which no block of a cohort is released.
    largest_m : largest number of cohorts, a power of 2.

    Examples
    --------
    >>> choose_list_cohorts(300, min_cohort=10), choose_list_cohorts(1e6, min_cohort=10)
    (8, 128)
    """
    m = largest_m
    while m > _LEAST_LIST_COHORTS and reports < _LIST_PLENTY * min_cohort * m:
        m //= 2
    return m


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortFilling:
    """Random distribution of devices over m cohorts, and the share of the cohorts that fill up.

    Attributes
    ----------
    devices : number of devices that report in an interval.
    m : number of cohorts.
    min_cohort : number of reports in an interval below which no block of a cohort is released.
    least_m : smallest number of cohorts that distinguishes the candidates, if there are any.

    Examples
    --------
    >>> filling = CohortFilling(devices=1000, m=128, min_cohort=10)
    >>> filling.is_m_too_large, filling.largest_m, round(filling.share, 2)
    (True, 50, 0.26)
    >>> filling.recommended_m
    32
    """

    devices: int
    m: int
    min_cohort: int
    least_m: int = 1

    @property
    def is_m_too_large(self) -> bool:
        """Whether fewer cohorts would release more."""
        return self.m > self.largest_m

    @property
    def largest_m(self) -> int:
        """Largest number of cohorts with enough expected reports, at least 1."""
        return max(self.devices // (_PLENTY * self.min_cohort), 1)

    @property
    def recommended_m(self) -> int:
        """The number of cohorts that a plan chooses. It may exceed `largest_m` for few devices."""
        return max(choose_list_cohorts(self.devices, min_cohort=self.min_cohort), self.least_m)

    @property
    def share(self) -> float:
        """Expected share of cohorts with `min_cohort` reports in an interval."""
        n, m = self.devices, self.m
        # Case: all devices are in one cohort. The formula below would compute log1p(-1), which is
        # infinite.
        if m == 1:
            return float(n >= self.min_cohort)
        # These are P(Binomial(n, 1/m) = i) for i below min_cohort. The code adds logarithms,
        # because a binomial coefficient of many devices exceeds the largest float.
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
        # Rounding errors of the sum could exceed 1.
        return max(0.0, 1.0 - math.fsum(below))

    @property
    def summary(self) -> str:
        """Sentence with the share of cohorts that can be released, and the recommended m.

        If the devices are too few for the recommended m, the sentence has the number of devices
        from which on they are enough.
        """
        share = (
            f"of {self.m:,} cohorts, {100 * self.share:.0f} % have at least {self.min_cohort:,} "
            "reports in an interval; "
        )
        # Case: 40 devices. Two cohorts would have enough reports, but strings with the same bits in
        # both cohorts could not be distinguished.
        if self.recommended_m > self.largest_m:
            return (
                f"{share}no m would do below {_PLENTY * self.min_cohort * self.recommended_m:,} "
                f"devices, which need m = {self.recommended_m:,}"
            )
        return f"{share}m = {self.recommended_m:,} would do"
