"""One weighted fit on the selected candidates, and what it says about every other one.

Theory of operation
-------------------
The row of bit i in cohort j is y = sum_s beta_s x_s + background + noise. The noise has three
sources, and each gets a treatment of its own:

- the coins: their variance v is known exactly (`Target.noise`);
- collisions with strings too rare to select: their bits fall anywhere, so they add one
  common variance tau^2 to every row, which is estimated from the residuals by moments;
- collisions with heavy strings that are no candidates: they lift few rows by much. They can
  only add, so a one-sided redescending weight (Hampel's three-part psi without its flat
  part) takes such rows out; estimates and variances are corrected by kappa = E psi' / E w
  (Huber, Robust Statistics, 1981, equation 6.4 of chapter 3 for the one-step estimate).

The background of non-candidates is a free level for each collection: proportions sum to one,
so the level is the density times the unexplained mass, less what the weights took out.

For a candidate outside the selection the same fit gives the coefficient it would get if it
were added: with z_s its column less its projection on the selected ones,
beta_s = z_s'W(y - fit) / z_s'W x_s, the de-sparsified lasso's form [ZZ14, equation 5].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import linalg, sparse
from scipy.sparse.linalg import LinearOperator, cg

from rappor.counts.arrays import Floats, Integers
from rappor.estimator.debias import Target
from rappor.estimator.sparse_products import quadratic_forms, weighted_products

TAPER: Final = (3.5, 7.0)
"""Standard deviations above the fit at which a row's weight begins to fall and is gone. Noise
alone reaches the first in one row of 4,300. README.md, "Constants", measures others."""

_REWEIGHTINGS: Final = 3
"""Fits of which each takes weights and noise from the one before: 2 or 20 change what is found by
less than .3 %."""

_NEWTON_STEPS: Final = 3
"""Steps of Newton's method, started from the last tau^2: ten change no estimate by more than
1e-11 of its error."""

RIDGE: Final = 1e-9
"""Relative to the diagonal: keeps the normal equations solvable when columns repeat, and is
small beside any statistical error."""

_DEPENDENT: Final = 1e-6
"""Share of a column's own information below which it is a combination of others: between
rounding, 1e-12 or so, and one row of a thousand, which is information."""

_MOST_LEVERAGE: Final = 1 - 1e-6
"""Leverage from which on a row is explained whole: what rounding leaves of its residual is noise of
nothing."""

_MOST_SEARCHED: Final = 0.5
"""Part of the residual degrees of freedom that the search may claim: beyond it the formula,
which holds for a sparse selection, says nothing."""

_LEAST_KAPPA: Final = 0.1
"""Bound on kappa, which is not reached unless most rows are lifted: no estimate is multiplied by
more than ten."""

_MANY: Final = 400
"""Coefficients from which on they are found without an inverse: there both take 10 ms."""

_ITERATIONS: Final = 100
"""Iterations at most: with an eighth of the rows filled some 30 are usual."""

_SETTLED: Final = 1e-10
"""Residual of the equations, relative to their right side, at which iterations end."""

_ROUNDING: Final = 1e-13
"""Relative difference that is rounding."""

_LEVERAGE_STEPS: Final = 12
"""Steps of Newton's method that find the leverages' common factor; six to ten are usual."""

_MAD: Final = 1.4826
"""Standard deviations in a median absolute deviation of normal noise: 1 / Phi^-1(3/4)."""

LEAST_NOISE: Final = 1e-18
"""Variance that stands for none, as where p* = 0 and nobody sends the bit: the squared share of one
report of 10^9. Nothing is divided by zero."""

_TINY: Final = 1e-300
"""Keeps Newton's quotient finite where every row is set aside."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """A weighted least-squares fit on background and selected columns.

    Attributes
    ----------
    residual : (n,) float64. Proportions less fitted values.
    fitted : (n,) float64.
    noise : (n,) float64. Variance v of the coins at the fitted values.
    tau2 : variance of collisions, common to all rows.
    robust : (n,) float64 in [0, 1]. Part of each row's weight that the taper left.
    weight : (n,) float64. robust / (noise + tau2).
    kappa : mean slope of the tapered residual relative to its mean weight, 1 when nothing
        is tapered.
    basis : (n, g + s) sparse, by rows. One background column a collection, then the selected
        ones.
    equations : the normal equations of basis and weight.
    coefficients : (g + s,) float64. Background levels, then proportions of the selected.
    n_selected : s.
    """

    residual: Floats
    fitted: Floats
    noise: Floats
    tau2: float
    robust: Floats
    weight: Floats
    kappa: float
    basis: sparse.csr_array
    equations: Equations
    coefficients: Floats
    n_selected: int

    @property
    def inverse(self) -> Floats:
        """Inverse of basis' W basis, (g + s, g + s)."""
        return self.equations.inverse

    @property
    def degrees_of_freedom(self) -> float:
        """Rows that carry weight, less the fitted coefficients; at least 1."""
        return max(float((self.weight > 0).sum() - len(self.coefficients)), 1.0)

    def scores(self, columns: sparse.csc_array) -> tuple[Floats, Floats]:
        """Return score and information of candidates outside the selection.

        Parameters
        ----------
        columns : (n, c) sparse, of ones or, for what falls, of minus ones.

        Returns
        -------
        score : (c,) float64. z_s' W residual.
        information : (c,) float64. z_s' W x_s; 0 for a combination of selected columns.
        """
        score = columns.T @ (self.weight * self.residual)
        cross = weighted_products(columns, self.weight, self.basis)
        own = abs(columns).T @ self.weight
        information = own - self.equations.forms(cross)
        return score, np.where(information > _DEPENDENT * own, information, 0.0)

    def selected(self) -> tuple[Floats, Floats]:
        """Return the estimates of the selected ones and their standard errors, (s,) each.

        Where all rows of one are set aside, or it is a combination of others, nothing is known: its
        estimate is 0 and its error infinite.
        """
        places = slice(len(self.coefficients) - self.n_selected, None)
        own = (abs(self.basis).T @ self.weight)[places]
        variance = self.inverse.diagonal()[places]
        known = (own > 0) & (own * variance * _DEPENDENT < 1)
        error = np.sqrt(np.maximum(variance, 0.0)) / self.kappa
        return np.where(known, self.coefficients[places], 0.0), np.where(known, error, np.inf)

    def influence(self, columns: sparse.csc_array, places: Integers) -> Floats:
        """Return how far each row's proportion moves the estimates of candidates, (c, n) float64.

        Parameters
        ----------
        columns : (n, c) sparse.
        places : (c,) int64. The candidates' columns in the basis, -1 outside the selection.
        """
        inside = places >= 0
        moved = np.empty(columns.shape[::-1])
        moved[inside] = (self.basis @ self.inverse[:, places[inside]]).T
        if not inside.all():
            outside = columns[:, ~inside]
            cross = weighted_products(outside, self.weight, self.basis) @ self.inverse
            rest = outside.toarray() - self.basis @ cross.T
            own = np.asarray(outside.multiply(self.weight[:, None] * rest).sum(axis=0)).ravel()
            moved[~inside] = (rest / (np.maximum(own, _TINY) * self.kappa)).T
        moved *= self.weight
        return moved

    def covariance(self, columns: sparse.csc_array | None = None) -> Floats:
        """Return the covariance of the selected ones' coefficients, (s, s).

        Parameters
        ----------
        columns : (n, s) sparse, without the backgrounds, if just these are to be fitted instead.
        """
        n_backgrounds = len(self.coefficients) - self.n_selected
        inverse = self.inverse
        if columns is not None:
            basis = sparse.hstack([self.basis[:, :n_backgrounds], columns], format="csr")
            inverse = Equations(basis, self.weight).inverse
        return np.asarray(inverse[n_backgrounds:, n_backgrounds:] / self.kappa**2)


