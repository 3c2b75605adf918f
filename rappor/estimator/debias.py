"""De-biasing: from counts to the rows of a regression, one row for each bit of a cohort.

Theory of operation
-------------------
A report has a 1 with probability mu = p* + (q* - p*) theta. Of its variance mu (1 - mu), the part
between = (mu - p) (q - mu) is its device's: the value, and the permanent response, which is
Bernoulli(mu') with mu = p + (q - p) mu', so that (q - p)^2 mu' (1 - mu') = (mu - p) (q - mu). The
rest is the fresh coins'. With S the sum of the devices' squared reports and R = S / N the reports a
device, in the mean over reports, the proportion of ones in N reports has the variance

    (mu (1 - mu) + (R - 1) between) / N

More devices lower all of it, more reports a device the coins' part only.

The rows of several collections are stacked. Each collection brings its own effective
probabilities, noise and background; all of them share the candidates' proportions.
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
"""Variance of a row's ones below which they are not nearly normal: with less than a mean of 12, the
upper tail at 3.5 standard deviations is more than six times the normal one."""

_TINY: Final = 1e-300
"""Devices of an empty cohort: their noise is large, not a division by zero."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """The de-biased bits of all collections, n rows.

    Attributes
    ----------
    proportions : (n,) float64. (c_ij / N_j - p*) / (q* - p*), unclipped ([EPK14] section 4).
    reports : (n,) float64. N_j of the row's cohort; 0 for an empty cohort.
    p_star, q_star : (n,) float64. Effective probabilities of the row.
    p, q : (n,) float64. Probabilities of the instantaneous response.
    repeated : (n,) float64. R, the reports a device; 1 if each reports once.
    group : (n,) int64. Which collection the row comes from.
    density : (n,) float64. Share of rows that a random string sets, the background's height.
    n_reports : reports in all collections.
    counts : the collections themselves.
    repetitions : what is taken for their devices.
    """

    proportions: Floats
    reports: Floats
    p_star: Floats
    q_star: Floats
    p: Floats
    q: Floats
    repeated: Floats
    group: Integers
    density: Floats
    n_reports: int
    counts: tuple[Counts, ...]
    repetitions: tuple[Repetition, ...]

    def __len__(self) -> int:
        return len(self.proportions)

    @property
    def devices(self) -> Floats:
        """Return the effective number of devices behind each collection, (g,)."""
        each = np.array([repetition.reports_per_device for repetition in self.repetitions])
        return np.asarray([counts.n_reports for counts in self.counts] / each)

    @property
    def certain(self) -> Booleans:
        """Return in which rows, (n,), no bit is falsely 1, or none falsely 0."""
        return np.asarray((self.p_star == 0) | (self.q_star == 1))

    def noise(self, theta: Floats) -> Floats:
        """Return the variance of each row if the true proportions were `theta`.

        This is the variance of a sample: devices are drawn from a population, and the
        population's proportion is the estimand. For the devices that did report it is a
        little too large. Rows of an empty cohort have infinite variance.
        """
        gap = self.q_star - self.p_star
        mean = self.p_star + gap * np.clip(theta, 0.0, 1.0)
        one = mean * (1 - mean) + (self.repeated - 1) * (mean - self.p) * (self.q - mean)
        # Where nothing false is sent, a bit without ones (or zeros) has no variance left, and yet
        # one report more may differ: it has that of one.
        single = self.repeated / np.maximum(self.reports, 1)
        one = np.where(self.certain, np.maximum(one, single), one)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.reports > 0, one / self.reports / gap**2, np.inf)

    def devices_noise(self, theta: Floats) -> Floats:
        """Return the part of the variance that more reports of the same devices do not lower."""
        gap = self.q_star - self.p_star
        mean = self.p_star + gap * np.clip(theta, 0.0, 1.0)
        devices = np.maximum(self.reports / self.repeated, _TINY)
        return np.asarray((mean - self.p) * (self.q - mean) / devices / gap**2)

    def excess(self, fitted: Floats, variance: Floats) -> Floats:
        """Return how far each row is above a fit, in standard deviations.

        Where a row expects few ones, one of them is many standard deviations and nothing strange:
        the signed root of the binomial deviance stands for them, which the normal deviation tends
        to.
        """
        excess = np.asarray((self.proportions - fitted) / np.sqrt(variance))
        gap = self.q_star - self.p_star
        mean = self.p_star + gap * np.clip(fitted, 0.0, 1.0)
        few = (self.reports > 0) & (self.reports * mean * (1 - mean) < _FEW_ONES)
        few &= (mean > 0) & (mean < 1)
        if few.any():
            mu = mean[few]
            n = mu * (1 - mu) / (variance * gap**2)[few]  # binomial reports of this variance
            share = np.clip(self.p_star + gap * self.proportions, 0.0, 1.0)[few]
            deviance = 2 * n * (special.rel_entr(share, mu) + special.rel_entr(1 - share, 1 - mu))
            excess[few] = np.sign(share - mu) * np.sqrt(np.maximum(deviance, 0.0))
        return excess


def debias(collections: Sequence[Counts], repetitions: Sequence[Repetition]) -> Target:
    """Stack collections, each with reports, as rows of one regression."""
    sizes = [counts.params.m * counts.params.k for counts in collections]
    bits = np.concatenate([np.full(c.params.m, c.params.k) for c in collections])
    reports = np.repeat(np.concatenate([c.cohort_reports for c in collections]), bits).astype(float)
    ones = np.concatenate([c.bit_counts.ravel() for c in collections])
    columns = {
        name: np.repeat([getattr(c.params, name) for c in collections], sizes)
        for name in ("p_star", "q_star", "p", "q", "density")
    }
    gap = columns["q_star"] - columns["p_star"]
    return Target(
        proportions=(ones / np.maximum(reports, 1.0) - columns["p_star"]) / gap,
        reports=reports,
        **columns,
        repeated=np.repeat([float(each.reports_per_device) for each in repetitions], sizes),
        group=np.repeat(np.arange(len(sizes)), sizes),
        n_reports=sum(c.n_reports for c in collections),
        counts=tuple(collections),
        repetitions=tuple(repetitions),
    )
