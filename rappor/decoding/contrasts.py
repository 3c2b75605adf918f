"""Contrasts: sums and differences of the shares of several rows, with standard errors.

Theory of operation
-------------------
A contrast is a weighted sum of shares. Its standard error comes from the joint covariance of the
estimates. Which estimates are used depends on how the rows were chosen.

Rows that were named before the counts were seen, such as a group of strings or two rows to compare,
keep their estimates. These estimates and their sums are unbiased and have the covariance of the
fit.

Detected rows were chosen because their estimates are high, so a sum of their estimates is too
large, by five standard errors in an ordinary collection. Posterior means under an empirical-Bayes
prior (`prior.py`) are not too large: given its estimate, a share does not depend on the reason for
the choice. The share of detected rows together is therefore the sum of their posterior means. Its
variance has two parts:

- the variance for independent estimates, from the profile likelihood of the prior
  (`Posterior.sum`);
- the covariance of the errors, by the derivative of the sum by each estimate.

The prior is fitted to the scores of the detected rows and to the histogram of all other p-values.
Lists and streams both have such a histogram.
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
from rappor.estimator.p_values import EDGES, PValues, count_p_values

Covariance = Callable[[Integers], Floats]
"""Function from r entries to the covariance of their estimates, (r, r)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """A weighted sum of the shares of several rows.

    Attributes
    ----------
    name : description of the contrast.
    estimate, std_error : a share or a difference of shares, unclipped, or a number. The standard
        error is infinite if the counts contain no information about one of the rows.
    ci_low, ci_high : two-sided interval at the confidence of the error control.
    p_value : two-sided: probability that noise alone is at least as far from 0. None if a test
        against 0 has no meaning.
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
        reach: float,
        *,
        tested: bool = False,
        is_share: bool = True,
    ) -> Contrast:
        """Create a contrast whose interval extends by `reach` standard errors on both sides."""
        error = float(np.sqrt(max(variance, 0.0)))
        # Without noise any difference from 0 is certain.
        certain_z = np.inf if estimate else 0.0
        z = abs(estimate) / error if error else certain_z
        return cls(
            name=name,
            estimate=float(estimate),
            std_error=error,
            ci_low=float(estimate - reach * error),
            ci_high=float(estimate + reach * error),
            p_value=float(2 * special.ndtr(-z)) if tested else None,
            is_share=is_share,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON. A number that is not finite becomes None.

        The key `beyond` contains the side of an infinite number: "above" or "below" all edges.
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
    """Compute the half width of a two-sided normal interval, in standard errors."""
    return float(-special.ndtri((1 - confidence) / 2))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DetectedEntries:
    """Posterior shares of the detected entries, given the scores of all candidates.

    Attributes
    ----------
    entries : (r,) int64, increasing. Indices of the entries.
    mean : (r,) float64. Posterior means, as shares of all reports.
    std_error : (r,) float64. Standard errors of the estimates.
    common : (r, r) float64. Covariance of the estimates' errors, with a diagonal of zeros.
    bins : (r,) int64. Index of each entry's rounded score in `posterior`.
    counts : (u,) int64. Number of candidates at each score of `posterior`.
    posterior : shares given the rounded scores of all candidates.
    """

    entries: Integers
    mean: Floats
    std_error: Floats
    common: Floats
    bins: Integers
    counts: Integers
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
        """Compute the posterior of entries, (r,) increasing, from all estimates, (c,).

        `covariance` returns the covariance of the estimates of entries that are fitted together,
        (r, r).
        """
        # An entry without information has no score.
        entries = entries[np.isfinite(std_error[entries])]
        scale = np.maximum(std_error[entries], NO_NOISE)
        z = estimate[entries] / scale
        rounded, bins, n_detected = round_scores(z)
        others, n_others = _compute_other_scores(p_values, entries)
        # Detected entries and other candidates never share a bin: the coefficients of a contrast
        # belong to bins.
        scores = np.concatenate([rounded, others])
        counts = np.concatenate([n_detected, n_others])
        prior = fit_prior(scores, counts)
        common = covariance(entries)
        common[np.diag_indices_from(common)] = 0.0
        return cls(
            entries=entries,
            mean=Posterior(prior, z).mean * scale,
            std_error=scale,
            common=common,
            bins=bins,
            counts=counts,
            posterior=Posterior(prior, scores),
        )

    def contrast(self, weights: Floats) -> tuple[float, float]:
        """Compute the weighted sum of the shares, with weights (r,), and its variance."""
        # The moments divide by the standard error of the sum, which is 0 here.
        if not weights.any():
            return 0.0, 0.0
        coefficients = np.bincount(self.bins, weights * self.std_error, len(self.counts))
        moments = self.posterior.sum(coefficients / self.counts, self.counts)
        # For two normal errors with covariance C, functions g and h of them have the covariance
        # C E[g'] E[h'], to first order in C (Price, IRE Transactions 1958).
        influence = moments.influence[self.bins] / self.std_error
        variance = moments.variance + float(influence @ self.common @ influence)
        return float(weights @ self.mean), max(variance, 0.0)

    def sum_entries(self, entries: Integers) -> tuple[float, float]:
        """Compute the sum of the shares of some entries, and its standard error."""
        total, variance = self.contrast(np.isin(self.entries, entries).astype(float))
        return total, math.sqrt(variance)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowCovariance:
    """Joint distribution of the rows of a table.

    Attributes
    ----------
    entry : (c,) int64. Entry of each row. Rows of one identifiability group have the same entry.
    estimate, std_error : (e,) float64, of each entry.
    covariance : function from r entries to the covariance of their estimates, (r, r).
    detected : the posterior of the detected entries. None for the encoding `boolean`, which has one
        entry.
    """

    entry: Integers
    estimate: Floats
    std_error: Floats
    covariance: Covariance
    detected: DetectedEntries | None

    def compute_contrasts(self, rows: Integers, weights: Floats) -> tuple[Floats, Floats]:
        """Compute contrasts of rows that were named in advance, (t,), and their covariance, (t, t).

        Parameters
        ----------
        rows : (r,) int64. Indices of the rows.
        weights : (t, r) float64. Weights of each contrast. A group has one share, which counts
            once.

        Raises
        ------
        DecodeError
            A row has no estimate, or the members of a group have different weights although they
            cannot be distinguished.
        """
        entries = np.unique(self.entry[rows])
        if not np.isfinite(self.std_error[entries]).all():
            raise DecodeError("rows must be known, got one that the counts say nothing about")
        entry_weights = self._weigh_entries(rows, weights, entries)
        return (
            entry_weights @ self.estimate[entries],
            entry_weights @ self.covariance(entries) @ entry_weights.T,
        )

    def compute_detected_contrast(self, rows: Integers, weights: Floats) -> tuple[float, float]:
        """Compute a contrast of rows that were chosen because they are detected, and its variance.

        Parameters
        ----------
        rows : (r,) int64.
        weights : (r,) float64.

        Raises
        ------
        DecodeError
            As `contrasts`, and also if a row is not detected.
        """
        detected = self.detected
        # A row outside the posterior has no mean that corrects its selection.
        if detected is None or not np.isin(self.entry[rows], detected.entries).all():
            raise DecodeError("rows must all be detected, got one that is not")
        return detected.contrast(self._weigh_entries(rows, weights[None], detected.entries)[0])

    def _weigh_entries(self, rows: Integers, weights: Floats, entries: Integers) -> Floats:
        """Compute the weights of increasing entries, (t, e), from the weights of rows, (t, r)."""
        columns = np.searchsorted(entries, self.entry[rows])
        entry_weights = np.zeros((len(weights), len(entries)))
        entry_weights[:, columns] = weights
        is_complete = np.isin(self.entry, self.entry[rows]).sum() == len(rows)
        # A contrast of some members of a group would need shares that the counts do not contain.
        if not is_complete or not np.array_equal(entry_weights[:, columns], weights):
            raise DecodeError(
                "rows must have all members of a group, each with the same weight, or none: the "
                "members cannot be distinguished"
            )
        return entry_weights


def _compute_other_scores(p_values: PValues, entries: Integers) -> tuple[Floats, Integers]:
    """Compute the distinct scores of all p-values without some entries, and their counts."""
    others = p_values.counts - count_p_values(p_values.in_memory[entries])
    bins = np.flatnonzero(others)
    # The first bin begins at 0, whose score is infinite. The geometric middle of a bin stands for
    # its p-values.
    middle = np.sqrt(np.maximum(EDGES[bins], EDGES[1]) * EDGES[bins + 1])
    return -special.ndtri(middle), others[bins]


def add_sampling(covariance: Floats, estimate: Floats, per_device: Floats) -> Floats:
    """Add the covariance of the sampling: a device has one of the values, not several.

    The diagonal already contains the sampling variance of each share.

    Parameters
    ----------
    covariance : (r, r) float64.
    estimate : (r,) float64.
    per_device : (r, r) float64, or a number. One divided by the number of devices that could report
        both of two values, weighted like their estimates.
    """
    share = np.clip(estimate, 0.0, 1.0)
    products = np.outer(share, share) * per_device
    products[np.diag_indices_from(products)] = 0.0
    return covariance - products
