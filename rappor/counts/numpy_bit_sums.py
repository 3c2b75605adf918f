"""Positional population count with numpy alone: adds the bits of packed reports, by cohort.

The result equals the result of `compiled_bit_sums`. A machine without the compiler uses this
module.

Theory of operation
-------------------
For each byte position of the reports, a histogram H over (cohort, byte value) counts how often each
of the 256 byte values v occurs:

    ones at bit i of the byte, in cohort j  =  sum over v of H[j, v] * (bit i of v)

Case: many cohorts and few reports. The histogram would be mostly empty, so the reports are sorted
by cohort instead, and the unpacked bits of each cohort are added.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_BITS: Final = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
"""(256, 8) uint8. Entry [v, i] is bit i of the byte value v, least significant bit first."""


def add_rows(
    packed: NDArray[np.uint8],
    cohorts: NDArray[np.integer[Any]],
    bit_counts: NDArray[np.int64],
    cohort_reports: NDArray[np.int64],
) -> int:
    """Add every report to `bit_counts` and `cohort_reports`, in place.

    Parameters
    ----------
    packed : (n, ceil(k/8)) uint8. n reports of k bits.
    cohorts : (n,) of any integer dtype. Cohort of each report.
    bit_counts : (m, k) int64. Ones at each bit of each cohort. Unchanged if a row is bad.
    cohort_reports : (m,) int64. Reports of each cohort. Unchanged if a row is bad.

    Returns
    -------
    int
        The first row with a cohort outside [0, m) or a 1 in an unused bit, or -1.
    """
    m, k = bit_counts.shape
    # Mask of the unused bits, the highest bits of the last byte. Example: k = 13 leaves 3 of 16
    # bits unused, and 0xFF00 >> 3 = 0x1FE0 has the low byte 0xE0 = 11100000.
    n_unused = 8 * packed.shape[1] - k
    padding = (0xFF00 >> n_unused) & 0xFF
    is_bad = (cohorts < 0) | (cohorts >= m) | ((packed[:, -1] & padding) != 0)
    if is_bad.any():
        return int(is_bad.argmax())
    rows = cohorts.astype(np.int64)
    cohort_reports += np.bincount(rows, minlength=m)
    # A histogram has 256 m entries. With less than one report for four entries, filling and adding
    # the empty entries would take longer than sorting the reports. Both branches give the same
    # sums.
    if 256 * m <= 4 * len(packed):
        _add_histograms(packed, rows, bit_counts)
    elif len(packed):
        _add_sorted(packed, rows, bit_counts)
    return -1


def _add_histograms(
    packed: NDArray[np.uint8], cohorts: NDArray[np.int64], bit_counts: NDArray[np.int64]
) -> None:
    """Add reports by a histogram of (cohort, byte value) for each byte position."""
    m, k = bit_counts.shape
    table = _BITS.astype(np.int64)
    for byte in range(packed.shape[1]):
        histogram = np.bincount(256 * cohorts + packed[:, byte], minlength=256 * m)
        # The last byte of a report has unused bits, so fewer than 8 columns are added.
        sums = histogram.reshape(m, 256) @ table
        bit_counts[:, 8 * byte : 8 * byte + 8] += sums[:, : k - 8 * byte]


def _add_sorted(
    packed: NDArray[np.uint8], cohorts: NDArray[np.int64], bit_counts: NDArray[np.int64]
) -> None:
    """Add reports by sorting them by cohort and adding the unpacked bits of each cohort."""
    order = np.argsort(cohorts, kind="stable")
    cohorts = cohorts[order]
    # Index of the first report of each cohort that occurs.
    starts = np.flatnonzero(np.diff(cohorts, prepend=-1))
    bits = np.unpackbits(packed[order], axis=1, count=bit_counts.shape[1], bitorder="little")
    bit_counts[cohorts[starts]] += np.add.reduceat(bits, starts, axis=0, dtype=np.int64)
