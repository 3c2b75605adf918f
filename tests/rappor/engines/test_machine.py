"""Aggregation of files and folders of stored reports on one machine.

A report is one row. Rows are in Parquet, CSV or JSON lines, plain or compressed by gzip. Folders
named column=value give all their rows a column, as in the tables of Hive and Spark.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from report_files import (
    DAYS,
    METRICS,
    REGISTRY,
    Row,
    count_rows_by_hand,
    draw_rows,
    drop_squared_reports,
    format_row,
    write_packed,
    write_rows,
)

from rappor import Registry
from rappor.base.errors import FileError
from rappor.engines import aggregate_files
from rappor.engines.files import contains_uploads, find_files
from rappor.engines.machine import FileAggregation

KINDS = ("x.parquet", "x.csv", "x.csv.gz", "x.jsonl", "x.json", "x.ndjson.gz")
FINGERPRINT = METRICS["page"].params.fingerprint


def aggregate(*paths: Path, **options: Any) -> FileAggregation:
    """Add the reports of files and folders with two threads."""
    return aggregate_files(paths, METRICS, threads=2, **options)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_file_holds_the_same_reports(name: str, tmp_path: Path) -> None:
    """Parquet, CSV and JSON lines, also compressed, give the counts of a plain loop over the rows.

    `sum_squared_reports` is 200, because 200 devices sent one report each.
    """
    rows = [*draw_rows("page", 200), *draw_rows("theme", 100)]
    aggregated = aggregate(write_rows(tmp_path / name, rows))
    assert drop_squared_reports(aggregated.counts) == count_rows_by_hand(rows)
    assert aggregated.refused == {}
    assert aggregated.counts["page", FINGERPRINT].sum_squared_reports == 200


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_folders_give_the_columns_that_files_do_not_have(name: str, tmp_path: Path) -> None:
    """Folders column=value give the columns metric and day.

    The files have a column cohort, so the folder cohort=7777 is ignored.
    """
    rows = []
    for metric in METRICS:
        for day in DAYS:
            part = draw_rows(metric, 30, day=day)
            rows += part
            folder = tmp_path / "lake" / f"metric={metric}" / f"day={day}" / "cohort=7777"
            file_rows = [
                {k: v for k, v in row.items() if k not in ("metric", "day")} for row in part
            ]
            write_rows(folder / name, file_rows)
    aggregated = aggregate(tmp_path / "lake")
    assert drop_squared_reports(aggregated.counts) == count_rows_by_hand(rows)
    assert aggregated.counts["page", FINGERPRINT].sum_squared_reports == 120
    assert aggregated.n_files == 4


def test_files_of_other_engines_are_skipped(tmp_path: Path) -> None:
    """Names that begin with a dot or an underscore are skipped, and unfinished copies of Hadoop.

    A folder _part=1 is read, because its name is a column.
    """
    write_rows(tmp_path / "x.parquet", draw_rows("page", 5))
    for name in ("_SUCCESS", ".x.parquet.crc", "_temporary/y.parquet", ".z/z.csv", "y._COPYING_"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("?")
    write_rows(tmp_path / "_part=1" / "x.parquet", draw_rows("page", 7))
    assert aggregate(tmp_path).n_reports == 12


def test_a_broken_link_is_refused(tmp_path: Path) -> None:
    """A link to a missing file is an error with its path. Skipping it would lose reports."""
    (tmp_path / "x.parquet").symlink_to("nothing")
    with pytest.raises(FileError, match=r"x\.parquet: No such file"):
        aggregate(tmp_path)


def test_a_file_with_several_paths_counts_once(tmp_path: Path) -> None:
    """A file counts once if arguments name it by its folder, twice by its path, and by links."""
    path = write_rows(tmp_path / "lake" / "x.parquet", draw_rows("page", 5))
    (tmp_path / "lake" / "y.parquet").symlink_to(path)
    (tmp_path / "lake" / "z.parquet").hardlink_to(path)
    indirect_path = tmp_path / "lake" / ".." / "lake" / "x.parquet"
    aggregated = aggregate(tmp_path / "lake", path, path, indirect_path)
    assert (aggregated.n_files, aggregated.n_reports) == (1, 5)


def test_a_file_whose_paths_give_it_other_columns_is_refused(tmp_path: Path) -> None:
    """A file is refused if its own folder gives it a day and the folder of a link gives none."""
    rows = [{k: v for k, v in row.items() if k != "day"} for row in draw_rows("page", 5)]
    path = write_rows(tmp_path / "day=2026-11-01" / "x.parquet", rows)
    (tmp_path / "latest").symlink_to("day=2026-11-01")
    assert aggregate(tmp_path / "latest").n_reports == 5
    with pytest.raises(FileError, match=r"it is .*, whose folders give it other columns"):
        aggregate(path, tmp_path / "latest")


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """A pipe is an error at once. It can be read only once, and a file is read twice.

    Opening a pipe without a writer would wait for ever.
    """
    os.mkfifo(tmp_path / "x.csv")
    with pytest.raises(FileError, match=r"x.csv: it must be a file, not a pipe"):
        aggregate(tmp_path)


@pytest.mark.parametrize("sign", ["_delta_log/0.json", ".hoodie/x", "metadata/1.metadata.json"])
def test_tables_of_other_formats_are_refused(sign: str, tmp_path: Path) -> None:
    """A table of Delta Lake, Hudi or Iceberg is refused, also by a folder in it or above it.

    The folder of a table may contain files of deleted rows.
    """
    table = tmp_path / "lake" / "table"
    write_rows(table / "day=2026-11-01" / "a.parquet", draw_rows("page", 5))
    (table / sign).parent.mkdir()
    (table / sign).write_text("{}")
    for path in (table, table / "day=2026-11-01", tmp_path / "lake"):
        with pytest.raises(FileError, match=r"lake/table: it is a table of"):
            aggregate(path)


def bad_texts() -> list[Row]:
    """Return rows of text, each with one fault."""
    row = format_row(draw_rows("page", 1)[0])
    changes: list[Row] = [
        {"format": 9},
        {"metric": "site"},
        {"params": "0123456789abcdef"},
        {"day": "2026-02-30"},
        {"cohort": 8},
        {"bits": "AAA="},
        {"bits": "____"},
    ]
    return [row | change for change in changes]


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl"])
def test_bad_rows_are_counted_by_reason(name: str, tmp_path: Path) -> None:
    """A row with a wrong value, or a broken line, is counted by its reason, and others are added.

    The file has a second header in its middle, whose format is refused in CSV.
    """
    path = write_rows(tmp_path / name, [*map(format_row, draw_rows("page", 20)), *bad_texts()])
    junk = b"1,2\n\xff,,,\n" if name == "x.csv" else b'{"a"\n[]\n7\n\xff\n'
    odd = format_row(draw_rows("page", 1)[0])
    odd_rows = [odd | {"cohort": value} for value in ("x", 1.5, -1, 10**30)]
    write_rows(tmp_path / f"odd-{name}", odd_rows)
    path.write_bytes(path.read_bytes() + junk + (tmp_path / f"odd-{name}").read_bytes())
    (tmp_path / f"odd-{name}").unlink()
    aggregated = aggregate(tmp_path)
    reasons: dict[str, int] = {}
    for (_, _, reason), n in aggregated.refused.items():
        reasons[reason] = reasons.get(reason, 0) + n
    repeated_header = 1 if name == "x.csv" else 0
    assert reasons == {
        "malformed": 2 if name == "x.csv" else 4,
        "format": 1 + repeated_header,
        "unknown-metric": 1,
        "unknown-params": 1,
        "day": 1,
        "cohort": 5,
        "length": 1,
        "padding": 1,
    }
    assert aggregated.n_reports == 20
    assert set(aggregated.first_refused.values()) == {str(path)}
    assert ("page", "0123456789abcdef", "unknown-params") in aggregated.refused


def test_a_row_of_json_is_one_line(tmp_path: Path) -> None:
    """An object over two lines is malformed, and so are two objects in one line.

    A parser that only compares the number of objects with the number of lines would accept one
    object over two lines together with two objects in one line.
    """
    rows = [json.dumps(format_row(row)) for row in draw_rows("page", 5)]
    two_lines = rows[0].replace(", ", ",\n", 1)
    for lines, n_malformed in (
        ([*rows, two_lines], 2),
        ([*rows, "junk", two_lines], 3),
        (["", *rows, two_lines], 2),
        ([*rows, rows[0] + rows[0], ""], 1),
        ([*rows, f"{rows[0]} {rows[0]}", "", ""], 1),
    ):
        (tmp_path / "x.jsonl").write_text("\n".join(lines))
        aggregated = aggregate(tmp_path)
        assert (aggregated.n_reports, aggregated.refused) == (
            5,
            {("", "", "malformed"): n_malformed},
        ), lines


def test_an_open_quotation_mark_breaks_one_line_only(tmp_path: Path) -> None:
    """A quotation mark that is never closed makes its line malformed, and no later line.

    Lines between empty lines are rows, and so are lines of quoted values.
    """
    first, *rows = (",".join(map(str, format_row(row).values())) for row in draw_rows("page", 6))
    quoted = ",".join(f'"{value}"' for value in first.split(","))
    header = ",".join(draw_rows("page", 1)[0])
    for lines in (['2,"page', *rows, quoted], [*rows, f'{first},"'], ["", *rows, " ", 'x"y', ""]):
        (tmp_path / "x.csv").write_text("\n".join([header, *lines]))
        aggregated = aggregate(tmp_path / "x.csv")
        assert aggregated.n_reports == 5 + (quoted in lines), lines
        assert aggregated.refused == {("", "", "malformed"): 1}


@pytest.mark.parametrize("note", ['"a"b', '""a', '"a', '"a""', 'a"b"', '"a""b"', '","'])
def test_marks_in_an_ignored_column_mean_the_same_on_every_line(note: str, tmp_path: Path) -> None:
    """A row counts or is malformed by its own text, and not by a later line of the file.

    Arrow's reader would accept a field with text after its closing mark, and an open field on the
    last line of a block. A line with an open mark makes the reader parse the lines one by one.
    """
    row = format_row(draw_rows("page", 1)[0])
    lines = [",".join([*row, "note"]), ",".join([*map(str, row.values()), note])]
    results = []
    for more in ([], ['x,"']):
        (tmp_path / "x.csv").write_text("\n".join([*lines, *more]))
        aggregated = aggregate(tmp_path)
        n_malformed = aggregated.refused["", "", "malformed"] - len(more)
        results.append((aggregated.n_reports, n_malformed))
    is_valid = note in ('a"b"', '"a""b"', '","')
    assert results == [(int(is_valid), int(not is_valid))] * 2


@pytest.mark.parametrize("with_junk", [False, True])
def test_a_value_of_another_type_is_refused(with_junk: bool, tmp_path: Path) -> None:
    """A value of a wrong type refuses the row. The folder's value replaces only a missing value.

    With a malformed line in the file, lines are parsed one by one. The result is the same.
    """
    row = format_row(draw_rows("page", 1)[0])
    changes: list[Row] = [
        {"day": 5},
        {"day": ["2026-11-01"]},
        {"cohort": "x"},
        {"cohort": 10**25},
        {"cohort": True},
        {"metric": 5},
        {"metric": "\ud800"},
    ]
    right: list[Row] = [{"day": None}, {"cohort": None}, {"metric": None}, {"other": "page"}]
    lines = [json.dumps(row | change) for change in [*changes, *right]]
    lines.append(lines[-1].replace(f'"cohort": {row["cohort"]}', '"cohort": 1' + "0" * 5000))
    path = tmp_path / "metric=page" / "cohort=3" / "day=2026-11-02" / "x.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join([*lines, "junk"] if with_junk else lines))
    aggregated = aggregate(tmp_path)
    assert aggregated.n_reports == len(right)
    reasons = sorted(reason for *_, reason in aggregated.refused.elements())
    expected = [*["cohort"] * 4, "day", "day", "unknown-metric", "unknown-metric"]
    assert reasons == sorted([*expected, "malformed"] if with_junk else expected)


@pytest.mark.parametrize("with_junk", [False, True])
def test_a_column_that_is_not_utf_8_changes_no_other_column(
    with_junk: bool, tmp_path: Path
) -> None:
    """A row counts although an ignored column is not UTF-8. A metric that is not UTF-8 is unknown.

    Arrow's reader accepts such rows. After a malformed line, the lines are parsed one by one, with
    the same result.
    """
    row = format_row(draw_rows("page", 1)[0])
    lines = [json.dumps(row | change).encode() for change in ({"note": "?"}, {"metric": "?"})]
    content = b"\n".join(line.replace(b'"?"', b'"\xff"') for line in lines)
    (tmp_path / "x.jsonl").write_bytes(content + (b"\njunk" if with_junk else b""))
    aggregated = aggregate(tmp_path)
    assert aggregated.n_reports == 1
    reasons = [reason for *_, reason in aggregated.refused.elements()]
    assert sorted(reasons) == [*(["malformed"] if with_junk else []), "unknown-metric"]


N_ROWS = 3
TOO_LATE = pa.array([2**31 - 1] * N_ROWS, pa.int32()).view(pa.date32())
"""Days after the year 9999. Python has no dates for them."""

NOWHERE = pa.array([1] * N_ROWS, pa.timestamp("us", tz="No/Where"))
"""Times whose time zone does not exist."""


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("metric", pa.array([["page"]] * N_ROWS), r"x.parquet: metric must be text, got list"),
        ("params", pa.array([{"a": 1}] * N_ROWS), r"x.parquet: params must be text, got struct"),
        ("metric", pa.array([1.5] * N_ROWS), r"x.parquet: metric must be text, got double"),
        ("day", TOO_LATE, "day"),
        ("day", NOWHERE, "day"),
        ("day", pa.array([[1]] * N_ROWS), "day"),
        ("day", pa.array(["20261101  ", "2026-W45-7", "2026-11-1"]), "day"),
        ("cohort", pa.array([2**64 - 1] * N_ROWS, pa.uint64()), "cohort"),
    ],
)
def test_columns_of_wrong_types_are_refused(
    name: str, values: Any, reason: str, tmp_path: Path
) -> None:
    """A column metric or params of a wrong type refuses the file.

    A column day of a wrong type, and a cohort out of range, refuse the rows.
    """
    table = pa.Table.from_pylist(draw_rows("page", N_ROWS))
    path = tmp_path / "x.parquet"
    pq.write_table(table.set_column(table.schema.names.index(name), name, values), path)
    if reason in ("day", "cohort"):
        assert aggregate(path).refused == {("page", FINGERPRINT, reason): N_ROWS}
    else:
        with pytest.raises(FileError, match=reason):
            aggregate(path)


def test_a_line_without_end_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    """A line of more than 16 MB is refused. A small compressed file may contain a huge line."""
    for name in ("x.csv.gz", "x.jsonl.gz"):
        path = tmp_path / name
        with gzip.open(path, "wb", compresslevel=1) as file:
            file.write(b'{"z":"')
            for _ in range(33):
                file.write(bytes(1 << 20))
        with pytest.raises(FileError, match=rf"{name}: its lines must have at most 16,777,216 byt"):
            aggregate(path)


def test_a_cohort_of_other_digits_is_refused(tmp_path: Path) -> None:
    """A cohort in a file or a folder's name must have few digits, all of them ASCII.

    Python's `int` also accepts the digits of other scripts.
    """
    row = {k: v for k, v in format_row(draw_rows("page", 1)[0]).items() if k != "cohort"}
    for cohort in ("\u00b2", "\u0663", "9" * 30):
        path = write_rows(tmp_path / f"cohort={cohort}" / "x.csv", [row])
        write_rows(path.with_name("y.csv"), [row | {"cohort": cohort}])
    assert aggregate(tmp_path).refused == {("page", FINGERPRINT, "cohort"): 6}


def test_a_csv_may_have_a_byte_order_mark_and_empty_lines(tmp_path: Path) -> None:
    """A byte-order mark, empty lines and empty days are accepted.

    After a malformed line, the lines are parsed one by one, with the same result. Without days,
    there is no bound on the squared reports.
    """
    path = write_rows(
        tmp_path / "x.csv", [format_row(row) | {"day": ""} for row in draw_rows("page", 5)]
    )
    text = path.read_bytes()
    with_blank_lines = text.replace(b"\n", b"\n \n")
    for lines, broken in ((text, b""), (with_blank_lines, b""), (with_blank_lines, b'"page"x\n')):
        path.write_bytes(b"\xef\xbb\xbf" + lines + broken)
        aggregated = aggregate(path)
        assert aggregated.refused == ({("", "", "malformed"): 1} if broken else {})
        counts = aggregated.counts["page", FINGERPRINT]
        assert (counts.n_reports, counts.sum_squared_reports) == (5, None)


def test_names_of_folders_may_be_escaped_or_null(tmp_path: Path) -> None:
    """Escaped characters in folder names are decoded. Hive's name for null is a missing value."""
    rows = [{k: v for k, v in row.items() if k != "day"} for row in draw_rows("page", 5)]
    days = ("%64ay=2026%2D11%2D01", "day=__HIVE_DEFAULT_PARTITION__")
    for name, squares in zip(days, (5, None), strict=True):
        aggregated = aggregate(write_rows(tmp_path / name / "x.parquet", rows))
        assert aggregated.refused == {}
        assert aggregated.counts["page", FINGERPRINT].sum_squared_reports == squares


