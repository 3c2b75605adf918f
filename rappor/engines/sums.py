"""Kernel of aggregation: adds batches of reports to sums, on one machine or on many machines.

The input is Arrow batches of stored reports (`rappor.engines.layout`). The output is, for each key,
the number of reports and the number of ones of each bit, by cohort. Refused rows are counted by
reason.

Every engine runs this module. It imports numpy and pyarrow and nothing of the protocol, so that it
also runs on workers that have only these two packages. A parameter set is reduced to its `Shape`: k
bits of a report and m cohorts.

How to think about it. The rows of a batch fall into groups. The rows of a group have the same key:
metric, parameter set, day and values in the columns of `by`. So they are added to the same sums. A
bin is a cohort of a group, and has the number group * m + cohort. All rows of a bin add to one row
of sums. Example: three rows of a parameter set with m = 4 cohorts and k = 3 bits.

    metric    day       cohort    bits      group    bin
    theme     1 Nov.    2         1 0 1     0        0 * 4 + 2 = 2
    theme     2 Nov.    0         0 1 1     1        1 * 4 + 0 = 4
    theme     1 Nov.    2         1 1 0     0        2

    sums of bin 2       2 reports, ones 2 1 1
    sums of bin 4       1 report, ones 0 1 1

Bins are consecutive numbers. One call of the loop over bits (`rappor.counts.bit_sums`) therefore
adds all groups of a batch. The parameter sets of one shape share a call. Each further shape needs a
call of its own, because its reports have another length.

A row that is not a report is refused. It is counted under the first reason against it, in the order
of `layout.REASONS`:

    rows of a batch -> groups and bins -> reason of each row -> loop over bits, by shape
                                                  |
                                                  v
                                        refused, by metric, params and reason

Sums of batches, of files and of workers are added in any order, with the same result.
"""

from __future__ import annotations

import datetime
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rappor.base.errors import ReportError
from rappor.counts.bit_sums import sum_bits
from rappor.engines.bits_column import Rows, read_bits
from rappor.engines.layout import DAY, FORMAT, REASONS, check_columns

_REASON_OF_CODE: Final = ("", *REASONS)
"""Reasons by their code, an index of this tuple. Code 0 means that a row is a report."""

_CODE_OF_REASON: Final = {name: number for number, name in enumerate(_REASON_OF_CODE)}
"""Code of each reason against a row. An array of codes has one byte for each row, so there can be
at most 255 reasons."""

_MAX_NAMES: Final = 1000
"""Largest number of different (metric, params, reason) under which refusals are counted.

The limit bounds memory, because rows may have random names. Further refusals are counted under
empty names.
"""

_MAX_NAME_LENGTH: Final = 64
"""Largest number of characters of a name under which refusals are counted.

The limit bounds memory. Names of metrics have at most 64 characters, so only invalid names are cut.
"""

_FIRST_DAY: Final = datetime.date(1970, 1, 1).toordinal()
"""Ordinal of the day that Arrow's type date32 writes as 0."""

_BATCH_ROWS: Final = 1 << 12
"""Largest number of rows of a batch that `Sums.batches` yields. The limit bounds memory: at k =
128, the sums of bits of 4,096 rows take 4 MB. With a smaller number, there are more batches."""

_FEW_BINS: Final = 1 << 12
"""Largest number of bins of a batch for which sums of all bins are computed, also of bins
without rows.

If a batch has more bins, the bins that contain rows are first renumbered without gaps. For few
bins, the renumbering takes longer than the sums of empty bins. A larger number takes more memory:
at k = 128 the sums of 4,096 bins have 4 MB.
"""


_POPCOUNTS: Final = np.array([value.bit_count() for value in range(256)], dtype=np.int64)
"""(256,) int64. Entry v is the number of ones of the byte value v."""


class Shape(NamedTuple):
    """Shape of a parameter set: k bits of a report, and m cohorts.

    `is_exclusive` is True if exactly one bit of a report is 1 (generalized randomized response).
    """

    k: int
    m: int
    is_exclusive: bool = False

    @classmethod
    def of(cls, params: Any) -> Shape:
        """Return the shape of a parameter set. Workers may lack packages that `Params` needs."""
        return cls(params.k, params.m, params.response.is_exclusive)

    @property
    def n_bytes(self) -> int:
        """Number of bytes of a report."""
        return (self.k + 7) // 8


