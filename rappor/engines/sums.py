"""Sums of reports, batch by batch: the kernel that every engine runs, on one machine or many.

It imports numpy and pyarrow and nothing of the protocol, so that it runs on workers that have
no more. What has to be known of a parameter set is its `Shape`, two integers.

Theory of operation: the rows of a batch fall into groups of one metric, one parameter set, one
day and equal values in the columns of `by`. Groups and cohorts are numbered together, densely, so
that one call of the loop over bits adds up all groups of a batch. Sums of batches are added, in
any order; so are sums of other workers.

Reports come as `layout` says; a day may be its text as 2026-11-30. A row that is no report is
counted by its reason.
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

_CODES: Final = ("", *REASONS)
_NAMED: Final = {name: number for number, name in enumerate(_CODES)}

_MOST_NAMES: Final = 1000
"""Pairs of names that refusals are counted by; those beyond are counted under empty names."""
_LONGEST_NAME: Final = 64
_FIRST_DAY: Final = datetime.date(1970, 1, 1).toordinal()
_ROWS: Final = 1 << 12
"""Rows of a batch of sums: 4 MB of ones at k = 128."""
_FEW_CELLS: Final = 1 << 12
"""Cohorts of all groups that are all summed: what is empty costs less than finding it."""


class Shape(NamedTuple):
    """What the kernel has to know of a parameter set: bits of a report, and cohorts."""

    k: int
    m: int

    @property
    def n_bytes(self) -> int:
        """Bytes of a report."""
        return (self.k + 7) // 8


Shapes = Mapping[tuple[str, str], Shape]
"""(metric, fingerprint) -> the shape of reports that are accepted."""

Key = tuple[Any, ...]
"""What sums are kept by: metric, fingerprint, day or None, and the values of `by`."""


@dataclass(frozen=True, slots=True)
class Total:
    """The sums of one key: ones, (m, k) int64, and reports, (m,) int64."""

    ones: NDArray[np.int64]
    reports: NDArray[np.int64]


def sum_schema(by: Sequence[str] = ()) -> Any:
    """Return the Arrow schema of a table of sums.

    A row has the sums of one cohort: `ones` is a list of k integers. Where `refused` is not null,
    the row tells of `reports` rows that were refused for that reason; `metric` and `params` are
    then what they said, cut to 64 characters, and the other columns are null.
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
    """Sums that grow by batches of reports and by other sums; not thread-safe.

    `totals` has the sums by key, `refused` the refused rows by (metric, params, reason).
    """

    def __init__(self, shapes: Shapes, by: Sequence[str] = ()) -> None:
        """Start with nothing; `by` names further columns of text that keep sums apart."""
        self.totals: dict[Key, Total] = {}
        self.refused: Counter[tuple[str, str, str]] = Counter()
        self._shapes = shapes
        self._by = tuple(by)
        self._kinds = sorted(set(shapes.values()))
        self._metrics = {metric for metric, _ in shapes}

    @property
    def n_cells(self) -> int:
        """Integers that the sums hold, 8 bytes each."""
        return sum(total.ones.size for total in self.totals.values())

    def add(self, batch: Any) -> None:
        """Add a pyarrow.RecordBatch of reports.

        Raises ReportError where a column is missing, doubled or of another type.
        """
        check_columns(batch.schema.names, self._by)
        if batch.num_rows:
            self._add_rows(_Rows(batch, self._by))

    def _add_rows(self, rows: _Rows) -> None:
        kinds = [self._kind(key) for key in rows.keys]
        reason = self._judge(rows, kinds)
        for number, shape in enumerate(self._kinds):
            if number in kinds:
                mine = reason == 0
                if len(set(kinds)) > 1:
                    mine &= rows.by_group(kinds) == number
                self._sum(rows, rows.check_bits(mine, reason, shape), shape)
        if reason.any():
            self._refuse(rows, reason)

    def _kind(self, key: Key) -> int:
        """Return the number of a key's shape, or minus the number of the reason against it."""
        metric, params, day = key[:3]
        shape = self._shapes.get((metric, params))
        if shape is None:
            return -_NAMED["unknown-params" if metric in self._metrics else "unknown-metric"]
        if day is not None and not isinstance(day, datetime.date):
            return -_NAMED["day"]
        return self._kinds.index(shape)

    def _judge(self, rows: _Rows, kinds: list[int]) -> NDArray[np.uint8]:
        """Return the reason against each row, (n,) uint8, as far as the bits do not matter."""
        reason = np.zeros(len(rows.cohort), dtype=np.uint8)
        m = rows.by_group([self._kinds[kind].m if kind >= 0 else 0 for kind in kinds])
        reason[(rows.cohort < 0) | (rows.cohort >= m)] = _NAMED["cohort"]
        if min(kinds) < 0:
            faults = rows.by_group([max(-kind, 0) for kind in kinds])
            np.copyto(reason, faults, where=faults > 0, casting="unsafe")
        reason[rows.is_foreign] = _NAMED["format"]
        return reason

    def _sum(self, rows: _Rows, mine: Rows, shape: Shape) -> None:
        """Add up the chosen rows, which are reports of one shape."""
        cells, n_cells = rows.cells(mine, shape.m), len(rows.keys) * shape.m
        present = np.arange(n_cells)
        if n_cells > _FEW_CELLS:
            present, cells = _renumber(cells, n_cells)
        ones, reports = sum_bits(rows.packed(mine, shape), cells, k=shape.k, m=len(present))
        groups, cohorts = np.divmod(present, shape.m)
        for group, each in _runs(groups):
            if reports[each].any():
                total = self._total(rows.keys[group], shape)
                total.ones[cohorts[each]] += ones[each]
                total.reports[cohorts[each]] += reports[each]

    def _total(self, key: Key, shape: Shape) -> Total:
        if key not in self.totals:
            zeros = np.zeros((shape.m, shape.k), np.int64), np.zeros(shape.m, np.int64)
            self.totals[key] = Total(*zeros)
        return self.totals[key]

    def _refuse(self, rows: _Rows, reason: NDArray[np.uint8]) -> None:
        bad = np.flatnonzero(reason)
        pairs, counts = np.unique(rows.group[bad] * len(_CODES) + reason[bad], return_counts=True)
        for pair, n in zip(pairs.tolist(), counts.tolist(), strict=True):
            group, number = divmod(pair, len(_CODES))
            self.refuse(rows.keys[group][0], rows.keys[group][1], _CODES[number], n)

    def refuse(self, metric: object, params: object, reason: str, n: int) -> None:
        """Count n rows that are no reports, by what they say of themselves and the reason."""
        key = _shown(metric), _shown(params), reason
        if len(self.refused) >= _MOST_NAMES and key not in self.refused:
            key = "", "", reason
        self.refused[key] += n

    def merge(self, other: Sums) -> None:
        """Add the sums of another, for example those of another file."""
        for key, total in other.totals.items():
            mine = self._total(key, self._known_shape(key))
            mine.ones[...] += total.ones
            mine.reports[...] += total.reports
        for (metric, params, reason), n in other.refused.items():
            self.refuse(metric, params, reason, n)

    def add_sums(self, batch: Any) -> None:
        """Add a pyarrow.RecordBatch of sums, as `batches` makes them; rows may repeat keys."""
        refused = batch.filter(batch.column("refused").is_valid())
        for row in refused.select(["metric", "params", "refused", "reports"]).to_pylist():
            self.refuse(row["metric"], row["params"], row["refused"], row["reports"])
        sums = batch.filter(batch.column("refused").is_null())
        if not sums.num_rows:
            return
        keys, group = _groups([sums.column(name) for name in self._key_columns])
        order = np.argsort(group, kind="stable")
        sums = sums.take(pa.array(order))
        cohorts, reports = (sums.column(name).to_numpy() for name in ("cohort", "reports"))
        for number, mine in _runs(group[order]):
            total = self._total(keys[number], self._known_shape(keys[number]))
            ones = sums.column("ones").slice(mine.start, mine.stop - mine.start).flatten()
            np.add.at(total.ones, cohorts[mine], ones.to_numpy().reshape(-1, total.ones.shape[1]))
            np.add.at(total.reports, cohorts[mine], reports[mine])

    def _known_shape(self, key: Key) -> Shape:
        shape = self._shapes.get((key[0], key[1]))
        if shape is None:
            raise ReportError(f"sums must be of accepted parameters, got {key[0]!r} {key[1]!r}")
        return shape

    @property
    def _key_columns(self) -> tuple[str, ...]:
        return "metric", "params", "day", *self._by

    def batches(self) -> Iterator[Any]:
        """Yield the sums and the refusals as pyarrow.RecordBatches of `sum_schema`."""
        for key, total in self.totals.items():
            present = np.flatnonzero(total.reports)
            for start in range(0, len(present), _ROWS):
                yield self._batch(key, total, present[start : start + _ROWS])
        if self.refused:
            rows = [
                {"metric": metric, "params": params, "reports": n, "refused": reason}
                for (metric, params, reason), n in self.refused.items()
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=sum_schema(self._by))

    def _batch(self, key: Key, total: Total, cohorts: NDArray[np.int64]) -> Any:
        """Return the rows of one key's cohorts, (n,) int64."""
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
    """The rows of a batch, seen as numpy arrays: groups, cohorts, bits."""

    def __init__(self, batch: Any, by: Sequence[str]) -> None:
        metric, params, *others = (_label(batch, name) for name in ("metric", "params", *by))
        keys, self.group = _groups([metric, params, _days(batch), *others])
        self.keys = [(*key[:2], _date(key[2]), *map(_text, key[3:])) for key in keys]
        self.cohort = _integers(batch.column("cohort"), "cohort")
        self.is_foreign = _integers(batch.column("format"), "format") != FORMAT
        self._bits = read_bits(batch.column("bits"))

    def by_group(self, values: Sequence[int]) -> NDArray[np.int64]:
        """Return each row's value, given one for each group; one for all if there is one group."""
        if len(values) == 1:
            return np.full(1, values[0])
        return np.array(values)[self.group]

    def cells(self, rows: Rows, m: int) -> NDArray[np.integer[Any]]:
        """Return the number of each row's group and cohort together, group * m + cohort."""
        if len(self.keys) == 1:
            return self.cohort[rows]
        return np.asarray(self.group[rows] * m + self.cohort[rows])

    def check_bits(
        self, chosen: NDArray[np.bool_], reason: NDArray[np.uint8], shape: Shape
    ) -> Rows:
        """Return which of the chosen rows have bits of a shape; write reasons against others."""
        wrong = chosen & (self._bits.lengths != shape.n_bytes)
        reason[wrong] = _NAMED["length"]
        chosen = chosen & ~wrong
        padding = 0xFF00 >> (8 * shape.n_bytes - shape.k) & 0xFF
        if padding:
            numbers = np.flatnonzero(chosen)
            odd = numbers[(self.packed(chosen, shape)[:, -1] & padding) != 0]
            reason[odd] = _NAMED["padding"]
            chosen[odd] = False
        return slice(None) if chosen.all() else chosen

    def packed(self, rows: Rows, shape: Shape) -> NDArray[np.uint8]:
        """Return the bits of rows of one shape, (n, n_bytes) uint8."""
        return self._bits.packed(rows, shape.n_bytes)