def test_files_behind_links_are_found_in_order(tmp_path: Path) -> None:
    """A link to another folder is searched like a folder, and files are sorted by name."""
    names = [f"{number:02}.csv" for number in range(20)]
    for name in reversed(names):
        write_rows(tmp_path / "elsewhere" / name, draw_rows("page", 1))
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "link").symlink_to(tmp_path / "elsewhere")
    paths = [file.path for file in find_files([tmp_path / "lake"])]
    assert paths == [str(tmp_path / "lake" / "link" / name) for name in names]


def test_suffixes_of_compressed_files_may_be_upper_case(tmp_path: Path) -> None:
    """The suffix .GZ means gzip. A damaged file is an error with its path."""
    path = write_rows(tmp_path / "x.csv.gz", draw_rows("page", 300)).rename(tmp_path / "X.CSV.GZ")
    assert aggregate(path).n_reports == 300
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(FileError, match=r"X.CSV.GZ: it cannot be read as csv"):
        aggregate(path)


def test_folders_before_two_dots_give_no_columns(tmp_path: Path) -> None:
    """A file at day=2026-11-01/../x.parquet is not in the folder of the day, so it has no day."""
    rows = [{k: v for k, v in row.items() if k != "day"} for row in draw_rows("page", 5)]
    write_rows(tmp_path / "x.parquet", rows)
    (tmp_path / "day=2026-11-01").mkdir()
    aggregated = aggregate(tmp_path / "day=2026-11-01" / ".." / "x.parquet")
    assert aggregated.counts["page", FINGERPRINT].sum_squared_reports is None


