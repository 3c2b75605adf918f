"""How much the devices of several days overlap, from the counts of the days alone.

Theory of operation
-------------------
Day t of one collection has c_t ones among the N_t reports of a bit in a cohort; C and N are the
sums over the T days. With mu the mean of the bit, one report has the variance

    within + between,   between = (mu - p) (q - mu),   within = mu (1 - mu) - between

of which between, the device's value and its permanent response, comes again with each of its
reports. With S_t and S the sums of the devices' squared reports on day t and on all days, the
variance of c_t is N_t within + S_t between, and that of C is N within + S between. So the variation
of the days around their common mean,

    Q = sum over t of (c_t - N_t C / N)^2 / N_t,

has the expectation (T - 1) within + between (sum of S_t / N_t - S / N): days of the same devices
agree better than days of others. What is unknown is R = S / N. With r = sum of S_t / N_t known,

    R = r - (sum of Q - (T - 1) within) / (sum of between)

over all bits and cohorts, thousands of them, with an error known from their variation. Strings that
are no candidates shift all days alike and leave R as it is; no device is told from another.

Shares that change from day to day look like other devices. So bits are left out that frequent
strings set, whose ones are more than noise alone brings above the median of their cohort, and bits
whose days vary more than noise does. The latter makes R larger, which is the safe side.
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
"""Bits of a report below which all of them are used: the median of a few is no background."""

HEAVY: Final = 3.0
"""Standard deviations above the median from which a bit is set by a frequent string: noise alone
leaves out one bit in 700."""

_OUTLIER: Final = 1e-4
"""Probability that noise alone leaves a bit out: this raises R by at most .2 % of Q,
less than the error of any collection that fits a computer's memory as days."""

_ROUNDS: Final = 4
"""Rounds in which R and the bits that are left out settle: the third changes R by less than a
tenth of its error."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """An estimate of R, the reports a device in the mean over reports, and its standard error."""

    reports_per_device: float
    std_error: float


class _Bits(NamedTuple):
    """The n bits that are used: variation, and the parts of its expectation, (n,) float64 each."""

    variation: Floats
    degrees: Floats
    within: Floats
    between: Floats
    same_day: Floats
    reports: Floats

    def take(self, used: Booleans) -> _Bits:
        return _Bits(*(column[used] for column in self))

    def unbiased_between(self, repeated: float) -> Floats:
        """Return between without what the error of mu takes from its square."""
        return np.asarray(self.between + (self.within + repeated * self.between) / self.reports)

    def expected(self, repeated: float) -> Floats:
        """Return the expectation of the variation if R were this number."""
        between = self.unbiased_between(repeated)
        return np.asarray(self.degrees * self.within + between * (self.same_day - repeated))


def estimate_overlap(days: Sequence[Counts], repeated: Sequence[float]) -> Overlap | None:
    """Estimate R from two or more collections with reports, of one parameter set.

    `repeated` has S_t / N_t of each. The answer is None where the counts cannot tell.
    """
    bits = _bits(days, np.array(repeated))
    if not bits.between.sum() > 0:
        return None
    used, estimate, error = bits, float(np.max(repeated)), math.inf
    for _ in range(_ROUNDS):
        between = float(used.unbiased_between(estimate).sum())
        if not between > 0:
            return None
        agreement = used.unbiased_between(estimate) * used.same_day
        agreement += used.degrees * used.within - used.variation
        estimate = float(agreement.sum()) / between
        error = _error(used, agreement, estimate) / between
        limit = special.chdtri(bits.degrees, _OUTLIER) / bits.degrees
        expected = bits.expected(estimate)
        used = bits.take((expected > 0) & (bits.variation <= limit * expected))
        if len(used.variation) == 0:
            return None
    return Overlap(estimate, error)


def _error(used: _Bits, agreement: Floats, estimate: float) -> float:
    """Return the standard error of the sum: from the variation, at least that of normal theory."""
    rest = agreement - used.unbiased_between(estimate) * estimate
    expected = np.maximum(used.expected(estimate), used.variation)
    normal = 2 * expected**2 / used.degrees
    return math.sqrt(max(float((rest**2).sum()), float(normal.sum())))


def _bits(days: Sequence[Counts], repeated: Floats) -> _Bits:
    """Add up the days of every bit, and keep those that are used."""
    params = days[0].params
    reports = np.array([day.cohort_reports for day in days], dtype=float)  # (T, m)
    ones = sum((day.bit_counts for day in days), np.zeros_like(days[0].bit_counts))
    total = reports.sum(axis=0)
    mean = ones / np.maximum(total, 1)[:, None]
    variation = np.zeros_like(mean)
    for day, n in zip(days, reports, strict=True):
        variation += (day.bit_counts - n[:, None] * mean) ** 2 / np.maximum(n, 1)[:, None]
    live = reports > 0
    degrees = live.sum(axis=0) - 1
    kept = np.repeat((degrees > 0)[:, None], params.k, axis=1)
    between = (mean - params.p) * (params.q - mean)
    within = mean * (1 - mean) - between
    same_day = repeated @ live
    if params.k >= _FEW_BITS:
        level = np.median(mean, axis=1)
        background = (level - params.p) * (params.q - level)
        variance = level * (1 - level) + np.maximum(background, 0) * (same_day - 1)
        noise = np.sqrt(np.maximum(variance, 0) / np.maximum(total, 1))
        kept &= mean <= (level + HEAVY * noise)[:, None]

    def spread(values: Floats) -> Floats:
        return np.asarray(np.broadcast_to(values[:, None], mean.shape)[kept], dtype=float)

    return _Bits(
        variation=variation[kept],
        degrees=spread(degrees),
        within=within[kept],
        between=between[kept],
        same_day=spread(same_day),
        reports=spread(total),
    )
