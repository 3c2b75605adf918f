"""Estimate from the counts of several days how often their devices report again.

`device_assumptions.py` calls `estimate_reports_per_device` if the analyst does not know the number
of devices. The input is the counts of several days. Days are an example: any collections of one
metric and one parameter set are treated alike. The output is R, the reports per device, and its
standard error.

*The idea.* If different devices report on each day, the proportion of ones of a bit varies from day
to day because each day has other devices. If the same devices report on all days, their values and
permanent responses are the same on all days, so the days vary less. The variation between the days
therefore shows how often devices report again.

Theory of operation
-------------------
| symbol | meaning |
|---|---|
| c_t, N_t | number of ones, number of reports of a bit in a cohort on day t of T days |
| C, N | sums of c_t and N_t over the days |
| S_t, S | sums of the squared numbers of reports of the devices, on day t and on all days |
| mu | probability of a 1 at the bit |
| R | S / N, which is estimated |
| r | sum of S_t / N_t over the days, which is known |
| Q | variation of the days around their common mean |

One report has the variance

    within + between,   between = (mu - p) (q - mu),   within = mu (1 - mu) - between

`between` is the variance of the value and the permanent response, which a device repeats in each of
its reports. `within` is the variance of the instantaneous response. Derivation: let B be the
permanent bit of a device, with P(B = 1) = b. A report has a 1 with probability q if B = 1, and p if
B = 0, so mu = p + b (q - p). The variance of this probability over the devices is

    between = b (1 - b) (q - p)^2 = (mu - p) (q - mu)

A report is a single 0 or 1, so its total variance is mu (1 - mu).

A device with x reports contributes x within + x^2 between to the variance of a sum of reports. So
the variance of c_t is N_t within + S_t between, and the variance of C is N within + S between. The
variation of the days around their common mean is

    Q = sum over t of (c_t - N_t C / N)^2 / N_t = sum over t of c_t^2 / N_t - C^2 / N

The first sum has the expectation T within + between (sum of S_t / N_t), and C^2 / N has the
expectation within + between S / N, both apart from the squared means N_t mu^2 and N mu^2, which
cancel. So the expectation of Q is

    (T - 1) within + between (sum of S_t / N_t - S / N)

If the same devices report on all days, S is large and Q is small: the days agree better than days
of different devices. Solving for S / N gives

    R = r - (sum of Q - (T - 1) within) / (sum of between)

The sums are over all bits and cohorts. These are thousands of terms, so their variation gives the
standard error. No list of candidates is needed: whatever strings set a bit, mu is the same on all
days if the shares of these strings are.

*Example.* Two days with 1,000 reports each, one report per device and day, so each S_t / N_t is 1
and r is 2. With p = .25, q = .75 and mu = .5, `between` is .25 (.25) = .0625 and `within` is
.25 - .0625 = .1875. If both days have different devices, S / N is 1, and Q has the expectation
.1875 + .0625 (2 - 1) = .25. If both days have the same devices, each device has two reports in all,
S / N is 4 (1,000) / 2,000 = 2, and Q has the expectation .1875. So a mean Q of .25 gives R = 1, and
a mean Q of .1875 gives R = 2.

A share that changes from day to day increases Q, as different devices do, so R would be too small.
Two kinds of bits are therefore left out:

- bits that frequent strings set: their mean exceeds the median of their cohort by more than noise
  does;
- bits whose days vary more than noise does. Leaving these out makes R larger. A larger R gives
  wider intervals, so an R that is a little too large is the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from scipy import special

from rappor.counts.arrays import Booleans, Floats
from rappor.counts.counts import Counts

_FEW_BITS: Final = 32
"""Number of bits of a report below which all bits are used. Frequent strings may set more than half
of so few bits. The median of the bits is then no estimate of a bit without frequent strings."""

FREQUENT_Z: Final = 3.0
"""Standard deviations above the median of its cohort beyond which a bit is set by a frequent
string. Noise alone leaves out one bit in 700."""

_OUTLIER_PROBABILITY: Final = 1e-4
"""Probability that noise alone leaves out a bit. The bits that noise leaves out have the largest Q.
With two days, Q divided by its expectation has a chi-squared distribution with one degree of
freedom. Its largest values, of probability .0001, are 17 times the mean on average. So without them
the sum of Q falls by .17 %, and R rises a little. With more days the sum falls less. The rise is
smaller than the standard error of R in all collections that a computer's memory could contain."""

_ROUNDS: Final = 4
"""Number of rounds. Each round estimates R from the used bits, and then leaves out the bits that
vary too much for this R. The third round changes R by less than a tenth of its error."""


@dataclass(frozen=True, slots=True)
class RepetitionEstimate:
    """An estimate of R, the reports per device averaged over reports, and its standard error."""

    reports_per_device: float
    std_error: float


class _Bits(NamedTuple):
    """The variation of the n used bits, and the terms of its expectation, (n,) float64 each.

    Attributes
    ----------
    variation : Q of each bit.
    degrees : number of days with reports of the bit's cohort, minus 1.
    within, between : variances of one report at the mean of the bit.
    same_day : r: sum of S_t / N_t over the days with reports.
    reports : N of the bit's cohort.
    """

    variation: Floats
    degrees: Floats
    within: Floats
    between: Floats
    same_day: Floats
    reports: Floats

    def take(self, used: Booleans) -> _Bits:
        """Return the bits where `used` is True."""
        return _Bits(*(column[used] for column in self))

    def compute_unbiased_between(self, reports_per_device: float) -> Floats:
        """Compute `between` without bias, (n,).

        `between` = (mu - p) (q - mu) contains -mu^2. The estimate of mu is C / N. C has the
        variance N within + S between, so the estimate has the variance (within + R between) / N.
        The square of an estimate is too large by the variance of the estimate, on average. So this
        variance is added.

        Parameters
        ----------
        reports_per_device : R.
        """
        return np.asarray(
            self.between + (self.within + reports_per_device * self.between) / self.reports
        )

    def compute_expectation(self, reports_per_device: float) -> Floats:
        """Compute the expectation of the variation, (n,), for a given R.

        Parameters
        ----------
        reports_per_device : R.
        """
        between = self.compute_unbiased_between(reports_per_device)
        return np.asarray(
            self.degrees * self.within + between * (self.same_day - reports_per_device)
        )


