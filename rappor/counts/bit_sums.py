"""The sum of the bits of many reports: compiled, or without a compiler by numpy alone.

Reports are packed: bit i of a report is bit i mod 8 (least significant first) of byte i div 8,
and the unused bits of the last byte are 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rappor.base.errors import ReportError

try:
    from rappor.counts.compiled_sums import add_rows
except ImportError:  # a worker of a cluster may have no compiler: several times slower, and equal
    from rappor.counts.plain_sums import add_rows


def sum_bits(
    packed: NDArray[np.uint8],
    cohorts: NDArray[np.integer[Any]],
    *,
    k: int,
    m: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count, in every cohort, the reports and the ones at every bit.

    Parameters
    ----------
    packed : (n, ceil(k/8)) uint8, packed reports.
    cohorts : (n,) of any integer dtype, each in [0, m); the order is free.
    k, m : bits of a report, and cohorts.

    Returns
    -------
    ones : (m, k) int64, reports of cohort j that have a 1 at bit i.
    reports : (m,) int64, reports of cohort j.

    Raises
    ------
    ReportError
        The arrays are not packed reports, or a report names a cohort outside [0, m) or sets
        one of the unused bits; the message has the row.
    """
    _check_reports(packed, cohorts, k)
    ones = np.zeros((m, k), dtype=np.int64)
    reports = np.zeros(m, dtype=np.int64)
    bad = add_rows(np.ascontiguousarray(packed), cohorts, ones, reports)
    if bad >= 0:
        raise ReportError(_complaint(int(cohorts[bad]), bad, k, m))
    return ones, reports


def _check_reports(packed: NDArray[np.uint8], cohorts: NDArray[np.integer[Any]], k: int) -> None:
    n_bytes = (k + 7) // 8
    if packed.dtype != np.uint8 or packed.ndim != 2 or packed.shape[1] != n_bytes:
        raise ReportError(
            f"packed must be uint8 of shape (n, {n_bytes}), got {packed.dtype} of {packed.shape}"
        )
    if cohorts.dtype.kind not in "iu" or cohorts.shape != packed.shape[:1]:
        raise ReportError(
            f"cohorts must be integers of shape ({len(packed)},), "
            f"got {cohorts.dtype} of {cohorts.shape}"
        )


def _complaint(cohort: int, row: int, k: int, m: int) -> str:
    """Say what is wrong with a row that the kernel has refused."""
    if not 0 <= cohort < m:
        return f"cohort must be in [0, {m - 1}], got {cohort} in row {row}"
    return f"the bits from {k} on must be 0, got a 1 in row {row}"
