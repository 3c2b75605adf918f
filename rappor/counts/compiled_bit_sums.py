"""The compiled loop that adds packed reports. `bit_sums` checks the arguments and calls the loop.

Theory of operation
-------------------
A report is a few words of 64 bits. Adding each bit to a counter of its own would cost 64 additions
for a word. Instead, the counters of 64 bits are stored as bit planes: word w of plane p contains
bit p of 64 counters, so bit i of the word is worth 2^p reports with a 1 at bit i.

Carry-save adders work on planes: a full adder adds three words, 64 bits side by side, and returns a
word of sums and a word of carries (Harley and Seal's population count). Eight reports are added at
a time, in about five operations for each word of a report, without any table.

Eight planes count up to 255 reports. The planes of a cohort are added to its sums of 64 bits after
248 reports and then cleared.

States of a cohort: up to 7 reports in `waiting`, up to 248 reports in `planes`, and the rest in
`bit_counts`. The end of `_add_words` empties all three.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rappor.base.jit import compile_kernel

_PLANES: Final = 8
"""Number of bit planes of a cohort, and number of reports that are added at a time."""

_FULL: Final = 248
"""Number of reports after which the planes of a cohort are emptied. It is the largest multiple of
eight below 256: up to seven more reports still fit into eight planes."""


def add_rows(
    packed: NDArray[np.uint8],
    cohorts: NDArray[np.integer[Any]],
    bit_counts: NDArray[np.int64],
    cohort_reports: NDArray[np.int64],
) -> int:
    """Add every report to `bit_counts` and `cohort_reports`, in place.

    Parameters
    ----------
    packed : (n, ceil(k/8)) uint8.
    cohorts : (n,) of any integer dtype.
    bit_counts, cohort_reports : (m, k) and (m,) int64. Undefined after a bad row.

    Returns
    -------
    int
        The first row with a cohort outside [0, m) or a 1 in an unused bit, or -1.
    """
    n_used_bits = bit_counts.shape[1] % 64
    padding = np.uint64(2**64 - (1 << n_used_bits) if n_used_bits else 0)
    words = _convert_to_words(packed)
    return int(_add_words(words, cohorts, padding, bit_counts, cohort_reports))


def _convert_to_words(packed: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return reports as words of 64 bits, (n, ceil(k/64)). Whole words are not copied."""
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
    bit_counts: NDArray[np.int64],
    cohort_reports: NDArray[np.int64],
) -> int:
    """Add reports of whole words; return the first bad row, or -1.

    Parameters
    ----------
    words : (n, w) uint64.
    padding : mask of the unused bits of the last word.
    """
    n, n_words = words.shape
    m = len(cohort_reports)
    waiting = np.zeros((m, _PLANES, n_words), dtype=np.uint64)
    planes = np.zeros((m, _PLANES, n_words), dtype=np.uint64)
    n_pending = np.zeros(m, dtype=np.int64)
    for row in range(n):
        # An unsigned cohort of 2^63 or more becomes negative, which is outside the range as well.
        j = np.int64(cohorts[row])
        if j < 0 or j >= m or words[row, n_words - 1] & padding:
            return int(row)
        slot = n_pending[j] % _PLANES
        for w in range(n_words):
            waiting[j, slot, w] = words[row, w]
        n_pending[j] += 1
        if slot == _PLANES - 1:
            _add_eight(waiting[j], planes[j])
        if n_pending[j] == _FULL:
            _empty_planes(planes[j], bit_counts[j])
            cohort_reports[j] += _FULL
            n_pending[j] = 0
    for cohort in range(m):
        for slot in range(n_pending[cohort] % _PLANES):
            for w in range(n_words):
                _add_carry(waiting[cohort, slot, w], planes[cohort], w, 0)
        _empty_planes(planes[cohort], bit_counts[cohort])
        cohort_reports[cohort] += n_pending[cohort]
    return -1


@compile_kernel
def _add_eight(rows: NDArray[np.uint64], planes: NDArray[np.uint64]) -> None:
    """Add eight reports of one cohort, (8, n_words), to its planes by carry-save adders."""
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
        _add_carry(eight, planes, w, 3)


@compile_kernel
def _add_bits(a: np.uint64, b: np.uint64, c: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Add three words bit by bit, as 64 full adders; return the carries and the sums."""
    either = a ^ b
    return (a & b) | (either & c), either ^ c


@compile_kernel
def _add_carry(carry: np.uint64, planes: NDArray[np.uint64], w: int, first: int) -> None:
    """Add a word of carries to the planes, from plane `first` upwards."""
    for plane in range(first, _PLANES):
        next_carry = planes[plane, w] & carry
        planes[plane, w] ^= carry
        carry = next_carry


@compile_kernel
def _empty_planes(planes: NDArray[np.uint64], bit_counts: NDArray[np.int64]) -> None:
    """Add the counters of one cohort to its bit counts, (k,), and clear the planes."""
    for i in range(len(bit_counts)):
        count = np.uint64(0)
        for plane in range(_PLANES):
            bit = planes[plane, i >> 6] >> np.uint64(i & 63) & np.uint64(1)
            count |= bit << np.uint64(plane)
        bit_counts[i] += np.int64(count)
    planes[:] = 0
