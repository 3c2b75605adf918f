"""Sums of reports, which every engine (files, SQL, Spark) computes in the same way.

`Sums` reads batches of Arrow with the columns format, metric, params, cohort, bits and day, and
computes bit counts by metric, parameters, cohort and day. A row that is no report changes no sum
and is counted by the reason of its refusal. The expected sums come from a plain loop over the rows.
"""

from __future__ import annotations

import datetime
import importlib
import sys
import zipfile
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from places import ROOT
from programs import run_python
from registries import build_metric, build_registry
from report_files import (
    DAYS,
    FAULTS,
    METRICS,
    REGISTRY,
    Row,
    count_rows_by_hand,
    draw_rows,
    drop_squared_reports,
    format_row,
)

from rappor import Params, Registry
from rappor.base.errors import ReportError
from rappor.engines import count_sql, refused_sql
from rappor.engines.sums import Shape, Sums
from rappor.engines.totals import counts_of, shapes_of
from rappor.engines.workers import decode_group, run_task

FINGERPRINT = METRICS["page"].params.fingerprint


def add_batches(*batches: Any, by: tuple[str, ...] = ()) -> Sums:
    """Return the sums of the batches, added one after another."""
    sums = Sums(shapes_of(METRICS), by)
    for batch in batches:
        sums.add(batch)
    return sums


def make_batch(rows: list[Row]) -> Any:
    """Return the rows as a batch of Arrow."""
    return pa.RecordBatch.from_pylist(rows)


def shuffle_reports(n: int = 300) -> list[Row]:
    """Return n reports of each of two metrics on each of two days, in random order."""
    rows = [row for name in METRICS for day in DAYS for row in draw_rows(name, n, day=day)]
    order = np.random.default_rng(1).permutation(len(rows)).tolist()
    return [rows[i] for i in order]


def test_sums_are_those_of_a_plain_loop() -> None:
    """A plain loop gives the same sums for any order of rows over several batches."""
    rows = shuffle_reports()
    sums = add_batches(make_batch(rows[:500]), make_batch(rows[500:]))
    assert drop_squared_reports(counts_of(sums, METRICS)) == count_rows_by_hand(rows)
    assert sums.refused == {}
    assert {key[2] for key in sums.totals} == set(DAYS)


def test_many_groups_have_the_sums_of_a_plain_loop() -> None:
    """The sums of 700 countries, some of them without reports of a cohort, are right."""
    rows = [row | {"country": f"c{i % 700}"} for i, row in enumerate(draw_rows("page", 3000))]
    sums = add_batches(make_batch(rows), by=("country",))
    counts = counts_of(sums, METRICS)
    for number in (0, 1, 699):
        rows_of_country = [row for row in rows if row["country"] == f"c{number}"]
        key = "page", FINGERPRINT, f"c{number}"
        assert (
            drop_squared_reports({key: counts[key]})[key]
            == count_rows_by_hand(rows_of_country)["page", FINGERPRINT]
        )
    assert sum(fingerprint_counts.n_reports for fingerprint_counts in counts.values()) == len(rows)


def test_the_sum_of_squared_reports_is_bounded_by_the_interval() -> None:
    """`sum_squared_reports` is the largest possible sum over devices of (reports of the device)^2.

    A device reports at most once in each interval. With n_1 reports in one interval and n_2 in
    another, the sum is largest if the same devices report in both. If one report has no day, its
    interval is unknown and there is no bound.
    """
    # 100 reports on each of two days: at most 100 devices with 2 reports each, 100 * 4 = 400.
    days = [row for day in DAYS for row in draw_rows("page", 100, day=day)]
    assert (
        counts_of(add_batches(make_batch(days)), METRICS)["page", FINGERPRINT].sum_squared_reports
        == 400
    )
    weekly = Registry.loads(
        REGISTRY.replace('epoch = "life"', 'epoch = "life"\ninterval = "week"', 1)
    )
    week = [DAYS[1], DAYS[1] + datetime.timedelta(6), DAYS[1] + datetime.timedelta(7)]
    fingerprint = weekly["page"].params.fingerprint
    rows = [
        row | {"params": fingerprint} for day in week for row in draw_rows("page", 100, day=day)
    ]
    sums = Sums(shapes_of(weekly), ())
    sums.add(make_batch(rows))
    counts = counts_of(sums, weekly)["page", fingerprint]
    # 200 reports in the first week and 100 in the second: at most 100 devices with 2 reports and
    # 100 devices with 1 report, 400 + 100 = 500.
    assert (counts.n_reports, counts.sum_squared_reports) == (300, 500)
    without_day = make_batch([days[0] | {"day": None}, *days[1:]])
    assert (
        counts_of(add_batches(without_day), METRICS)["page", FINGERPRINT].sum_squared_reports
        is None
    )


