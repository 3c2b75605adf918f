"""The compiled loop that adds packed reports; `bit_sums` checks what it gets and calls it.

Theory of operation: a report is a few 64-bit words. Each cohort has eight words for every one of
them, its planes: bit i of plane p is worth 2^p reports with a 1 at bit i. Eight reports at a time
go through carry-save adders (full adders, 64 bits side by side), which take some five operations
for a word of a report, and no table. Planes hold 255 reports; they are emptied into 64-bit sums
after 248.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rappor.base.jit import compile_kernel

_PLANES: Final = 8
"""Planes of a cohort, and reports that are added at a time."""

_FULL: Final = 248
"""The largest number of reports below 256 that is a multiple of eight: the last ones, fewer than
eight, still fit on top."""


def add_rows(
    packed: NDArray[np.uint8],
    cohorts: NDArray[np.integer[Any]],
    ones: NDArray[np.int64],
    reports: NDArray[np.int64],
) -> int:
    """Add every report to ones and reports; return the first bad row, or -1."""
    used = ones.shape[1] % 64
    padding = np.uint64(2**64 - (1 << used) if used else 0)
    return int(_add_words(_words(packed), cohorts, padding, ones, reports))


def _words(packed: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return reports as 64-bit words, (n, ceil(k/64)); those of whole words are not copied."""
    n, n_bytes = packed.shape
    if n_bytes % 8:
        padded = np.zeros((n, n_bytes + -n_bytes % 8), dtype=np.uint8)
        padded[:, :n_bytes] = packed
        packed = padded
    words = np.ascontiguousarray(packed).view("<u8")
    return np.require(words, dtype=np.uint64, requirements=["C", "A"])


@compile_kernel
def _add_words(
    words: NDArray[np.uint64],
    cohorts: NDArray[np.integer[Any]],
    padding: np.uint64,
    ones: NDArray[np.int64],
    reports: NDArray[np.int64],
) -> int:
    """Add every report to ones and reports; return the first bad row, or -1."""
    n, n_words = words.shape
    m = len(reports)
    waiting = np.zeros((m, _PLANES, n_words), dtype=np.uint64)
    planes = np.zeros((m, _PLANES, n_words), dtype=np.uint64)
    n_held = np.zeros(m, dtype=np.int64)
    for row in range(n):
        j = np.int64(cohorts[row])  # an unsigned one above 2^63 turns negative: still outside
        if j < 0 or j >= m or words[row, n_words - 1] & padding:
            return int(row)
        place = n_held[j] % _PLANES
        for w in range(n_words):
            waiting[j, place, w] = words[row, w]
        n_held[j] += 1
        if place == _PLANES - 1:
            _add_eight(waiting[j], planes[j])
        if n_held[j] == _FULL:
            _empty_planes(planes[j], ones[j])
            reports[j] += _FULL
            n_held[j] = 0
    for cohort in range(m):
        for place in range(n_held[cohort] % _PLANES):
            for w in range(n_words):
                _add_one(waiting[cohort, place, w], planes[cohort], w, 0)
        _empty_planes(planes[cohort], ones[cohort])
        reports[cohort] += n_held[cohort]
    return -1


@compile_kernel
def _add_eight(rows: NDArray[np.uint64], planes: NDArray[np.uint64]) -> None:
    """Add eight reports of one cohort, (8, n_words), to its planes (Harley and Seal)."""
    for w in range(rows.shape[1]):
        one, two, four = planes[0, w], planes[1, w], planes[2, w]
        a, one = _add_bits(one, rows[0, w], rows[1, w])
        b, one = _add_bits(one, rows[2, w], rows[3, w])
        c, two = _add_bits(two, a, b)
        a, one = _add_bits(one, rows[4, w], rows[5, w])
        b, one = _add_bits(one, rows[6, w], rows[7, w])
        d, two = _add_bits(two, a, b)
        eight, four = _add_bits(four, c, d)
        planes[0, w], planes[1, w], planes[2, w] = one, two, four
        _add_one(eight, planes, w, 3)


@compile_kernel
def _add_bits(a: np.uint64, b: np.uint64, c: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Add three bits in each place: return the carries and the sums."""
    either = a ^ b
    return (a & b) | (either & c), either ^ c


@compile_kernel
def _add_one(carry: np.uint64, planes: NDArray[np.uint64], w: int, first: int) -> None:
    """Add one bit in each place of a word, beginning with a plane."""
    for plane in range(first, _PLANES):
        above = planes[plane, w] & carry
        planes[plane, w] ^= carry
        carry = above


@compile_kernel
def _empty_planes(planes: NDArray[np.uint64], ones: NDArray[np.int64]) -> None:
    """Move what one cohort's planes hold into its sums."""
    for i in range(len(ones)):
        held = np.uint64(0)
        for plane in range(_PLANES):
            bit = planes[plane, i >> 6] >> np.uint64(i & 63) & np.uint64(1)
            held |= bit << np.uint64(plane)
        ones[i] += np.int64(held)
    planes[:] = 0