Shapes = Mapping[tuple[str, str], Shape]
"""Shape of each accepted parameter set, by metric and fingerprint. Rows under any other pair of
metric and fingerprint are refused."""

Key = tuple[Any, ...]
"""Key of a group of reports: metric, fingerprint, day or None, and the values of `by`. A
fingerprint is the hash of a parameter set."""


@dataclass(frozen=True, slots=True)
class Total:
    """Sums of one key.

    Attributes
    ----------
    ones : (m, k) int64. Number of reports in which each bit is 1.
    reports : (m,) int64. Number of reports of each cohort.
    """

    ones: NDArray[np.int64]
    reports: NDArray[np.int64]


def sum_schema(by: Sequence[str] = ()) -> Any:
    """Return the Arrow schema of a table of sums.

    A row has the sums of one cohort, and `ones` is a list of k integers. If `refused` is not null,
    the row counts `reports` rows that were refused for this reason. Then `metric` and `params` are
    the texts of these rows, cut to 64 characters, and the other columns are null.
    """
    columns = {
        "metric": pa.string(),
        "params": pa.string(),
        "day": pa.date32(),
        **{name: pa.string() for name in by},
        "cohort": pa.int32(),
        "reports": pa.int64(),
        "ones": pa.list_(pa.int64()),
        "refused": pa.string(),
    }
    return pa.schema(columns)


