"""Sums of reports: few rows, whatever the traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor_server.base.errors import StoreError

SUM: Final = np.dtype("<i8")
"""How the database holds a sum: 64 bits, little-endian."""


@dataclass(slots=True)  # to be frozen would cost more than its sums
class Tally:
    """One cohort's row of Counts: its number of reports, and their sums, ones (k,) int64.

    A fold writes rows instead of Counts because it touches few cohorts, and the table of all of
    them may be a gigabyte (m = 65,536, k = 2,040).
    """

    reports: int
    ones: NDArray[np.int64]

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.reports + other.reports, self.ones + other.ones)

    def to_bytes(self) -> bytes:
        """Write the sums as little-endian 64-bit integers."""
        return self.ones.astype(SUM, copy=False).tobytes()

    @classmethod
    def from_bytes(cls, reports: int, data: bytes) -> Tally:
        """Read what `to_bytes` wrote; StoreError for what cannot be sums."""
        if len(data) % SUM.itemsize:
            raise StoreError("the database cannot answer: sums in it are damaged")
        return cls(reports, np.frombuffer(data, dtype=SUM).astype(np.int64))


def sum_by_cohort(
    k: int, cohorts: NDArray[np.integer], packed: NDArray[np.uint8]
) -> dict[int, Tally]:
    """Sum the bits of reports by cohort, in the order of the cohorts.

    `cohorts` (n,); `packed` (n, n_bytes) uint8 has the k bits of each. `Counts.from_packed` does
    the same by a compiled kernel, whose compiler would cost the folder 150 MB and some seconds.
    """
    order = np.argsort(cohorts, kind="stable")
    bits = np.unpackbits(packed[order], axis=1, count=k, bitorder="little")
    in_order = cohorts[order].astype(np.int64)
    starts = np.flatnonzero(np.diff(in_order, prepend=-1))
    numbers = np.diff(starts, append=len(order))
    narrow = np.min_scalar_type(numbers.max(initial=0))  # sums of bytes are ten times as fast
    ones = np.add.reduceat(bits, starts, axis=0, dtype=narrow).astype(np.int64)
    rows = zip(in_order[starts].tolist(), numbers.tolist(), ones, strict=True)
    return {cohort: Tally(number, row) for cohort, number, row in rows}