def convert_types(rows: list[Row]) -> dict[str, Any]:
    """Return batches of the same reports with a column in another Arrow type, by its name."""
    batch = make_batch(rows)
    bits = [row["bits"] for row in rows]
    kinds = {
        "fixed": pa.array(bits, pa.binary(3)),
        "large": pa.array(bits, pa.large_binary()),
        "view": pa.array(bits, pa.binary_view()),
        "text": pa.array([format_row(row)["bits"] for row in rows]),
        "large text": pa.array([format_row(row)["bits"] for row in rows], pa.large_string()),
        "text view": pa.array([format_row(row)["bits"] for row in rows], pa.string_view()),
    }
    index = batch.schema.names.index("bits")
    batches = {name: batch.set_column(index, "bits", column) for name, column in kinds.items()}
    for name in ("metric", "params", "day", "cohort"):
        index = batch.schema.names.index(name)
        batches[f"dictionary of {name}"] = batch.set_column(
            index, name, batch.column(name).dictionary_encode()
        )
    index = batch.schema.names.index("day")
    texts = pa.array([str(row["day"]) for row in rows])
    for days in (batch.column("day").cast(pa.date64()), texts, texts.cast(pa.large_string())):
        batches[f"day as {days.type}"] = batch.set_column(index, "day", days)
        batches[f"dictionary of {days.type}"] = batch.set_column(
            index, "day", days.dictionary_encode()
        )
    index = batch.schema.names.index("cohort")
    for kind in (pa.int8(), pa.uint16(), pa.uint64()):
        batches[f"cohort {kind}"] = batch.set_column(
            index, "cohort", pa.array([row["cohort"] for row in rows], kind)
        )
    batches["without day"] = batch.drop_columns(["day"])
    for name, original in (("a slice", batch), ("a slice of fixed", batches["fixed"])):
        empty = make_batch([row | {"bits": b"\x00" * 3} for row in rows]).cast(original.schema)
        batches[name] = pa.concat_batches([empty, original]).slice(len(rows), len(rows))
    return batches


@pytest.mark.slow
@pytest.mark.parametrize("name", convert_types(draw_rows("page", 2)))
def test_equivalent_types_make_the_same_sums(name: str) -> None:
    """Columns of binary, text, view, dictionary, date and integer types give the same sums.

    A slice of a batch has the sums of its own rows, and not of the rows before it.
    """
    rows = draw_rows("page", 40)
    counts = counts_of(add_batches(convert_types(rows)[name]), METRICS)
    assert drop_squared_reports(counts) == count_rows_by_hand(rows)


@pytest.mark.parametrize(("reason", "change"), FAULTS)
def test_a_refused_row_is_counted_by_its_reason(reason: str, change: Row) -> None:
    """A refused row changes no sum, and valid rows before and after it are added."""
    rows = [*draw_rows("page", 5), *draw_rows("theme", 5)]
    sums = add_batches(make_batch([*rows[:3], rows[0] | change, *rows[3:]]))
    assert drop_squared_reports(counts_of(sums, METRICS)) == count_rows_by_hand(rows)
    bad = rows[0] | change
    key = bad["metric"] or "", bad["params"], reason
    assert sums.refused == {key: 1}


