"""Tallies: sums of reports by cohort, as the counters store them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor_server.base.errors import StoreError

SUM: Final = np.dtype("<i8")
"""Format of a sum in the database: 64 bits, little-endian."""


@dataclass(slots=True)  # a frozen dataclass is slower to create than the sums
class Tally:
    """Counts of one cohort: the number of reports, and the sums of their bits, `ones` (k,) int64.

    A merge uses tallies instead of `Counts`. A merge touches few cohorts, and `Counts` of all
    cohorts may need a gigabyte (m = 65,536, k = 2,040).
    """

    reports: int
    ones: NDArray[np.int64]

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.reports + other.reports, self.ones + other.ones)

    def to_bytes(self) -> bytes:
        """Return the sums as little-endian 64-bit integers."""
        return self.ones.astype(SUM, copy=False).tobytes()

    @classmethod
    def from_bytes(cls, reports: int, data: bytes) -> Tally:
        """Return the tally of bytes from `to_bytes`; raise StoreError if the length is wrong."""
        if len(data) % SUM.itemsize:
            raise StoreError("the database cannot answer: sums in it are damaged")
        return cls(reports, np.frombuffer(data, dtype=SUM).astype(np.int64))


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
    starts = np.flatnonzero(np.diff(in_order, prepend=-1))
    numbers = np.diff(starts, append=len(order))
    narrow = np.min_scalar_type(
        numbers.max(initial=0)
    )  # summing bytes is ten times as fast as 64-bit integers
    ones = np.add.reduceat(bits, starts, axis=0, dtype=narrow).astype(np.int64)
    rows = zip(in_order[starts].tolist(), numbers.tolist(), ones, strict=True)
    return {cohort: Tally(number, row) for cohort, number, row in rows}