def test_a_link_to_a_folder_above_is_not_followed(tmp_path: Path) -> None:
    """A link to a folder above the link is skipped, because following it would never end."""
    write_rows(tmp_path / "a" / "x.parquet", draw_rows("page", 5))
    for name in ("one", "two"):
        (tmp_path / "a" / name).symlink_to(tmp_path)
    assert aggregate(tmp_path).n_files == 1


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz"])
def test_lines_of_a_csv_may_end_in_carriage_returns(name: str, tmp_path: Path) -> None:
    """Lines may end in CR, as Excel for the Mac writes them, also in one half of a file only."""
    opener = gzip.open if name.endswith(".gz") else open
    path = write_rows(tmp_path / "plain.csv", draw_rows("page", 40))
    lines = path.read_bytes().splitlines()
    expected = aggregate(path).counts
    half = b"".join(line + (b"\n" if i < 20 else b"\r") for i, line in enumerate(lines))
    for content in (b"\r".join(lines), b"\r".join(lines) + b"\r", half):
        other_path = tmp_path / "other" / name
        other_path.parent.mkdir(exist_ok=True)
        with opener(other_path, "wb") as file:
            file.write(content)
        result = aggregate(other_path)
        assert result.counts == expected
        assert not result.refused


def test_each_line_belongs_to_one_part(tmp_path: Path) -> None:
    """A line belongs to the part of the file in which it begins, for every size of the parts.

    All parts together have each line once.
    """
    from rappor.engines.rows import FilePart, read_part  # noqa: PLC0415  # not needed by other tests

    for name in ("x.csv", "x.jsonl", "returns.csv"):
        path = write_rows(tmp_path / name, draw_rows("page", 40))
        if name == "returns.csv":
            path.write_bytes(path.read_bytes().replace(b"\r\n", b"\r").replace(b"\n", b"\r"))
        (file,) = find_files([path])
        for size in (1, 50, 117, 500, file.size - 1, file.size):
            parts = [FilePart(file, start, start + size, 0) for start in range(0, file.size, size)]
            batches = [batch for part in parts for batch in read_part(part, print)]
            bits = [text for batch in batches for text in batch.column("bits").to_pylist()]
            assert bits == [format_row(row)["bits"] for row in draw_rows("page", 40)], (name, size)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("x.parquet", b"", "cannot be read as Parquet"),
        ("x.parquet", b"PAR1 and no more", "cannot be read as Parquet"),
        ("x.csv.gz", b"no gzip", "cannot be read as csv: Not a gzipped file"),
        ("x.csv", b"", "columns must include format"),
        ("x.csv", b"a,b\n1,2\n", "columns must include format"),
        ("x.csv", b"format,format\n", "column format must be there once"),
        ("x.csv", b"format,metric\r2,page\r", "column params must be there once"),
        ("x.csv", "format,metric\n".encode("utf-16"), "columns must include format"),
        ("x.csv", b"a" * 200_000, "cannot be read as csv: field larger than"),
        ("\udcff.parquet", b"PAR1PAR1", "cannot be read as Parquet"),
        ("x.txt", b"", "its name must end in one of .parquet, .csv"),
    ],
)
def test_a_file_of_another_content_is_refused(
    name: str, data: bytes, reason: str, tmp_path: Path
) -> None:
    """A file whose content does not match its suffix is an error with its path."""
    write_rows(tmp_path / "a.parquet", draw_rows("page", 5))
    (tmp_path / name).write_bytes(data)
    with pytest.raises(FileError, match=rf"{name}: .*{reason}"):
        aggregate(tmp_path)


