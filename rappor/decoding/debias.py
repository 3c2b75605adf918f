"""De-biasing: from counts to the rows of a regression, one row for each bit of a cohort.

The rows of several collections are stacked. Each collection brings its own effective
probabilities, noise and background; all of them share the candidates' proportions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rappor.counts.counts import Counts
from rappor.errors import DecodeError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """The de-biased bits of all collections, n rows.

    Attributes
    ----------
    proportions : (n,) float64. (c_ij / N_j - p*) / (q* - p*), unclipped ([EPK14] section 4).
    reports : (n,) float64. N_j of the row's cohort; 0 for an empty cohort.
    p_star, q_star : (n,) float64. Effective probabilities of the row.
    group : (n,) int64. Which collection the row comes from.
    density : (n,) float64. Share of rows that a random string sets, the background's height.
    n_reports : reports in all collections.
    counts : the collections themselves.
    """

    proportions: NDArray[np.float64]
    reports: NDArray[np.float64]
    p_star: NDArray[np.float64]
    q_star: NDArray[np.float64]
    group: NDArray[np.int64]
    density: NDArray[np.float64]
    n_reports: int
    counts: tuple[Counts, ...]

    def __len__(self) -> int:
        return len(self.proportions)

    def noise(self, theta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the variance of each row if the true proportions were `theta`.

        This is the variance of a sample: devices are drawn from a population, and the
        population's proportion is the estimand. For the devices that did report it is a
        little too large. Rows of an empty cohort have infinite variance.
        """
        gap = self.q_star - self.p_star
        mean = self.p_star + gap * np.clip(theta, 0.0, 1.0)
        with np.errstate(divide="ignore"):
            return mean * (1 - mean) / self.reports / gap**2


def debias(collections: Sequence[Counts]) -> Target:
    """Stack the collections that have reports as rows of one regression.

    Raises
    ------
    DecodeError: there are no reports at all.
    """
    collections = [counts for counts in collections if counts.n_reports]
    if not collections:
        raise DecodeError("counts must hold at least 1 report, got 0")
    sizes = [counts.params.m * counts.params.k for counts in collections]
    bits = np.concatenate([np.full(c.params.m, c.params.k) for c in collections])
    reports = np.repeat(np.concatenate([c.reports for c in collections]), bits).astype(float)
    ones = np.concatenate([c.ones.ravel() for c in collections])
    p_star = np.repeat([c.params.p_star for c in collections], sizes)
    q_star = np.repeat([c.params.q_star for c in collections], sizes)
    return Target(
        proportions=(ones / np.maximum(reports, 1.0) - p_star) / (q_star - p_star),
        reports=reports,
        p_star=p_star,
        q_star=q_star,
        group=np.repeat(np.arange(len(sizes)), sizes),
        density=np.repeat([c.params.density for c in collections], sizes),
        n_reports=sum(c.n_reports for c in collections),
        counts=tuple(collections),
    )