def fit_rows(
    target: Target,
    selected: sparse.csc_array,
    *,
    start: Fit | None = None,
    near: Floats | None = None,
    taper: bool = True,
    search_degrees: float = 0.0,
) -> Fit:
    """Fit background and selected columns by iterated weighted least squares.

    Parameters
    ----------
    target : n rows.
    selected : (n, s) sparse columns.
    start : a fit to take noise, collisions and weights from; without one they start from
        the background alone.
    near : (g + s,) float64. Coefficients from which those of many are sought.
    taper : False lets no row's weight fall to nothing, so that a string that is not selected yet
        keeps its own rows.
    search_degrees : degrees of freedom that the search for the selection has used up beyond
        its size (Tibshirani, Statistica Sinica 2015, section 5).
    """
    basis = sparse.hstack([sparse.csc_array(backgrounds(target)), selected], format="csr")
    noise = start.noise if start else target.noise(target.density)
    tau2 = _spread(target, noise, start.residual if start else target.proportions)
    robust = start.robust if start and taper else np.ones(len(target))
    slope = np.ones(len(target))
    psi = redescend if taper else huber
    last = start.equations if start else None
    coefficients = np.zeros(basis.shape[1]) if near is None else near
    n_free = max(len(target) - len(coefficients), 2)
    used = n_free / max(n_free - search_degrees, n_free * _MOST_SEARCHED)
    for _ in range(_REWEIGHTINGS):
        last = Equations(basis, robust / (noise + tau2)).unless_equal(last)
        coefficients = last.solve(target.proportions, coefficients)
        fitted = basis @ coefficients
        residual = target.proportions - fitted
        noise = target.noise(fitted)
        robust, slope = psi(target.excess(fitted, noise + tau2))
        # The fit bends towards the rows: their squares are scaled up by what its coefficients took
        # (leverage), and by what choosing the columns took (the search).
        leverage = last.leverage(robust / (noise + tau2))
        tau2 = _collisions(robust**2 * residual**2 * used, robust, noise, tau2, leverage)
    weight = robust / (noise + tau2)
    last = Equations(basis, weight).unless_equal(last)
    coefficients = last.solve(target.proportions, coefficients)
    fitted = basis @ coefficients
    return Fit(
        residual=target.proportions - fitted,
        fitted=fitted,
        noise=noise,
        tau2=tau2,
        robust=robust,
        weight=weight,
        kappa=max(float(np.sum(slope / (noise + tau2)) / np.sum(weight)), _LEAST_KAPPA),
        basis=basis,
        equations=last,
        coefficients=coefficients,
        n_selected=selected.shape[1],
    )


