"""Summary of the reports of one parameter set: sizes of cohorts, true bits, residuals.

`build_estimates` stores a `CollectionSummary` for each parameter set in `Estimates.collections`,
and pages display it. A *true bit* is a bit that a device's value sets before the bit is randomized.
The *residual* of a bit is the estimated share of the devices that set it, minus the share that the
fit explains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rappor.counts.arrays import Floats, Integers
from rappor.decoding.diagnostics import TrueBits, estimate_true_bits
from rappor.estimator.debias import Target
from rappor.estimator.device_assumptions import Repetition
from rappor.estimator.fit import Fit
from rappor.protocol.params import Params


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectionSummary:
    """The decoded reports of one metric under one parameter set.

    Attributes
    ----------
    metric : name of the metric.
    params : the parameter set.
    repetition : assumed reports per device, and number of counts that were added.
    reports : (m,) int64. Number of reports of each cohort.
    true_bits : mean number of true bits in the reports of each cohort.
    residuals : (m, k) float64. Residual of each bit, in standard deviations of its noise. NaN in
        cohorts without reports. None if each bit is a category, because nothing is fitted.
    sha256 : hash of the sum of all counts of the parameter set (`Counts.sha256`).
    """

    metric: str
    params: Params
    repetition: Repetition
    reports: Integers
    true_bits: TrueBits
    residuals: Floats | None
    sha256: str

    @property
    def n_reports(self) -> int:
        """Number of reports in all cohorts."""
        return int(self.reports.sum())


def describe_collected(target: Target, residual: Floats | None) -> tuple[CollectionSummary, ...]:
    """Describe each parameter set of the counts.

    `residual` is (n,), as `standardise` returns it.
    """
    return tuple(
        CollectionSummary(
            metric=counts.metric,
            params=counts.params,
            repetition=repetition,
            reports=counts.cohort_reports,
            true_bits=estimate_true_bits(target, number),
            residuals=None
            if residual is None
            else residual[target.collection_index == number].reshape(
                counts.params.m, counts.params.k
            ),
            sha256=counts.sha256,
        )
        for number, (counts, repetition) in enumerate(
            zip(target.counts, target.repetitions, strict=True)
        )
    )


def standardise(target: Target, fit: Fit) -> Floats:
    """Divide the residuals by the noise of their rows, including collisions, (n,) float64."""
    scale = np.sqrt(fit.coin_variance + fit.tau2)
    # Empty cohorts have infinite noise, and rows without noise have no scale. Both stay NaN, so
    # that no chart shows them as a perfect fit.
    has_noise = (target.reports > 0) & (scale > 0)
    standardised = np.full(len(target), np.nan)
    standardised[has_noise] = fit.residual[has_noise] / scale[has_noise]
    return standardised