class Sums:
    """Sums of batches of reports and of other sums. The class is not thread-safe.

    Attributes
    ----------
    totals : the sums by key.
    refused : number of refused rows by metric, params and reason.
    """

    def __init__(self, shapes: Shapes, by: Sequence[str] = ()) -> None:
        """Create empty sums.

        Parameters
        ----------
        shapes : shapes of the accepted parameter sets
        by : names of further columns of text. Rows with different values are summed separately.
        """
        self.totals: dict[Key, Total] = {}
        self.refused: Counter[tuple[str, str, str]] = Counter()
        self._shapes = shapes
        self._by = tuple(by)
        self._distinct_shapes = sorted(set(shapes.values()))
        self._metrics = {metric for metric, _ in shapes}

    @property
    def n_integers(self) -> int:
        """Number of integers in the sums of bits. Each takes 8 bytes of memory."""
        return sum(total.ones.size for total in self.totals.values())

    def add(self, batch: Any) -> None:
        """Add a pyarrow.RecordBatch of reports.

        Raises ReportError if a column is missing, repeated or of a wrong type.
        """
        check_columns(batch.schema.names, self._by)
        if batch.num_rows:
            self._add_rows(_Rows(batch, self._by))

    def _add_rows(self, rows: _Rows) -> None:
        """Add rows, one shape after the other, and count the refused rows."""
        verdicts = [self._judge_key(key) for key in rows.keys]
        reason = self._judge_rows(rows, verdicts)
        for index, shape in enumerate(self._distinct_shapes):
            if index in verdicts:
                is_selected = reason == 0
                # If all groups have the same verdict, all rows that are not refused have this
                # shape, and the comparison below is not needed.
                if len(set(verdicts)) > 1:
                    is_selected &= rows.expand_to_rows(verdicts) == index
                self._add_reports(rows, rows.check_bits(is_selected, reason, shape), shape)
        if reason.any():
            self._count_refused(rows, reason)

    def _judge_key(self, key: Key) -> int:
        """Return the verdict on the group of a key, as one integer.

        0 or more     the index of the shape of the group in `_distinct_shapes`
        below 0       all rows of the group are refused, for the reason with the code -verdict
        """
        metric, params, day = key[:3]
        shape = self._shapes.get((metric, params))
        if shape is None:
            is_known = metric in self._metrics
            return -_CODE_OF_REASON["unknown-params" if is_known else "unknown-metric"]
        if day is not None and not isinstance(day, datetime.date):
            return -_CODE_OF_REASON["day"]
        return self._distinct_shapes.index(shape)

    def _judge_rows(self, rows: _Rows, verdicts: list[int]) -> NDArray[np.uint8]:
        """Return the code of the reason against each row, (n,) uint8, before the bits are read.

        `verdicts` has the result of `_judge_key` for each group.
        """
        # A row with several faults gets the first of its reasons in the order of `REASONS`. So the
        # reasons are written in the reverse order, and a later assignment replaces an earlier one.
        reason = np.zeros(len(rows.cohort), dtype=np.uint8)
        n_cohorts = [self._distinct_shapes[index].m if index >= 0 else 0 for index in verdicts]
        m = rows.expand_to_rows(n_cohorts)
        reason[(rows.cohort < 0) | (rows.cohort >= m)] = _CODE_OF_REASON["cohort"]
        if min(verdicts) < 0:
            faults = rows.expand_to_rows([max(-verdict, 0) for verdict in verdicts])
            np.copyto(reason, faults, where=faults > 0, casting="unsafe")
        reason[rows.has_wrong_format] = _CODE_OF_REASON["format"]
        return reason

    def _add_reports(self, rows: _Rows, selected: Rows, shape: Shape) -> None:
        """Add the selected rows, which are reports of one shape."""
        # `bins` contains the bin of each row. If there are many bins, `bins` contains the index of
        # the row's bin in `present_bins` instead.
        bins, n_bins = rows.compute_bins(selected, shape.m), len(rows.keys) * shape.m
        present_bins = np.arange(n_bins)
        if n_bins > _FEW_BINS:
            present_bins, bins = _renumber(bins, n_bins)
        packed = rows.select_packed(selected, shape)
        ones, reports = sum_bits(packed, bins, k=shape.k, m=len(present_bins))
        groups, cohorts = np.divmod(present_bins, shape.m)
        # `present_bins` increases, so the bins of a group have consecutive indices (a run).
        for group, run in _find_runs(groups):
            if reports[run].any():
                total = self._get_total(rows.keys[group], shape)
                total.ones[cohorts[run]] += ones[run]
                total.reports[cohorts[run]] += reports[run]

    def _get_total(self, key: Key, shape: Shape) -> Total:
        """Return the sums of a key, zeros for a new key."""
        if key not in self.totals:
            zeros = np.zeros((shape.m, shape.k), np.int64), np.zeros(shape.m, np.int64)
            self.totals[key] = Total(*zeros)
        return self.totals[key]

    def _count_refused(self, rows: _Rows, reason: NDArray[np.uint8]) -> None:
        """Count the refused rows of a batch by group and reason."""
        refused_rows = np.flatnonzero(reason)
        # One number for each pair of group and reason.
        n_codes = len(_REASON_OF_CODE)
        pairs = rows.group[refused_rows] * n_codes + reason[refused_rows]
        distinct_pairs, counts = np.unique(pairs, return_counts=True)
        for pair, n in zip(distinct_pairs.tolist(), counts.tolist(), strict=True):
            group, code = divmod(pair, n_codes)
            self.refuse(rows.keys[group][0], rows.keys[group][1], _REASON_OF_CODE[code], n)

    def refuse(self, metric: object, params: object, reason: str, n: int) -> None:
        """Count n refused rows, by their metric, their params and the reason."""
        key = _cut_name(metric), _cut_name(params), reason
        if len(self.refused) >= _MAX_NAMES and key not in self.refused:
            key = "", "", reason
        self.refused[key] += n

    def merge(self, other: Sums) -> None:
        """Add other sums, for example of another file."""
        for key, total in other.totals.items():
            own_total = self._get_total(key, self._find_shape(key))
            own_total.ones[...] += total.ones
            own_total.reports[...] += total.reports
        for (metric, params, reason), n in other.refused.items():
            self.refuse(metric, params, reason, n)

    def add_sums(self, batch: Any) -> None:
        """Add a pyarrow.RecordBatch of sums, as `batches` creates them. Keys may be repeated."""
        refused = batch.filter(batch.column("refused").is_valid())
        for row in refused.select(["metric", "params", "refused", "reports"]).to_pylist():
            self.refuse(row["metric"], row["params"], row["refused"], row["reports"])
        sums = batch.filter(batch.column("refused").is_null())
        if not sums.num_rows:
            return
        keys, group = _group_rows([sums.column(name) for name in self._key_columns])
        # Sort by key, so that the rows of a key are a run.
        order = np.argsort(group, kind="stable")
        sums = sums.take(pa.array(order))
        cohorts, reports = (sums.column(name).to_numpy() for name in ("cohort", "reports"))
        for key_index, run in _find_runs(group[order]):
            total = self._get_total(keys[key_index], self._find_shape(keys[key_index]))
            ones = sums.column("ones").slice(run.start, run.stop - run.start).flatten()
            # A cohort may occur in several rows of a run. `+=` would add only one of these rows.
            np.add.at(total.ones, cohorts[run], ones.to_numpy().reshape(-1, total.ones.shape[1]))
            np.add.at(total.reports, cohorts[run], reports[run])

    def _find_shape(self, key: Key) -> Shape:
        """Return the shape of a key; raise ReportError if its parameters are not accepted."""
        shape = self._shapes.get((key[0], key[1]))
        if shape is None:
            raise ReportError(f"sums must be of accepted parameters, got {key[0]!r} {key[1]!r}")
        return shape

    @property
    def _key_columns(self) -> tuple[str, ...]:
        """Names of the columns of a key."""
        return "metric", "params", "day", *self._by

    def batches(self) -> Iterator[Any]:
        """Yield the sums and the refusals as pyarrow.RecordBatches of `sum_schema`."""
        for key, total in self.totals.items():
            present_cohorts = np.flatnonzero(total.reports)
            for start in range(0, len(present_cohorts), _BATCH_ROWS):
                yield self._build_batch(key, total, present_cohorts[start : start + _BATCH_ROWS])
        if self.refused:
            rows = [
                {"metric": metric, "params": params, "reports": n, "refused": reason}
                for (metric, params, reason), n in self.refused.items()
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=sum_schema(self._by))

    def _build_batch(self, key: Key, total: Total, cohorts: NDArray[np.int64]) -> Any:
        """Return the sums of some cohorts of one key. `cohorts` is (n,) int64."""
        n, k = len(cohorts), total.ones.shape[1]
        schema = sum_schema(self._by)
        ones = pa.array(total.ones[cohorts].ravel())
        labels = [
            pa.repeat(pa.scalar(value, schema.field(name).type), n)
            for name, value in zip(self._key_columns, key, strict=True)
        ]
        numbers = [
            pa.array(cohorts.astype(np.int32)),
            pa.array(total.reports[cohorts]),
            pa.ListArray.from_arrays(pa.array(np.arange(0, n * k + 1, k, dtype=np.int32)), ones),
            pa.nulls(n, pa.string()),
        ]
        return pa.record_batch([*labels, *numbers], schema=schema)


