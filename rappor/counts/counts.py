"""Counts: how many reports of each cohort have a 1 at each bit. Adding them is aggregation.

Counts of one metric and one parameter set form a commutative monoid: every batch, day, shard
or worker has one, and their sum is what the analyst decodes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rappor.base.errors import FileError, MetricError, ParamsError, ReportError
from rappor.counts import counts_file, devices, tables
from rappor.protocol.params import Params
from rappor.protocol.wire import Report

_BATCH: Final = 1 << 16
"""Reports that `from_reports` holds at a time: 1 MB of bits at k = 128."""


@dataclass(init=False, frozen=True, slots=True, eq=False, repr=False)
class Counts:  # noqa: PLW1641  (equal by value, so it is no key)
    """Sums of reports; immutable, comparable, not hashable.

    Parameters
    ----------
    params : the parameter set of every report.
    bit_counts : (m, k) of integers (or integral floats); at [j, i] the reports of cohort j that
        have a 1 at bit i.
    cohort_reports : (m,) likewise, the reports of each cohort.
    metric : the name of the metric; empty where there is none.
    sum_squared_reports : the sum, over all devices, of the squared number of a device's reports,
    or a bound above it; None where nobody knows. `with_devices` sets it from simpler numbers.

    The attributes have the same names; `bit_counts` and `cohort_reports` are read-only int64
    copies.

    Raises
    ------
    ReportError
        A shape is wrong, an entry is negative or not a whole number, a bit has more ones
        than its cohort has reports, or squares is impossible for that number of reports.
    MetricError
        The metric is not a text.

    Examples
    --------
    >>> params = Params(k=2, m=1, f=0.5, p=0.25, q=0.75)
    >>> day = Counts(params, [[3, 1]], [4])
    >>> (day + day).n_reports
    8
    """

    params: Params
    bit_counts: NDArray[np.int64]
    cohort_reports: NDArray[np.int64]
    metric: str
    sum_squared_reports: int | None

    def __init__(
        self,
        params: Params,
        bit_counts: ArrayLike,
        cohort_reports: ArrayLike,
        metric: str = "",
        sum_squared_reports: int | None = None,
    ) -> None:
        """Copy and check the tables."""
        if not isinstance(metric, str):
            raise MetricError(f"metric must be a text, got {type(metric).__name__}")
        object.__setattr__(self, "params", params)
        object.__setattr__(
            self, "bit_counts", _whole_numbers("bit_counts", bit_counts, (params.m, params.k))
        )
        object.__setattr__(
            self, "cohort_reports", _whole_numbers("cohort_reports", cohort_reports, (params.m,))
        )
        object.__setattr__(self, "metric", metric)
        _check_bounds(self.bit_counts, self.cohort_reports)
        n_reports = self.n_reports
        known = devices.check_squares(sum_squared_reports, n_reports) if n_reports else 0
        object.__setattr__(self, "sum_squared_reports", known)

    @property
    def unsegmented(self) -> Counts:
        """The same counts under parameters that name no segment."""
        params = self.params.unsegmented
        return Counts(
            params, self.bit_counts, self.cohort_reports, self.metric, self.sum_squared_reports
        )

    @property
    def reports_per_device(self) -> float | None:
        """`squares` over reports: how many a device sent, in the mean over reports; None: unknown.

        Where all devices sent equally many, it is that number; otherwise it is larger than the
        mean over devices. It is 0 without reports.
        """
        if self.sum_squared_reports is None:
            return None
        return self.sum_squared_reports / max(self.n_reports, 1)

    def with_devices(
        self, n_devices: float | None = None, *, reports_per_device: float | None = None
    ) -> Counts:
        """Return the same counts, known to come from this number of devices.

        One number is given: devices, or reports of each; the reports are taken to be evenly
        spread over the devices. Where they are not, `squares` of the constructor says it.

        Raises ReportError where both numbers are given, or none, and for more devices than reports,
        less than one device, or less than one report of each.
        """
        squares = devices.squares_of(
            self.n_reports, n_devices=n_devices, reports_per_device=reports_per_device
        )
        return Counts(self.params, self.bit_counts, self.cohort_reports, self.metric, squares)

    @classmethod
    def zero(cls, params: Params, metric: str = "") -> Counts:
        """Return the counts of no reports."""
        return cls(
            params, np.zeros((params.m, params.k), np.int64), np.zeros(params.m, np.int64), metric
        )

    @classmethod
    def from_packed(
        cls,
        packed: NDArray[np.uint8],
        cohorts: NDArray[np.integer[Any]],
        params: Params,
        metric: str = "",
    ) -> Counts:
        """Count packed reports.

        Parameters
        ----------
        packed : (n, ceil(k/8)) uint8.
        cohorts : (n,) of any integer dtype.

        Raises
        ------
        ReportError
            See `rappor.counts.bit_sums.sum_bits`.
        """
        # Imported here: it loads the compiler, which a decode does not need.
        from rappor.counts.bit_sums import sum_bits  # noqa: PLC0415

        return cls(params, *sum_bits(packed, cohorts, k=params.k, m=params.m), metric)

    @classmethod
    def from_reports(cls, reports: Iterable[Report], params: Params, metric: str = "") -> Counts:
        """Count reports, read once from any iterable, in bounded memory.

        Raises ReportError where a report has another fingerprint or metric.
        """
        fingerprint = params.fingerprint
        total = cls.zero(params, metric)
        stream = iter(reports)
        while batch := list(itertools.islice(stream, _BATCH)):
            for report in batch:
                _check_report(report, fingerprint, metric)
            bits = b"".join(report.bits for report in batch)
            packed = np.frombuffer(bits, dtype=np.uint8).reshape(len(batch), params.n_bytes)
            cohorts = np.array([report.cohort for report in batch], dtype=np.int64)
            total += cls.from_packed(packed, cohorts, params, metric)
        return total

    @property
    def n_reports(self) -> int:
        """Reports in all cohorts."""
        return sum(self.cohort_reports.tolist())

    @property
    def sha256(self) -> str:
        """Hash of metric, parameters, devices and sums: equal counts have it, in any file."""
        known = {
            "metric": self.metric,
            "params": self.params.fingerprint,
            "squares": self.sum_squared_reports,
        }
        integers = np.concatenate([self.cohort_reports, self.bit_counts.ravel()]).astype("<i8")
        digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode() + b"\n")
        digest.update(integers.tobytes())
        return digest.hexdigest()

    def __add__(self, other: Counts) -> Counts:
        """Add as `add` does, for devices that may be the same."""
        if not isinstance(other, Counts):
            return NotImplemented
        return self.add(other, same_devices=True)

    def add(self, other: Counts, *, same_devices: bool) -> Counts:
        """Add counts whose devices may be the same, as on two days, or are other ones.

        What is known of the devices is added too: unless they are others, the sum of squares is
        at most what the same devices could make of both, (sqrt(a) + sqrt(b))^2. Where one of the
        two is unknown, so is the sum's.
        """
        self._check_same_collection(other, "added")
        return Counts(
            self.params,
            self.bit_counts + other.bit_counts,
            self.cohort_reports + other.cohort_reports,
            self.metric,
            devices.add_squares(
                self.sum_squared_reports, other.sum_squared_reports, same_devices=same_devices
            ),
        )

    def __radd__(self, other: int) -> Counts:
        """Support sum(), which starts from the integer 0."""
        return self if other == 0 else NotImplemented

    def __sub__(self, other: Counts) -> Counts:
        if not isinstance(other, Counts):
            return NotImplemented
        self._check_same_collection(other, "subtracted")
        reports = self.cohort_reports - other.cohort_reports
        n_left = self.n_reports - other.n_reports
        squares = None
        if self.sum_squared_reports is not None and n_left >= 0:
            squares = min(
                self.sum_squared_reports, n_left**2
            )  # whatever is taken away, no sum grows
        return Counts(
            self.params, self.bit_counts - other.bit_counts, reports, self.metric, squares
        )

    def _check_same_collection(self, other: Counts, verb: str) -> None:
        if self.metric != other.metric:
            raise MetricError(
                f"counts of metric {self.metric!r} and of metric {other.metric!r} cannot be {verb}"
            )
        ours, theirs = self.params.fingerprint, other.params.fingerprint
        if ours != theirs:
            raise ParamsError(
                f"counts under parameters {ours} and under parameters {theirs} cannot be {verb}"
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Counts):
            return NotImplemented
        return (
            self.metric == other.metric
            and self.params.fingerprint == other.params.fingerprint
            and self.sum_squared_reports == other.sum_squared_reports
            and np.array_equal(self.cohort_reports, other.cohort_reports)
            and np.array_equal(self.bit_counts, other.bit_counts)
        )

    def __repr__(self) -> str:
        return (
            f"Counts(metric={self.metric!r}, params={self.params.fingerprint}, "
            f"m={self.params.m}, k={self.params.k}, n_reports={self.n_reports})"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file, whole or not at all; `load` reads exactly the same counts."""
        counts_file.write(
            path,
            counts_file.Contents(
                self.params,
                self.bit_counts,
                self.cohort_reports,
                self.metric,
                self.sum_squared_reports,
            ),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Counts:
        """Read what `save` wrote, or what a collector answers for its counts.

        Raises FileError, with the reason, for any other file, and for several parameter sets.
        """
        return cls._of_file(path, counts_file.read(path))

    @classmethod
    def load_all(cls, path: str | os.PathLike[str]) -> list[Counts]:
        """Read as `load` does, but all parameter sets of what a collector answers."""
        return [cls._of_file(path, contents) for contents in counts_file.read_all(path)]

    @classmethod
    def _of_file(cls, path: str | os.PathLike[str], contents: counts_file.Contents) -> Counts:
        try:
            return cls(*contents)
        except (ReportError, MetricError) as error:
            raise FileError(path, str(error)) from None

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a table with the columns cohort, reports, bit_0, bit_1 and so on.

        Where `squares` is known, it is a last column, the same in every row. The parameters and
        the metric are not in the table.
        """
        tables.write_csv(path, self.bit_counts, self.cohort_reports, self.sum_squared_reports)

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str], params: Params, metric: str = "") -> Counts:
        """Read a table as `to_csv` writes it; the rows and the columns may come in any order.

        Headings may be in upper case, and the column squares may be missing.

        Raises FileError, with path and line, where a column, a cohort or a number is missing,
        doubled, out of place or impossible.
        """
        ones, reports, squares = tables.read_csv(path, params)
        try:
            return cls(params, ones, reports, metric, squares)
        except ReportError as error:  # of the number of reports, the squares are impossible
            raise FileError(path, str(error)) from None

    def to_arrow(self) -> Any:
        """Return a pyarrow.Table of cohort, reports and ones (a list of k integers).

        Metric, parameters and squares go into the schema's metadata. Raises MissingExtraError
        where the extra 'arrow' is not installed.
        """
        return tables.to_arrow(
            self.params, self.bit_counts, self.cohort_reports, self.metric, self.sum_squared_reports
        )

    @classmethod
    def from_arrow(cls, table: Any) -> Counts:
        """Read a pyarrow.Table as `to_arrow` makes it; the rows may come in any order.

        Raises FileError where columns, types, metadata, cohorts or numbers are not those of one
        Counts, and MissingExtraError where the extra 'arrow' is not installed.
        """
        return cls._from_arrow(table, "Arrow table")

    @classmethod
    def _from_arrow(cls, table: Any, name: str | os.PathLike[str]) -> Counts:
        try:
            return cls(*tables.from_arrow(table))
        except (ParamsError, ReportError, MetricError) as error:
            raise FileError(name, str(error)) from None

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write the table of `to_arrow` as one Parquet file, whole or not at all."""
        tables.write_parquet(path, self.to_arrow())

    @classmethod
    def from_parquet(cls, path: str | os.PathLike[str]) -> Counts:
        """Read a Parquet file as `to_parquet` writes it; raises what `from_arrow` raises.

        A file of reports is refused: `rappor.engines.aggregate_parquet` adds them up.
        """
        return cls._from_arrow(tables.read_parquet(path), path)


def _whole_numbers(name: str, table: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return a read-only int64 copy of a table of non-negative whole numbers."""
    rows = table if isinstance(table, list | tuple) else [table]
    if any(isinstance(row, np.ma.MaskedArray) for row in rows):
        # numpy would take the numbers under the mask, which somebody has declared invalid.
        raise ReportError(f"{name} must not be a masked array: fill or leave out what it masks")
    array = np.asarray(table)
    if array.shape != shape:
        raise ReportError(f"{name} must have shape {shape}, got {array.shape}")
    if array.dtype.kind not in "iuf":
        raise ReportError(f"{name} must be integers, got {array.dtype}")
    bad = ~((array >= 0) & (array < 1 << 63))  # a NaN fails both
    if array.dtype.kind == "f":
        bad |= array != np.floor(array)
    if bad.any():
        place = tuple(int(index) for index in np.argwhere(bad)[0])
        raise ReportError(
            f"{name} must be whole numbers in [0, 2^63), got {array[place]} at {_place(*place)}"
        )
    whole = array.astype(np.int64, order="C")
    whole.flags.writeable = False
    return whole


def _place(cohort: int, bit: int | None = None) -> str:
    return f"cohort {cohort}" if bit is None else f"cohort {cohort}, bit {bit}"


def _check_bounds(ones: NDArray[np.int64], reports: NDArray[np.int64]) -> None:
    over = ones > reports[:, None]
    if over.any():  # looking for the places costs more than all other checks
        j, i = np.argwhere(over)[0].tolist()
        raise ReportError(
            f"ones must be at most the reports of their cohort, got {ones[j, i]} ones "
            f"in {reports[j]} reports at {_place(j, i)}"
        )


def _check_report(report: Report, fingerprint: str, metric: str) -> None:
    if report.params != fingerprint:
        raise ReportError(f"params must be {fingerprint}, got a report under {report.params}")
    if report.metric != metric:
        mend = "" if metric else f"; give metric={report.metric!r}"
        raise ReportError(f"metric must be {metric!r}, got a report of {report.metric!r}{mend}")
