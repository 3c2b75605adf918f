"""Several rows at once: sums, differences and other contrasts, and how sure they are.

Theory of operation
-------------------
Whatever is said of several rows is a contrast, a weighted sum of their shares, and its error comes
from one covariance. Which shares depends on who chose the rows.

Rows that somebody named before the counts were seen, a group or two rows to compare, keep their
estimates: those are unbiased, one by one and in sum, and have the covariance of the fit.

Rows are detected because they came out high, so a sum of their estimates is too large, by five
standard errors in an ordinary collection. Their posterior means under an empirical-Bayes prior
(`prior.py`) are not too large: given its estimate, a share does not depend on the reason for the
question. Detected rows together hold the sum of their posterior means. Its variance has two parts:

- of independent estimates, from the profile likelihood of the prior (`Posterior.sum`);
- of the errors that estimates have in common, by the derivative of the sum by each estimate.

The prior is fitted to the scores of the detected rows and to the histogram of all other p-values,
which a stream has as a list has.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """Something that is said of several rows.

    Attributes
    ----------
    name : what it is.
    estimate, std_error : a share or a difference of shares, unclipped, or a number; the error is
        infinite where the counts say nothing about one of the rows.
    ci_low, ci_high : two-sided interval at the confidence of the detection.
    p_value : two-sided: how often noise alone is as far from 0. None where 0 is no question.
    is_share : whether it is a share of the reports, or a difference of two.
    """

    name: str
    estimate: float
    std_error: float
    ci_low: float
    ci_high: float
    p_value: float | None
    is_share: bool = True

    @classmethod
    def around(
        cls,
        name: str,
        estimate: float,
        variance: float,
        reach: float,
        *,
        tested: bool = False,
        is_share: bool = True,
    ) -> Contrast:
        """Return a contrast whose interval reaches this many standard errors."""
        error = float(np.sqrt(max(variance, 0.0)))
        z = abs(estimate) / error if error else np.inf if estimate else 0.0
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
        """Return everything, ready for JSON: a number that is not finite is None.

        `beyond` says of infinite numbers on which side of all edges they are.
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


def normal_reach(confidence: float) -> float:
    """Return how many standard errors a two-sided interval reaches from its estimate."""
    return float(-special.ndtri((1 - confidence) / 2))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DetectedRows:
    """Shares of entries that are detected, given the scores of all candidates.

    Attributes
    ----------
    entries : (r,) int64, increasing. Numbers of the entries.
    mean : (r,) float64. Posterior means, as shares of all reports.
    std_error : (r,) float64. Standard errors of the estimates.
    common : (r, r) float64. Covariance of the estimates' errors, with a diagonal of zeros.
    bins : (r,) int64. Place of each entry's rounded score in `posterior`.
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
    ) -> DetectedRows:
        """Compute the posterior of these entries, (r,) increasing, from all estimates, (c,).

        `covariance` returns the covariance of estimates of entries that are fitted together,
        (r, r).
        """
        entries = entries[np.isfinite(std_error[entries])]
        scale = np.maximum(std_error[entries], NO_NOISE)
        z = estimate[entries] / scale
        rounded, bins, n_detected = round_scores(z)
        others, n_others = _other_scores(p_values, entries)
        # A bin of detected entries holds no other candidate, because it has coefficients.
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
        """Return the weighted sum of the shares, of weights (r,), and its variance."""
        if not weights.any():
            return 0.0, 0.0
        coefficients = np.bincount(self.bins, weights * self.std_error, len(self.counts))
        moments = self.posterior.sum(coefficients / self.counts, self.counts)
        # For two normal errors with covariance C, functions g and h of them have the covariance
        # C E[g'] E[h'], to first order in C (Price, IRE Transactions 1958).
        influence = moments.influence[self.bins] / self.std_error
        variance = moments.variance + float(influence @ self.common @ influence)
        return float(weights @ self.mean), max(variance, 0.0)

    def sum_of(self, entries: Integers) -> tuple[float, float]:
        """Return the sum of the shares of these entries and its standard error."""
        total, variance = self.contrast(np.isin(self.entries, entries).astype(float))
        return total, math.sqrt(variance)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Related:
    """How the rows of a table belong together.

    Attributes
    ----------
    entry : (c,) int64. The entry of each row; rows of one group have the same entry.
    estimate, std_error : (e,) float64, of each entry.
    covariance : returns the covariance of the estimates of r entries, (r, r).
    detected : the posterior of the detected entries; None for yes or no, which has one entry.
    """

    entry: Integers
    estimate: Floats
    std_error: Floats
    covariance: Covariance
    detected: DetectedRows | None

    def contrasts(self, rows: Integers, weights: Floats) -> tuple[Floats, Floats]:
        """Return contrasts of rows named in advance, and their covariance, (t, t).

        Parameters
        ----------
        rows : (r,) int64. Numbers of the rows.
        weights : (t, r) float64. Weights of each contrast. A group has one share, which counts
            once.

        Raises
        ------
        DecodeError
            The counts do not say it: a row is unknown, or the members of a group, which cannot be
            distinguished, have different weights.
        """
        entries = np.unique(self.entry[rows])
        if not np.isfinite(self.std_error[entries]).all():
            raise DecodeError("rows must be known, got one that the counts say nothing about")
        of_entries = self._weigh_entries(rows, weights, entries)
        return (
            of_entries @ self.estimate[entries],
            of_entries @ self.covariance(entries) @ of_entries.T,
        )

    def detected_contrast(self, rows: Integers, weights: Floats) -> tuple[float, float]:
        """Return a contrast of rows that were chosen because they are detected, and its variance.

        `rows` and `weights` are (r,). Raises DecodeError as `contrasts` does, and for a row that is
        not detected.
        """
        detected = self.detected
        if detected is None or not np.isin(self.entry[rows], detected.entries).all():
            raise DecodeError("rows must all be detected, got one that is not")
        return detected.contrast(self._weigh_entries(rows, weights[None], detected.entries)[0])

    def _weigh_entries(self, rows: Integers, weights: Floats, entries: Integers) -> Floats:
        """Return the weights of increasing entries, (t, e), from the weights of rows, (t, r)."""
        places = np.searchsorted(entries, self.entry[rows])
        of_entries = np.zeros((len(weights), len(entries)))
        of_entries[:, places] = weights
        whole = np.isin(self.entry, self.entry[rows]).sum() == len(rows)
        if not whole or not np.array_equal(of_entries[:, places], weights):
            raise DecodeError(
                "rows must have all members of a group, each with the same weight, or none: the "
                "members cannot be distinguished"
            )
        return of_entries


def _other_scores(p_values: PValues, entries: Integers) -> tuple[Floats, Integers]:
    """Return the scores of all p-values but those of these entries, and the number of each."""
    others = p_values.counts - count_p_values(p_values.rows[entries])
    bins = np.flatnonzero(others)
    middle = np.sqrt(np.maximum(EDGES[bins], EDGES[1]) * EDGES[bins + 1])
    return -special.ndtri(middle), others[bins]


def add_sampling(covariance: Floats, estimate: Floats, per_device: Floats) -> Floats:
    """Add to a covariance, (r, r), that a device has one of these values, not several.

    The diagonal has each share's own sampling already. `per_device`, (r, r), is one over the
    devices that were asked for both of two values, weighted as their estimates are.
    """
    share = np.clip(estimate, 0.0, 1.0)
    both = np.outer(share, share) * per_device
    both[np.diag_indices_from(both)] = 0.0
    return covariance - both
