"""Sums of the bits of many packed reports, by cohort.

A cohort is a group of devices with the same hash functions. A report contains the number of its
cohort and k noisy bits. The sums (reports of each cohort, ones at each bit) are all that estimation
needs of the reports.

Reports are packed: bit i of a report is bit i mod 8 (least significant first) of byte i div 8, and
the unused bits of the last byte are 0. Example: with k = 10, the report with ones at the bits 1 and
8 is the two bytes 0x02 0x01.

Two implementations return equal sums: a compiled loop (`compiled_bit_sums`), and numpy alone
(`numpy_bit_sums`), which is several times slower.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rappor.base.errors import ReportError

# Case: a worker of a Spark cluster that has numpy and lacks the compiler (numba).
try:
    from rappor.counts.compiled_bit_sums import add_rows
except ImportError:
    from rappor.counts.numpy_bit_sums import add_rows


def sum_bits(
    packed: NDArray[np.uint8],
    cohorts: NDArray[np.integer[Any]],
    *,
    k: int,
    m: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the reports of each cohort, and the ones at each bit.

    Parameters
    ----------
    packed : (n, ceil(k/8)) uint8. Packed reports.
    cohorts : (n,) of any integer dtype. Cohort of each report, in [0, m), in any order.
    k, m : number of bits of a report, and number of cohorts.

    Returns
    -------
    bit_counts : (m, k) int64
        Number of reports of cohort j that have a 1 at bit i.
    cohort_reports : (m,) int64
        Number of reports of cohort j.

    Raises
    ------
    ReportError
        The arrays have a wrong dtype or shape, or a report has a cohort outside [0, m) or a 1 in
        an unused bit. The message contains the row.

    Examples
    --------
    >>> packed = np.array([[0b01], [0b11], [0b10]], dtype=np.uint8)
    >>> bit_counts, cohort_reports = sum_bits(packed, np.array([0, 0, 1]), k=2, m=2)
    >>> bit_counts.tolist(), cohort_reports.tolist()
    ([[2, 1], [0, 1]], [2, 1])
    """
    _check_reports(packed, cohorts, k)
    bit_counts = np.zeros((m, k), dtype=np.int64)
    cohort_reports = np.zeros(m, dtype=np.int64)
    bad_row = add_rows(np.ascontiguousarray(packed), cohorts, bit_counts, cohort_reports)
    if bad_row >= 0:
        raise ReportError(_explain_bad_row(int(cohorts[bad_row]), bad_row, k, m))
    return bit_counts, cohort_reports


def _check_reports(packed: NDArray[np.uint8], cohorts: NDArray[np.integer[Any]], k: int) -> None:
    """Raise ReportError for a wrong dtype or shape.

    The compiled loop checks no bounds of memory, so it would crash.
    """
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


def _explain_bad_row(cohort: int, row: int, k: int, m: int) -> str:
    """Return the reason for which `add_rows` refused a row."""
    if not 0 <= cohort < m:
        return f"cohort must be in [0, {m - 1}], got {cohort} in row {row}"
    return f"the bits from {k} on must be 0, got a 1 in row {row}"
