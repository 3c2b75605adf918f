"""De-bias counts: turn them into the rows of a regression, one row for each bit of a cohort.

Theory of operation
-------------------
A report has a 1 with probability mu = p* + (q* - p*) theta, and the variance mu (1 - mu). The
variance has two parts:

- between = (mu - p) (q - mu) is the variance between devices. It comes from the value and the
  permanent response, which is Bernoulli(mu') with mu = p + (q - p) mu'. Hence (q - p)^2 mu' (1 -
  mu') = (mu - p) (q - mu).
- The remaining variance comes from the instantaneous response, whose coins are new in every report.

Let S be the sum of the squared numbers of reports of the devices, and R = S / N the reports per
device, averaged over reports. The proportion of ones in N reports has the variance

    (mu (1 - mu) + (R - 1) between) / N

More devices reduce both parts. More reports per device reduce only the part of the instantaneous
response.

The rows of several collections are stacked. Each collection has its own effective probabilities,
noise and background. All collections share the proportions of the candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import special

from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.counts.counts import Counts
from rappor.estimator.device_assumptions import Repetition

_FEW_ONES: Final = 9.0
"""Variance of the ones in a row below which their distribution is not nearly normal. With a mean
below 12, the upper tail at 3.5 standard deviations is more than six times the normal tail."""

_TINY: Final = 1e-300
"""Number of devices of an empty cohort. The noise of its rows becomes large, and no division by
zero occurs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """The de-biased bits of all collections: the n rows of the regression.

    Attributes
    ----------
    proportions : (n,) float64. (c_ij / N_j - p*) / (q* - p*), unclipped ([EPK14] section 4).
    reports : (n,) float64. N_j of the row's cohort, 0 for an empty cohort.
    p_star, q_star : (n,) float64. Effective probabilities of the row.
    p, q : (n,) float64. Probabilities of the instantaneous response.
    reports_per_device : (n,) float64. R of the row's collection. It is 1 if every device reports
        once.
    collection_index : (n,) int64. Index of the row's collection.
    density : (n,) float64. Share of the rows that a random string sets: the height of the
        background.
    n_reports : number of reports in all collections.
    counts : the collections.
    repetitions : the assumed reports per device of each collection.
    """

    proportions: Floats
    reports: Floats
    p_star: Floats
    q_star: Floats
    p: Floats
    q: Floats
    reports_per_device: Floats
    collection_index: Integers
    density: Floats
    n_reports: int
    counts: tuple[Counts, ...]
    repetitions: tuple[Repetition, ...]

    def __len__(self) -> int:
        return len(self.proportions)

    @property
    def effective_devices(self) -> Floats:
        """Effective number of devices of each collection, (g,)."""
        per_device = np.array([repetition.reports_per_device for repetition in self.repetitions])
        return np.asarray([counts.n_reports for counts in self.counts] / per_device)

    @property
    def has_one_sided_noise(self) -> Booleans:
        """(n,) bool. True for rows without false ones (p* = 0) or without false zeros (q* = 1)."""
        return np.asarray((self.p_star == 0) | (self.q_star == 1))

    def compute_noise_variance(self, theta: Floats) -> Floats:
        """Compute the variance of each row if the true proportions were `theta`.

        Devices are a sample of a population, and the proportion of the population is the estimand.
        The variance of an estimate for the devices that reported would be a little smaller. Rows of
        an empty cohort have infinite variance.

        Parameters
        ----------
        theta : (n,) float64, or a number for all rows.
        """
        gap = self.q_star - self.p_star
        mean = self.p_star + gap * np.clip(theta, 0.0, 1.0)
        variance = mean * (1 - mean) + (self.reports_per_device - 1) * (mean - self.p) * (
            self.q - mean
        )
        # Without false ones (or zeros), a row without ones has the variance 0. But one more report
        # could differ, so the variance is at least that of one report.
        single = self.reports_per_device / np.maximum(self.reports, 1)
        variance = np.where(self.has_one_sided_noise, np.maximum(variance, single), variance)
        # Empty cohorts divide by zero; their variance is replaced by infinity.
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.reports > 0, variance / self.reports / gap**2, np.inf)

    def compute_device_variance(self, theta: Floats) -> Floats:
        """Compute the variance of each row that comes from the devices, (n,).

        More reports of the same devices do not reduce this part of the variance.
        """
        gap = self.q_star - self.p_star
        mean = self.p_star + gap * np.clip(theta, 0.0, 1.0)
        devices = np.maximum(self.reports / self.reports_per_device, _TINY)
        return np.asarray((mean - self.p) * (self.q - mean) / devices / gap**2)

    def compute_excess(self, fitted: Floats, variance: Floats) -> Floats:
        """Compute the standardised distance of each row above a fit, (n,).

        In a row with few expected ones the distribution is skewed: a single 1 is many standard
        deviations above the fit without being unusual. The signed root of the binomial deviance
        replaces the distance in such rows. It converges to the normal distance as the expected
        number of ones grows.
        """
        excess = np.asarray((self.proportions - fitted) / np.sqrt(variance))
        gap = self.q_star - self.p_star
        mean = self.p_star + gap * np.clip(fitted, 0.0, 1.0)
        is_sparse = (self.reports > 0) & (self.reports * mean * (1 - mean) < _FEW_ONES)
        # With a mean of 0 or 1 the deviance is infinite for any other count.
        is_sparse &= (mean > 0) & (mean < 1)
        if is_sparse.any():
            mu = mean[is_sparse]
            n = mu * (1 - mu) / (variance * gap**2)[is_sparse]  # binomial reports of this variance
            share = np.clip(self.p_star + gap * self.proportions, 0.0, 1.0)[is_sparse]
            deviance = 2 * n * (special.rel_entr(share, mu) + special.rel_entr(1 - share, 1 - mu))
            excess[is_sparse] = np.sign(share - mu) * np.sqrt(np.maximum(deviance, 0.0))
        return excess


def debias(collections: Sequence[Counts], repetitions: Sequence[Repetition]) -> Target:
    """Stack collections as the rows of one regression.

    Parameters
    ----------
    collections : counts of one or more parameter sets, each with reports.
    repetitions : the assumed reports per device of each collection.
    """
    sizes = [counts.params.m * counts.params.k for counts in collections]
    bits = np.concatenate([np.full(c.params.m, c.params.k) for c in collections])
    reports = np.repeat(np.concatenate([c.cohort_reports for c in collections]), bits).astype(float)
    ones = np.concatenate([c.bit_counts.ravel() for c in collections])
    columns = {
        name: np.repeat([getattr(c.params, name) for c in collections], sizes)
        for name in ("p_star", "q_star", "p", "q", "density")
    }
    # An empty cohort has the proportion -p* / (q* - p*). Its infinite noise gives it the weight 0.
    gap = columns["q_star"] - columns["p_star"]
    return Target(
        proportions=(ones / np.maximum(reports, 1.0) - columns["p_star"]) / gap,
        reports=reports,
        **columns,
        reports_per_device=np.repeat(
            [float(repetition.reports_per_device) for repetition in repetitions], sizes
        ),
        collection_index=np.repeat(np.arange(len(sizes)), sizes),
        n_reports=sum(c.n_reports for c in collections),
        counts=tuple(collections),
        repetitions=tuple(repetitions),
    )
