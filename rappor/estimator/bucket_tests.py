"""Exact tests of items of sets if there are few reports: by the reports that name their buckets.

A report of a set names one bucket of its cohort, and an item belongs to one bucket of each cohort.
If there are few reports, the buckets of an absent item are named .4 times in all cohorts together.
Such a number is not normal, and a fit of single reports selects items because of these reports. The
decoder then calls `count_bucket_reports`, and takes p-values and lower interval ends from the
numbers of reports themselves.

*Example.* A cohort has 464 buckets, and 200 reports come from 128 cohorts. The buckets of an absent
item are named 200 / 464 = .43 times on average, and 4 times or more often with probability .001.
Four reports are 5.4 standard deviations above the mean, for which a normal tail is 3e-8.

Theory of operation
-------------------
| symbol | meaning |
|---|---|
| X | number of reports, of all cohorts, that name a bucket of the item |
| N, k, n | number of reports, of buckets of a cohort, and of own buckets of a device |
| V | expected X of an absent item: N / k |
| pi | share of the devices with the item |
| R | reports per device, averaged over reports |

*P-values.* In each cohort the bucket of an absent item is uniform among the k buckets, whatever
strings the devices have. So X is a sum of independent draws, one from the counts of each cohort.
The counts are known, and the distribution of the sum is computed by convolution. The p-value of X
is its upper tail. It is valid for every number of reports, and needs no fit.

With many reports the test would have less power than the regression, which knows the frequent items
of a bucket. The regression is therefore used from V = `_FEW_REPORTS` on. Mean number of detections
in eight collections with 300 absent items, false ones in parentheses:

| m | reports | V | exact test | regression |
|---|---|---|---|---|
| 8 | 500 | 1.1 | 3.2 (.1) | .2 (0) |
| 32 | 1,000 | 2.2 | 4.8 (.1) | 3.1 (0) |
| 32 | 2,000 | 4.3 | 5.9 (.4) | 5.2 (.6) |
| 128 | 2,000 | 4.3 | 5.8 (.1) | 5.4 (.1) |
| 32 | 4,000 | 8.6 | 6.1 (.2) | 7.4 (.5) |
| 128 | 4,000 | 8.6 | 6.8 (.6) | 6.9 (.5) |

*Lower ends.* A report of a random device names the bucket of an item of share pi with probability

    1/k + (k - n)/k (q* - p*) pi

(`rappor.protocol.responses.generalized_response`). The second term adds a Poisson number to the
draws of an absent item. The lower end of an interval is the share at which the sum reaches X with
half of the error of the interval. It is 0 if an absent item reaches X as often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import special

from rappor.counts.arrays import Floats, Integers
from rappor.estimator.debias import Target
from rappor.estimator.design_matrix import Columns
from rappor.estimator.set_refit import has_sets

_FEW_REPORTS: Final = 5.0
"""Expected number of reports, of different devices, that name the bucket of an absent item, below
which tests and lower ends are exact. With a larger number, the exact tests would detect fewer items
than the regression (table of the module)."""

_BLOCK: Final = 4096
"""Number of candidates whose reports are counted at a time. Their columns take 8 MB at 128
cohorts."""

_HALVINGS: Final = 60
"""Number of bisections of the search for a lower end, which find it to its last bit."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BucketCounts:
    """Numbers of reports that name the buckets of c candidates.

    Attributes
    ----------
    reports : (c,) int64. X of each candidate.
    probabilities : (x,) float64. Probability that an absent item has 0, 1, 2, ... reports.
    reports_of_all_devices : expected increase of X if the share grows from 0 to 1.
    reports_per_device : R.
    """

    reports: Integers
    probabilities: Floats
    reports_of_all_devices: float
    reports_per_device: float

    @property
    def tail(self) -> Floats:
        """(x,) float64. Probability that an absent item has at least 0, 1, 2, ... reports."""
        return np.asarray(np.minimum(np.cumsum(self.probabilities[::-1])[::-1], 1.0))

    def p_values(self) -> Floats:
        """Compute one-sided p-values: P(at least this number of reports) of an absent item, (c,).

        A candidate never has more reports than an absent item can have, because its buckets are
        among those that are drawn.
        """
        return self.tail[self.reports]

    def lower_ends(self, low: Floats, error: float | Floats) -> Floats:
        """Compute lower ends of intervals, (c,), that are at most the exact ends.

        Only ends above 0 are lowered: no share is below 0, so the true share is above all others.

        Parameters
        ----------
        low : (c,) float64. Lower ends from the standard errors.
        error : probability that the interval misses the true share, a number or (c,) float64.
        """
        lowered = low.copy()
        is_tested = low > 0
        errors = np.broadcast_to(error, low.shape)[is_tested]
        # Few candidates have such an end, and many of them have equal numbers of reports.
        pairs, position = np.unique(
            np.column_stack([self.reports[is_tested], errors]), axis=0, return_inverse=True
        )
        ends = self._find_shares(pairs[:, 0], pairs[:, 1] / 2)
        lowered[is_tested] = np.minimum(low[is_tested], ends[position.ravel()])
        return lowered

    def compute_threshold_ratio(self, p_values: Floats, candidates: Integers) -> Floats:
        """Compute the part of the excess reports with which candidates are just detected, (d,).

        The excess is the number of reports above the number that an absent item has on average.

        Parameters
        ----------
        p_values : (d,) float64. Largest p-value at which each candidate is detected.
        candidates : (d,) int64. Detected candidates.
        """
        expected = float(self.probabilities @ np.arange(len(self.probabilities)))
        # The tail falls, and `searchsorted` needs rising numbers.
        fewest = np.searchsorted(-self.tail, -p_values)
        # Case: an error rate so large that an item with no more reports than the mean is detected.
        # One report less hides it, so the ratio is 1.
        excess = np.maximum(self.reports[candidates] - expected, np.finfo(float).tiny)
        return np.asarray(np.minimum((fewest - expected) / excess, 1.0))

    def _find_shares(self, reports: Floats, tail: Floats) -> Floats:
        """Compute the shares, (d,), at which X reaches numbers of reports with given probabilities.

        Parameters
        ----------
        reports : (d,) float64. The numbers.
        tail : (d,) float64. The probabilities. If an absent item reaches the number with a larger
            probability, the share is 0.
        """
        # Number of further reports of devices with the item, for each number of an absent item. All
        # R reports of a device are equal.
        needed = np.ceil(
            (reports[:, None] - np.arange(len(self.probabilities))) / self.reports_per_device
        )
        low, high = np.zeros(len(reports)), reports.copy()
        for _ in range(_HALVINGS):
            mean = (low + high) / 2
            # P(Poisson(mean) >= needed) is the incomplete gamma function.
            reached = np.where(
                needed > 0, special.gammainc(np.maximum(needed, 1.0), mean[:, None]), 1.0
            )
            is_too_high = reached @ self.probabilities > tail
            low, high = np.where(is_too_high, low, mean), np.where(is_too_high, mean, high)
        return np.asarray(low * self.reports_per_device / self.reports_of_all_devices)


