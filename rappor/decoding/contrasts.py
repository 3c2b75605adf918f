"""Contrasts: sums and differences of the shares of several rows, with standard errors.

The decoder stores a `RowCovariance` in its table of estimates (`Estimates`). A row of the table is
a candidate. `Estimates.contrast` and the sums of the table read the `RowCovariance`.

Theory of operation
-------------------
| symbol | meaning | shape |
|---|---|---|
| a | weights of the rows in the contrast | (r,) |
| beta | true shares | (r,), shares |
| b | estimates of the shares | (r,), shares |
| V | joint covariance of the estimates | (r, r), squared shares |
| z | scores: estimates divided by their standard errors | (r,) |
| d | derivatives of a sum of posterior means by the estimates | (r,) |

A contrast is a weighted sum of shares, sum over rows i of a_i beta_i. Its standard error comes from
the joint covariance V. The estimates to use depend on how the rows were chosen:

| choice of the rows | value | variance |
|---|---|---|
| before the counts were seen, such as two strings to compare | a' b | a' V a |
| because the rows are detected | a' E(beta given the z scores) | two parts, see below |

In the first case estimates and sums are unbiased. In the second case the rows were chosen because
their estimates are high, so a' b is too large. In an ordinary collection, the sum of all detected
shares is too large by five of its standard errors. For example, strings of the true share .010 with
the standard error .003 are detected above .012: each detected estimate is too large by .002 or
more, and a sum over rows adds these errors. Two kinds of numbers in the table are such sums:
`unallocated` is 1 minus the sum of all detected rows, and `remaining` contains sums of the detected
rows that a short table leaves out.

The second case therefore uses *posterior means*. A prior is the distribution of the true shares of
all candidates, and `prior.py` learns it from the scores of all candidates (empirical Bayes). The
posterior mean of a share is the mean of all true shares that could have led to this estimate. It
lies below a high estimate, because small shares are more frequent than large shares. It is already
a mean given the estimate, so the choice of high estimates does not make it too large.

The variance of a sum of posterior means has two parts:

- The variance that the sum would have if the errors of all estimates were independent. It includes
  the error of the fitted prior (`Posterior.sum`).
- The covariance of the errors of different entries: d' V d without the diagonal of V. The vector d
  contains the derivative of the sum by each estimate.

*Example.* Two strings that were named in advance have the estimates .10 and .07, each with the
variance .0001, and the covariance -.00002. Their difference is .03. With a = (1, -1) its variance
is .0001 + .0001 + 2 (.00002) = .00024, and its standard error .015.

The prior is fitted to the scores of the detected rows and to the histogram of all other p-values.
For a stream (a list that does not fit into memory), this histogram is all that is stored.

An *entry* is a candidate, or an identifiability group: candidates with the same bits, which have
one estimate. Rows of the table refer to entries.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from rappor.base.errors import DecodeError
from rappor.counts.arrays import Floats, Integers
from rappor.decoding.prior import NO_NOISE, Posterior, fit_prior, round_scores
from rappor.estimator.blas_threads import limit_to_one_thread
from rappor.estimator.p_values import EDGES, PValues, count_p_values

Covariance = Callable[[Integers], Floats]
"""Function from indices of r entries, (r,) int64, to the covariance of their estimates, (r, r)
float64, in squared shares. All r entries are columns of one fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """A weighted sum of the shares of several rows.

    Attributes
    ----------
    name : description of the contrast.
    estimate, std_error : a share or a difference of shares, unclipped. If `is_share` is False: a
        mean or a quantile of numeric values, in the unit of the values. The standard error is
        infinite if the counts contain no information about one of the rows.
    ci_low, ci_high : two-sided interval at the confidence of the error control.
    p_value : two-sided: probability of an estimate at least as far from 0 if the true contrast is
        0. None if a test against 0 has no meaning.
    is_share : True for a share of the reports or a difference of two shares.
    """

    name: str
    estimate: float
    std_error: float
    ci_low: float
    ci_high: float
    p_value: float | None
    is_share: bool = True

    @classmethod
    def from_variance(
        cls,
        name: str,
        estimate: float,
        variance: float,
        critical_value: float,
        *,
        include_p_value: bool = False,
        is_share: bool = True,
    ) -> Contrast:
        """Create a contrast with a normal interval.

        Parameters
        ----------
        name, estimate, is_share : as in the class.
        variance : variance of the estimate. A negative variance is a rounding error and counts as
            0.
        critical_value : half width of the interval, in standard errors (`compute_critical_value`).
        include_p_value : True tests the hypothesis that the contrast is 0.
        """
        error = float(np.sqrt(max(variance, 0.0)))
        # Without noise (f = p = 0, q = 1) any difference from 0 is certain.
        z_without_noise = np.inf if estimate else 0.0
        z = abs(estimate) / error if error else z_without_noise
        return cls(
            name=name,
            estimate=float(estimate),
            std_error=error,
            ci_low=float(estimate - critical_value * error),
            ci_high=float(estimate + critical_value * error),
            p_value=float(2 * special.ndtr(-z)) if include_p_value else None,
            is_share=is_share,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON. A number that is not finite becomes None.

        A quantile of numeric values is infinite if it lies outside the outer edges of the buckets.
        An interval is infinite if the counts contain no information. The key `beyond` then contains
        the side of each infinite number, by field: "above" or "below" all finite numbers.
        """
        fields = dataclasses.asdict(self)
        infinite = {
            key: "above" if fields[key] > 0 else "below"
            for key in ("estimate", "ci_low", "ci_high")
            if math.isinf(fields[key])
        }
        return {
            **{
                key: None if isinstance(value, float) and not math.isfinite(value) else value
                for key, value in fields.items()
            },
            **({"beyond": infinite} if infinite else {}),
        }


def compute_critical_value(confidence: float) -> float:
    """Compute the half width of a two-sided normal interval, in standard errors: 1.96 for .95."""
    return float(-special.ndtri((1 - confidence) / 2))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DetectedEntries:
    """Posterior shares of the r detected entries, given the z scores of all candidates.

    A z score is an estimate divided by its standard error. The scores of all candidates are rounded
    to bins, because the prior is fitted to bins. There are u bins: first the bins of the detected
    entries, then the bins of all other candidates.

    Attributes
    ----------
    entries : (r,) int64, increasing. Indices of the entries.
    mean : (r,) float64. Posterior means, as shares of all reports.
    std_error : (r,) float64. Standard errors of the estimates.
    error_covariance : (r, r) float64. Covariance of the errors of two different estimates, in
        squared shares. The diagonal is 0, because `posterior` contains the variances.
    score_bins : (r,) int64. Bin of each entry's score.
    bin_counts : (u,) int64. Number of candidates in each bin.
    posterior : distribution of a share, in standard errors, for each of the u bins.
    """

    entries: Integers
    mean: Floats
    std_error: Floats
    error_covariance: Floats
    score_bins: Integers
    bin_counts: Integers
    posterior: Posterior

    @classmethod
    def of(
        cls,
        entries: Integers,
        estimate: Floats,
        std_error: Floats,
        p_values: PValues,
        covariance: Covariance,
    ) -> DetectedEntries:
        """Compute the posterior shares of some entries.

        Parameters
        ----------
        entries : (r,) int64, increasing. The detected entries.
        estimate, std_error : (e,) float64. Estimates of all entries, as shares.
        p_values : p-values of all candidates, which determine the prior.
        covariance : function that returns the covariance of some estimates.
        """
        # The counts contain no information about an entry with an infinite standard error, so it
        # has no score.
        entries = entries[np.isfinite(std_error[entries])]
        scale = np.maximum(std_error[entries], NO_NOISE)
        z = estimate[entries] / scale
        detected_scores, score_bins, detected_counts = round_scores(z)
        other_scores, other_counts = _compute_other_scores(p_values, entries)
        # A contrast has one coefficient for each bin, and only detected entries have coefficients
        # other than 0. So detected entries and other candidates get different bins, even if the
        # scores of two bins are equal.
        scores = np.concatenate([detected_scores, other_scores])
        bin_counts = np.concatenate([detected_counts, other_counts])
        prior = fit_prior(scores, bin_counts)
        error_covariance = covariance(entries)
        error_covariance[np.diag_indices_from(error_covariance)] = 0.0
        # The means use the exact scores. Their variance uses the bins, because `Posterior.sum`
        # needs the scores to which the prior was fitted.
        return cls(
            entries=entries,
            mean=Posterior(prior, z).mean * scale,
            std_error=scale,
            error_covariance=error_covariance,
            score_bins=score_bins,
            bin_counts=bin_counts,
            posterior=Posterior(prior, scores),
        )

    def contrast(self, weights: Floats) -> tuple[float, float]:
        """Compute a weighted sum of posterior means, and its variance.

        Parameters
        ----------
        weights : (r,) float64.

        Returns
        -------
        The sum, as a share, and its variance.
        """
        # Case: no detected entry is in the sum. `Posterior.sum` would divide by the standard error
        # of the sum, which is 0.
        if not weights.any():
            return 0.0, 0.0
        # The posterior contains shares in standard errors, so the coefficient of an entry is its
        # weight times its standard error. `Posterior.sum` takes one coefficient for each bin. All
        # candidates of a bin have the same score, hence the same posterior mean, so their
        # coefficients can be replaced by the mean coefficient of the bin.
        coefficients = np.bincount(self.score_bins, weights * self.std_error, len(self.bin_counts))
        moments = self.posterior.sum(coefficients / self.bin_counts, self.bin_counts)
        # Let x and y be normal errors with covariance C. The covariance of two functions g(x) and
        # h(y) is C E[g'] E[h'], to first order in C (Price, IRE Transactions 1958). Posterior means
        # are functions of the estimates. `moments.influence` is the derivative of the sum by each
        # score. A score is the estimate divided by its standard error, so dividing once more gives
        # d, the derivative by each estimate.
        influence = moments.influence[self.score_bins] / self.std_error
        variance = moments.variance + float(influence @ self.error_covariance @ influence)
        return float(weights @ self.mean), max(variance, 0.0)

    def sum_entries(self, entries: Integers) -> tuple[float, float]:
        """Compute the sum of the shares of some entries, and its standard error.

        Entries, (x,) int64, that are not detected are ignored.
        """
        share, variance = self.contrast(np.isin(self.entries, entries).astype(float))
        return share, math.sqrt(variance)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowCovariance:
    """Joint distribution of the c rows of a table, which refer to e entries.

    Attributes
    ----------
    entry : (c,) int64. Entry of each row. Rows of one identifiability group have the same entry.
    estimate, std_error : (e,) float64. Estimate of each entry, as a share.
    covariance : function that returns the covariance of the estimates of some entries.
    detected : the posterior of the detected entries. None for the encodings `boolean` and `set`:
        their shares do not exclude each other, so no sum of all shares is known to be at most 1.
    """

    entry: Integers
    estimate: Floats
    std_error: Floats
    covariance: Covariance
    detected: DetectedEntries | None

    def compute_contrasts(self, rows: Integers, weights: Floats) -> tuple[Floats, Floats]:
        """Compute contrasts of rows that were named before the counts were seen.

        Parameters
        ----------
        rows : (r,) int64. Indices of the rows.
        weights : (t, r) float64. Weights of each of t contrasts. The rows of an identifiability
            group have one share, which counts once.

        Returns
        -------
        The contrasts, (t,) float64, and their covariance, (t, t) float64.

        Raises
        ------
        DecodeError
            A row has no estimate, or the members of a group have different weights although they
            cannot be distinguished.
        """
        entries = np.unique(self.entry[rows])
        if not np.isfinite(self.std_error[entries]).all():
            raise DecodeError(
                "rows must have estimates, got one about which the counts contain no information"
            )
        entry_weights = self._weigh_entries(rows, weights, entries)
        return (
            entry_weights @ self.estimate[entries],
            entry_weights @ self.covariance(entries) @ entry_weights.T,
        )

    def compute_detected_contrast(self, rows: Integers, weights: Floats) -> tuple[float, float]:
        """Compute a contrast of rows that were chosen because they are detected, and its variance.

        Parameters
        ----------
        rows : (r,) int64. Indices of the rows.
        weights : (r,) float64. Weight of each row.

        Raises
        ------
        DecodeError
            As in `compute_contrasts`, and also if a row is not detected, or if the shares do not
            exclude each other.
        """
        detected = self.detected
        if detected is None:
            raise DecodeError(
                "detected must be False for boolean metrics and sets: posterior means are computed "
                "only for shares that exclude each other"
            )
        # A row that is not detected has no posterior mean.
        if not np.isin(self.entry[rows], detected.entries).all():
            raise DecodeError("rows must all be detected, got one that is not")
        entry_weights = self._weigh_entries(rows, weights[None], detected.entries)[0]
        # The decode has ended, and so has its limit. The fits of the sum are as small as its own.
        with limit_to_one_thread():
            return detected.contrast(entry_weights)

    def _weigh_entries(self, rows: Integers, weights: Floats, entries: Integers) -> Floats:
        """Compute the weights of entries from the weights of rows.

        Parameters
        ----------
        rows : (r,) int64. Indices of the rows.
        weights : (t, r) float64. Weights of the rows.
        entries : (e,) int64, increasing. Entries of all rows, and possibly more.

        Returns
        -------
        (t, e) float64.
        """
        columns = np.searchsorted(entries, self.entry[rows])
        entry_weights = np.zeros((len(weights), len(entries)))
        entry_weights[:, columns] = weights
        # Case: the rows contain some members of an identifiability group, but not all. The contrast
        # would need the share of each member, and the counts contain only the total.
        n_members = np.isin(self.entry, self.entry[rows]).sum()
        is_complete = n_members == len(rows)
        # Case: two members have different weights. Above, the later weight has replaced the earlier
        # weight, so the entry does not have the weight of the earlier member.
        has_equal_weights = np.array_equal(entry_weights[:, columns], weights)
        if not is_complete or not has_equal_weights:
            raise DecodeError(
                "rows must have all members of a group, each with the same weight, or none: the "
                "members cannot be distinguished"
            )
        return entry_weights


def _compute_other_scores(p_values: PValues, entries: Integers) -> tuple[Floats, Integers]:
    """Compute the distinct z scores of all candidates except some entries, and their counts.

    Of the candidates of a stream, only a histogram of the p-values is in memory. So the scores are
    computed from the histogram for lists, too.

    Parameters
    ----------
    p_values : p-values of all candidates.
    entries : (r,) int64. Entries that are subtracted from the histogram.

    Returns
    -------
    Scores, (u,) float64, and the number of candidates with each score, (u,) int64.
    """
    counts = p_values.counts - count_p_values(p_values.in_memory[entries])
    bins = np.flatnonzero(counts)
    # The geometric mean of the two edges of a bin represents its p-values. The first bin begins at
    # 0, which would give an infinite score, so its upper edge represents it. The score is the
    # normal quantile of the p-value: .025 gives 1.96.
    middle = np.sqrt(np.maximum(EDGES[bins], EDGES[1]) * EDGES[bins + 1])
    return -special.ndtri(middle), counts[bins]


def add_sampling(covariance: Floats, estimate: Floats, devices: float) -> Floats:
    """Add the covariance of a multinomial sample to the covariance of estimates.

    The devices are a random sample of a population, and a device has one value. If the sample has
    more devices with value i by chance, it has fewer devices with value l. So two shares beta_i and
    beta_l have the sampling covariance -beta_i beta_l / D, with D the number of devices. Shares of
    .5 and .3 among 10,000 devices have the covariance -1.5e-5. The diagonal of `covariance` already
    contains the sampling variance of each share.

    Parameters
    ----------
    covariance : (r, r) float64, in squared shares.
    estimate : (r,) float64. Estimates of beta, clipped to [0, 1] here.
    devices : D, the effective number of devices: the number of devices with one report each that
        would give the same sampling variance.

    Returns
    -------
    (r, r) float64.
    """
    share = np.clip(estimate, 0.0, 1.0)
    products = np.outer(share, share) * (1 / devices)
    products[np.diag_indices_from(products)] = 0.0
    return covariance - products
