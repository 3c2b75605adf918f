"""The loop of `compiled_sums` without a compiler: numpy alone, equal to the last bit.

Theory of operation: for each byte of a report, a histogram over (cohort, byte) says how often
each of the 256 bytes came, and a table of their bits turns that into ones. Where cohorts are many
and reports few, a histogram would be mostly empty: sorted reports are added up instead.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_BITS: Final = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
"""(256, 8) uint8: at [byte, i] bit i of the byte."""


def add_rows(
    packed: NDArray[np.uint8],
    cohorts: NDArray[np.integer[Any]],
    ones: NDArray[np.int64],
    reports: NDArray[np.int64],
) -> int:
    """Add every report to ones and reports; return the first bad row, or -1.

    Parameters
    ----------
    packed : (n, n_bytes) uint8.
    cohorts : (n,) of any integer dtype.
    ones, reports : (m, k) and (m,) int64; unchanged where a row is bad.
    """
    m, k = ones.shape
    padding = 0xFF00 >> (8 * packed.shape[1] - k) & 0xFF
    bad = (cohorts < 0) | (cohorts >= m) | ((packed[:, -1] & padding) != 0)
    if bad.any():
        return int(bad.argmax())
    rows = cohorts.astype(np.int64)
    reports += np.bincount(rows, minlength=m)
    if 256 * m <= 4 * len(packed):
        _add_histograms(packed, rows, ones)
    elif len(packed):
        _add_sorted(packed, rows, ones)
    return -1


def _add_histograms(
    packed: NDArray[np.uint8], rows: NDArray[np.int64], ones: NDArray[np.int64]
) -> None:
    m, k = ones.shape
    table = _BITS.astype(np.int64)
    for b in range(packed.shape[1]):
        histogram = np.bincount(256 * rows + packed[:, b], minlength=256 * m).reshape(m, 256)
        ones[:, 8 * b : 8 * b + 8] += (histogram @ table)[:, : k - 8 * b]


def _add_sorted(
    packed: NDArray[np.uint8], rows: NDArray[np.int64], ones: NDArray[np.int64]
) -> None:
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    bits = np.unpackbits(packed[order], axis=1, count=ones.shape[1], bitorder="little")
    ones[rows[starts]] += np.add.reduceat(bits, starts, axis=0, dtype=np.int64)
