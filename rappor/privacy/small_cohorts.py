"""How many cohorts hold enough reports to be shown: a sum of one report is a report.

A collector shows a cohort once it holds `min_cohort` reports. Devices fall into cohorts at random,
so among n reports a cohort holds a binomial number, with probability 1/m for each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from rappor.ground.plurals import counted
from rappor.registry.metric import Metric

ENOUGH: Final = 0.9
"""Share of cohorts below which m is called too large for the reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """How `reports` reports fill m cohorts with `min_cohort` reports each.

    `share` is the expected share of cohorts that hold as many; `needed` is the number of reports
    at which nine in ten do.
    """

    reports: int
    m: int
    min_cohort: int
    share: float
    needed: int

    @property
    def m_is_too_large(self) -> bool:
        """Return whether more than one cohort in ten has too few reports."""
        return self.share < ENOUGH

    @property
    def summary(self) -> str:
        """How many cohorts have enough reports, and with how many reports most have."""
        return (
            f"with {counted(self.reports, 'report')}, {100 * self.share:.0f} % of {self.m:,} "
            f"cohorts have at least {self.min_cohort:,}; with about "
            f"{self.needed:,} reports, 90 % have"
        )


def fill(m: int, min_cohort: int, reports: int) -> Filling:
    """Return how a number of reports fills m cohorts."""
    return Filling(
        reports=reports,
        m=m,
        min_cohort=min_cohort,
        share=_share(m, min_cohort, reports),
        needed=_needed(m, min_cohort),
    )


def fill_cohorts(metric: Metric, reports: int | None = None) -> Filling:
    """Return how reports fill the metric's cohorts, which each segment has of its own.

    They are the metric's `min_reports` of one segment unless given; those that are given are
    spread evenly over all segments, which is the best that can be.
    """
    if reports is None:
        return fill(metric.params.m, metric.min_cohort, metric.min_reports)
    return fill(metric.params.m * metric.n_segments, metric.min_cohort, reports)


def _share(m: int, least: int, n: int) -> float:
    """Return the probability that a binomial number of n trials at 1/m is at least `least`."""
    if m == 1:
        return float(n >= least)
    below = (
        math.exp(
            math.lgamma(n + 1)
            - math.lgamma(i + 1)
            - math.lgamma(n - i + 1)
            - i * math.log(m)
            + (n - i) * math.log1p(-1 / m)
        )
        for i in range(min(least, n + 1))
    )
    return max(0.0, 1.0 - math.fsum(below))


def _needed(m: int, least: int) -> int:
    """Return the fewest reports that fill nine cohorts in ten."""
    low, high = least - 1, least * m
    while _share(m, least, high) < ENOUGH:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _share(m, least, middle) < ENOUGH:
            low = middle
        else:
            high = middle
    return high