def backgrounds(target: Target) -> Floats:
    """Return one column of ones for each collection, (n, g)."""
    return np.asarray(target.group[:, None] == np.arange(len(target.counts)), dtype=float)


class Equations:
    """The normal equations of a basis, (n, p), and weights, (n,): basis' W basis beta = basis' W y.

    Candidates hash at random, so these are well conditioned, and where coefficients are many
    conjugate gradients find them sooner than the factor, which is made once errors are asked for.
    """

    def __init__(
        self, basis: sparse.csr_array, weight: Floats, inverse: Floats | None = None
    ) -> None:
        """Take the equations, and their inverse if it is known."""
        self.basis, self.weight, self._inverse = basis, weight, inverse
        self._factor: tuple[Floats, Floats] | None = None

    @property
    def many(self) -> bool:
        """Whether an inverse takes longer than an iteration."""
        return self.basis.shape[1] > _MANY

    @property
    def inverse(self) -> Floats:
        """Inverse of basis' W basis, (p, p)."""
        if self._inverse is None:
            self._inverse = _inverse(*self.factor)
        return self._inverse

    @property
    def factor(self) -> tuple[Floats, Floats]:
        """Lower Cholesky factor of basis' W basis, scaled to ones, (p, p), and the scale, (p,)."""
        if self._factor is None:
            self._factor = _factor(weighted_products(self.basis.tocsc(), self.weight, self.basis))
        return self._factor

    def forms(self, rows: Floats) -> Floats:
        """Return x' (basis' W basis)^-1 x of each row x, (r,), of (r, p)."""
        if self._inverse is not None and self._factor is None:
            return np.asarray(np.einsum("ij,ij->i", rows @ self._inverse, rows))
        lower, scale = self.factor
        half = linalg.solve_triangular(
            lower, (rows * scale).T, lower=True, overwrite_b=True, check_finite=False
        )
        return np.asarray(np.einsum("ij,ij->j", half, half))

    def unless_equal(self, last: Equations | None) -> Equations:
        """Return these, or the equations before them if they are the same."""
        same = (
            last is not None
            and last.basis.shape == self.basis.shape
            and np.array_equal(last.basis.indices, self.basis.indices)
            and np.array_equal(last.basis.indptr, self.basis.indptr)
            and np.array_equal(last.basis.data, self.basis.data)
            and np.allclose(self.weight, last.weight, rtol=_ROUNDING, atol=0)
        )
        return last if last is not None and same else self

    def solve(self, proportions: Floats, near: Floats) -> Floats:
        """Return the coefficients, (p,); the search begins at those of similar weights."""
        if self.many and self._factor is None:
            found = self._iterate(proportions, near)
            if found is not None:
                return found
        lower, scale = self.factor
        right = scale * (self.basis.T @ (self.weight * proportions))
        return np.asarray(scale * linalg.cho_solve((lower, True), right, check_finite=False))

    def _iterate(self, proportions: Floats, near: Floats) -> Floats | None:
        """Return the coefficients by conjugate gradients; None if they do not settle."""
        own = abs(self.basis).T @ self.weight
        scale, root = 1 / np.sqrt(np.where(own > 0, own, 1.0)), np.sqrt(self.weight)
        basis = self.basis
        values = basis.data * scale[basis.indices] * np.repeat(root, np.diff(basis.indptr))
        half = sparse.csr_array((values, basis.indices, basis.indptr), shape=basis.shape)
        gram = LinearOperator(
            (len(scale), len(scale)),
            matvec=lambda beta: half.T @ (half @ beta) + RIDGE * beta,
            dtype=np.float64,
        )
        left = half.T @ (root * (proportions - basis @ near)) - RIDGE * near / scale
        settled = _SETTLED * float(np.linalg.norm(half.T @ (root * proportions)))
        more, failed = cg(gram, left, rtol=0.0, atol=settled, maxiter=_ITERATIONS)
        return None if failed else near + more * scale

    def leverage(self, weight: Floats) -> Floats:
        """Return the part of each row's variance, at these weights, that its own fit explains.

        That is q / (1 + q), q being the weighted variance of the row's value in a fit of all other
        rows. Where coefficients are many, q is taken for c sum w / own over the row's columns, with
        one c for all rows, so that the leverages add up to the number of coefficients: the
        leading term for columns that are drawn at random.
        """
        if not self.many:
            return np.asarray(np.minimum(weight * quadratic_forms(self.basis, self.inverse), 1.0))
        own = abs(self.basis).T @ weight
        shared = weight * (abs(self.basis) @ (1 / np.where(own > 0, own, np.inf)))
        factor, degrees = 1.0, float((own > 0).sum())
        for _ in range(_LEVERAGE_STEPS):
            # The sum is concave and below the line through its beginning: no step goes too far.
            whole = 1 + factor * shared
            gap = degrees - float((factor * shared / whole).sum())
            factor += gap / float((shared / whole**2).sum())
        return np.asarray(factor * shared / (1 + factor * shared))