def estimate_reports_per_device(
    days: Sequence[Counts], daily_reports_per_device: Sequence[float]
) -> RepetitionEstimate | None:
    """Estimate R from two or more collections of one parameter set, each with reports.

    Parameters
    ----------
    days : the collections.
    daily_reports_per_device : S_t / N_t of each collection: its reports per device, averaged over
        reports. 1 if no device reports twice in the collection.

    Returns
    -------
    The estimate, or None if the counts do not determine R.
    """
    bits = _sum_days(days, np.array(daily_reports_per_device))
    # Without variance between devices (no permanent noise, and one value) repeated reports are
    # invisible.
    if not bits.between.sum() > 0:
        return None
    used, estimate, error = bits, float(np.max(daily_reports_per_device)), math.inf
    for _ in range(_ROUNDS):
        between = float(used.compute_unbiased_between(estimate).sum())
        if not between > 0:
            return None
        # The terms r between - (Q - (T - 1) within) of the formula for R, by bit.
        agreement = used.compute_unbiased_between(estimate) * used.same_day
        agreement += used.degrees * used.within - used.variation
        estimate = float(agreement.sum()) / between
        error = _compute_error(used, agreement, estimate) / between
        # Q divided by its expectation, times T - 1, has a chi-squared distribution under noise.
        limit = special.chdtri(bits.degrees, _OUTLIER_PROBABILITY) / bits.degrees
        expected = bits.compute_expectation(estimate)
        used = bits.take((expected > 0) & (bits.variation <= limit * expected))
        # Every bit varies more than noise: the shares change from day to day, and no bit shows the
        # devices.
        if len(used.variation) == 0:
            return None
    return RepetitionEstimate(estimate, error)


def _compute_error(used: _Bits, agreement: Floats, estimate: float) -> float:
    """Compute the standard error of the sum of `agreement` from its variation over the bits.

    With few bits the terms may vary little by chance. The error is therefore at least the error for
    normal counts. Q of a bit divided by E[Q] / (T - 1) then has a chi-squared distribution with
    T - 1 degrees of freedom and the variance 2 (T - 1). So Q has the variance 2 E[Q]^2 / (T - 1).

    Parameters
    ----------
    used : the used bits.
    agreement : (n,) float64. Terms whose sum divided by the sum of `between` is R.
    estimate : R.
    """
    deviation = agreement - used.compute_unbiased_between(estimate) * estimate
    # The expectation at the estimated R is itself uncertain. If R is overestimated, it is too small
    # or even negative. The observed Q then replaces it, so that the error is not too small.
    expected = np.maximum(used.compute_expectation(estimate), used.variation)
    normal = 2 * expected**2 / used.degrees
    return math.sqrt(max(float((deviation**2).sum()), float(normal.sum())))


def _sum_days(days: Sequence[Counts], daily_reports_per_device: Floats) -> _Bits:
    """Sum the days of every bit, and select the bits that are used.

    Parameters
    ----------
    days : T collections of one parameter set.
    daily_reports_per_device : (T,) float64. S_t / N_t of each day.
    """
    params = days[0].params
    reports = np.array([day.cohort_reports for day in days], dtype=float)  # (T, m)
    ones = sum((day.bit_counts for day in days), np.zeros_like(days[0].bit_counts))
    total = reports.sum(axis=0)
    mean = ones / np.maximum(total, 1)[:, None]
    variation = np.zeros_like(mean)
    for day, n in zip(days, reports, strict=True):
        variation += (day.bit_counts - n[:, None] * mean) ** 2 / np.maximum(n, 1)[:, None]
    has_reports = reports > 0
    degrees = has_reports.sum(axis=0) - 1
    used = np.repeat((degrees > 0)[:, None], params.k, axis=1)
    between = (mean - params.p) * (params.q - mean)
    within = mean * (1 - mean) - between
    same_day = daily_reports_per_device @ has_reports
    # Frequent strings change their share from day to day. Leave out the bits that they set.
    if params.k >= _FEW_BITS:
        # Most bits of a cohort are set by no frequent string, so the median of the means is the
        # mean of such a bit.
        level = np.median(mean, axis=1)
        between_at_level = (level - params.p) * (params.q - level)
        # A bit counts as frequent only if noise cannot explain its mean, however often devices
        # report again. So the variance is computed for the largest possible repetition. The mean
        # C / N has the variance (within + S / N between) / N. S / N is unknown here. It is largest
        # if the same devices report on all days, and is r then. Inserting r and
        # within = mu (1 - mu) - between gives mu (1 - mu) + (r - 1) between, divided by N.
        variance = level * (1 - level) + np.maximum(between_at_level, 0) * (same_day - 1)
        noise = np.sqrt(np.maximum(variance, 0) / np.maximum(total, 1))
        used &= mean <= (level + FREQUENT_Z * noise)[:, None]

    def select(values: Floats) -> Floats:
        return np.asarray(np.broadcast_to(values[:, None], mean.shape)[used], dtype=float)

    return _Bits(
        variation=variation[used],
        degrees=select(degrees),
        within=within[used],
        between=between[used],
        same_day=select(same_day),
        reports=select(total),
    )
