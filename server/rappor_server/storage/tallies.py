"""Tallies: sums of the reports of one cohort, as counters and blocks store them.

A report has k bits. The sum of a bit is the number of reports that have a 1 at this bit.

A sum of bits is at most the number of reports. So the number of reports, which is stored beside the
sums, determines the width of each sum in the database:

    reports      bytes of a sum
    < 2^8        1
    < 2^16       2
    < 2^32       4
    otherwise    8

The sums of k = 128 bits of 20 devices take 128 bytes. A year of a daily metric with 128 cohorts has
46,720 blocks: 6 MB of sums, in place of 48 MB with 8 bytes for each sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rappor_server.base.errors import StoreError

_WIDTHS: Final = ((1 << 8, np.dtype("u1")), (1 << 16, np.dtype("<u2")), (1 << 32, np.dtype("<u4")))
"""Pairs of a limit and a format of a sum, little-endian. The format is wide enough if the number of
reports is below the limit."""
_WIDEST: Final = np.dtype("<i8")
"""Format of a sum for all larger numbers of reports, little-endian."""


def _choose_format(reports: int) -> np.dtype[Any]:
    """Return the narrowest format for the sum of a bit over this number of reports."""
    return next((width for limit, width in _WIDTHS if reports < limit), _WIDEST)


@dataclass(slots=True)  # not frozen: creating a frozen object takes longer than adding its sums
class Tally:
    """Counts of one cohort: the number of reports, and the sums of their bits, `ones` (k,) int64.

    A merge uses tallies instead of `Counts`. A merge touches few cohorts, and `Counts` of all
    cohorts may need a gigabyte (m = 65,536, k = 2,040).
    """

    reports: int
    ones: NDArray[np.int64]

    def __add__(self, other: Tally) -> Tally:
        # Without this check, numpy would broadcast: if a damaged row has a single sum, it would be
        # added to every sum of the other tally.
        if len(self.ones) != len(other.ones):
            raise _make_damaged_error()
        return Tally(self.reports + other.reports, self.ones + other.ones)

    def to_bytes(self) -> bytes:
        """Return the sums as the database stores them."""
        return self.ones.astype(_choose_format(self.reports)).tobytes()

    @classmethod
    def from_bytes(cls, reports: int, data: bytes, *, k: int | None = None) -> Tally:
        """Return the tally of bytes from `to_bytes`.

        Parameters
        ----------
        reports : number of reports
        data : the bytes
        k : number of sums, or None if it is unknown

        Raises
        ------
        StoreError
            The length is wrong for the number of reports, or for k.
        """
        width = _choose_format(reports)
        if len(data) % width.itemsize or k not in (None, len(data) // width.itemsize):
            raise _make_damaged_error()
        return cls(reports, np.frombuffer(data, dtype=width).astype(np.int64))


def _make_damaged_error() -> StoreError:
    """Return the error for a row whose sums have a wrong length."""
    return StoreError("the database cannot answer: sums in it are damaged")


def sum_by_cohort(
    k: int, cohorts: NDArray[np.integer], packed: NDArray[np.uint8]
) -> dict[int, Tally]:
    """Sum the bits of reports by cohort, in the order of the cohorts.

    `Counts.from_packed` does the same by a compiled kernel. The compiler would cost the merge
    process 150 MB and some seconds.

    Parameters
    ----------
    k : number of bits of a report
    cohorts : (n,) cohort of each report
    packed : (n, n_bytes) uint8, the bits of each report, little-endian
    """
    order = np.argsort(cohorts, kind="stable")
    bits = np.unpackbits(packed[order], axis=1, count=k, bitorder="little")
    in_order = cohorts[order].astype(np.int64)
    # Index of the first report of each cohort in the sorted reports. The first report differs from
    # the prepended -1, which is no cohort, so index 0 is included.
    starts = np.flatnonzero(np.diff(in_order, prepend=-1))
    numbers = np.diff(starts, append=len(order))
    # The smallest type that holds a sum of the largest cohort. Sums of one byte are computed ten
    # times as fast as sums of 64-bit integers.
    smallest_type = np.min_scalar_type(numbers.max(initial=0))
    ones = np.add.reduceat(bits, starts, axis=0, dtype=smallest_type).astype(np.int64)
    rows = zip(in_order[starts].tolist(), numbers.tolist(), ones, strict=True)
    return {cohort: Tally(n_reports, sums) for cohort, n_reports, sums in rows}