def _factor(gram: Floats) -> tuple[Floats, Floats]:
    """Factor the normal equations, scaled to ones and a ridge on the diagonal; they are written to.

    A column without weight has scale 0: no coefficient and no variance.
    """
    diagonal = gram.diagonal()
    scale = np.where(diagonal > 0, 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0)), 0.0)
    gram *= scale
    gram *= scale[:, None]
    gram[np.diag_indices_from(gram)] = 1 + RIDGE
    return linalg.cholesky(gram.T, lower=True, overwrite_a=True, check_finite=False), scale


def _inverse(factor: Floats, scale: Floats) -> Floats:
    """Return the inverse of what was factored."""
    lower, _ = linalg.lapack.dpotri(factor, lower=True)
    inverse = np.tril(lower)
    inverse += np.tril(lower, -1).T
    inverse *= scale
    inverse *= scale[:, None]
    return np.asarray(inverse)


def redescend(excess: Floats) -> tuple[Floats, Floats]:
    """Return weight and slope of the one-sided redescending psi at each standardised excess."""
    low, high = TAPER
    falling = (excess > low) & (excess < high)
    weight = np.where(excess < high, 1.0, 0.0)
    slope = weight.copy()
    weight[falling] = low * (high - excess[falling]) / ((high - low) * excess[falling])
    slope[falling] = -low / (high - low)
    return weight, slope


def huber(excess: Floats) -> tuple[Floats, Floats]:
    """Return weight and slope of Huber's psi at each standardised excess, on the upper side."""
    low = TAPER[0]
    return np.minimum(1.0, low / np.maximum(excess, low)), (excess < low).astype(float)


def _spread(target: Target, noise: Floats, residual: Floats) -> float:
    """Return the variance of collisions that the median absolute deviation of the rows shows.

    Heavy strings that are no candidates lift few rows far. A fit that starts from their variance
    keeps them in it; one that starts from the median sets them aside.
    """
    squares = [0.0]
    for group in range(len(target.counts)):
        rows = (target.reports > 0) & (target.group == group)
        # Rows of little noise show collisions; where cohorts are uneven they are the few.
        known = 1 / np.maximum(noise[rows], LEAST_NOISE) ** 2
        away = np.abs(residual[rows] - _median(residual[rows], known))
        usual = float(np.average(noise[rows], weights=known))
        squares.append((_MAD * _median(away, known)) ** 2 - usual)
    return max(squares)


def _median(values: Floats, weights: Floats) -> float:
    """Return the weighted median."""
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])


def _collisions(
    squares: Floats, robust: Floats, noise: Floats, tau2: float, leverage: Floats
) -> float:
    """Solve sum squares / (v + tau2)^2 = sum robust free / (v + tau2) for tau2 >= 0, by Newton.

    Free is what the leverage leaves. The variance of the coins is known exactly, so tau2 counts
    only where it exceeds one standard error of this estimate. A threshold of 0 would widen every
    interval of a collection without collisions.
    """
    # A row that the fit explains whole says nothing.
    free = np.where(leverage < _MOST_LEVERAGE, 1 - leverage, 0.0)
    squares, robust = np.where(free > 0, squares, 0.0), robust * free
    if not robust.any():
        return 0.0
    for _ in range(_NEWTON_STEPS):
        total = noise + tau2
        curvature = max(float(np.sum(robust / total**2)), _TINY)
        gap = np.sum(squares / total**2) - np.sum(robust / total)
        tau2 = max(0.0, tau2 + float(gap) / curvature)
    return tau2 if tau2 > math.sqrt(2 / curvature) else 0.0