class _Rows:
    """Rows of a batch as numpy arrays: the group, the cohort and the bits of each row.

    Attributes
    ----------
    keys : key of each group.
    group : (n,) int64, index of the group of each row in `keys`.
    cohort : (n,) integers, cohort of each row. Null becomes -1.
    has_wrong_format : (n,) bool, True for a row whose column `format` is not `layout.FORMAT`.
    """

    def __init__(self, batch: Any, by: Sequence[str]) -> None:
        metric, params, *by_labels = (
            _read_label(batch, name) for name in ("metric", "params", *by)
        )
        keys, self.group = _group_rows([metric, params, _read_days(batch), *by_labels])
        self.keys = [
            (*key[:2], _parse_date(key[2]), *map(_convert_to_text, key[3:])) for key in keys
        ]
        self.cohort = _read_integers(batch.column("cohort"), "cohort")
        self.has_wrong_format = _read_integers(batch.column("format"), "format") != FORMAT
        self._bits = read_bits(batch.column("bits"))

    def expand_to_rows(self, values: Sequence[int]) -> NDArray[np.int64]:
        """Return for each row the value of its group, (n,) int64.

        If there is a single group, the result is (1,) int64. numpy combines its element with all
        rows, which is faster than n equal elements.

        Parameters
        ----------
        values : value of each group
        """
        if len(values) == 1:
            return np.full(1, values[0])
        return np.array(values)[self.group]

    def compute_bins(self, rows: Rows, m: int) -> NDArray[np.integer[Any]]:
        """Return the bin of each of the selected rows: group * m + cohort."""
        # The only group is number 0.
        if len(self.keys) == 1:
            return self.cohort[rows]
        return np.asarray(self.group[rows] * m + self.cohort[rows])

    def check_bits(
        self, is_selected: NDArray[np.bool_], reason: NDArray[np.uint8], shape: Shape
    ) -> Rows:
        """Select the rows whose bits have a shape, and write reasons against the other rows.

        Parameters
        ----------
        is_selected : (n,) bool. Rows to check. The other rows are not selected.
        reason : (n,) uint8. Code of the reason against each row. Changed in place.
        shape : the shape that the bits must have

        Returns
        -------
        The selected rows: a mask, or the slice of all rows if all n rows are selected.
        """
        has_wrong_length = is_selected & (self._bits.lengths != shape.n_bytes)
        reason[has_wrong_length] = _CODE_OF_REASON["length"]
        is_selected = is_selected & ~has_wrong_length
        # Mask of the unused bits of the last byte, which are its highest bits. Example: k = 6 has 2
        # unused bits, and the mask is 0b11000000.
        padding = 0xFF00 >> (8 * shape.n_bytes - shape.k) & 0xFF
        if padding:
            row_indices = np.flatnonzero(is_selected)
            has_padding = (self.select_packed(is_selected, shape)[:, -1] & padding) != 0
            reason[row_indices[has_padding]] = _CODE_OF_REASON["padding"]
            is_selected[row_indices[has_padding]] = False
        if shape.is_exclusive:
            row_indices = np.flatnonzero(is_selected)
            # Number of ones of each report.
            popcounts = _POPCOUNTS[self.select_packed(is_selected, shape)].sum(axis=1)
            has_wrong_popcount = popcounts != 1
            reason[row_indices[has_wrong_popcount]] = _CODE_OF_REASON["popcount"]
            is_selected[row_indices[has_wrong_popcount]] = False
        return slice(None) if is_selected.all() else is_selected

    def select_packed(self, rows: Rows, shape: Shape) -> NDArray[np.uint8]:
        """Return the bits of selected rows of one shape, (n, n_bytes) uint8."""
        return self._bits.select_packed(rows, shape.n_bytes)


