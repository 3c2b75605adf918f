"""The fit near capacity: all candidates at once, their shares drawn from one distribution.

Theory of operation
-------------------
Where candidates are nearly as many as the rows that know of them, or more, a least-squares fit of
all has errors without bound, and a selection picks those that the noise and the collisions with
others happened to lift. Here nothing is selected. The shares are random effects of one variance s2:

    y = background + X beta + noise,    beta ~ (0, s2),    noise ~ (0, v + tau2)
    Sigma = s2 X X' + diag(v + tau2)

s2 and tau2 are those of largest restricted likelihood (Patterson and Thompson, Biometrika 1971), by
Fisher's scoring. With P the inverse of Sigma less what the background takes of it, a candidate that
is tested for itself, all others being random, has by generalised least squares

    beta_j = x_j' P y / x_j' P x_j,    variance 1 / x_j' P x_j - s2

which is unbiased whatever its own share is (Robinson, Statistical Science 1991). For two candidates
the errors' covariance is x_i' P x_j (1 / b_i b_j - s2 / b_i - s2 / b_j), b_j = x_j' P x_j.

One variance fits shares of one size. Those that stand out by `STRONG` standard errors are fixed
effects, with a column of their own as the background has, and s2 is that of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import sparse

from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.estimator.debias import Target
from rappor.estimator.fit import LEAST_NOISE, RIDGE, Equations, Fit, backgrounds

STRONG: Final = 16.0
"""Standard errors from which on a candidate is no longer taken for one of many. With 8 the search
fits collisions: of 50 strong and 300 weak strings on 512 rows 68 % of the intervals hold, with 12
and 16 96 %. With 12 those of 300 Zipf strings hold 94 % instead of 95 %, and a tenth more are
found."""

_ROUNDS: Final = 4
"""Fits at most, after each of which the strong ones leave the others."""

_MOST_STRONG: Final = 0.5
"""Part of the rows that strong ones may fill."""

_STEPS: Final = 12
"""Steps of Fisher's scoring at most; four to eight are usual."""

_SETTLED: Final = 1e-3
"""Relative change of both variances below which they have settled: of standard errors, a
thousandth is nothing."""

_ROUNDING: Final = 1e-13
"""As `RIDGE`, for rows, whose noise may be a billionth of what collisions do."""

_KNOWN: Final = 1e-6
"""Part of a candidate's own information that must be left of it."""

_SET_ASIDE: Final = 1e-3
"""Least weight of a row: one that is set aside has a thousand times its noise."""

