"""Counts: for each cohort, the number of reports and the number of ones at each bit.

Counts are the input of every estimate. Collectors, files, database engines and simulations produce
counts. An analyst passes them to `decode`. A cohort is a group of devices with the same hash
functions, and a parameter set contains the number k of bits, the number m of cohorts and the
probabilities of the noise.

Counts of one metric and one parameter set form a commutative monoid: adding them in any order gives
the same counts, and `Counts.zero` is the neutral element. Each batch, day, shard or worker has
counts of its own, and the analyst decodes their sum.

Example with k = 2 bits and m = 1 cohort: the reports 01, 11 and 01 (bit 0 on the right) have
`cohort_reports` [3] and `bit_counts` [[3, 1]].

Reports of one device share its value and its permanent noise, so errors of estimates also depend on
the sum S over all devices of the squared number of a device's reports. `squared_reports` explains
S and its bounds.
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
from rappor.counts import counts_file, counts_tables, squared_reports
from rappor.protocol.params import Params
from rappor.protocol.wire import Report

_BATCH_REPORTS: Final = 1 << 16
"""Number of reports that `from_reports` has in memory at a time: 1 MB of bits at k = 128."""


@dataclass(init=False, frozen=True, slots=True, eq=False, repr=False)
class Counts:  # noqa: PLW1641  (counts are compared by value, so they have no hash)
    """Sums of the reports of one metric under one parameter set. Immutable and not hashable.

    Parameters
    ----------
    params : the parameter set of every report.
    bit_counts : (m, k) of integers, or of floats that are integers. Entry [j, i] is the number of
        reports of cohort j that have a 1 at bit i.
    cohort_reports : (m,) of integers, or of floats that are integers. Entry [j] is the number of
        reports of cohort j.
    metric : name of the metric; empty for counts without a metric.
    sum_squared_reports : sum over all devices of the squared number of a device's reports, or an
        upper bound of it. None if it is unknown. `with_devices` computes it from simpler numbers.

    Attributes
    ----------
    params, bit_counts, cohort_reports, metric, sum_squared_reports
        The arguments. The arrays are read-only int64 copies.

    Raises
    ------
    ReportError
        A shape is wrong, an entry is negative or not a whole number, a bit has more ones than its
        cohort has reports, or the sum of squared reports is impossible for the number of reports.
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
        """Copy and check the arrays."""
        if not isinstance(metric, str):
            raise MetricError(f"metric must be a text, got {type(metric).__name__}")
        object.__setattr__(self, "params", params)
        object.__setattr__(
            self,
            "bit_counts",
            _copy_whole_numbers("bit_counts", bit_counts, (params.m, params.k)),
        )
        object.__setattr__(
            self,
            "cohort_reports",
            _copy_whole_numbers("cohort_reports", cohort_reports, (params.m,)),
        )
        object.__setattr__(self, "metric", metric)
        _check_ones(self.bit_counts, self.cohort_reports)
        if params.response.is_exclusive:
            _check_one_bit_reports(self.bit_counts, self.cohort_reports)
        n_reports = self.n_reports
        # S is the sum of squared reports. Without reports there are no devices, so S = 0 is known.
        squares: int | None = 0
        if n_reports:
            squares = squared_reports.check_squares(sum_squared_reports, n_reports)
        object.__setattr__(self, "sum_squared_reports", squares)

    @property
    def without_segment(self) -> Counts:
        """The same counts under the parameter set without a segment.

        A segment is a group of devices with the same public properties. Counts of several segments
        have different parameter sets, so they can be added only without their segments.
        """
        params = self.params.without_segment
        return Counts(
            params, self.bit_counts, self.cohort_reports, self.metric, self.sum_squared_reports
        )

    @property
    def reports_per_device(self) -> float | None:
        """Number of reports per device, averaged over reports: `sum_squared_reports` / `n_reports`.

        If all devices sent equally many reports, the result is their number. Otherwise the result
        exceeds the average over devices: one device with 1 report and one device with 3 reports
        have (1 + 9) / 4 = 2.5. The result is 0 without reports, and None if the sum of squared
        reports is unknown.
        """
        if self.sum_squared_reports is None:
            return None
        return self.sum_squared_reports / max(self.n_reports, 1)

    def with_devices(
        self, n_devices: float | None = None, *, reports_per_device: float | None = None
    ) -> Counts:
        """Return the same counts with the sum of squared reports for a number of devices.

        The reports are assumed to be evenly spread over the devices. For any other distribution,
        pass `sum_squared_reports` to the constructor.

        Parameters
        ----------
        n_devices : number of devices, in [1, n_reports].
        reports_per_device : number of reports of each device, in [1, n_reports]. Pass exactly one
            of the two.

        Raises
        ------
        ReportError
            Both numbers are passed or none, or the number is outside its range.

        Examples
        --------
        >>> params = Params(k=2, m=1, f=0.5, p=0.25, q=0.75)
        >>> Counts(params, [[3, 1]], [4]).with_devices(2).sum_squared_reports
        8
        """
        squares = squared_reports.compute_squares(
            self.n_reports, n_devices=n_devices, reports_per_device=reports_per_device
        )
        return Counts(self.params, self.bit_counts, self.cohort_reports, self.metric, squares)

    @classmethod
    def zero(cls, params: Params, metric: str = "") -> Counts:
        """Return the counts of no reports, the neutral element of addition."""
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
        packed : (n, ceil(k/8)) uint8. Bit i of a report is bit i mod 8 of byte i div 8.
        cohorts : (n,) of any integer dtype. Cohort of each report.
        params, metric : parameter set and metric of all reports.

        Raises
        ------
        ReportError
            An array has a wrong dtype or shape, or a report has a cohort outside [0, m) or a 1 in
            an unused bit.

        Examples
        --------
        >>> params = Params(k=2, m=1, f=0.5, p=0.25, q=0.75)
        >>> packed = np.array([[0b01], [0b11]], dtype=np.uint8)
        >>> Counts.from_packed(packed, np.array([0, 0]), params).bit_counts.tolist()
        [[2, 1]]
        """
        # This import loads the compiler, which takes a second. Decoding does not need it.
        from rappor.counts.bit_sums import sum_bits  # noqa: PLC0415

        arrays = _read_array("packed", packed), _read_array("cohorts", cohorts)
        return cls(params, *sum_bits(*arrays, k=params.k, m=params.m), metric)

    @classmethod
    def from_reports(cls, reports: Iterable[Report], params: Params, metric: str = "") -> Counts:
        """Count reports from any iterable, in bounded memory.

        Parameters
        ----------
        reports : reports of one metric and one parameter set. They are read once.
        params, metric : parameter set and metric of all reports.

        Raises
        ------
        ReportError
            A report has another fingerprint or metric.

        Examples
        --------
        >>> params = Params(k=2, m=1, f=0.5, p=0.25, q=0.75)
        >>> report = Report(metric="page", params=params.fingerprint, cohort=0, bits=bytes([0b01]))
        >>> Counts.from_reports([report, report], params, "page").bit_counts.tolist()
        [[2, 0]]
        """
        fingerprint = params.fingerprint
        total = cls.zero(params, metric)
        stream = iter(reports)
        while batch := list(itertools.islice(stream, _BATCH_REPORTS)):
            for report in batch:
                _check_report(report, fingerprint, metric)
            bits = b"".join(report.bits for report in batch)
            packed = np.frombuffer(bits, dtype=np.uint8).reshape(len(batch), params.n_bytes)
            cohorts = np.array([report.cohort for report in batch], dtype=np.int64)
            total += cls.from_packed(packed, cohorts, params, metric)
        return total

    @property
    def n_reports(self) -> int:
        """Number of reports in all cohorts."""
        # The sum uses Python integers, because a sum of int64 could overflow.
        return sum(self.cohort_reports.tolist())

    @property
    def sha256(self) -> str:
        """SHA-256 of metric, parameters and all sums. Equal counts have equal hashes."""
        header = {
            "metric": self.metric,
            "params": self.params.fingerprint,
            "squares": self.sum_squared_reports,
        }
        integers = np.concatenate([self.cohort_reports, self.bit_counts.ravel()]).astype("<i8")
        digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode() + b"\n")
        digest.update(integers.tobytes())
        return digest.hexdigest()

    def __add__(self, other: Counts) -> Counts:
        """Add counts whose devices may be the same (`add` with `same_devices=True`)."""
        if not isinstance(other, Counts):
            return NotImplemented
        return self.add(other, same_devices=True)

    def add(self, other: Counts, *, same_devices: bool) -> Counts:
        """Add counts of the same metric and parameter set.

        Parameters
        ----------
        other : the counts to add.
        same_devices : whether a device may have reports in both, as on two days. The sum of squared
            reports then becomes its upper bound, (sqrt(a) + sqrt(b))^2. With False, the sums of
            squared reports add. The result is unknown if one of them is unknown.

        Raises
        ------
        MetricError
            The metrics differ.
        ParamsError
            The parameter sets differ.

        Examples
        --------
        >>> params = Params(k=2, m=1, f=0.5, p=0.25, q=0.75)
        >>> day = Counts(params, [[3, 1]], [4]).with_devices(4)
        >>> day.add(day, same_devices=True).reports_per_device
        2.0
        >>> day.add(day, same_devices=False).reports_per_device
        1.0
        """
        self._check_same_collection(other, "added")
        return Counts(
            self.params,
            self.bit_counts + other.bit_counts,
            self.cohort_reports + other.cohort_reports,
            self.metric,
            squared_reports.add_squares(
                self.sum_squared_reports, other.sum_squared_reports, same_devices=same_devices
            ),
        )

    def __radd__(self, other: int) -> Counts:
        """Support sum(), which starts from the integer 0."""
        return self if other == 0 else NotImplemented

    def __sub__(self, other: Counts) -> Counts:
        """Subtract counts that are part of these counts."""
        if not isinstance(other, Counts):
            return NotImplemented
        self._check_same_collection(other, "subtracted")
        cohort_reports = self.cohort_reports - other.cohort_reports
        n_left = self.n_reports - other.n_reports
        squares = None
        # No device has more reports after the subtraction, so the old sum of squares stays an upper
        # bound. n_left^2 is another upper bound: one device has sent all remaining reports. Case
        # n_left < 0: `other` is no part of these counts, and the constructor raises.
        if self.sum_squared_reports is not None and n_left >= 0:
            squares = min(self.sum_squared_reports, n_left**2)
        return Counts(
            self.params, self.bit_counts - other.bit_counts, cohort_reports, self.metric, squares
        )

    def _check_same_collection(self, other: Counts, verb: str) -> None:
        """Raise MetricError or ParamsError unless both have one metric and one parameter set."""
        if self.metric != other.metric:
            raise MetricError(
                f"counts of metric {self.metric!r} and of metric {other.metric!r} cannot be {verb}"
            )
        own_fingerprint, other_fingerprint = self.params.fingerprint, other.params.fingerprint
        if own_fingerprint != other_fingerprint:
            raise ParamsError(
                f"counts under parameters {own_fingerprint} and under parameters "
                f"{other_fingerprint} cannot be {verb}"
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
        """Write a counts file that `load` reads (`rappor.counts.counts_file`).

        After a crash, the file is either complete or absent.
        """
        counts_file.write_counts_file(
            path,
            counts_file.CountsFields(
                self.params,
                self.bit_counts,
                self.cohort_reports,
                self.metric,
                self.sum_squared_reports,
            ),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Counts:
        """Read a counts file, or the JSON in which a collector returns counts.

        Raises
        ------
        FileError
            The file has another format, is damaged, or contains several parameter sets. The message
            contains the reason.
        """
        return cls._from_fields(path, counts_file.read_counts_file(path))

    @classmethod
    def load_all(cls, path: str | os.PathLike[str]) -> list[Counts]:
        """Read the counts of all parameter sets of a file; raise FileError as `load` does."""
        return [cls._from_fields(path, fields) for fields in counts_file.read_all_counts(path)]

    @classmethod
    def _from_fields(cls, path: str | os.PathLike[str], fields: counts_file.CountsFields) -> Counts:
        """Create counts from the fields of a counts file; raise FileError if they are invalid."""
        try:
            return cls(*fields)
        except (ReportError, MetricError) as error:
            raise FileError(path, str(error)) from None

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a CSV with the columns cohort, reports, bit_0, bit_1 and so on.

        A known `sum_squared_reports` is written as a last column "squares", with the same number in
        every row. The table does not contain the parameters and the metric.
        """
        counts_tables.write_csv(
            path, self.bit_counts, self.cohort_reports, self.sum_squared_reports
        )

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str], params: Params, metric: str = "") -> Counts:
        """Read a CSV that `to_csv` or a database wrote.

        Rows and columns may have any order, headings may be in upper case, and the column squares
        may be missing.

        Raises
        ------
        FileError
            A column, a cohort or a number is missing, repeated or impossible. The error contains
            the path and the line.
        """
        bit_counts, cohort_reports, squares = counts_tables.read_csv(path, params)
        try:
            return cls(params, bit_counts, cohort_reports, metric, squares)
        # Case: the sum of squared reports is impossible for the number of reports.
        except ReportError as error:
            raise FileError(path, str(error)) from None

    def to_arrow(self) -> Any:
        """Return a pyarrow.Table with the columns cohort, reports and ones.

        The columns have one row for each of the m cohorts. An entry of "ones" is a list of k
        integers. The schema's metadata contain the metric, the parameters and the sum of squared
        reports.

        Raises
        ------
        MissingExtraError
            The extra "arrow" is not installed.
        """
        return counts_tables.build_arrow_table(
            self.params, self.bit_counts, self.cohort_reports, self.metric, self.sum_squared_reports
        )

    @classmethod
    def from_arrow(cls, table: Any) -> Counts:
        """Read a pyarrow.Table that `to_arrow` built. The rows may have any order.

        Raises
        ------
        FileError
            A column, a type, a cohort or a number is impossible in counts, or the metadata lack the
            parameters or the metric.
        MissingExtraError
            The extra "arrow" is not installed.
        """
        return cls._from_arrow(table, "Arrow table")

    @classmethod
    def _from_arrow(cls, table: Any, name: str | os.PathLike[str]) -> Counts:
        """Create counts from an Arrow table; raise FileError if the table is invalid."""
        try:
            return cls(*counts_tables.parse_arrow_table(table))
        except (ParamsError, ReportError, MetricError) as error:
            raise FileError(name, str(error)) from None

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write the table of `to_arrow` as a Parquet file."""
        counts_tables.write_parquet(path, self.to_arrow())

    @classmethod
    def from_parquet(cls, path: str | os.PathLike[str]) -> Counts:
        """Read a Parquet file that `to_parquet` wrote.

        Raises
        ------
        FileError
            The file does not contain counts. A file of reports is refused as well:
            `rappor.engines.aggregate_parquet` adds its reports.
        MissingExtraError
            The extra "arrow" is not installed.
        """
        return cls._from_arrow(counts_tables.read_parquet(path), path)


def _copy_whole_numbers(name: str, table: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return a read-only int64 copy of a table of non-negative whole numbers."""
    array = _read_array(name, table)
    if array.shape != shape:
        raise ReportError(f"{name} must have shape {shape}, got {array.shape}")
    if array.dtype.kind not in "iuf":
        raise ReportError(f"{name} must be integers, got {array.dtype}")
    # A NaN is bad as well, because both comparisons with a NaN are False.
    is_bad = ~((array >= 0) & (array < 1 << 63))
    if array.dtype.kind == "f":
        is_bad |= array != np.floor(array)
    if is_bad.any():
        index = tuple(int(i) for i in np.argwhere(is_bad)[0])
        raise ReportError(
            f"{name} must be whole numbers in [0, 2^63), got {array[index]} "
            f"at {_format_index(*index)}"
        )
    numbers = array.astype(np.int64, order="C")
    numbers.flags.writeable = False
    return numbers


