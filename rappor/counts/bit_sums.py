"""The sum of the bits of many reports, compiled.

Reports are packed: bit i of a report is bit i mod 8 (least significant first) of byte i div 8,
and the unused bits of the last byte are 0.

Theory of operation: one byte of a report, spread over the eight byte-wide lanes of a 64-bit
word, is added to eight counters at once. A lane holds 255, so a cohort's lanes are emptied
into its 64-bit sums at every 255th report. That needs m * ceil(k/8) words and no sorting.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rappor.errors import ReportError
from rappor.jit import compiled

_LANE_LIMIT: Final = 255
"""The largest number of a byte."""

_LANES: Final = np.array(
    [sum((byte >> lane & 1) << 8 * lane for lane in range(8)) for byte in range(256)],
    dtype=np.uint64,
)
"""(256,) uint64: at [byte] bit l of the byte, moved to lane l."""


def sum_bits(
    packed: NDArray[np.uint8],
    cohorts: NDArray[np.integer[Any]],
    *,
    k: int,
    m: int,
    first_row: int = 0,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count, in every cohort, the reports and the ones at every bit.

    Parameters
    ----------
    packed : (n, ceil(k/8)) uint8, packed reports.
    cohorts : (n,) of any integer dtype, each in [0, m); the order is free.
    k, m : bits of a report, and cohorts.
    first_row : the number of the first row, for messages.

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
    bad = _sum_bits(np.ascontiguousarray(packed), cohorts, ones, reports)
    if bad >= 0:
        raise ReportError(_complaint(int(cohorts[bad]), first_row + bad, k, m))
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


@compiled
def _sum_bits(
    packed: NDArray[np.uint8],
    cohorts: NDArray[np.integer[Any]],
    ones: NDArray[np.int64],
    reports: NDArray[np.int64],
) -> int:
    """Add every report to ones and reports; return the first bad row, or -1."""
    n, n_bytes = packed.shape
    m, k = ones.shape
    padding = np.uint8(0xFF00 >> (8 * n_bytes - k) & 0xFF)
    waiting = np.zeros((m, n_bytes), dtype=np.uint64)
    n_waiting = np.zeros(m, dtype=np.int64)
    for row in range(n):
        j = np.int64(cohorts[row])  # an unsigned one above 2^63 turns negative: still outside
        if j < 0 or j >= m or packed[row, n_bytes - 1] & padding:
            return int(row)
        for b in range(n_bytes):
            waiting[j, b] += _LANES[packed[row, b]]
        n_waiting[j] += 1
        if n_waiting[j] == _LANE_LIMIT:
            reports[j] += _LANE_LIMIT
            n_waiting[j] = 0
            _empty_lanes(waiting[j], ones[j])
    for cohort in range(m):
        reports[cohort] += n_waiting[cohort]
        _empty_lanes(waiting[cohort], ones[cohort])
    return -1


@compiled
def _empty_lanes(waiting: NDArray[np.uint64], ones: NDArray[np.int64]) -> None:
    """Move one cohort's eight-in-a-word counters into its sums."""
    for i in range(len(ones)):
        ones[i] += np.int64(waiting[i >> 3] >> np.uint64(8 * (i & 7)) & np.uint64(0xFF))
    waiting[:] = 0