def test_a_row_group_outside_its_file_is_refused(tmp_path: Path) -> None:
    """A damaged Parquet footer with an offset before or behind the file is an error."""
    path = tmp_path / "x.parquet"
    table = pa.Table.from_pylist(draw_rows("page", 2000))
    pq.write_table(table, path, row_group_size=1000, use_dictionary=False)
    begin = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data = path.read_bytes()
    for forged_offset in (-1, len(data) + 1, len(data) * 20):
        path.write_bytes(data.replace(_encode_offset(begin), _encode_offset(forged_offset)))
        with pytest.raises(FileError, match=r"x.parquet: it cannot be read as Parquet"):
            aggregate(path)


def _encode_offset(value: int) -> bytes:
    """Return an offset as three bytes of Thrift's compact protocol, which Parquet footers use.

    Thrift maps signed numbers to unsigned ones (zigzag) and writes seven bits a byte.
    """
    zigzag = value * 2 if value >= 0 else -value * 2 - 1
    return bytes([zigzag & 127 | 128, zigzag >> 7 & 127 | 128, zigzag >> 14])


def test_files_without_rows_are_accepted(tmp_path: Path) -> None:
    """Files of all kinds may have no rows, as on a day without reports."""
    pq.write_table(pa.Table.from_pylist(draw_rows("page", 1)).slice(0, 0), tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_text("format,metric,params,cohort,bits\n")
    (tmp_path / "x.jsonl").write_text("\n\n")
    aggregated = aggregate(tmp_path)
    assert (aggregated.counts, aggregated.refused) == ({}, {})


def test_large_files_are_read_in_parts(tmp_path: Path) -> None:
    """A Parquet file of 512 MB is divided into four parts, which have each row group once.

    The test states the size of 512 MB for a small file.
    """
    path = write_packed(tmp_path / "x.parquet", "page", 1000, seed=1)
    table = pq.read_table(path)
    pq.write_table(table, path, row_group_size=100)
    (file,) = find_files([path])
    from rappor.engines.files import ReportFile  # noqa: PLC0415
    from rappor.engines.rows import parts_of, read_part  # noqa: PLC0415

    large = ReportFile(path=file.path, kind="parquet", size=1 << 29, mtime_ns=0, labels={})
    parts = parts_of(large)
    assert len(parts) == 4
    rows = sum(batch.num_rows for part in parts for batch in read_part(part, print))
    assert rows == 1000


def test_counts_are_separate_for_each_value_of_a_column(tmp_path: Path) -> None:
    """With by=("country",), each country has its own counts.

    The country is a column of the file or of a folder's name.
    """
    rows = [row | {"country": "a"} for row in draw_rows("page", 5)]
    write_rows(tmp_path / "x.parquet", rows)
    write_rows(tmp_path / "country=b" / "x.csv", draw_rows("page", 7))
    aggregated = aggregate(tmp_path, by=("country",))
    assert {key[2]: counts.n_reports for key, counts in aggregated.counts.items()} == {
        "a": 5,
        "b": 7,
    }


@pytest.mark.slow
def test_progress_is_reported_in_bytes(tmp_path: Path) -> None:
    """After each of three files, the progress has the number of bytes read, and of all bytes."""
    for number in range(3):
        write_packed(tmp_path / f"{number}.parquet", "page", 50, seed=number)
    progress: list[tuple[str, int, int | None]] = []
    aggregate(tmp_path, progress=lambda *step: progress.append(step))
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert progress[-1] == ("adding up reports", size, size)
    assert len(progress) == 3


def write_lake(folder: Path, n_files: int = 6) -> Path:
    """Write Parquet files with 1,000 reports each, and return their folder."""
    for number in range(n_files):
        write_packed(folder / f"{number}.parquet", "page", 1000, seed=number)
    return folder


def test_a_run_continues_after_a_bad_file_is_removed(tmp_path: Path) -> None:
    """A bad file ends the run. After its removal, the next run counts no file twice."""
    folder, checkpoint = write_lake(tmp_path / "lake"), tmp_path / "c"
    expected = aggregate(folder)
    (folder / "9.parquet").write_bytes(b"junk")
    with pytest.raises(FileError, match=r"9.parquet"):
        aggregate_files([folder], METRICS, checkpoint=checkpoint, threads=1)
    (folder / "9.parquet").unlink()
    aggregated = aggregate(folder, checkpoint=checkpoint)
    assert aggregated.counts == expected.counts
    assert aggregated.n_resumed >= 4  # at most two of six files were being read
    third = aggregate(folder, checkpoint=checkpoint)
    assert (third.counts, third.n_resumed) == (expected.counts, 6)


def test_an_interrupted_run_continues(tmp_path: Path) -> None:
    """After an interruption, the next run continues from the checkpoint and counts no file twice.

    The checkpoint also contains the refused rows, and no temporary file is left.
    """
    folder, checkpoint = write_lake(tmp_path / "lake", 5), tmp_path / "c"
    write_rows(folder / "0.csv", bad_texts())
    expected = aggregate(folder)

    def interrupt(*_: object) -> None:
        """Interrupt the run at its first message of progress, as Control-C does."""
        raise KeyboardInterrupt

    options: dict[str, Any] = {"checkpoint": checkpoint, "seconds": 0, "threads": 1}
    with pytest.raises(KeyboardInterrupt):
        aggregate_files([folder], METRICS, **options, progress=interrupt)
    aggregated = aggregate(folder, checkpoint=checkpoint)
    assert aggregated.n_resumed >= 1
    assert (aggregated.counts, aggregated.refused) == (expected.counts, expected.refused)
    assert aggregated.first_refused == expected.first_refused
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "lake"]