def _read_array(name: str, table: ArrayLike) -> NDArray[Any]:
    """Return a table as an array; raise ReportError if no array can stand for it."""
    rows = table if isinstance(table, list | tuple) else [table]
    # Case: a masked array, also as one row of a list. numpy would copy the numbers under the mask,
    # which the caller has declared invalid.
    if any(isinstance(row, np.ma.MaskedArray) for row in rows):
        raise ReportError(f"{name} must not be a masked array: fill or leave out what it masks")
    try:
        return np.asarray(table)
    except ValueError:
        raise ReportError(f"{name} must have rows of one length") from None


def _format_index(cohort: int, bit: int | None = None) -> str:
    """Return the place of an error in the counts, such as "cohort 3, bit 7"."""
    return f"cohort {cohort}" if bit is None else f"cohort {cohort}, bit {bit}"


def _check_ones(bit_counts: NDArray[np.int64], cohort_reports: NDArray[np.int64]) -> None:
    """Raise ReportError if a bit has more ones than its cohort has reports."""
    is_over = bit_counts > cohort_reports[:, None]
    # `argwhere` costs more than all other checks together, so it runs only if there is an error.
    if is_over.any():
        j, i = np.argwhere(is_over)[0].tolist()
        raise ReportError(
            f"ones must be at most the reports of their cohort, got {bit_counts[j, i]} ones "
            f"in {cohort_reports[j]} reports at {_format_index(j, i)}"
        )


def _check_one_bit_reports(
    bit_counts: NDArray[np.int64], cohort_reports: NDArray[np.int64]
) -> None:
    """Raise ReportError unless each cohort has as many ones as reports.

    A report of generalized randomized response names one bucket, so exactly one of its bits is 1.
    """
    n_ones = bit_counts.sum(axis=1)
    is_wrong = n_ones != cohort_reports
    if is_wrong.any():
        j = int(is_wrong.argmax())
        raise ReportError(
            "ones must be as many as the reports, because each report has exactly one 1, got "
            f"{n_ones[j]} ones in {cohort_reports[j]} reports at {_format_index(j)}"
        )


def _check_report(report: Report, fingerprint: str, metric: str) -> None:
    """Raise ReportError for a report of another parameter set or metric."""
    if report.params != fingerprint:
        raise ReportError(f"params must be {fingerprint}, got a report under {report.params}")
    if report.metric != metric:
        remedy = "" if metric else f"; give metric={report.metric!r}"
        raise ReportError(f"metric must be {metric!r}, got a report of {report.metric!r}{remedy}")
