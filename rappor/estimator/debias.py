"""De-bias counts: turn them into the rows of a regression, one row for each bit of a cohort.

The input is one `Counts` for each parameter set and the assumed reports per device. The output is a
`Target`, which contains the de-biased proportions and computes their variances. All later steps of
a decode read the target and never the counts.

Theory of operation
-------------------
| symbol | meaning | unit |
|---|---|---|
| i, j | a bit of a report, a cohort | |
| c_ij | number of reports of cohort j with a 1 at bit i | reports |
| N, N_j | number of reports, of one cohort | reports |
| theta | true proportion: share of the devices whose value sets the bit | share |
| p, q | probability that a permanent 0, or a permanent 1, is sent as 1 | probability |
| p*, q* | probability that a true 0, or a true 1, becomes a reported 1 | probability |
| mu | probability that a report has a 1 at the bit | probability |
| n_d | number of reports of device d | reports |
| R | reports per device, averaged over reports: sum over d of n_d^2, divided by N | reports |

A report has a 1 with probability mu = p* + (q* - p*) theta. The de-biased proportion

    y_ij = (c_ij / N_j - p*) / (q* - p*)

therefore has the expectation theta ([EPK14] Erlingsson, Pihur and Korolova, RAPPOR, CCS 2014,
section 4). It is not clipped to [0, 1], because clipped proportions would have biased sums.

*Example.* With p* = .25 and q* = .75, a bit with 300 ones in 1,000 reports has y = (.3 - .25) / .5
= .1: an estimated tenth of the devices have a value that sets the bit.

One report has the variance mu (1 - mu). The variance has two parts:

- between = (mu - p) (q - mu) is the variance between devices. It comes from the value and the
  permanent response, which is Bernoulli(mu') with mu = p + (q - p) mu'. Hence (q - p)^2 mu' (1 -
  mu') = (mu - p) (q - mu).
- The remaining variance comes from the instantaneous response, whose coins are new in every report.

The proportion of ones in N reports has the variance

    (mu (1 - mu) + (R - 1) between) / N

*Derivation.* Two reports of one device have the covariance `between`, and device d has
n_d (n_d - 1) ordered pairs of reports. So the number of ones has the variance N mu (1 - mu) +
(sum of n_d^2 - N) between, which is N (mu (1 - mu) + (R - 1) between). Dividing by N^2 gives the
variance of the proportion. With mu = .5, p = .25 and q = .75, mu (1 - mu) is .25 and between is
.0625: five reports per device double the variance.

Assumption: R is the same in every cohort and for every value. More devices reduce both parts. More
reports per device reduce only the part of the instantaneous response.

Reports of generalized randomized response name one bucket. Each of their bits follows the same
formulas, with p = 0 and q = 1: a device repeats its whole report.

The rows of several collections (parameter sets) are stacked. Each collection has its own p*, q*,
noise and background. All collections have the same shares of the candidates.
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
from rappor.protocol.params import Params

FEW_ONES: Final = 9.0
"""Variance of the number of ones in a row below which the number is not nearly normal. A number of
rare ones (a Poisson number) with this variance is more than 3.5 standard deviations above its mean
4.5 times as often as a normal number is. With fewer ones, the taper of the fit (`fit.TAPER`) would
reduce the weights of still more rows that contain noise only."""

_TINY: Final = 1e-300
"""Number of devices of an empty cohort. The noise of its rows becomes large, and no division by
zero occurs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """The de-biased bits of all collections: the n rows of the regression.

    Rows are ordered by collection, then by cohort, then by bit: bit i of cohort j is row j k + i of
    its collection. There are g collections.

    Attributes
    ----------
    proportions : (n,) float64. y: (c_ij / N_j - p*) / (q* - p*), unclipped ([EPK14] section 4).
    reports : (n,) float64. N_j of the row's cohort, 0 for an empty cohort.
    p_star, q_star : (n,) float64. p* and q* of the row's collection; for sets p' and q'
        (`Response.regression_probabilities`).
    p, q : (n,) float64. Probabilities of the instantaneous response of the row's collection.
    reports_per_device : (n,) float64. R of the row's collection. It is 1 if every device reports
        once.
    collection_index : (n,) int64, increasing. Index of the row's collection.
    density : (n,) float64. 1 - (1 - 1/k)^h, the probability that a random string sets the row. If
        no candidate is present, it is the expected proportion of every row.
    n_reports : number of reports in all collections.
    counts : (g,) the collections.
    repetitions : (g,) the assumed reports per device of each collection.
    least_proportion : (n,) float64. Smallest possible expected proportion. It is 0 for strings. For
        sets it is negative: the shares of the items have a sum above 1, and the regression
        subtracts the excess from every row.
    offset : (n,) float64, or 0. Known part of the expected proportion of each row. The regression
        explains the remaining part. Only the refit of sets uses it (`set_refit`).
    extra_variance : (n,) float64, or 0. Variance of each proportion that neither the coins nor the
        collisions cause. Only the refit of sets uses it.
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
    least_proportion: Floats | float = 0.0
    offset: Floats | float = 0.0
    extra_variance: Floats | float = 0.0

    def __len__(self) -> int:
        return len(self.proportions)

    @property
    def effective_devices(self) -> Floats:
        """(g,) float64. N / R: number of devices with one report each and the same variance."""
        per_device = np.array([repetition.reports_per_device for repetition in self.repetitions])
        return np.asarray([counts.n_reports for counts in self.counts] / per_device)

    @property
    def has_one_sided_noise(self) -> Booleans:
        """(n,) bool. True for rows without false ones (p* = 0) or without false zeros (q* = 1)."""
        return np.asarray((self.p_star == 0) | (self.q_star == 1))

    def compute_noise_variance(self, theta: Floats) -> Floats:
        """Compute the variance of each proportion if the true proportions were `theta`.

        The variance contains the randomized responses and the sampling of devices: devices are a
        sample of a population, and the proportion in the population is the estimand. The variance
        of an estimate for the devices that reported would be a little smaller.

        Parameters
        ----------
        theta : (n,) float64, or a number for all rows. Clipped to the possible proportions, because
            fitted values may lie outside.

        Returns
        -------
        (n,) float64, in squared shares. Infinite in cohorts without reports.
        """
        gap, mean = self.q_star - self.p_star, self.compute_ones_probability(theta)
        repeated_part = (self.reports_per_device - 1) * (mean - self.p) * (self.q - mean)
        report_variance = mean * (1 - mean) + repeated_part
        # Case: p* = 0 (or q* = 1), and no device (or every device) sets the bit. The variance would
        # be 0, and the weight of the row infinite. But one more report could differ, so the
        # variance is at least the variance that a single differing report causes: mu = 1 / N has
        # the variance 1 / N of a report, and R / N if all reports of its device differ.
        single_report = self.reports_per_device / np.maximum(self.reports, 1)
        report_variance = np.where(
            self.has_one_sided_noise, np.maximum(report_variance, single_report), report_variance
        )
        # Empty cohorts divide by zero. Their variance is replaced by infinity.
        with np.errstate(divide="ignore", invalid="ignore"):
            coin_variance = report_variance / self.reports / gap**2
        return np.where(self.reports > 0, coin_variance + self.extra_variance, np.inf)

    def compute_ones_probability(self, theta: Floats) -> Floats:
        """Compute mu = p* + (q* - p*) theta, (n,), with theta clipped to the possible values."""
        return np.asarray(
            self.p_star + (self.q_star - self.p_star) * np.clip(theta, self.least_proportion, 1.0)
        )

    def compute_device_variance(self, theta: Floats) -> Floats:
        """Compute the part of each row's variance that comes from the devices.

        The part contains the sampling of devices and their permanent responses. More reports of the
        same devices do not reduce it.

        Parameters
        ----------
        theta : (n,) float64, or a number for all rows. True proportions, clipped to the possible
            values.

        Returns
        -------
        (n,) float64, in squared shares. Very large in cohorts without reports.
        """
        gap, mean = self.q_star - self.p_star, self.compute_ones_probability(theta)
        devices = np.maximum(self.reports / self.reports_per_device, _TINY)
        return np.asarray((mean - self.p) * (self.q - mean) / devices / gap**2)

    def compute_excess(self, fitted: Floats, variance: Floats) -> Floats:
        """Compute the distance of each row above a fit, in standard deviations.

        In a row with few expected ones the distribution is skewed: a single 1 is many standard
        deviations above the fit without being unusual. The signed root of the binomial deviance
        replaces the distance in such rows. It converges to the normal distance as the expected
        number of ones grows. With x the observed share of ones among n independent reports, the
        deviance is 2 n (x log(x / mu) + (1 - x) log((1 - x) / (1 - mu))).

        Parameters
        ----------
        fitted : (n,) float64. Fitted proportions.
        variance : (n,) float64. Variance of each row, including collisions.

        Returns
        -------
        (n,) float64. Negative below the fit.
        """
        excess = np.asarray((self.proportions - fitted) / np.sqrt(variance))
        gap = self.q_star - self.p_star
        mean = self.compute_ones_probability(fitted)
        is_sparse = (self.reports > 0) & (self.reports * mean * (1 - mean) < FEW_ONES)
        # With a mean of 0 or 1 the deviance is infinite for any other count.
        is_sparse &= (mean > 0) & (mean < 1)
        if is_sparse.any():
            mu = mean[is_sparse]
            # Number of independent reports that would have the variance of the row.
            n = mu * (1 - mu) / (variance * gap**2)[is_sparse]
            share_of_ones = np.clip(self.p_star + gap * self.proportions, 0.0, 1.0)[is_sparse]
            deviance = (
                2
                * n
                * (
                    special.rel_entr(share_of_ones, mu)
                    + special.rel_entr(1 - share_of_ones, 1 - mu)
                )
            )
            excess[is_sparse] = np.sign(share_of_ones - mu) * np.sqrt(np.maximum(deviance, 0.0))
        return excess


def _count_regression_bits(params: Params) -> int:
    """Return the number of bits of a report that are rows of the regression.

    The bucket for values outside all categories is no row. The proportions of all buckets sum to 1,
    so the proportion of this bucket follows from the other proportions.
    """
    return params.k - params.has_other_bucket


def debias(collections: Sequence[Counts], repetitions: Sequence[Repetition]) -> Target:
    """Stack collections as the rows of one regression.

    Parameters
    ----------
    collections : g counts of different parameter sets, each with reports.
    repetitions : (g,) the assumed reports per device of each collection.

    Examples
    --------
    Without noise, de-biased proportions are the proportions of true bits:

    >>> from rappor import Params
    >>> params = Params(k=4, m=1, f=0.0, p=0.0, q=1.0, insecure=True)
    >>> counts = Counts(params, [[6, 3, 1, 0]], [10])
    >>> target = debias([counts], [Repetition(reports_per_device=1.0, source="counts")])
    >>> target.proportions.tolist()
    [0.6, 0.3, 0.1, 0.0]
    """
    tables = [
        counts.bit_counts[:, : _count_regression_bits(counts.params)] for counts in collections
    ]
    n_rows = [table.size for table in tables]
    n_bits = np.concatenate([np.full(len(table), table.shape[1]) for table in tables])
    cohort_reports = np.concatenate([counts.cohort_reports for counts in collections])
    reports = np.repeat(cohort_reports, n_bits).astype(float)
    ones = np.concatenate([table.ravel() for table in tables])
    # Numbers of a collection, repeated in all its rows.
    columns = {
        name: np.repeat([getattr(counts.params, name) for counts in collections], n_rows)
        for name in ("p", "q", "density")
    }
    probabilities = [counts.params.response.regression_probabilities for counts in collections]
    columns["p_star"], columns["q_star"] = np.repeat(probabilities, n_rows, axis=0).T
    # `regression_probabilities` of sets differ from p* and q* of the response. A bit is 1 with at
    # least the probability p* of the response, whatever the sum of the fitted shares is.
    least = [
        (counts.params.p_star - low) / (high - low)
        for counts, (low, high) in zip(collections, probabilities, strict=True)
    ]
    columns["least_proportion"] = np.repeat(least, n_rows)
    # An empty cohort has the proportion -p* / (q* - p*). Its infinite noise gives it the weight 0.
    gap = columns["q_star"] - columns["p_star"]
    return Target(
        proportions=(ones / np.maximum(reports, 1.0) - columns["p_star"]) / gap,
        reports=reports,
        **columns,
        reports_per_device=np.repeat(
            [float(repetition.reports_per_device) for repetition in repetitions], n_rows
        ),
        collection_index=np.repeat(np.arange(len(n_rows)), n_rows),
        n_reports=sum(counts.n_reports for counts in collections),
        counts=tuple(collections),
        repetitions=tuple(repetitions),
    )