def _shown(name: object) -> str:
    return name[:_LONGEST_NAME] if isinstance(name, str) else ""


def _date(day: Any) -> Any:
    """Return the date of a day's number or of its one spelling; any other text is a fault."""
    try:
        if isinstance(day, int):
            return datetime.date.fromordinal(_FIRST_DAY + day)
        found = None if day is None else datetime.date.fromisoformat(day)
    except (ValueError, OverflowError):
        return ""
    return found if found is None or str(found) == day else ""


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _label(batch: Any, name: str) -> Any:
    """Return a column that sums are kept by; ReportError for one that is no text."""
    column = batch.column(name)
    kind = _kind_of(column)
    is_number = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    if _is_text(kind) or is_number or pa.types.is_null(kind):
        return column
    raise ReportError(f"{name} must be text, got {kind}")


def _days(batch: Any) -> Any:
    """Return the days: their numbers from 1970 on, texts, or null for one that is missing.

    What is no date, such as a time, is an empty text.
    """
    if DAY not in batch.schema.names:
        return pa.nulls(batch.num_rows, pa.int64())
    column = batch.column(DAY)
    kind = _kind_of(column)
    if _is_text(kind):
        return column
    if pa.types.is_date(kind):
        dates = column.cast(kind).cast(pa.date32(), safe=False)
        return dates.cast(pa.int32()).cast(pa.int64())
    return pc.if_else(column.is_null(), None, "")


