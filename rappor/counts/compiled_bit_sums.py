"""Compiled positional population count: adds the bits of packed reports, by cohort.

`bit_sums` checks the arguments and calls `add_rows`.

Theory of operation
-------------------
A report consists of a few words of 64 bits. The straightforward loop adds each bit to a counter of
its own, which costs 64 additions for a word. The loop here stores 64 small counters as eight bit
planes instead. Plane p is a word whose bit i is bit p of the counter of bit i:

    counter of bit i = sum over p of 2^p * (bit i of plane p)

Example: after three reports with a 1 at bit i, bit i is 1 in the planes 0 and 1 and 0 elsewhere,
because 3 = 2^0 + 2^1. A word operation on a plane changes 64 counters at once.

A carry-save adder adds three words, as 64 full adders side by side, and returns a word of sums
(worth 2^p) and a word of carries (worth 2^(p+1)). Eight reports are added at a time, with seven
adders for each word (the population count of Harley and Seal).

The reports of a cohort move through three states:

    state        most reports   next step
    waiting      7              the eighth report adds all eight to `planes`
    planes       248            the counters are added to `bit_counts`, and the planes are cleared
    bit_counts   2^63 - 1       returned to the caller

The end of `_add_words` moves all reports into `bit_counts`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rappor.base.jit import compile_kernel

_PLANES: Final = 8
"""Number of bit planes of a cohort. Eight planes count up to 255 reports. Reports are also added
eight at a time, because the sum of eight bits has one carry into plane 3 (`_add_eight`)."""

_FULL: Final = 248
"""Number of reports after which the planes of a cohort are emptied. Reports arrive in eights, and
248 is the largest multiple of eight that eight planes can count (at most 255)."""


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
    bit_counts : (m, k) int64. Ones at each bit of each cohort. Undefined after a bad row.
    cohort_reports : (m,) int64. Reports of each cohort. Undefined after a bad row.

    Returns
    -------
    int
        The first row with a cohort outside [0, m) or a 1 in an unused bit, or -1.
    """
    # Mask of the bits of the last word that lie behind bit k - 1. A valid report has zeros there.
    n_used_bits = bit_counts.shape[1] % 64
    padding = np.uint64(2**64 - (1 << n_used_bits) if n_used_bits else 0)
    words = _convert_to_words(packed)
    return int(_add_words(words, cohorts, padding, bit_counts, cohort_reports))


def _convert_to_words(packed: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return reports as little-endian words, (n, ceil(k/64)) uint64. Whole words are not copied."""
    n, n_bytes = packed.shape
    # Case: the bytes of a report do not fill its last word. Zero bytes are appended in a copy.
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
    words : (n, ceil(k/64)) uint64. Word w contains the bits 64 w to 64 w + 63 of a report.
    cohorts : (n,) of any integer dtype. Cohort of each report.
    padding : mask of the unused bits of the last word.
    bit_counts, cohort_reports : (m, k) and (m,) int64, as in `add_rows`.
    """
    n, n_words = words.shape
    m = len(cohort_reports)
    waiting = np.zeros((m, _PLANES, n_words), dtype=np.uint64)
    planes = np.zeros((m, _PLANES, n_words), dtype=np.uint64)
    # Reports of each cohort that are in `waiting` or `planes`, 0 to 247.
    n_pending = np.zeros(m, dtype=np.int64)
    for row in range(n):
        # Case: an unsigned cohort of 2^63 or more. The conversion makes it negative, and a negative
        # cohort is refused like any cohort outside [0, m).
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
    """Add eight reports of one cohort to its planes by seven carry-save adders.

    Parameters
    ----------
    rows : (8, n_words) uint64. The reports.
    planes : (8, n_words) uint64, changed in place. Plane p of the counters of each word.
    """
    for w in range(rows.shape[1]):
        # `ones`, `twos` and `fours` are the planes 0, 1 and 2. Two adders of one plane produce two
        # words of carries, such as `twos_a` and `twos_b`. One adder of the next plane adds both to
        # the plane. The last adder produces `eights`, the only word of carries into plane 3.
        ones, twos, fours = planes[0, w], planes[1, w], planes[2, w]
        twos_a, ones = _add_bits(ones, rows[0, w], rows[1, w])
        twos_b, ones = _add_bits(ones, rows[2, w], rows[3, w])
        fours_a, twos = _add_bits(twos, twos_a, twos_b)
        twos_a, ones = _add_bits(ones, rows[4, w], rows[5, w])
        twos_b, ones = _add_bits(ones, rows[6, w], rows[7, w])
        fours_b, twos = _add_bits(twos, twos_a, twos_b)
        eights, fours = _add_bits(fours, fours_a, fours_b)
        planes[0, w], planes[1, w], planes[2, w] = ones, twos, fours
        _add_carry(eights, planes, w, 3)


@compile_kernel
def _add_bits(a: np.uint64, b: np.uint64, c: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Add three words as 64 full adders; return the word of carries and the word of sums."""
    # Bits at which exactly one of a and b is 1. There c decides the carry.
    difference = a ^ b
    return (a & b) | (difference & c), difference ^ c


@compile_kernel
def _add_carry(carry: np.uint64, planes: NDArray[np.uint64], w: int, first: int) -> None:
    """Add a word of carries to word w of the planes, from plane `first` upwards."""
    for plane in range(first, _PLANES):
        next_carry = planes[plane, w] & carry
        planes[plane, w] ^= carry
        carry = next_carry


@compile_kernel
def _empty_planes(planes: NDArray[np.uint64], bit_counts: NDArray[np.int64]) -> None:
    """Add the counters of one cohort to its bit counts, (k,) int64, and clear the planes."""
    for i in range(len(bit_counts)):
        count = np.uint64(0)
        for plane in range(_PLANES):
            # Bit i of a report is bit i mod 64 of word i div 64.
            bit = planes[plane, i >> 6] >> np.uint64(i & 63) & np.uint64(1)
            count |= bit << np.uint64(plane)
        bit_counts[i] += np.int64(count)
    planes[:] = 0
