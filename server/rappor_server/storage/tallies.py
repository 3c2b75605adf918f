"""Sums of the reports of one batch: few rows, whatever the traffic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rappor.protocol.params import Params
from rappor_server.ingest.validate import Accepted

_SUM: Final = np.dtype("<i8")


class Cell(NamedTuple):
    """What one counter is of, within a day and a shard."""

    metric: str
    fingerprint: str
    apart: bool
    cohort: int


@dataclass(frozen=True, slots=True)
class Tally:
    """A number of reports and their sums: ones, (k,) int64."""

    reports: int
    ones: NDArray[np.int64]

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.reports + other.reports, self.ones + other.ones)

    def to_bytes(self) -> bytes:
        """Write the sums as little-endian 64-bit integers."""
        return self.ones.astype(_SUM, copy=False).tobytes()

    @classmethod
    def from_bytes(cls, reports: int, data: bytes) -> Tally:
        """Read what `to_bytes` wrote."""
        return cls(reports, np.frombuffer(data, dtype=_SUM).astype(np.int64))


def sum_reports(accepted: Iterable[Accepted]) -> dict[Cell, Tally]:
    """Sum reports by what they are of."""
    groups: dict[tuple[str, str, bool], list[Accepted]] = {}
    for report in accepted:
        groups.setdefault((report.metric, report.fingerprint, report.apart), []).append(report)
    tallies: dict[Cell, Tally] = {}
    for key, reports in groups.items():
        cohorts, numbers, ones = _sum_group(reports, reports[0].params)
        for cohort, number, row in zip(cohorts, numbers, ones, strict=True):
            tallies[Cell(*key, int(cohort))] = Tally(int(number), row)
    return tallies


def _sum_group(
    reports: list[Accepted], params: Params
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Sum the bits of a group's reports by cohort.

    Returns
    -------
    cohorts : (c,) int64, those that occur.
    numbers : (c,) int64, their reports.
    ones : (c, k) int64, their sums.
    """
    cohorts = np.array([report.cohort for report in reports], dtype=np.int64)
    order = np.argsort(cohorts, kind="stable")
    packed = np.frombuffer(b"".join(reports[i].bits for i in order), dtype=np.uint8)
    rows = packed.reshape(len(reports), params.n_bytes)
    bits = np.unpackbits(rows, axis=1, count=params.k, bitorder="little")
    present, starts, numbers = np.unique(cohorts[order], return_index=True, return_counts=True)
    return present, numbers, np.add.reduceat(bits, starts, axis=0, dtype=np.int64)