def _cut_name(name: object) -> str:
    """Return the beginning of a text, or the empty text for another value."""
    return name[:_MAX_NAME_LENGTH] if isinstance(name, str) else ""


def _parse_date(day: Any) -> Any:
    """Convert the number of a day, or a text such as 2026-11-30, to a date.

    Any other text becomes the empty text, which is refused. Python also reads 20261130 and
    2026-W48-1. These spellings are refused, because warehouses do not read them.
    """
    try:
        if isinstance(day, int):
            return datetime.date.fromordinal(_FIRST_DAY + day)
        date = None if day is None else datetime.date.fromisoformat(day)
    except (ValueError, OverflowError):
        return ""
    return date if date is None or str(date) == day else ""


def _convert_to_text(value: Any) -> str | None:
    """Convert a value to text. Null stays None."""
    return None if value is None else str(value)


def _read_label(batch: Any, name: str) -> Any:
    """Return a column of a key; raise ReportError if its type is neither text nor a number."""
    column = batch.column(name)
    kind = _find_type(column)
    is_number = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    if _is_text(kind) or is_number or pa.types.is_null(kind):
        return column
    raise ReportError(f"{name} must be text, got {kind}")


def _read_days(batch: Any) -> Any:
    """Return the days of a batch, as numbers since 1970 or as texts.

    A missing day is null. A value of another type, such as a time, becomes the empty text, which is
    refused.
    """
    if DAY not in batch.schema.names:
        return pa.nulls(batch.num_rows, pa.int64())
    column = batch.column(DAY)
    kind = _find_type(column)
    if _is_text(kind):
        return column
    if pa.types.is_date(kind):
        dates = column.cast(kind).cast(pa.date32(), safe=False)
        return dates.cast(pa.int32()).cast(pa.int64())
    return pc.if_else(column.is_null(), None, "")