@pytest.mark.parametrize(
    "text", ["AAAA=", "AAA", "AAAAA", "AA+A", "AA/A", "AA A", "AAAAAA", "", "ÄAA", "A" * 400]
)
def test_text_outside_base64url_is_refused(text: str) -> None:
    """Bits as text with padding, another alphabet or another length are refused.

    A valid text has 4 characters of base64url without padding, for 3 bytes. Rows with valid texts
    are added.
    """
    rows = [format_row(row) for row in draw_rows("page", 5)]
    sums = add_batches(make_batch([*rows, rows[0] | {"bits": text}]))
    assert sums.refused == {("page", FINGERPRINT, "length"): 1}
    assert counts_of(sums, METRICS)["page", FINGERPRINT].n_reports == 5


@pytest.mark.parametrize(
    ("text", "data"), [("AA", b"\x00"), ("_w", b"\xff"), ("AB", None), ("Bw", b"\x07"), ("A", None)]
)
def test_spare_bits_of_text_must_be_zero(text: str, data: bytes | None) -> None:
    """A report of one byte is a text of two characters, whose 12 bits end with four zeros.

    A text without these zeros is refused as "length". The metric has 3 bits, so the upper five bits
    of the byte must be 0, too. Otherwise the row is refused as "padding". `data` is the decoded
    byte, or None for a text that encodes no byte.
    """
    theme = format_row(draw_rows("theme", 1)[0]) | {"bits": text}
    sums = add_batches(make_batch([format_row(draw_rows("page", 1)[0]), theme]))
    reasons = {key[2] for key in sums.refused}
    if data is None:
        assert reasons == {"length"}
    else:
        assert reasons == ({"padding"} if data[0] & 0xF8 else set())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": None}, "columns must include format"),
        ({"metric": pa.array([1.0])}, "metric must be text, got double"),
        ({"bits": None}, "column bits must be there once"),
        ({"cohort": pa.array([1.0])}, "cohort must be integers, got double"),
        ({"bits": pa.array([1])}, "bits must be binary or text in base64url, got int64"),
    ],
)
def test_a_wrong_column_is_an_error(change: dict[str, Any], reason: str) -> None:
    """A missing column, or a column of a wrong type, is an error, and no row is counted."""
    columns: dict[str, Any] = {name: pa.array([v]) for name, v in draw_rows("page", 1)[0].items()}
    columns |= change
    batch = pa.record_batch(
        {name: column for name, column in columns.items() if column is not None}
    )
    with pytest.raises(ReportError, match=reason):
        add_batches(batch)


def test_wrong_columns_and_sums_of_other_parameters_are_refused() -> None:
    """Missing and repeated columns, reserved names, and sums of other parameters are errors."""
    batch = make_batch(draw_rows("page", 1))
    with pytest.raises(ReportError, match="column country must be there once, got"):
        add_batches(batch, by=("country",))
    with pytest.raises(ReportError, match="column day must be there once at most, got"):
        add_batches(batch.append_column("day", batch.column("day")))
    # A table of sums has these columns. With `by` it would have one of them twice.
    for name in ("day", "cohort", "ones", "refused"):
        with pytest.raises(ReportError, match=f"by must name columns beside .*, got {name}"):
            add_batches(batch, by=(name,))
    (sums,) = add_batches(batch).batches()
    with pytest.raises(ReportError, match="sums must be of accepted parameters, got 'page'"):
        Sums({("page", "0" * 16): Shape(20, 8)}).add_sums(sums)


def test_groups_of_numbers_are_named_by_their_texts() -> None:
    """A column of integers or booleans gives groups named by the text of each value.

    A missing value is a group of its own, None.
    """
    rows = draw_rows("page", 4)
    for values, labels in (([1, 1, 20, None], ["1", "20", None]), ([True, False] * 2, None)):
        sums = add_batches(
            make_batch([row | {"kind": v} for row, v in zip(rows, values, strict=True)]),
            by=("kind",),
        )
        assert {key[3] for key in sums.totals} == set(labels or ("True", "False"))


