"""What a worker of a cluster runs: functions over Arrow batches.

The first two need numpy and pyarrow; with numba they are faster, and equal. The third decodes, so
the workers need the extra `analysis`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rappor.engines.json_rows import fill, json_rows
from rappor.engines.layout import COLUMNS, DAY, MALFORMED
from rappor.engines.sums import Shapes, Sums
from rappor.ground.errors import DecodeError

_MOST_CELLS: Final = 1 << 25
"""Sums that a worker holds before it hands them on: 256 MB."""

ESTIMATES: Final = {
    "candidate": pa.string(),
    "count": pa.float64(),
    "std_error": pa.float64(),
    "proportion": pa.float64(),
    "ci_low": pa.float64(),
    "ci_high": pa.float64(),
    "p_value": pa.float64(),
    "detected": pa.bool_(),
}
"""Columns of an estimate, as `Estimates` names them, and their types."""


_LINE: Final = "value"
"""The column of a data frame of lines."""

LINES: Final = pa.schema(
    {
        "format": pa.int64(),
        "metric": pa.string(),
        "params": pa.string(),
        "cohort": pa.int64(),
        "bits": pa.string(),
        DAY: pa.string(),
        MALFORMED: pa.bool_(),
    }
)
"""The columns of lines that were read."""


def read_lines(batches: Iterable[Any]) -> Iterator[Any]:
    """Turn lines of JSON, and what their folders say, into rows, as on one machine."""
    for batch in batches:
        lines = batch.column(_LINE).cast(pa.large_string()).cast(pa.large_binary())
        table, places, n_malformed = json_rows(b"\n".join(lines.to_pylist()), (*COLUMNS, DAY))
        for name in {*COLUMNS, DAY} & set(batch.schema.names):
            labels = batch.column(name) if places is None else batch.column(name).take(places)
            table = fill(table, name, labels.cast(pa.string()))
        rows = table.append_column(MALFORMED, pa.nulls(len(table), pa.bool_()))
        others = pa.Table.from_pylist([{MALFORMED: True}] * n_malformed, LINES)
        yield from pa.concat_tables([rows.select(LINES.names), others]).to_batches()


def sum_reports(batches: Iterable[Any], *, shapes: Shapes, by: Sequence[str]) -> Iterator[Any]:
    """Turn batches of reports into batches of sums, the same keys perhaps several times."""
    sums = Sums(shapes, by)
    for batch in batches:
        sums.add(_rows_only(batch, sums))
        if sums.n_cells > _MOST_CELLS:
            yield from sums.batches()
            sums = Sums(shapes, by)
    yield from sums.batches()


def _rows_only(batch: Any, sums: Sums) -> Any:
    """Count the lines of a batch that are no rows, and return the others."""
    if MALFORMED not in batch.schema.names:
        return batch
    is_malformed = batch.column(MALFORMED).fill_null(False)  # noqa: FBT003  # pyarrow's
    if n_malformed := is_malformed.true_count:
        sums.refuse("", "", "malformed", n_malformed)
        batch = batch.filter(pc.invert(is_malformed))
    return batch.drop_columns([MALFORMED])


def add_sums(batches: Iterable[Any], *, shapes: Shapes, by: Sequence[str]) -> Iterator[Any]:
    """Add batches of sums up: every key comes out once."""
    sums = Sums(shapes, by)
    for batch in batches:
        sums.add_sums(batch)
    yield from sums.batches()


def decode_group(
    key: tuple[Any, ...],
    table: Any,
    *,
    registry: Any,
    candidates: Mapping[str, Sequence[str]],
    by: Sequence[str],
    options: Mapping[str, Any],
) -> Any:
    """Decode the sums of one collection: metric, parameters and the values of `by`.

    Returns
    -------
    A pyarrow.Table of `estimates_schema`. Where there is no answer, one row says why.
    """
    from rappor.decoding.decoder import decode  # noqa: PLC0415  # only workers that decode have it
    from rappor.engines.totals import counts_of, shapes_of  # noqa: PLC0415
    from rappor.protocol.encodings import encoding_of  # noqa: PLC0415

    labels = dict(zip(("metric", "params", *by), (value.as_py() for value in key), strict=True))
    sums = Sums(shapes_of(registry), by)
    for batch in table.to_batches():
        sums.add_sums(batch)
    try:
        (counts,) = counts_of(sums, registry).values()
        hashed = encoding_of(counts.params).hashed
        found = decode(counts, candidates.get(counts.metric) if hashed else None, **options)
    except DecodeError as error:
        return _rows(labels, {"reports": [0], "error": [str(error)]}, by)
    estimates = {
        name: column for name, column in found.to_arrow().to_pydict().items() if name in ESTIMATES
    }
    return _rows(labels, {"reports": [found.reports] * len(found), **estimates}, by)


def estimates_schema(by: Sequence[str]) -> Any:
    """Return the Arrow schema of estimates of many collections."""
    labels = dict.fromkeys(("metric", "params", *by), pa.string())
    return pa.schema({**labels, "reports": pa.int64(), **ESTIMATES, "error": pa.string()})


def _rows(
    labels: Mapping[str, str], columns: Mapping[str, Sequence[Any]], by: Sequence[str]
) -> Any:
    schema = estimates_schema(by)
    n = len(columns["reports"])
    everything = {name: [label] * n for name, label in labels.items()} | dict(columns)
    arrays = [
        pa.array(everything.get(name, [None] * n), schema.field(name).type) for name in schema.names
    ]
    return pa.table(arrays, schema=schema)
