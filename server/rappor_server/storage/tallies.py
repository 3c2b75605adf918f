"""Sums of the reports of one group of uploads: few rows, whatever the traffic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rappor.protocol.params import Params
from rappor_server.ingest.validate import AcceptedReport

SUM: Final = np.dtype("<i8")
"""How the database holds a sum: 64 bits, little-endian."""


class Cell(NamedTuple):
    """What one counter counts, within a day and a shard."""

    metric: str
    fingerprint: str
    quarantine: bool
    cohort: int


@dataclass(slots=True)  # to be frozen would cost more than its sums
class Tally:
    """One cohort's row of Counts: its number of reports, and their sums, ones (k,) int64.

    The writer keeps rows instead of Counts because a group of uploads touches few cohorts, and
    the table of all of them may be a gigabyte (m = 65,536, k = 2,040).
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
        """Read what `to_bytes` wrote."""
        return cls(reports, np.frombuffer(data, dtype=SUM).astype(np.int64))


def cell_of(report: AcceptedReport) -> Cell:
    """Return the counter that a report belongs to."""
    return Cell(report.metric, report.fingerprint, report.quarantine, report.cohort)


def sum_reports(accepted: Iterable[AcceptedReport]) -> dict[Cell, Tally]:
    """Sum reports by the counter that they belong to."""
    groups: dict[tuple[str, str, bool], list[AcceptedReport]] = {}
    for report in accepted:
        key = (report.metric, report.fingerprint, report.quarantine)
        groups.setdefault(key, []).append(report)
    tallies: dict[Cell, Tally] = {}
    for key, reports in groups.items():
        cohorts, numbers, ones = _sum_group(reports, reports[0].params)
        for cohort, number, row in zip(cohorts.tolist(), numbers.tolist(), ones, strict=True):
            tallies[Cell(*key, cohort)] = Tally(number, row)
    return tallies


def _sum_group(
    reports: list[AcceptedReport], params: Params
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Sum the bits of a group's reports by cohort.

    `Counts.from_packed` does the same by a compiled kernel, whose compiler would cost the
    collector's process 150 MB and some seconds for groups of a few hundred reports.

    Returns
    -------
    cohorts : (c,) int64, the cohorts that occur.
    numbers : (c,) int64, their numbers of reports.
    ones : (c, k) int64, their sums.
    """
    cohorts = np.array([report.cohort for report in reports], dtype=np.int64)
    order = np.argsort(cohorts, kind="stable")
    packed = np.frombuffer(b"".join([reports[i].bits for i in order.tolist()]), dtype=np.uint8)
    rows = packed.reshape(len(reports), params.n_bytes)
    bits = np.unpackbits(rows, axis=1, count=params.k, bitorder="little")
    in_order = cohorts[order]
    starts = np.flatnonzero(np.diff(in_order, prepend=-1))
    numbers = np.diff(starts, append=len(reports))
    return in_order[starts], numbers, np.add.reduceat(bits, starts, axis=0, dtype=np.int64)