def test_the_longest_report_may_be_text() -> None:
    """A report of 255 bytes, the longest one, may be text. A report of 256 bytes is refused."""
    rows = [
        {"format": 1, "metric": "m", "params": "p", "cohort": 0, "bits": b"\xff" * n}
        for n in (255, 256)
    ]
    sums = Sums({("m", "p"): Shape(2040, 1)})
    sums.add(make_batch([format_row(row) for row in rows]))
    assert sums.totals["m", "p", None].ones.tolist() == [[1] * 2040]
    assert sums.refused == {("m", "p", "length"): 1}


def test_the_counts_are_sorted_by_their_keys() -> None:
    """Counts are sorted by metric and column values, in whatever order the rows are."""
    rows = [row | {"kind": kind} for kind in "ba" for row in draw_rows("page", 2)]
    counts = counts_of(add_batches(make_batch([*draw_rows("theme", 1)])), METRICS)
    assert [key[0] for key in counts] == ["theme"]
    both = make_batch([row | {"kind": "c"} for row in draw_rows("theme", 1)] + rows)
    keys = list(counts_of(add_batches(both, by=("kind",)), METRICS))
    assert [(key[0], key[2]) for key in keys] == [("page", "a"), ("page", "b"), ("theme", "c")]


def test_a_metric_of_invalid_utf8_is_refused() -> None:
    """A row whose metric is invalid UTF-8 is refused as an unknown metric.

    Some writers of Parquet store such texts.
    """
    rows = draw_rows("page", 3)
    batch = make_batch(rows)
    names = pa.array([b"page", b"\xa1", b"page"]).view(pa.string())
    sums = add_batches(batch.set_column(batch.schema.names.index("metric"), "metric", names))
    assert sums.refused == {("\ufffd", FINGERPRINT, "unknown-metric"): 1}
    assert counts_of(sums, METRICS)["page", FINGERPRINT].n_reports == 2


def test_names_of_refused_rows_are_bounded() -> None:
    """Refused rows are counted under at most 1,000 names of 64 characters, and under no name.

    3,000 unknown fingerprints are counted under 1,000 names. All further rows have the name "".
    """
    rows = draw_rows("page", 1) * 3000
    bad = [row | {"params": f"{i:04}".ljust(100, "x")} for i, row in enumerate(rows)]
    sums = add_batches(make_batch(bad), make_batch(bad[:1]))
    assert sum(sums.refused.values()) == 3001
    assert len(sums.refused) == 1001
    assert max(len(params) for _, params, _ in sums.refused) == 64
    assert sums.refused["page", "0000".ljust(64, "x"), "unknown-params"] == 2
    assert sums.refused["", "", "unknown-params"] == 2000


def test_sums_can_be_written_as_tables_and_added() -> None:
    """Sums of two parts, written as batches and added in any order, are those of all rows."""
    rows = shuffle_reports()
    bad = rows[0] | {"cohort": 99}
    first, second = (
        add_batches(make_batch(rows[:300])),
        add_batches(make_batch([*rows[300:], bad, bad])),
    )
    together = Sums(shapes_of(METRICS))
    for batch in [*second.batches(), *first.batches()]:
        together.add_sums(batch)
    assert drop_squared_reports(counts_of(together, METRICS)) == count_rows_by_hand(rows)
    assert together.refused == second.refused
    merged = add_batches()
    merged.merge(first)
    merged.merge(second)
    assert counts_of(merged, METRICS) == counts_of(together, METRICS)


def test_rows_of_sums_may_repeat_a_key() -> None:
    """A batch with the sums of two partitions has each key and cohort twice, and both are added."""
    sums = add_batches(make_batch(draw_rows("page", 50)))
    (batch,) = sums.batches()
    twice = Sums(shapes_of(METRICS))
    twice.add_sums(pa.concat_batches([batch, batch]))
    (key,) = sums.totals
    assert np.array_equal(twice.totals[key].ones, 2 * sums.totals[key].ones)
    assert np.array_equal(twice.totals[key].reports, 2 * sums.totals[key].reports)


