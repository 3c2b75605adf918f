"""Several rows at once: sums, differences and other contrasts, and how sure they are.

Theory of operation
-------------------
Whatever is said of several rows is a contrast, a weighted sum of their shares, and its error comes
from one covariance. Which shares depends on who chose the rows.

Rows that somebody named before the counts were seen, a group or two rows to compare, keep their
estimates: those are unbiased, one by one and in sum, and have the covariance of the fit.

Rows are detected because they came out high, so a sum of their estimates is too large, by five
standard errors in an ordinary collection. Their posterior means under the prior of `distribution`
are not: given its estimate, what a share is does not depend on why somebody asks for it. So what
detected rows hold together is a sum of posterior means:

- estimates have the covariance V of a fit of these rows together. A row's posterior variance is a
  part v_s of its own V_ss, and the errors of two rows keep their correlation:
  sqrt(v_s v_t) V_st;
- the prior is fitted, and moves all means together: its weights have the covariance of their
  likelihood.

The prior is fitted to the detected rows' estimates and to the histogram of all other p-values,
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

from rappor.counts.arrays import Floats, Integers
from rappor.decoding.distribution import NO_NOISE, Posterior, fit_prior
from rappor.decoding.p_values import EDGES, PValues, count_p_values
from rappor.ground.errors import DecodeError

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
class Joint:
    """What the shares of some entries are together.

    Attributes
    ----------
    entries : (r,) int64, increasing. Which ones they are.
    mean : (r,) float64, as shares of all reports.
    covariance : (r, r) float64.
    """

    entries: Integers
    mean: Floats
    covariance: Floats

    @classmethod
    def of(
        cls,
        entries: Integers,
        estimate: Floats,
        std_error: Floats,
        p_values: PValues,
        covariance: Covariance,
    ) -> Joint:
        """Return the posterior of these entries, (r,) increasing, of all estimates, (c,).

        `covariance` returns that of the estimates of entries that are fitted together, (r, r).
        """
        entries = entries[np.isfinite(std_error[entries])]
        scale = np.maximum(std_error[entries], NO_NOISE)
        z = estimate[entries] / scale
        prior_z, counts = _scores(z, p_values, entries)
        prior = fit_prior(prior_z, counts)
        posterior = Posterior(prior, z)
        slopes, kept = posterior.slopes() * scale[:, None], np.sqrt(posterior.variance)
        of_prior = Posterior(prior, prior_z).prior_covariance(counts)
        return cls(
            entries=entries,
            mean=posterior.mean * scale,
            covariance=covariance(entries) * np.outer(kept, kept) + slopes @ of_prior @ slopes.T,
        )

    def contrasts(self, weights: Floats) -> tuple[Floats, Floats]:
        """Return the contrasts of weights, (t, r), and their covariance, (t, t)."""
        return weights @ self.mean, weights @ self.covariance @ weights.T

    def sum_of(self, entries: Integers) -> tuple[float, float]:
        """Return the sum of the shares of these entries and its standard error."""
        (total,), ((variance,),) = self.contrasts(
            np.isin(self.entries, entries)[None].astype(float)
        )
        return float(total), float(np.sqrt(max(variance, 0.0)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Related:
    """How the rows of a table belong together.

    Attributes
    ----------
    entry : (c,) int64. What each row shows; rows of one group show the same.
    estimate, std_error : (e,) float64, of each entry.
    covariance : returns that of the estimates of r entries, (r, r).
    detected : the posterior of the entries that are detected; none where one report may have
        several answers.
    exclusive : whether one report has one answer at most. Where it may have several, the counts do
        not say how often two come together.
    """

    entry: Integers
    estimate: Floats
    std_error: Floats
    covariance: Covariance
    detected: Joint
    exclusive: bool

    def contrasts(
        self, rows: Integers, weights: Floats, *, detected: bool = False
    ) -> tuple[Floats, Floats]:
        """Return the contrasts of weights, (t, r), of r rows, and their covariance, (t, t).

        Rows are named in advance, unless `detected` says that they were chosen because they are.
        A group has one share, which counts once.

        Raises
        ------
        DecodeError
            The counts do not say it: a report may have several of these answers, a row is unknown
            or not detected, or the members of a group, which cannot be distinguished, differ.
        """
        entries = np.unique(self.entry[rows])
        joint = self.detected if detected else self._named(entries)
        if not np.isin(entries, joint.entries).all():
            raise DecodeError("rows must all be detected, got one that is not")
        place = np.searchsorted(joint.entries, self.entry[rows])
        of_entries = np.zeros((len(weights), len(joint.entries)))
        of_entries[:, place] = weights
        whole = np.isin(self.entry, entries).sum() == len(rows)
        if not whole or not np.array_equal(of_entries[:, place], weights):
            raise DecodeError(
                "rows must have all members of a group, each with the same weight, or none: the "
                "members cannot be distinguished"
            )
        return joint.contrasts(of_entries)

    def _named(self, entries: Integers) -> Joint:
        if not self.exclusive and len(entries) > 1:
            raise DecodeError(
                "rows must be one where a report may have several answers: the counts do not say "
                "how often two come together"
            )
        if not np.isfinite(self.std_error[entries]).all():
            raise DecodeError("rows must be known, got one that the counts say nothing about")
        return Joint(
            entries=entries, mean=self.estimate[entries], covariance=self.covariance(entries)
        )


def _scores(z: Floats, p_values: PValues, entries: Integers) -> tuple[Floats, Integers]:
    """Return these z scores and those of all other p-values, and how many there are of each."""
    others = p_values.counts - count_p_values(p_values.rows[entries])
    bins = np.flatnonzero(others)
    middle = np.sqrt(np.maximum(EDGES[bins], EDGES[1]) * EDGES[bins + 1])
    scores, place = np.unique(np.concatenate([z, -special.ndtri(middle)]), return_inverse=True)
    numbers = np.concatenate([np.ones(len(z), dtype=np.int64), others[bins]])
    return scores, np.bincount(place, numbers).astype(np.int64)


def add_sampling(covariance: Floats, estimate: Floats, per_device: Floats) -> Floats:
    """Add to a covariance, (r, r), that a device has one of these values, not several.

    The diagonal has each share's own sampling already. `per_device`, (r, r), is one over the
    devices that were asked for both of two values, weighted as their estimates are.
    """
    share = np.clip(estimate, 0.0, 1.0)
    both = np.outer(share, share) * per_device
    both[np.diag_indices_from(both)] = 0.0
    return covariance - both