def test_a_file_that_changes_during_a_run_is_refused(tmp_path: Path) -> None:
    """A file whose time changes while the run reads files is an error.

    Its sums might mix rows of two versions.
    """
    folder = write_lake(tmp_path / "lake")

    def touch(*_: object) -> None:
        """Change the time of every file while the run reads them."""
        for path in folder.iterdir():
            os.utime(path, (1, 1))

    with pytest.raises(FileError, match=r"\d.parquet: it changed while it was read"):
        aggregate(folder, progress=touch)


def test_checkpoints_are_written_during_a_run(tmp_path: Path) -> None:
    """A checkpoint is written during the run, and not only at its end.

    The next run finds counted files again, although their paths have a link now.
    """
    folder, checkpoint = write_lake(tmp_path / "lake"), tmp_path / "c"
    existed: list[bool] = []
    options = {"checkpoint": checkpoint, "seconds": 0}
    aggregate(folder, **options, progress=lambda *_: existed.append(checkpoint.exists()))
    assert (existed[0], existed[-1]) == (False, True)
    (tmp_path / "link").symlink_to(folder)
    assert aggregate(tmp_path / "link", checkpoint=checkpoint).n_resumed == 6


def test_refusals_name_the_first_file_by_name(tmp_path: Path) -> None:
    """A refusal names the file that is first by name, in whatever order the files are read."""
    for name in ("a.csv", "b.csv"):
        write_rows(tmp_path / name, bad_texts())
    for paths in (["a.csv", "b.csv"], ["b.csv", "a.csv"]):
        aggregated = aggregate_files([tmp_path / name for name in paths], METRICS, threads=1)
        assert set(aggregated.first_refused.values()) == {str(tmp_path / "a.csv")}


