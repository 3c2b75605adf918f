"""Normal equations of a weighted least-squares fit: solution, inverse matrix and leverages.

`rappor.estimator.fit` builds these equations once for each change of the weights. The equations are

    B' W B beta = B' W y

| symbol | meaning | shape |
|---|---|---|
| n | number of rows: bits of cohorts | |
| p | number of coefficients: one background per collection, one share per selected candidate | |
| B | basis: 1 if the column sets the row, else 0 (other entries below) | (n, p) |
| W | diagonal matrix of the weights w, the inverse variances of the rows | (n, n) |
| y | de-biased proportions | (n,) |
| beta | coefficients, as shares of the reports | (p,) |

In a comparison of samples, a column with the entries -1 stands for a share that falls. For sets,
the entries are the derivatives of the rows by the shares (`rappor.estimator.set_refit`).

Two algorithms solve the equations. Up to `_MOST_INVERTED` coefficients, a Cholesky factor of B' W B
is computed, which also gives standard errors. With more coefficients, conjugate gradients are
faster: candidates hash at random, so B' W B is nearly diagonal and few iterations are enough. The
Cholesky factor is then computed only when standard errors need it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy import linalg, sparse
from scipy.sparse.linalg import LinearOperator, cg

from rappor.counts.arrays import Floats
from rappor.estimator.sparse_products import compute_quadratic_forms, compute_weighted_products

RIDGE: Final = 1e-9
"""Number that is added to the diagonal of B' W B, after scaling the diagonal to 1. The equations
then have a solution when columns repeat. The ridge changes a coefficient by about a billionth of
itself, which is small compared with any statistical error. A larger ridge would bias estimates."""

_MOST_INVERTED: Final = 400
"""Largest number of coefficients for which the Cholesky factor solves the equations. Above it,
conjugate gradients do. At 400 coefficients both algorithms take 10 ms (measured)."""

_MOST_ITERATIONS: Final = 100
"""Largest number of iterations of conjugate gradients. About 30 are usual if an eighth of the
entries of B is 1. After 100 iterations the Cholesky factor replaces them."""

_RESIDUAL_TOLERANCE: Final = 1e-10
"""Length of B' W (y - B beta), relative to B' W y, at which conjugate gradients stop. The error of
a coefficient is then far below its standard error."""

_EQUAL_WEIGHTS: Final = 1e-13
"""Largest relative difference of two weights that count as equal. Only rounding differs by less."""

_LEVERAGE_STEPS: Final = 12
"""Number of steps of Newton's method in `NormalEquations.compute_leverages`. Six to ten steps reach
the precision of float64."""


class NormalEquations:
    """Normal equations of a basis and weights, with lazily computed factor and inverse.

    Attributes
    ----------
    basis : (n, p) sparse by rows. B.
    weight : (n,) float64, at least 0. w: inverse variances of the rows.
    """

    def __init__(
        self, basis: sparse.csr_array, weight: Floats, inverse: Floats | None = None
    ) -> None:
        """Store the equations.

        Parameters
        ----------
        basis, weight : as in the class.
        inverse : (p, p) float64. (B' W B)^-1, if the caller has computed it already.
        """
        self.basis, self.weight, self._inverse = basis, weight, inverse
        self._factor: tuple[Floats, Floats] | None = None

    @property
    def is_large(self) -> bool:
        """True if conjugate gradients solve the equations faster than a Cholesky factor."""
        return self.basis.shape[1] > _MOST_INVERTED

    @property
    def inverse(self) -> Floats:
        """(p, p) float64. (B' W B)^-1, the covariance of the coefficients if W is exact."""
        if self._inverse is None:
            self._inverse = _invert_factor(*self.factor)
        return self._inverse

    @property
    def factor(self) -> tuple[Floats, Floats]:
        """Cholesky factor of the scaled B' W B, and the scale.

        The first array is (p, p) float64, lower triangular. The second array is (p,) float64: the
        factor D that makes the diagonal of D B' W B D equal to 1.
        """
        if self._factor is None:
            self._factor = _factorize(
                compute_weighted_products(self.basis.tocsc(), self.weight, self.basis)
            )
        return self._factor

    def compute_inverse_forms(self, vectors: Floats) -> Floats:
        """Compute x' (B' W B)^-1 x for each row x of `vectors`.

        If x is B' W z for a column z, the form is the information about z that the columns of the
        basis explain.

        Parameters
        ----------
        vectors : (r, p) float64.

        Returns
        -------
        (r,) float64.
        """
        # The inverse came from the caller, and no factor exists. A product is cheaper than one.
        if self._inverse is not None and self._factor is None:
            return np.asarray(np.einsum("ij,ij->i", vectors @ self._inverse, vectors))
        lower, scale = self.factor
        half = linalg.solve_triangular(
            lower, (vectors * scale).T, lower=True, overwrite_b=True, check_finite=False
        )
        return np.asarray(np.einsum("ij,ij->j", half, half))

    def reuse_if_equal(self, previous: NormalEquations | None) -> NormalEquations:
        """Return the previous equations if they equal these equations, otherwise these equations.

        The factor of the previous equations is then not computed again. Two rounds of a fit often
        have the same weights, because tau^2 is 0 and no row is tapered.
        """
        is_equal = previous is not None and (
            previous.basis is self.basis
            or (
                previous.basis.shape == self.basis.shape
                and np.array_equal(previous.basis.indices, self.basis.indices)
                and np.array_equal(previous.basis.indptr, self.basis.indptr)
                and np.array_equal(previous.basis.data, self.basis.data)
            )
        )
        if previous is None or not is_equal:
            return self
        difference = np.abs(self.weight - previous.weight)
        return previous if (difference <= _EQUAL_WEIGHTS * previous.weight).all() else self

    def solve(self, proportions: Floats, initial_coefficients: Floats) -> Floats:
        """Solve the equations for one right side.

        Parameters
        ----------
        proportions : (n,) float64. y.
        initial_coefficients : (p,) float64. Coefficients at which conjugate gradients start, such
            as the solution with similar weights. The Cholesky factor ignores them.

        Returns
        -------
        (p,) float64. beta. A column without weight has the coefficient 0.
        """
        if self.is_large and self._factor is None:
            coefficients = self._solve_iteratively(proportions, initial_coefficients)
            if coefficients is not None:
                return coefficients
        # Columns nearly repeat, so conjugate gradients did not converge. The ridge of the factor
        # keeps the equations solvable.
        lower, scale = self.factor
        right_side = scale * (self.basis.T @ (self.weight * proportions))
        return np.asarray(scale * linalg.cho_solve((lower, True), right_side, check_finite=False))

    def _solve_iteratively(
        self, proportions: Floats, initial_coefficients: Floats
    ) -> Floats | None:
        """Solve the equations by conjugate gradients. Return None if they do not converge.

        The unknowns are the differences from `initial_coefficients`, and all columns are scaled to
        information 1. The scaled matrix therefore has a unit diagonal and needs no preconditioner.
        """
        information = self.basis.power(2).T @ self.weight
        scale = 1 / np.sqrt(np.where(information > 0, information, 1.0))
        root_weight = np.sqrt(self.weight)
        basis = self.basis
        values = basis.data * scale[basis.indices] * np.repeat(root_weight, np.diff(basis.indptr))
        scaled_basis = sparse.csr_array((values, basis.indices, basis.indptr), shape=basis.shape)
        gram = LinearOperator(
            (len(scale), len(scale)),
            matvec=lambda beta: scaled_basis.T @ (scaled_basis @ beta) + RIDGE * beta,
            dtype=np.float64,
        )
        residual = root_weight * (proportions - basis @ initial_coefficients)
        right_side = scaled_basis.T @ residual - RIDGE * initial_coefficients / scale
        tolerance = _RESIDUAL_TOLERANCE * float(
            np.linalg.norm(scaled_basis.T @ (root_weight * proportions))
        )
        correction, failure = cg(
            gram, right_side, rtol=0.0, atol=tolerance, maxiter=_MOST_ITERATIONS
        )
        return None if failure else initial_coefficients + correction * scale

    def compute_leverages(self, weight: Floats) -> Floats:
        """Compute the leverage of each row: the share of its noise that the fit follows.

        The leverage of row r is w_r b_r' (B' W B)^-1 b_r, where b_r is the row of B. Leverages are
        between 0 and 1 and sum to the number of identified coefficients.

        With many coefficients the inverse is too expensive, and an approximation replaces it. Let
        q_r be the variance of a prediction of row r from all other rows, relative to the variance
        of the row: w_r b_r' (B' W B - w_r b_r b_r')^-1 b_r. By the formula of Sherman and Morrison
        q_r = leverage / (1 - leverage), so the leverage is q_r / (1 + q_r). For random columns the
        leading term is

            q_r = c w_r sum over the columns s of B_rs^2 / information_s

        with information_s = sum over the rows of w_r B_rs^2, and one factor c for all rows. The
        factor is chosen so that the leverages have the correct sum.

        Parameters
        ----------
        weight : (n,) float64. Weights of the rows. They may be newer than the weights of the
            equations.

        Returns
        -------
        (n,) float64 in [0, 1].
        """
        if not self.is_large:
            return np.asarray(
                np.minimum(weight * compute_quadratic_forms(self.basis, self.inverse), 1.0)
            )
        squares = self.basis.power(2)
        information = squares.T @ weight
        unscaled = weight * (squares @ (1 / np.where(information > 0, information, np.inf)))
        factor, n_coefficients = 1.0, float((information > 0).sum())
        for _ in range(_LEVERAGE_STEPS):
            # The sum of the leverages is concave in the factor and lies below its tangent at 0. The
            # tangent has the slope `n_coefficients`, so the sum at the factor 1 is too small.
            # Newton's method starts there, below the solution, and cannot overshoot.
            denominator = 1 + factor * unscaled
            missing_sum = n_coefficients - float((factor * unscaled / denominator).sum())
            factor += missing_sum / float((unscaled / denominator**2).sum())
        return np.asarray(factor * unscaled / (1 + factor * unscaled))


def _factorize(gram: Floats) -> tuple[Floats, Floats]:
    """Compute the Cholesky factor of B' W B after scaling its diagonal to 1 plus the ridge.

    The argument, (p, p), is overwritten. A column without weight gets the scale 0, so its
    coefficient and its variance are 0: all rows of the candidate are empty or set aside.
    """
    diagonal = gram.diagonal()
    scale = np.where(diagonal > 0, 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0)), 0.0)
    gram *= scale
    gram *= scale[:, None]
    gram[np.diag_indices_from(gram)] = 1 + RIDGE
    return linalg.cholesky(gram.T, lower=True, overwrite_a=True, check_finite=False), scale


def _invert_factor(factor: Floats, scale: Floats) -> Floats:
    """Compute (B' W B)^-1, (p, p), from the result of `_factorize`."""
    # LAPACK fills only the lower half of the symmetric inverse.
    lower, _ = linalg.lapack.dpotri(factor, lower=True)
    inverse = np.tril(lower)
    inverse += np.tril(lower, -1).T
    inverse *= scale
    inverse *= scale[:, None]
    return np.asarray(inverse)