_UNKNOWN: Final = 1e6
"""Variance of the rows of empty cohorts, of shares that are at most one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShrunkenFit(Fit):
    """A fit in which candidates are random effects, but for the strong ones.

    `residual` is what background, strong candidates and the predicted shares of all others leave;
    the columns of `basis` are the backgrounds and the strong ones.

    Attributes
    ----------
    estimate, std_error : (c,) float64, of every candidate.
    moved : (n, c) float64. How far each row's proportion moves each estimate.
    random : (n, c) float64. Columns of the candidates, zero for strong ones.
    total : (n, n) float64. Sigma.
    s2 : variance of the shares of the others.
    free : degrees of freedom of the residual.
    """

    estimate: Floats
    std_error: Floats
    moved: Floats
    random: Floats
    total: Floats
    s2: float
    free: float

    @property
    def degrees_of_freedom(self) -> float:
        """Rows less what the strong ones, and the predicted shares of the others, took."""
        return max(self.free, 1.0)

    @property
    def collisions(self) -> float:
        """Variance of a row that the candidates' own collisions make."""
        return self.s2 * float((self.random**2).sum(axis=1).mean())

    def influence(
        self,
        columns: sparse.csc_array,  # noqa: ARG002  # of the interface; they are those of the places
        places: Integers,
    ) -> Floats:
        """Return how far each row's proportion moves the estimates of these candidates, (c, n)."""
        return np.ascontiguousarray(self.moved[:, places].T)

    def covariance_of(self, candidates: Integers) -> Floats:
        """Return the covariance of the estimates of these candidates, (s, s)."""
        moved, random = self.moved[:, candidates], self.random[:, candidates]
        own = self.s2 * moved.T @ random
        errors = moved.T @ self.total @ moved - own - own.T
        return np.asarray(errors + np.diag(self.s2 * random.any(axis=0)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Projected:
    """Sigma, its inverse less what fixed columns take of it (P), and what gives their estimates."""

    total: Floats
    projection: Floats
    fixed: Floats
    inverse: Floats


def shrink(
    target: Target, columns: sparse.csc_array, start: Fit, *, strong_apart: bool
) -> ShrunkenFit:
    """Fit all candidates, (n, c), with the noise and the weights of a fit to start from.

    Without `strong_apart` all are random. Errors are larger then, and hold where a candidate has so
    few rows that which ones are strong cannot be told.
    """
    every = columns.toarray()
    strong = np.zeros(every.shape[1], dtype=bool)
    fit = _fit_once(target, every, strong, start)
    for _ in range(_ROUNDS - 1 if strong_apart else 0):
        more = strong | (fit.estimate > STRONG * fit.std_error)
        if more.sum() == strong.sum() or more.sum() >= _MOST_STRONG * len(target):
            break
        strong = more
        fit = _fit_once(target, every, strong, fit)
    return fit


def _fit_once(target: Target, every: Floats, strong: Booleans, start: Fit) -> ShrunkenFit:
    """Fit with these strong ones, and with the noise at the values that were fitted before."""
    noise = target.noise(start.fitted)
    rows = np.where(np.isfinite(noise), noise, _UNKNOWN) / np.maximum(start.robust, _SET_ASIDE)
    fixed = np.hstack([backgrounds(target), every[:, strong]])
    random = np.where(strong, 0.0, every)
    kinship = random @ random.T
    begun = max(start.tau2, LEAST_NOISE)
    shares = start.s2 if isinstance(start, ShrunkenFit) else _begin(kinship, begun)
    s2, tau2 = _variances(target.proportions, kinship, rows, fixed, begun=(shares, begun / 10))
    found = _project(kinship, rows, fixed, s2, tau2)
    y, projection = target.proportions, found.projection
    scored = projection @ random
    information = np.einsum("ij,ij->j", random, scored)
    known = information > _KNOWN * (random.T @ (1 / (rows + tau2)))
    safe = np.where(known, information, 1.0)
    moved = np.where(known, scored / safe, 0.0)
    moved[:, strong] = (found.fixed @ found.inverse)[:, len(target.counts) :]
    std_error = np.full(every.shape[1], np.inf)
    std_error[known] = np.sqrt(np.maximum(1 / safe[known] - s2, LEAST_NOISE))
    std_error[strong] = np.sqrt(found.inverse.diagonal()[len(target.counts) :])
    residual = (rows + tau2) * (projection @ y)
    weight = np.where(np.isfinite(noise), start.robust / (noise + tau2), 0.0)
    basis = sparse.csr_array(fixed)
    return ShrunkenFit(
        residual=residual,
        fitted=y - residual,
        noise=noise,
        tau2=tau2,
        robust=start.robust,
        weight=weight,
        kappa=1.0,
        basis=basis,
        equations=Equations(basis, weight, found.inverse),
        coefficients=found.inverse @ (found.fixed.T @ y),
        n_selected=int(strong.sum()),
        estimate=moved.T @ y,
        std_error=std_error,
        moved=moved,
        random=random,
        total=found.total,
        s2=s2,
        free=float(((rows + tau2) * projection.diagonal()).sum()),
    )


def _project(kinship: Floats, rows: Floats, fixed: Floats, s2: float, tau2: float) -> _Projected:
    total = s2 * kinship
    total[np.diag_indices_from(total)] += rows + tau2
    precision = _invert(total, _ROUNDING)
    weighted = precision @ fixed
    inverse = _invert(fixed.T @ weighted, RIDGE)
    return _Projected(
        total=total,
        projection=precision - weighted @ inverse @ weighted.T,
        fixed=weighted,
        inverse=inverse,
    )


def _invert(matrix: Floats, ridge: float) -> Floats:
    """Invert a covariance, scaled to ones and this ridge more on the diagonal."""
    scale = np.sqrt(np.maximum(matrix.diagonal(), np.finfo(float).tiny))
    both = np.outer(scale, scale)
    scaled = matrix / both
    scaled[np.diag_indices_from(scaled)] += ridge
    return np.asarray(np.linalg.inv(scaled) / both)


def _variances(
    y: Floats, kinship: Floats, rows: Floats, fixed: Floats, *, begun: tuple[float, float]
) -> tuple[float, float]:
    """Return s2 and tau2 of largest restricted likelihood, by Fisher's scoring."""
    # In units in which both make the same variance of a row.
    many = _begin(kinship, 1.0) ** -1
    at = np.array(begun) * [many, 1.0]
    for _ in range(_STEPS):
        projection = _project(kinship / many, rows, fixed, *at).projection
        scored = projection @ y
        related = projection @ (kinship / many)
        slope = np.array(
            [
                scored @ (kinship @ scored) / many - np.trace(related),
                scored @ scored - np.trace(projection),
            ]
        )
        both = float(np.einsum("ij,ij->", related, projection))
        own = float(np.einsum("ij,ji->", related, related))
        information = np.array([[own, both], [both, float((projection**2).sum())]])
        after = _step(at, slope, information)
        settled = np.all(np.abs(after - at) <= _SETTLED * at.sum())
        at = after
        if settled:
            break
    return float(at[0]) / many, float(at[1])


def _begin(kinship: Floats, variance: float) -> float:
    """Return the variance of shares that gives a row this one."""
    return variance / max(float(kinship.diagonal().mean()), np.finfo(float).tiny)


def _step(at: Floats, slope: Floats, information: Floats) -> Floats:
    """Return the next variances; one that would be negative is 0, and the other steps alone."""
    after = at + _invert(information, RIDGE) @ slope
    for k in range(2):
        if after[k] < 0:
            after = at + slope / information.diagonal()
            after[k] = 0.0
    return np.maximum(after, 0.0)
