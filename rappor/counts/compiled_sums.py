"""The compiled loop that adds packed reports; `bit_sums` checks what it gets and calls it.

Theory of operation: one byte of a report, spread over the eight byte-wide lanes of a 64-bit
word, is added to eight counters at once. A lane holds 255, so a cohort's lanes are emptied
into its 64-bit sums at every 255th report. That needs m * ceil(k/8) words and no sorting.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rappor.jit import compiled

_LANE_LIMIT: Final = 255
"""The largest number of a byte."""

_LANES: Final = np.array(
    [sum((byte >> lane & 1) << 8 * lane for lane in range(8)) for byte in range(256)],
    dtype=np.uint64,
)
"""(256,) uint64: at [byte] bit l of the byte, moved to lane l."""


@compiled
def add_rows(
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