def _find_type(column: Any) -> Any:
    """Return the type of a column's values."""
    return column.type.value_type if pa.types.is_dictionary(column.type) else column.type


def _is_text(kind: Any) -> bool:
    """Return whether an Arrow type is text."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view()
    )


def _group_rows(columns: Sequence[Any]) -> tuple[list[Key], NDArray[np.int64]]:
    """Return the distinct keys of some columns, and the index of each row's key, (n,) int64.

    The keys are built column by column. Example: after the first column there are the keys ("a",)
    and ("b",), with the indices 0 and 1. The second column has 3 values. A row with key 1 and value
    2 gets the number 1 * 3 + 2 = 5. The numbers that occur are the new keys, and are renumbered
    without gaps.
    """
    # Until a column has two values, there is one key, and `group` has one element for all rows.
    keys: list[Key] = [()]
    group = np.zeros(1, dtype=np.int64)
    for column in columns:
        values, codes = _encode(column)
        if len(values) == 1:
            keys = [(*key, *values) for key in keys]
        else:
            n_values = len(values)
            present, group = _renumber(group * n_values + codes, len(keys) * n_values)
            keys = [(*keys[i // n_values], values[i % n_values]) for i in present.tolist()]
    return keys, group if len(keys) > 1 else np.zeros(len(columns[0]), dtype=np.int64)


def _find_runs(numbers: NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
    """Yield each distinct number of a sorted array, and the slice of its positions (its run)."""
    starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    for start, end in itertools.pairwise([*starts, len(numbers)]):
        yield int(numbers[start]), slice(start, end)


def _encode(column: Any) -> tuple[list[Any], NDArray[np.int64]]:
    """Encode a column as its distinct values, with None for null, and (n,) int64 indices.

    If all rows have one value, the indices are empty. Most columns have one value, and computing
    equal indices would take time.
    """
    if not pa.types.is_dictionary(column.type):
        first = column[0]
        if first.is_valid and not column.null_count and pc.all(pc.equal(column, first)).as_py():
            return _read_values(column.slice(0, 1)), np.zeros(0, dtype=np.int64)
        column = column.dictionary_encode()
    values = _read_values(column.dictionary)
    codes = column.indices
    if codes.null_count:
        codes = codes.fill_null(len(values))
        values.append(None)
    return values, codes.to_numpy(zero_copy_only=False).astype(np.int64)


def _read_values(column: Any) -> list[Any]:
    """Return the values of a column. Invalid UTF-8 is replaced, because some writers store it."""
    if _is_text(column.type):
        texts = column.cast(pa.large_string()).cast(pa.large_binary()).to_pylist()
        return [None if text is None else text.decode(errors="replace") for text in texts]
    return list(column.to_pylist())


def _renumber(
    numbers: NDArray[np.integer[Any]], n_possible: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Renumber without gaps.

    Parameters
    ----------
    numbers : (n,) integers, from 0 to n_possible - 1
    n_possible : number of possible numbers

    Returns
    -------
    The distinct numbers in increasing order, and for each row the index of its number among them.
    Example: 5, 0, 5 becomes (0, 5) and 1, 0, 1.
    """
    # Sorting takes no memory for numbers that do not occur. Counting is faster, but needs an array
    # of `n_possible` elements.
    if n_possible > max(_FEW_BINS, len(numbers)):
        present, indices = np.unique(numbers, return_inverse=True)
        return present, indices.astype(np.int64)
    occurs = np.bincount(numbers, minlength=n_possible) > 0
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[numbers]


def _read_integers(column: Any, name: str) -> NDArray[np.integer[Any]]:
    """Return a column of integers, (n,). Null and numbers that are too large become -1."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not pa.types.is_integer(column.type):
        raise ReportError(f"{name} must be integers, got {column.type}")
    if column.type == pa.uint64():
        column = pc.if_else(pc.less(column, pa.scalar(1 << 31, pa.uint64())), column, None)
    if pa.types.is_unsigned_integer(column.type):
        column = column.cast(pa.int64())
    if column.null_count:
        column = column.fill_null(-1)
    return np.asarray(column.to_numpy())
