"""What the counts of one parameter set say of the collection, beside the estimates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rappor.counts.arrays import Floats, Integers
from rappor.decoding.diagnostics import TrueBits, true_bits
from rappor.estimator.debias import Target
from rappor.estimator.device_assumptions import Repetition
from rappor.estimator.fit import Fit
from rappor.protocol.params import Params


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Collected:
    """The reports of one metric under one parameter set, as they were decoded.

    Attributes
    ----------
    repetition : what is taken for their devices, and how many counts were added.
    reports : (m,) int64. The reports of each cohort.
    true_bits : the mean number of true bits of each cohort's reports.
    residuals : (m, k) float64. What the fit leaves of each bit, in standard deviations of its
        noise; NaN in cohorts without reports. None where each bit is an answer, and nothing fits.
    sha256 : hash of the counts (`Counts.sha256`), several of one kind added.
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
        """Reports in all cohorts."""
        return int(self.reports.sum())


def describe_collected(target: Target, residual: Floats | None) -> tuple[Collected, ...]:
    """Describe each parameter set of the counts; residual is (n,), as `standardise` returns it."""
    return tuple(
        Collected(
            metric=counts.metric,
            params=counts.params,
            repetition=repetition,
            reports=counts.cohort_reports,
            true_bits=true_bits(target, number),
            residuals=None
            if residual is None
            else residual[target.group == number].reshape(counts.params.m, counts.params.k),
            sha256=counts.sha256,
        )
        for number, (counts, repetition) in enumerate(
            zip(target.counts, target.repetitions, strict=True)
        )
    )


def standardise(target: Target, fit: Fit) -> Floats:
    """Return the residuals over the noise of their rows, collisions included, (n,) float64."""
    scale = np.sqrt(fit.noise + fit.tau2)
    live = (target.reports > 0) & (scale > 0)
    standardised = np.full(len(target), np.nan)
    standardised[live] = fit.residual[live] / scale[live]
    return standardised
