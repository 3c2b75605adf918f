"""Sums of the bits of reports: compiled code and numpy agree with plain loops.

`sum_bits` counts the ones at each bit of each cohort. Its inputs are packed reports, a row of bytes
each, and the cohort of each report. They come from files, so wrong inputs must be refused, and not
read out of bounds.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from rappor.base.errors import ReportError
from rappor.counts import compiled_bit_sums, numpy_bit_sums
from rappor.counts.bit_sums import sum_bits

WIDTHS = [1, 7, 8, 9, 64, 100, 128, 129, 2040]
"""Numbers of bits: below, at and above a whole number of bytes and of machine words."""


def pack(bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return packed reports, bit 0 in the lowest bit of byte 0."""
    return np.packbits(bits, axis=1, bitorder="little")


def draw_bits(n: int, k: int) -> NDArray[np.uint8]:
    """Return n random reports of k bits, the same in every run."""
    return np.random.default_rng([n, k]).integers(0, 2, (n, k), dtype=np.uint8)


def sum_by_plain_loops(
    bits: NDArray[np.uint8], cohorts: list[int], m: int
) -> tuple[list[list[int]], list[int]]:
    """Return bit counts and cohort reports, computed with lists and loops."""
    bit_counts = [[0] * bits.shape[1] for _ in range(m)]
    reports = [0] * m
    for row, j in zip(bits.tolist(), cohorts, strict=True):
        reports[j] += 1
        bit_counts[j] = [total + bit for total, bit in zip(bit_counts[j], row, strict=True)]
    return bit_counts, reports


@pytest.mark.parametrize("k", WIDTHS)
def test_sums_equal_a_plain_loop(k: int) -> None:
    """Every bit of every width is added to its own count."""
    bits, m = draw_bits(300, k), 3
    cohorts = np.random.default_rng(k).integers(0, m, len(bits))
    bit_counts, reports = sum_bits(pack(bits), cohorts, k=k, m=m)
    assert (bit_counts.tolist(), reports.tolist()) == sum_by_plain_loops(bits, cohorts.tolist(), m)
    assert bit_counts.dtype == reports.dtype == np.int64


@pytest.mark.parametrize("m", [1, 3, 50, 5000])
@pytest.mark.parametrize("k", WIDTHS)
def test_numpy_gives_the_sums_of_the_compiled_loop(k: int, m: int) -> None:
    """The numpy version adds the sums of the compiled loop. A bad row leaves its sums unchanged.

    The numpy version counts in two ways: by histograms for few cohorts, and by sorting for many.
    `add_rows` returns the number of the first bad row, or -1.
    """
    packed = pack(draw_bits(2000, k))
    cohorts = np.random.default_rng(k).integers(0, m, len(packed)).astype(np.uint16)
    sums = [(np.zeros((m, k), np.int64), np.zeros(m, np.int64)) for _ in range(2)]
    for module, (bit_counts, reports) in zip(
        (compiled_bit_sums, numpy_bit_sums), sums, strict=True
    ):
        assert module.add_rows(packed, cohorts, bit_counts, reports) == -1
    assert all(map(np.array_equal, *sums))
    before = sums[1][0].copy()
    cohorts[[7, 9]] = m
    assert numpy_bit_sums.add_rows(packed, cohorts, *sums[1]) == 7
    if k % 8:
        packed[5, -1] |= 0x80
        assert numpy_bit_sums.add_rows(packed, cohorts, *sums[1]) == 5
    assert np.array_equal(before, sums[1][0])
    assert numpy_bit_sums.add_rows(packed[:0], cohorts[:0], *sums[1]) == -1


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 247, 248, 249, 255, 256, 495, 496, 503, 504, 1021])
def test_small_counters_do_not_overflow(n: int) -> None:
    """Reports of ones are counted exactly near the multiples of 8 and of 248 reports.

    The compiled loop adds 8 reports at once to counters of 8 bits, which are stored as bit planes.
    It empties the planes after 248 reports, before a counter can exceed 255.
    """
    packed = pack(np.ones((n, 9), dtype=np.uint8)) if n else np.empty((0, 2), dtype=np.uint8)
    bit_counts, reports = sum_bits(packed, np.ones(n, dtype=np.int32), k=9, m=2)
    assert bit_counts.tolist() == [[0] * 9, [n] * 9]
    assert reports.tolist() == [0, n]