def test_a_task_removes_archives_from_the_import_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a task, the import cache has no archive, and modules in archives can be imported.

    Otherwise the next task would read each archive again, when it invalidates the import caches.
    """
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name in ("archived_one", "archived_two"):
            archive.writestr(f"{name}.py", "")
    monkeypatch.syspath_prepend(str(tmp_path / "x.zip"))
    importlib.import_module("archived_one")
    assert list(run_task([1, 2], work=iter)) == [1, 2]
    assert str(tmp_path / "x.zip") not in sys.path_importer_cache
    importlib.import_module("archived_two")


def test_the_kernel_needs_numpy_and_pyarrow_only() -> None:
    """A worker without numba, mmh3, pandas, scipy, sklearn and pyspark computes the same sums."""
    program = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "mmh3", "pandas", "scipy", "sklearn", "pyspark"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Blocked())
import numpy as np, pyarrow as pa
from rappor.engines.workers import add_sums, sum_reports
from rappor.engines.sums import Shape
rng = np.random.default_rng(1)
bits = rng.integers(0, 256, (5000, 16), dtype=np.uint8)
batch = pa.record_batch({
    "format": pa.array([1] * 5000), "metric": pa.array(["page"] * 5000),
    "params": pa.array(["p"] * 5000), "cohort": pa.array(rng.integers(0, 4, 5000)),
    "bits": pa.array([row.tobytes() for row in bits], pa.binary(16)),
})
options = dict(shapes={("page", "p"): Shape(128, 4)}, by=())
(sums,) = add_sums(sum_reports([batch, batch], **options), **options)
ones = np.unpackbits(bits, axis=1, bitorder="little")
cohorts = batch.column("cohort").to_numpy()
for row in sums.to_pylist():
    in_cohort = cohorts == row["cohort"]
    assert row["reports"] == 2 * in_cohort.sum()
    assert row["ones"] == (2 * ones[in_cohort].sum(axis=0)).tolist()
print("equal", len(sums))
"""
    assert run_python("-c", program, folder=ROOT).stdout.split() == ["equal", "4"]


def test_a_report_of_a_set_must_have_one_bucket() -> None:
    """The kernel and the SQL statement refuse reports of no bucket and of several buckets."""
    metric = build_metric(
        Params(k=12, m=4, items=2, keep=0.5, encoding="set"),
        "plugins",
        epoch="quarter",
        interval="epoch",
    )
    registry = build_registry(metric)
    fingerprint = metric.fingerprint
    good = {"format": 1, "metric": "plugins", "params": fingerprint, "day": DAYS[0], "cohort": 3}
    patterns = [0b1, 0b10, 1 << 11, 1 << 8, 0, 0b11, (1 << 12) - 1, 0b1 | 1 << 8]
    rows = [good | {"bits": pattern.to_bytes(2, "little")} for pattern in patterns]
    sums = Sums(shapes_of(registry), ())
    sums.add(make_batch(rows))
    assert sums.refused == {("plugins", fingerprint, "popcount"): 4}
    counts = counts_of(sums, registry)["plugins", fingerprint]
    assert counts.bit_counts[3].tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1]
    with duckdb.connect() as db:
        db.register("reports", pa.Table.from_pylist(rows))
        statement = refused_sql(metric.params, "plugins", dialect="duckdb")
        assert dict(db.execute(statement).fetchall()) == {"accepted": 4, "popcount": 4}
        (row,) = (
            row
            for row in db.execute(count_sql(metric.params, "plugins", dialect="duckdb")).fetchall()
            if row[1]
        )
        assert list(row[-12:]) == counts.bit_counts[3].tolist()


def test_a_collection_that_cannot_be_decoded_has_its_number_of_reports() -> None:
    """The row with the error is not a row of an empty collection."""
    sums = add_batches(*pa.Table.from_pylist(draw_rows("page", 300)).to_batches())
    table = pa.Table.from_batches(list(sums.batches()))
    key = pa.scalar("page"), pa.scalar(FINGERPRINT)
    (row,) = decode_group(
        key, table, registry=METRICS, candidates={}, by=(), options={}
    ).to_pylist()
    assert (row["reports"], row["candidate"]) == (300, None)
    assert "candidates must number at least 1" in row["error"]
