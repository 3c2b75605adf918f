"""Joint table of two fields: estimated shares of all cells, with one joint covariance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rappor.counts.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JointTable:
    """Estimated shares of the cells of two fields with A and B listed values.

    Attributes
    ----------
    share : (A, B) float64. Share of the reports with each pair of values, unclipped.
    covariance : (AB, AB) float64, in squared shares. Covariance of `share.ravel()`, from noise,
        collisions and the sampling of devices.
    devices : number of devices from whose reports the shares are estimated.
    """

    share: Floats
    covariance: Floats
    devices: float

    def compute_margin_variances(self) -> tuple[Floats, Floats]:
        """Compute the variances of the sums of the rows, (A,), and of the columns, (B,).

        A negative variance is a rounding error and counts as 0. Case: two reports in two cells of
        one row, so that the other rows are empty for certain.
        """
        # Entry [a, b, c, d] is the covariance of cell (a, b) and cell (c, d). The variance of the
        # sum of row a adds up the entries with c = a. The variance of the sum of column b adds up
        # the entries with d = b.
        n_rows, n_columns = self.share.shape
        covariance = self.covariance.reshape(n_rows, n_columns, n_rows, n_columns)
        rows, columns = np.einsum("abad->a", covariance), np.einsum("abcb->b", covariance)
        return np.maximum(rows, 0.0), np.maximum(columns, 0.0)

    def transpose(self) -> JointTable:
        """Return the table with rows and columns exchanged."""
        # `order` contains the old index of each cell of the new table.
        n_rows, n_columns = self.share.shape
        order = np.arange(n_rows * n_columns).reshape(n_rows, n_columns).T.ravel()
        return JointTable(
            share=self.share.T,
            covariance=self.covariance[np.ix_(order, order)],
            devices=self.devices,
        )
