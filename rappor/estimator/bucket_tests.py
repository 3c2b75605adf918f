"""Exact tests of items of sets with few reports, from the number of reports in each item's buckets.

The value of a device is a set of items, such as its plugins. In each cohort a hash function maps an
item to one of k buckets. A report of a set names one bucket of the cohort of its device.

An absent item is an item of no device. With few reports, the number of reports that name the
buckets of an absent item is far from normal. The regression may then select an absent item because
of a single report. The residual of this report is missing from the distribution with which the
regression compares the other items, so p-values of the regression are wrong. The decoder therefore
calls `count_bucket_reports`. If there are few reports, the decoder takes p-values and lower
interval ends from the resulting `BucketCounts` and not from the regression.

*Example.* A cohort has 464 buckets, and 128 cohorts have 200 reports together. The buckets of an
absent item are named 200 / 464 = .43 times on average, and 4 times or more often with probability
.001. Four reports are 5.4 standard deviations above the mean, for which a normal tail is 3e-8.

Theory of operation
-------------------
| symbol | meaning |
|---|---|
| N | number of reports of all cohorts |
| m | number of cohorts |
| k | number of buckets of a cohort |
| n | number of own buckets of a device: the buckets of its items, padded or cut to n |
| X | number of reports of all cohorts that name the bucket of an item in their cohort |
| R | reports per device, averaged over reports (`rappor.estimator.debias`) |
| V | mean number of devices whose reports name the bucket of an absent item: N / (R k) |
| pi | share of the devices with the item |

*P-values.* In each cohort the bucket of an absent item is uniform among the k buckets, whatever
items the devices have. So X is a sum of independent draws, one for each cohort: the number of
reports of a random bucket. The numbers of reports of all buckets are known, so convolution gives
the exact distribution of X. The p-value is the upper tail of this distribution at the observed X.
The p-value holds for every number of reports, and needs no fit.

With many reports, the exact test has less power than the regression. The regression subtracts the
reports of frequent items from a bucket, and the exact test does not. The decoder therefore uses the
regression if V is at least `_FEW_REPORTS`. The table has mean numbers of detected items over eight
collections, in which 300 of the candidates are absent. Numbers of detected absent items are in
parentheses. k is 464, and every device reports once (R = 1).

| m | N | V | exact test | regression |
|---|---|---|---|---|
| 8 | 500 | 1.1 | 3.2 (.1) | .2 (0) |
| 32 | 1,000 | 2.2 | 4.8 (.1) | 3.1 (0) |
| 32 | 2,000 | 4.3 | 5.9 (.4) | 5.2 (.6) |
| 128 | 2,000 | 4.3 | 5.8 (.1) | 5.4 (.1) |
| 32 | 4,000 | 8.6 | 6.1 (.2) | 7.4 (.5) |
| 128 | 4,000 | 8.6 | 6.8 (.6) | 6.9 (.5) |

*Lower ends.* A report of a random device names the bucket of an item of share pi with probability

    1/k + (k - n)/k (q* - p*) pi

(`rappor.protocol.responses.generalized_response`). The first term is the probability for an absent
item. The second term adds a Poisson number of reports to the draws of an absent item. An interval
misses the true share with some probability, its error. Half of the error belongs to each end. The
lower end is the share pi at which the probability of X or more reports is half of the error. If an
absent item has X or more reports with a larger probability, the lower end is 0.
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
"""Value of V, in devices, below which tests and lower ends are exact. With a larger value, exact
tests would also replace regressions that detect more items (see the table of the module)."""

_BLOCK: Final = 4096
"""Number of candidates whose reports are counted at a time. The limit bounds memory: the columns of
these candidates take 8 MB at 128 cohorts."""

_HALVINGS: Final = 60
"""Number of bisections in the search for a lower end. A floating-point number has 53 bits, so 60
bisections find the lower end to its last bit."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BucketCounts:
    """Numbers of reports that name the buckets of c candidates, and of an absent item.

    The symbols are those of the table of the module.

    Attributes
    ----------
    reports : (c,) int64. X of each candidate.
    probabilities : (x,) float64. Probability that an absent item has 0, 1, 2, ... reports.
    reports_of_all_devices : increase of the mean of X, in reports, if pi grows from 0 to 1.
    reports_per_device : R, reports per device.
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
        """Compute the one-sided p-value of each candidate, (c,).

        The p-value is the probability that an absent item has at least the reports of the
        candidate.
        """
        # The buckets of a candidate are one outcome of the draws of an absent item. So no candidate
        # has more reports than the last index of `tail`.
        return self.tail[self.reports]

    def lower_ends(self, low: Floats, error: float | Floats) -> Floats:
        """Replace each lower end of an interval above the exact lower end by the exact end, (c,).

        Lower ends of 0 or less stay. They cannot exceed the true share, because no share is
        negative.

        Parameters
        ----------
        low : (c,) float64. Lower ends that follow from the standard errors of the regression.
        error : probability that the interval misses the true share, a number or (c,) float64. Half
            of the error belongs to the lower end.
        """
        lowered = low.copy()
        is_tested = low > 0
        errors = np.broadcast_to(error, low.shape)[is_tested]
        # Many candidates have the same number of reports and the same error. Each pair of both is
        # searched once, because a search takes 60 bisections.
        pairs, position = np.unique(
            np.column_stack([self.reports[is_tested], errors]), axis=0, return_inverse=True
        )
        ends = self._find_shares(pairs[:, 0], pairs[:, 1] / 2)
        lowered[is_tested] = np.minimum(low[is_tested], ends[position.ravel()])
        return lowered

    def compute_threshold_ratio(self, p_values: Floats, candidates: Integers) -> Floats:
        """Compute the detection threshold of each candidate as a ratio of its excess, (d,).

        The excess is the number of reports above the mean of an absent item. The detection
        threshold is the smallest excess at which the candidate is still detected.

        *Example.* An absent item has 2 reports on average. A candidate has 6 reports, and is
        detected with 4 reports or more. Its excess is 4, the threshold is 2, and the ratio is .5.

        Parameters
        ----------
        p_values : (d,) float64. Largest p-value at which each candidate is detected.
        candidates : (d,) int64. Indices of the detected candidates.
        """
        mean = float(self.probabilities @ np.arange(len(self.probabilities)))
        # Smallest number of reports whose p-value is small enough. The tail falls, and
        # `searchsorted` needs rising numbers.
        fewest = np.searchsorted(-self.tail, -p_values)
        excess = self.reports[candidates] - mean
        # Case: an error rate so large that a candidate is detected with no more reports than the
        # mean. It has no excess to divide by. The ratio 1 states that a single report less hides
        # the candidate, which is the careful answer.
        ratio = np.ones(len(candidates))
        np.divide(fewest - mean, excess, out=ratio, where=excess > 0)
        return np.minimum(ratio, 1.0)

    def _find_shares(self, reports: Floats, tail: Floats) -> Floats:
        """Compute the shares, (d,), at which X has given upper tail probabilities.

        Assumption: each device with the item sends R reports, and all of them are equal. So a
        device adds 0 or R reports to X.

        Parameters
        ----------
        reports : (d,) float64. Numbers of reports.
        tail : (d,) float64. Probabilities that X is at least `reports` at the share. If an absent
            item has a larger probability, the share is 0.
        """
        # `needed` has a row for each of the d numbers of reports, and a column for each number of
        # reports that an absent item can have. An entry is the number of devices with the item
        # whose reports are needed in addition, so that X is at least `reports`.
        absent_reports = np.arange(len(self.probabilities))
        needed = np.ceil((reports[:, None] - absent_reports) / self.reports_per_device)
        # Bisection of the mean number of devices with the item that add their reports.
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
    """Count the reports that name the buckets of each candidate.

    Return None if the regression should compute the p-values: the values of the devices are not
    sets, or V is at least `_FEW_REPORTS`.

    Parameters
    ----------
    target : rows of the regression, with the counts of each collection.
    design : design matrix of the candidates. A column has a 1 in the row of each bucket of its
        candidate.
    """
    if not has_sets(target):
        return None
    # V. Equal reports of one device are no further evidence, so the numerator is N / R and not N.
    expected_devices = sum(
        devices / counts.params.k
        for counts, devices in zip(target.counts, target.effective_devices, strict=True)
    )
    if expected_devices >= _FEW_REPORTS:
        return None
    probabilities = np.array([1.0])
    reports_of_all_devices = 0.0
    for counts in target.counts:
        params = counts.params
        k, gap = params.k, params.q_star - params.p_star
        reports_of_all_devices += counts.n_reports * (k - params.items) / k * gap
        for reports_by_bucket in counts.bit_counts:
            # Distribution of the number of reports of a random bucket of this cohort.
            cohort_probabilities = np.bincount(reports_by_bucket) / k
            probabilities = np.convolve(probabilities, cohort_probabilities)
    reports_by_row = np.concatenate([counts.bit_counts.ravel() for counts in target.counts])
    reports = np.empty(design.n_candidates, dtype=np.int64)
    for start in range(0, design.n_candidates, _BLOCK):
        block = np.arange(start, min(start + _BLOCK, design.n_candidates))
        reports[block] = np.rint(design.columns(block).T @ reports_by_row)
    return BucketCounts(
        reports=reports,
        probabilities=probabilities,
        reports_of_all_devices=reports_of_all_devices,
        reports_per_device=target.n_reports / float(target.effective_devices.sum()),
    )