def _kind_of(column: Any) -> Any:
    """Return the type of a column's values."""
    return column.type.value_type if pa.types.is_dictionary(column.type) else column.type


def _is_text(kind: Any) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view()
    )


def _groups(columns: Sequence[Any]) -> tuple[list[Key], NDArray[np.int64]]:
    """Return the distinct rows of some columns, and the number of each row's, (n,) int64.

    If there is one, the numbers are (1,).
    """
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


def _runs(numbers: NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
    """Yield each number of a sorted array, and where it stands."""
    starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    for start, end in itertools.pairwise([*starts, len(numbers)]):
        yield int(numbers[start]), slice(start, end)


def _encode(column: Any) -> tuple[list[Any], NDArray[np.int64]]:
    """Return the values of a column, None for null among them, and their numbers, (n,) int64.

    A column of one value has no numbers.
    """
    if not pa.types.is_dictionary(column.type):
        first = column[0]
        if first.is_valid and not column.null_count and pc.all(pc.equal(column, first)).as_py():
            return _values(column.slice(0, 1)), np.zeros(0, dtype=np.int64)
        column = column.dictionary_encode()
    values = _values(column.dictionary)
    codes = column.indices
    if codes.null_count:
        codes = codes.fill_null(len(values))
        values.append(None)
    return values, codes.to_numpy(zero_copy_only=False).astype(np.int64)


def _values(column: Any) -> list[Any]:
    """Return what a column holds; writers may declare bytes a text."""
    if _is_text(column.type):
        texts = column.cast(pa.large_string()).cast(pa.large_binary()).to_pylist()
        return [None if text is None else text.decode(errors="replace") for text in texts]
    return list(column.to_pylist())


def _renumber(
    numbers: NDArray[np.integer[Any]], n_possible: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers that occur, in order, and for each row the place of its own."""
    if n_possible > max(_FEW_CELLS, len(numbers)):
        present, places = np.unique(numbers, return_inverse=True)
        return present, places.astype(np.int64)
    occurs = np.bincount(numbers, minlength=n_possible) > 0
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[numbers]


def _integers(column: Any, name: str) -> NDArray[np.integer[Any]]:
    """Return a column of integers, (n,), with -1 for null and for what is too large."""
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