@pytest.mark.parametrize("offset", [0, 1, 8])
def test_reports_may_lie_anywhere_in_memory(offset: int) -> None:
    """Read-only bytes at any address, and rows that are not contiguous, give the same sums."""
    bits = draw_bits(600, 128)
    data = bytes(offset) + pack(bits).tobytes()
    packed = np.frombuffer(data, dtype=np.uint8, offset=offset).reshape(-1, 16)
    cohorts = np.arange(600) % 2
    for view in (packed, np.repeat(packed, 2, axis=0)[::2]):
        bit_counts, reports = sum_bits(view, cohorts, k=128, m=2)
        assert (bit_counts.tolist(), reports.tolist()) == sum_by_plain_loops(
            bits, cohorts.tolist(), 2
        )


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_cohorts_of_any_integer_type_are_counted(dtype: str) -> None:
    """Cohorts of every integer type give the same sums."""
    bits = draw_bits(50, 12)
    cohorts = np.arange(50) % 5
    expected = sum_bits(pack(bits), cohorts, k=12, m=5)
    bit_counts, reports = sum_bits(pack(bits), cohorts.astype(dtype), k=12, m=5)
    assert np.array_equal(bit_counts, expected[0])
    assert np.array_equal(reports, expected[1])


def test_the_largest_number_of_cohorts_is_counted() -> None:
    """The first and the last of 65,536 cohorts have their own counts."""
    packed = np.array([[1], [2], [3]], dtype=np.uint8)
    bit_counts, reports = sum_bits(
        packed, np.array([0, 65535, 65535], dtype=np.uint16), k=2, m=65536
    )
    assert bit_counts[[0, 65535]].tolist() == [[1, 0], [1, 2]]
    assert (reports.sum(), bit_counts.sum()) == (3, 4)


@pytest.mark.parametrize("cohort", [-1, 4, 2**31, -(2**63), 2**63 - 1, 2**64 - 1])
def test_a_cohort_outside_the_range_is_refused_with_its_row(cohort: int) -> None:
    """A cohort outside [0, m) is refused with the number of its row.

    An index without a check would count the report into another cohort, or write into foreign
    memory.
    """
    cohorts = np.array([0, 3, cohort], dtype=np.int64 if cohort < 2**63 else np.uint64)
    with pytest.raises(ReportError, match=rf"cohort must be in \[0, 3\], got {cohort} in row 2"):
        sum_bits(np.zeros((3, 1), dtype=np.uint8), cohorts, k=8, m=4)


@pytest.mark.parametrize("k", [1, 7, 9, 100, 129])
def test_every_unused_bit_must_be_zero(k: int) -> None:
    """A report with a 1 beyond bit k - 1 is refused with its row.

    Such a report was made under other parameters, or is damaged.
    """
    n_bytes = (k + 7) // 8
    for i in range(k - 1, 8 * n_bytes):
        packed = np.zeros((5, n_bytes), dtype=np.uint8)
        packed[3, i // 8] = 1 << i % 8
        if i < k:
            sum_bits(packed, np.zeros(5, dtype=np.int64), k=k, m=1)
        else:
            with pytest.raises(ReportError, match=f"bits from {k} on must be 0, got a 1 in row 3"):
                sum_bits(packed, np.zeros(5, dtype=np.int64), k=k, m=1)


@pytest.mark.parametrize(
    ("packed", "cohorts"),
    [
        (np.zeros((2, 3), np.uint8), np.zeros(2, np.int64)),
        (np.zeros(2, np.uint8), np.zeros(2, np.int64)),
        (np.zeros((2, 2), np.int64), np.zeros(2, np.int64)),
        (np.zeros((2, 2), np.uint8), np.zeros(3, np.int64)),
        (np.zeros((2, 2), np.uint8), np.zeros((2, 1), np.int64)),
        (np.zeros((2, 2), np.uint8), np.zeros(2, np.float64)),
        (np.zeros((2, 2), np.uint8), np.zeros(2, np.bool_)),
    ],
)
def test_arrays_of_another_shape_or_type_are_refused(
    packed: NDArray[np.uint8], cohorts: NDArray[np.int64]
) -> None:
    """Arrays of another shape or type are refused, and not read out of bounds."""
    with pytest.raises(ReportError, match="must be"):
        sum_bits(packed, cohorts, k=16, m=1)