def test_a_checkpoint_of_other_files_is_refused(tmp_path: Path) -> None:
    """A checkpoint is refused with another registry or `by`, or if a counted file has changed.

    A missing file counts as changed.
    """
    folder, checkpoint = write_lake(tmp_path / "lake", 2), tmp_path / "c"
    aggregate(folder, checkpoint=checkpoint)
    with pytest.raises(FileError, match="c: it is of another registry or of other columns: delete"):
        aggregate_files(
            [folder], Registry.loads(REGISTRY.replace("m = 8", "m = 4")), checkpoint=checkpoint
        )
    with pytest.raises(FileError, match="c: it is of another registry or of other columns"):
        aggregate(folder, checkpoint=checkpoint, by=("country",))
    os.utime(folder / "1.parquet", (1, 1))
    with pytest.raises(FileError, match=r"1.parquet was counted and is now missing or changed"):
        aggregate(folder, checkpoint=checkpoint)
    (folder / "1.parquet").unlink()
    with pytest.raises(FileError, match=r"1.parquet was counted and is now missing or changed"):
        aggregate(folder, checkpoint=checkpoint)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    """A checkpoint that is cut off, or has one flipped bit, is an error."""
    folder, checkpoint = write_lake(tmp_path / "lake", 2), tmp_path / "c"
    aggregate(folder, checkpoint=checkpoint)
    data = checkpoint.read_bytes()
    damaged = [data[:end] for end in (0, 4, len(data) // 2, len(data) - 1)]
    for index in range(0, len(data), 41):
        flipped = bytearray(data)
        flipped[index] ^= 1 << index % 8
        damaged.append(bytes(flipped))
    for content in damaged:
        checkpoint.write_bytes(content)
        with pytest.raises(FileError, match="c: it is damaged: delete this checkpoint"):
            aggregate(folder, checkpoint=checkpoint)


CHILD = """
import sys
from rappor import Registry
from rappor.engines import aggregate_files
registry = Registry.load(sys.argv[1])
def print_progress(stage, n_done, total):
    print(n_done, flush=True)
aggregate_files([sys.argv[2]], registry, checkpoint=sys.argv[3], seconds=0, threads=1,
                progress=print_progress)
"""
"""Program that adds the files of a folder and prints a line after each file."""


@pytest.mark.slow
def test_a_killed_run_continues(tmp_path: Path) -> None:
    """Two runs are killed after a file or two. The next run continues and counts no file twice."""
    folder, checkpoint = write_lake(tmp_path / "lake", 5), tmp_path / "c"
    (tmp_path / "m.toml").write_text(REGISTRY)
    command = [sys.executable, "-c", CHILD, str(tmp_path / "m.toml"), str(folder), str(checkpoint)]
    expected = aggregate(folder)
    for _ in range(2):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(0.01)
            child.kill()
    assert aggregate(folder, checkpoint=checkpoint).counts == expected.counts


def test_uploads_and_rows_are_distinguished(tmp_path: Path) -> None:
    """JSON lines contain uploads or rows, and the first JSON object decides.

    A file without any object counts as uploads. Its reader counts each line as refused.
    """
    rows = write_rows(tmp_path / "rows.jsonl", draw_rows("page", 1))
    (tmp_path / "uploads.jsonl").write_text('\n{"v":1,"id":"x","reports":[]}\n')
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "junk.jsonl").write_text("junk\n")
    assert not contains_uploads(rows)
    assert contains_uploads(tmp_path / "uploads.jsonl")
    assert contains_uploads(tmp_path / "junk.jsonl")
    assert contains_uploads(tmp_path / "empty.jsonl")
    assert not contains_uploads(tmp_path / "x.csv")
    more = write_rows(
        tmp_path / "more.jsonl", [row | {"reports": 5} for row in draw_rows("page", 1)]
    )
    assert not contains_uploads(more)  # a row may have further columns, such as "reports"
    more.write_bytes(b"junk\n" + rows.read_bytes())
    assert not contains_uploads(more)


def test_a_truncated_compressed_file_is_refused(tmp_path: Path) -> None:
    """The search for uploads raises an error with the path if the gzip data are cut off."""
    path = write_rows(tmp_path / "x.jsonl.gz", draw_rows("page", 300))
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(FileError, match=r"x.jsonl.gz: it cannot be read as json"):
        contains_uploads(path)
