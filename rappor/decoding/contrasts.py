"""Several rows at once: what detected strings hold together, and how sure that is.

Theory of operation
-------------------
Rows are detected because they came out high, so a sum of their estimates is too large, by five
standard errors in an ordinary collection. Their posterior means under the prior of `distribution`
are not: given its estimate, what a share is does not depend on why somebody asks for it. All that
is said of several detected rows is a sum of posterior means, and its error comes from one
covariance:

- estimates have the covariance V of a fit of these rows together. A row's posterior variance is a
  part v_s of its own V_ss, and the errors of two rows keep their correlation:
  sqrt(v_s v_t) V_st;
- the prior is fitted, and moves all means together: its weights have the covariance of their
  likelihood.

The prior is fitted to the detected rows' estimates and to the histogram of all other p-values,
which a stream has as a list has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from rappor.decoding.distribution import (
    NO_NOISE,
    fit_prior,
    posterior_moments,
    posterior_slopes,
    prior_covariance,
)
from rappor.decoding.p_values import EDGES, PValues, count_p_values

Covariance = Callable[[NDArray[np.int64]], NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Joint:
    """What the shares of some rows are together, whatever they were chosen for.

    Attributes
    ----------
    entries : (r,) int64, increasing. Which ones they are.
    mean : (r,) float64, as shares of all reports.
    covariance : (r, r) float64.
    """

    entries: NDArray[np.int64]
    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        entries: NDArray[np.int64],
        estimate: NDArray[np.float64],
        std_error: NDArray[np.float64],
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
        mean, variance = posterior_moments(prior, z)
        slopes = posterior_slopes(prior, z) * scale[:, None]
        kept = np.sqrt(variance)
        return cls(
            entries=entries,
            mean=mean * scale,
            covariance=covariance(entries) * np.outer(kept, kept)
            + slopes @ prior_covariance(prior, prior_z, counts) @ slopes.T,
        )

    def sum_of(self, entries: NDArray[np.int64]) -> tuple[float, float]:
        """Return the sum of the shares of these entries and its standard error."""
        inside = np.isin(self.entries, entries)
        variance = float(self.covariance[np.ix_(inside, inside)].sum())
        return float(self.mean[inside].sum()), float(np.sqrt(max(variance, 0.0)))


def _scores(
    z: NDArray[np.float64], p_values: PValues, entries: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return these z scores and those of all other p-values, and how many there are of each."""
    others = p_values.counts - count_p_values(p_values.rows[entries])
    bins = np.flatnonzero(others)
    middle = np.sqrt(np.maximum(EDGES[bins], EDGES[1]) * EDGES[bins + 1])
    scores, place = np.unique(np.concatenate([z, -special.ndtri(middle)]), return_inverse=True)
    numbers = np.concatenate([np.ones(len(z), dtype=np.int64), others[bins]])
    return scores, np.bincount(place, numbers).astype(np.int64)


def add_sampling(
    covariance: NDArray[np.float64], estimate: NDArray[np.float64], per_device: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Add to a covariance, (r, r), that a device has one of these values, not several.

    The diagonal has each share's own sampling already. `per_device`, (r, r), is one over the
    devices that were asked for both of two values, weighted as their estimates are.
    """
    share = np.clip(estimate, 0.0, 1.0)
    both = np.outer(share, share) * per_device
    both[np.diag_indices_from(both)] = 0.0
    return covariance - both