def count_bucket_reports(target: Target, design: Columns) -> BucketCounts | None:
    """Count the reports that name the buckets of each candidate; None if the tests are not needed.

    They are not needed if the reports are not of sets, or if there are many reports.

    Parameters
    ----------
    target : n rows.
    design : the matrix of zeros and ones of all candidates in memory.
    """
    if not has_sets(target):
        return None
    expected = sum(
        devices / counts.params.k
        for counts, devices in zip(target.counts, target.effective_devices, strict=True)
    )
    if expected >= _FEW_REPORTS:
        return None
    probabilities = np.array([1.0])
    reports_of_all_devices = 0.0
    for counts in target.counts:
        params = counts.params
        k, gap = params.k, params.q_star - params.p_star
        reports_of_all_devices += counts.n_reports * (k - params.items) / k * gap
        for in_buckets in counts.bit_counts:
            probabilities = np.convolve(probabilities, np.bincount(in_buckets) / k)
    named = np.concatenate([counts.bit_counts.ravel() for counts in target.counts])
    reports = np.empty(design.n_candidates, dtype=np.int64)
    for start in range(0, design.n_candidates, _BLOCK):
        block = np.arange(start, min(start + _BLOCK, design.n_candidates))
        reports[block] = np.rint(design.columns(block).T @ named)
    return BucketCounts(
        reports=reports,
        probabilities=probabilities,
        reports_of_all_devices=reports_of_all_devices,
        reports_per_device=target.n_reports / float(target.effective_devices.sum()),
    )
