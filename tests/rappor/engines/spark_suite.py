"""Tests for every kind of Spark session. `test_spark.py` runs this file in a process for each kind.

The variable SPARK_SESSION is "classic", or the address of a Connect server. Paths with the scheme
viewfs://lake can be read by Spark only. Paths without a scheme can be read by the workers, too.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from report_files import (
    DAYS,
    METRICS,
    REGISTRY,
    draw_rows,
    drop_squared_reports,
    format_row,
    write_packed,
    write_rows,
)
from spark_servers import CLUSTER, SETTINGS

from rappor import Counts, decode
from rappor.base.errors import FileError, ReportError
from rappor.engines import aggregate_files, count_sql, spark, spark_files
from rappor.engines.files import find_files
from rappor.engines.shipping import ship
from rappor.engines.spark_files import AS_BYTES, BY_PATH
from rappor.engines.sums import sum_schema
from rappor.engines.totals import shapes_of
from rappor.engines.workers import TASKS, sum_parts
from rappor.estimator.error_control import ErrorControl

KIND = os.environ["SPARK_SESSION"]


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    """Yield a session of the kind in SPARK_SESSION, classic or Connect."""
    builder = SparkSession.builder
    if KIND == "classic":
        builder = builder.master(CLUSTER)
        for name, value in SETTINGS.items():
            builder = builder.config(name, value)
    else:
        builder = builder.remote(KIND)
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with partitions of both metrics on two days.

    Partitions have very different sizes. One is empty, and one has refused rows.
    """
    folder = tmp_path_factory.mktemp("lake")
    for name in METRICS:
        for number, n in enumerate((60_000, 700, 1, 0)):
            write_packed(
                folder / f"{name}-{number}.parquet", name, n, seed=number, day=DAYS[number % 2]
            )
    good = draw_rows("page", 1)[0]
    changes: list[dict[str, Any]] = [
        {"format": 9},
        {"metric": "site"},
        {"params": "0123456789abcdef"},
        {"cohort": 8},
        {"bits": b"\xff"},
        {"bits": b"\xff\xff\xff"},
        {"day": None},
    ]
    write_rows(folder / "bad.parquet", [good | change for change in changes] * 3)
    return folder


@pytest.fixture(scope="session")
def sums(session: SparkSession, lake: Path, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Return the sums of the lake, after they were written to Parquet and read again."""
    path = str(tmp_path_factory.mktemp("sums") / "sums.parquet")
    spark.aggregate(session.read.parquet(str(lake)), METRICS).write.parquet(path)
    return session.read.parquet(path)


def test_sums_are_those_of_one_machine(sums: DataFrame, lake: Path) -> None:
    """Counts, refused rows and the bound on squared reports equal those of `aggregate_files`.

    bad.parquet has six kinds of refused rows and a row without a day, three times each.
    """
    expected = aggregate_files([lake], METRICS)
    assert spark.collect_sums(sums, METRICS).refused == expected.refused
    assert sum(expected.refused.values()) == 18
    assert spark.to_counts(sums, METRICS) == expected.counts
    assert expected.n_reports == 2 * 60_701 + 3


def test_every_key_has_one_row(sums: DataFrame) -> None:
    """Sums have one row for each metric, params, day and cohort, with plain names of columns."""
    assert sums.columns == ["metric", "params", "day", "cohort", "reports", "ones", "refused"]
    rows = [row for row in sums.collect() if row.refused is None]
    keys = {(row.metric, row.params, row.day, row.cohort) for row in rows}
    # Eight cohorts of page and one of theme on two days, and one cohort of page without a day.
    assert len(keys) == len(rows) == 8 * 2 + 1 + 2
    assert all(len(row.ones) == METRICS[row.metric].params.k for row in rows)


def test_a_frame_without_rows_has_no_counts(session: SparkSession, lake: Path) -> None:
    """A frame without rows gives no counts and no error."""
    rows = session.read.parquet(str(lake)).where("metric = 'nothing at all'")
    assert spark.to_counts(spark.aggregate(rows, METRICS), METRICS) == {}


def test_a_missing_column_is_an_error_before_a_job(session: SparkSession, lake: Path) -> None:
    """A missing column is an error of `aggregate`, before Spark runs a job."""
    with pytest.raises(ReportError, match="columns must include format"):
        spark.aggregate(session.read.parquet(str(lake)).drop("format"), METRICS)


def check_paths(session: SparkSession, paths: list[str], access: str) -> None:
    """Check that Spark gives the counts of `aggregate_files` for these paths.

    `access` is the expected way of reading: workers open the files (BY_PATH), or Spark passes their
    bytes (AS_BYTES).
    """
    local = [path.removeprefix("viewfs://lake") for path in paths]
    expected = aggregate_files(local, METRICS)
    frame = spark.aggregate_paths(session, paths, METRICS)
    assert (frame.counts, frame.refused) == (expected.counts, expected.refused)
    assert (frame.n_files, frame.file_access) == (expected.n_files, access)
    assert expected.n_reports > 0


def write_mixed(folder: Path) -> None:
    """Write files of all kinds with unusual names in folders of days, an empty file, and others."""
    for day in DAYS:
        rows = [format_row(row) for row in draw_rows("page", 50, day=day)]
        rows_without_day = [{k: v for k, v in row.items() if k != "day"} for row in rows]
        for name in ("x.csv", "x y{1}.jsonl", "x[0]*.csv.gz"):
            write_rows(
                folder / f"day={day}" / name,
                [*rows_without_day, rows_without_day[0] | {"cohort": 8}],
            )
    write_rows(folder / "a.parquet", draw_rows("page", 5))
    write_rows(folder / "more" / "b.parquet", draw_rows("page", 7))
    for name in ("_hidden.parquet", "_metadata", ".x.parquet.crc"):
        (folder / "more" / name).write_bytes(b"no rows")
    (folder / "empty.jsonl").write_bytes(b"")
    write_rows(folder / "_part=1" / "c.parquet", draw_rows("page", 3))


def test_files_are_those_of_one_machine(session: SparkSession, lake: Path, tmp_path: Path) -> None:
    """Workers open the files. A file that arguments and links name several times counts once."""
    check_paths(session, [str(lake)], BY_PATH)
    write_mixed(tmp_path)
    (tmp_path / "a link.parquet").symlink_to("more/b.parquet")
    (tmp_path / "again").symlink_to("more")
    (tmp_path / "hard.parquet").hardlink_to(tmp_path / "a.parquet")
    paths = [str(tmp_path), f"{tmp_path}/more/../more/", str(tmp_path / "a.parquet")]
    check_paths(session, paths, BY_PATH)


def test_files_that_workers_do_not_see_come_from_spark(
    session: SparkSession, lake: Path, tmp_path: Path
) -> None:
    """Files of a file system that only Spark can read are passed as bytes."""
    check_paths(session, [f"viewfs://lake{lake}"], AS_BYTES)
    write_mixed(tmp_path)
    check_paths(session, [f"viewfs://lake{tmp_path}", f"viewfs://lake{tmp_path}/more"], AS_BYTES)


def test_large_files_are_read_in_parts(session: SparkSession, tmp_path: Path) -> None:
    """Tasks read parts of 1,000 bytes, and each row group belongs to one task."""
    path = tmp_path / "x.parquet"
    write_packed(path, "page", 2000, seed=1)
    pq.write_table(pq.read_table(path), path, row_group_size=100)
    (file,) = find_files([path])
    ship(session)
    frame = spark_files._spread(
        session,
        [
            (str(path), file.mtime_ns // 10**6, file.size, start, start + 1000)
            for start in range(0, file.size, 1000)
        ],
        TASKS,
        3,
    )
    read = functools.partial(sum_parts, shapes=shapes_of(METRICS), by=())
    sums = frame.mapInArrow(read, from_arrow_schema(sum_schema(())))
    assert spark.to_counts(sums, METRICS) == aggregate_files([path], METRICS).counts


def damage_row_group(path: Path) -> None:
    """Overwrite half of a Parquet file with zeros, and keep its footer."""
    data = bytearray(path.read_bytes())
    data[8 : len(data) // 2] = bytes(len(data) // 2 - 8)
    path.write_bytes(data)


@pytest.mark.parametrize("root", ["", "viewfs://lake"])
def test_a_file_that_cannot_be_read_is_named(
    session: SparkSession, tmp_path: Path, root: str
) -> None:
    """A file that cannot be read is an error of one sentence with the path. It is not skipped."""

    def write_damaged(path: Path) -> None:
        damage_row_group(write_rows(path, draw_rows("page", 500)))

    write_rows(tmp_path / "a" / "a.parquet", draw_rows("page", 5))
    for name, make, reason in (
        ("group.parquet", write_damaged, "as [pP]"),
        ("empty.parquet", Path.touch, "as parquet: it is empty"),
        ("foot.parquet", lambda path: path.write_bytes(b"PAR1" + bytes(99) + b"PAR1"), "as P"),
        ("text.csv.gz", lambda path: path.write_bytes(b"no gzip"), "as csv: Not a gzipped file"),
        ("type.txt", lambda path: path.write_bytes(b"text"), "its name must end in one of"),
        ("float.parquet", write_float, "cohort must be integers, got double"),
    ):
        make(tmp_path / "a" / name)
        with pytest.raises((FileError, *spark.FAILURES)) as caught:
            spark.aggregate_paths(session, [f"{root}{tmp_path}/a"], METRICS)
        assert re.search(f"{name}: .*{reason}", spark.message_of(caught.value)), caught.value
        (tmp_path / "a" / name).unlink()


def write_float(path: Path) -> None:
    """Write a Parquet file with cohorts of the wrong type float."""
    write_rows(path, [row | {"cohort": 1.5} for row in draw_rows("page", 5)])


def test_a_path_that_spark_does_not_read_is_named(session: SparkSession, tmp_path: Path) -> None:
    """A missing path, a hidden path and a broken link are errors with the path.

    Spark itself reports a missing path only, and skips the others.
    """
    write_rows(tmp_path / "_x.parquet", draw_rows("page", 5))
    write_rows(tmp_path / "links" / "x.parquet", draw_rows("page", 5))
    (tmp_path / "links" / "_part=1").mkdir()
    (tmp_path / "links" / "_part=1" / "y.parquet").symlink_to("nothing")
    for name, reason in (
        ("nothing", ""),
        ("_x.parquet", ": its name begins with a dot"),
        ("links", "/_part=1/y.parquet: No such file"),
    ):
        with pytest.raises((FileError, *spark.FAILURES), match=f"{name}{reason}"):
            spark.aggregate_paths(session, [f"{tmp_path}/{name}"], METRICS)


def test_files_that_spark_does_not_list_are_named(session: SparkSession, tmp_path: Path) -> None:
    """Names that Java cannot read, and links to a folder above them, are errors."""
    folder = tmp_path / "bytes"
    write_rows(folder / "a.parquet", draw_rows("page", 5))
    write_rows(folder / "more" / "b.csv", draw_rows("page", 5))
    (folder / "more").rename(os.fsdecode(os.fsencode(folder) + b"/\xff"))
    with pytest.raises(FileError, match=r"/b.csv: Spark does not list it"):
        spark.aggregate_paths(session, [str(folder)], METRICS)
    (tmp_path / "around" / "a").mkdir(parents=True)
    for link in ("one", "two"):
        (tmp_path / "around" / "a" / link).symlink_to(tmp_path / "around")
    with pytest.raises(FileError, match=r"/a/one: it is a link to a folder that it is in"):
        spark.aggregate_paths(session, [str(tmp_path / "around")], METRICS)


@pytest.mark.parametrize("root", ["", "viewfs://lake"])
def test_hidden_folders_are_those_of_one_machine(
    session: SparkSession, tmp_path: Path, root: str
) -> None:
    """Hidden folders are skipped unless a path names them, although Spark lists some of them."""
    write_rows(tmp_path / "a.parquet", draw_rows("page", 5))
    write_rows(tmp_path / "_metadata_old" / "b.parquet", draw_rows("page", 7))
    write_rows(tmp_path / "_metadata.parquet", draw_rows("page", 3))
    write_rows(tmp_path / "draft._COPYING_" / "c.parquet", draw_rows("page", 2))
    for name in ("", "/_metadata_old", "/_metadata_old/b.parquet"):
        check_paths(session, [f"{root}{tmp_path}{name}"], AS_BYTES if root else BY_PATH)


def test_a_folder_whose_name_has_a_colon_is_read(session: SparkSession, tmp_path: Path) -> None:
    """Text before a colon in a folder's name is no scheme of an address, so the files are distinct.

    Java cannot read a colon behind a wildcard, so this is an error.
    """
    for seed, folder in enumerate(("t=a:b", "t=b", "a:b")):
        path = write_rows(tmp_path / folder / "x.csv", draw_rows("page", 5, seed=seed))
        os.utime(path, (1, 1))
    check_paths(session, [str(tmp_path)], BY_PATH)
    check_paths(session, [f"viewfs://lake{tmp_path}"], AS_BYTES)
    (tmp_path / "a:b" / "_delta_log").mkdir()
    (tmp_path / "a:b" / "_delta_log" / "0.json").write_text("{}")
    for path, reason in (
        (tmp_path, "/a:b: it is a table"),
        (tmp_path / "*", "b: Java cannot read a colon behind a wildcard"),
    ):
        with pytest.raises(FileError, match=reason):
            spark.aggregate_paths(session, [str(path)], METRICS)


@pytest.mark.parametrize("root", ["", "viewfs://lake"])
def test_wildcards_match_the_files_of_one_machine(
    session: SparkSession, tmp_path: Path, root: str
) -> None:
    """A wildcard matches the same files as on one machine.

    Hidden names are skipped unless the path spells them out. A hidden name that Spark would skip is
    an error.
    """
    names = ("a.csv", "_b.csv", ".c.csv", "_old/d.csv", "more/e.csv", "more/_f.csv", "[g].csv")
    for seed, name in enumerate(names):
        write_rows(tmp_path / name, draw_rows("page", 5 + seed, seed=seed))
    for pattern, names_of_pattern in (
        ("*", ("a.csv", "more/e.csv", "[g].csv")),
        ("{a,more/?,?g?}.csv", ("a.csv", "more/e.csv", "[g].csv")),
        ("_old/[^e]*", ("_old/d.csv",)),
    ):
        frame = spark.aggregate_paths(session, [f"{root}{tmp_path}/{pattern}"], METRICS)
        expected = aggregate_files([tmp_path / name for name in names_of_pattern], METRICS)
        assert (frame.counts, frame.n_files) == (expected.counts, len(names_of_pattern))
    (tmp_path / "more" / "dead.csv").symlink_to("nothing")
    for pattern, reason in (("_*", "its name begins"), ("{a,_b}.csv", "its name begins")):
        with pytest.raises(FileError, match=reason):
            spark.aggregate_paths(session, [f"{root}{tmp_path}/{pattern}"], METRICS)
    if not root:
        with pytest.raises(FileError, match=r"more/dead.csv: No such file"):
            spark.aggregate_paths(session, [f"{tmp_path}/m*/d*", f"{tmp_path}/a.csv"], METRICS)


def test_a_file_under_two_addresses_is_refused(session: SparkSession, tmp_path: Path) -> None:
    """A file that has two addresses, such as s3:// and s3a://, is an error: it would count twice.

    Links among files that Spark passes as bytes are an error for the same reason.
    """
    write_rows(tmp_path / "day=2026-11-01" / "a.parquet", draw_rows("page", 5))
    paths = [str(tmp_path), f"viewfs://lake{tmp_path}"]
    with pytest.raises(FileError, match=r"a.parquet: it is .* under another address"):
        spark.aggregate_paths(session, paths, METRICS)
    # Equal names, sizes and times would mark two addresses of one file. Files without rows are
    # accepted, because they cannot count twice.
    for name in ("x.csv", "y.csv"):
        write_rows(tmp_path / name, draw_rows("page", 1)).write_text(
            "format,metric,params,cohort,bits"
        )
        os.utime(tmp_path / name, (1, 1))
    check_paths(session, paths[1:], AS_BYTES)
    (tmp_path / "latest").symlink_to("day=2026-11-01")
    for root, reason in (("", "whose folders give it other"), ("viewfs://lake", "may be a link")):
        with pytest.raises(FileError, match=reason):
            spark.aggregate_paths(session, [f"{root}{tmp_path}"], METRICS)


@pytest.mark.parametrize(
    ("sign", "kind"),
    [
        ("_delta_log/0.json", "Delta Lake"),
        (".hoodie/x", "Hudi"),
        ("metadata/1.metadata.json", "Iceb"),
    ],
)
def test_tables_of_other_formats_are_refused(
    session: SparkSession, tmp_path: Path, sign: str, kind: str
) -> None:
    """A table of Delta Lake, Hudi or Iceberg is refused, also by a folder in it or above it."""
    table = tmp_path / "lake" / "table[1],{a}"
    write_rows(table / "day=2026-11-01" / "a.parquet", draw_rows("page", 5))
    (table / sign).parent.mkdir()
    (table / sign).write_text("{}")
    name = spark_files._escape_wildcards(str(table))
    for path in (name, f"{name}/day=2026-11-01", f"{tmp_path}/lake"):
        with pytest.raises(FileError, match=f"lake/table.*: it is a table of {kind}"):
            spark.aggregate_paths(session, [path], METRICS)


@pytest.mark.parametrize("root", ["", "viewfs://lake"])
def test_a_file_that_changes_is_named(session: SparkSession, tmp_path: Path, root: str) -> None:
    """A file that changes between Spark's listing and the task is an error with its path."""
    path = write_rows(tmp_path / "a.parquet", draw_rows("page", 5))
    sums = spark.sum_files(session, [f"{root}{tmp_path}"], METRICS)
    write_rows(path, draw_rows("page", 6))
    with pytest.raises(spark.FAILURES) as caught:
        spark.to_counts(sums, METRICS)
    assert "a.parquet: it changed after it was listed" in spark.message_of(caught.value)


def test_a_changed_file_is_not_passed_as_bytes(session: SparkSession, tmp_path: Path) -> None:
    """A worker that sees another version of a file raises an error.

    Files are passed as bytes only if workers do not see them.
    """
    path = write_rows(tmp_path / "a.parquet", draw_rows("page", 5))
    with pytest.raises(spark.FAILURES, match=r"a.parquet: it changed after it was listed"):
        spark_files._find_distinct_files(session, [(f"file:{path}", 0, 5)])


def write_odd_csv(folder: Path) -> None:
    """Write a CSV file of four reports, and of lines with one fault each.

    R and spreadsheets write whole numbers as "+5" and "5.0".
    """
    good = format_row(draw_rows("page", 1)[0])
    rows = [good | {"cohort": cohort} for cohort in (" 5", "+5", "-0", "5.0", "8")]
    header, first = ",".join(good), ",".join(map(str, good.values()))
    odd = [f"{first},more", first.rpartition(",")[0], '2,"page', "", "  "]
    quoted = ",".join(f'"{value}"' for value in good.values())
    lines = [header, *(",".join(map(str, row.values())) for row in rows), *odd, first, quoted]
    (folder / "odd.csv").write_text("\n".join(lines))


def write_odd_json(folder: Path) -> None:
    """Write JSON lines of two reports, and lines with one fault each.

    One report has its metric from the folder metric=page.
    """
    good = format_row(draw_rows("page", 1)[0])
    text = json.dumps(good)
    changes: list[dict[str, Any]] = [{"cohort": "5"}, {"format": 1.0}, {"day": 5}, {"metric": 5}]
    odd = [f"[{text},{text}]", text.replace('"', "'"), f"{text}{text}", "junk", "7", "", " "]
    lines = [json.dumps(good | change) for change in [*changes, {"metric": None}]]
    (folder / "metric=page").mkdir()
    (folder / "metric=page" / "odd.jsonl").write_text("\n".join([*odd, *lines, text]))


@pytest.mark.parametrize(("write", "n_reports"), [(write_odd_csv, 4), (write_odd_json, 2)])
def test_odd_lines_are_accepted_or_refused_as_on_one_machine(
    write: Callable[[Path], None], n_reports: int, session: SparkSession, tmp_path: Path
) -> None:
    """The same rows are reports, and the other rows are refused for the same reasons."""
    folder = tmp_path / write.__name__.replace("write_odd_", "x.")
    folder.mkdir()
    write(folder)
    expected = aggregate_files([folder], METRICS)
    assert expected.n_reports == n_reports
    aggregated = spark.aggregate_paths(session, [str(folder)], METRICS)
    assert (aggregated.counts, aggregated.refused) == (expected.counts, expected.refused)


def test_an_error_of_the_kernel_has_its_reason(session: SparkSession, tmp_path: Path) -> None:
    """The message of a failed job contains the reason of the kernel, and not Spark's text alone."""
    rows = [row | {"cohort": 1.5} for row in draw_rows("page", 5)]
    frame = session.read.parquet(str(write_rows(tmp_path / "x.parquet", rows)))
    with pytest.raises(spark.FAILURES) as caught:
        spark.to_counts(spark.aggregate(frame, METRICS), METRICS)
    assert "cohort must be integers, got double" in spark.message_of(caught.value)


def test_segments_are_decoded_in_one_job(session: SparkSession, tmp_path: Path) -> None:
    """Each metric and country has the estimates of a decode on one machine.

    Without candidates, a metric of strings has a row with an error for each country.
    """
    rows = [
        row | {"country of use": f"c{i % 5}"}
        for name in METRICS
        for i, row in enumerate(draw_rows(name, 4000))
    ]
    frame = session.read.parquet(str(write_rows(tmp_path / "x.parquet", rows)))
    by = ("country of use",)
    path = str(tmp_path / "sums.parquet")
    spark.aggregate(frame, METRICS, by=by).write.parquet(path)
    sums = session.read.parquet(path)
    counts = spark.to_counts(sums, METRICS, by=by)
    assert len(counts) == 10
    decoded = spark.decode(
        sums, {"page": ["a", "b"]}, METRICS, by=by, error_control=ErrorControl(alpha=0.1)
    ).collect()
    for (name, fingerprint, country), segment_counts in counts.items():
        estimates = decode(
            segment_counts,
            ["a", "b"] if name == "page" else None,
            error_control=ErrorControl(alpha=0.1),
        )
        row_of_candidate = {
            row.candidate: row
            for row in decoded
            if (row.metric, row.params, row["country of use"]) == (name, fingerprint, country)
        }
        for row in estimates.rows():
            spark_row = row_of_candidate.pop(row["candidate"])
            for column in ("count", "std_error", "p_value"):
                assert spark_row[column] == pytest.approx(row[column], rel=1e-6, abs=1e-9)
            assert (spark_row.reports, spark_row.detected, spark_row.error) == (
                segment_counts.n_reports,
                row["detected"],
                None,
            )
        assert row_of_candidate == {}
    failed = spark.decode(sums, {}, METRICS, by=by).where("metric = 'page'").collect()
    assert [row.candidate for row in failed] == [None] * 5
    assert all("candidates must number at least 1" in row.error for row in failed)
    assert all(row.reports > 0 for row in failed)


def test_the_statement_for_spark_gives_the_counts_of_the_kernel(
    session: SparkSession, lake: Path, tmp_path: Path
) -> None:
    """Spark runs the SQL statement on all files but the large ones, with equal counts."""
    paths = [str(path) for path in lake.glob("*.parquet") if not path.name.endswith("-0.parquet")]
    expected = aggregate_files(paths, METRICS).counts
    session.read.parquet(*paths).createOrReplaceTempView("reports")
    for (name, _), counts in expected.items():
        statement = count_sql(counts.params, name, dialect="spark").rstrip().rstrip(";")
        path = tmp_path / f"{name}.csv"
        table = session.sql(statement).toArrow()
        lines = [",".join(table.column_names)]
        lines += [",".join(str(value) for value in row.values()) for row in table.to_pylist()]
        path.write_text("\n".join(lines) + "\n")
        assert (
            Counts.from_csv(path, counts.params, name)
            == drop_squared_reports({("x",): counts})[("x",)]
        )


@pytest.fixture(scope="session")
def large_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 20 million reports in 40 files, half of them in one file."""
    folder = tmp_path_factory.mktemp("large")
    for number in range(40):
        name = "theme" if number % 4 else "page"
        n = 10_000_000 if number == 0 else 256_411
        write_packed(folder / f"{number}.parquet", name, n, seed=number, day=DAYS[number % 2])
    return folder


@pytest.fixture(scope="session")
def undisturbed(session: SparkSession, large_lake: Path) -> tuple[dict[Any, Counts], float]:
    """Return the counts of the large lake, and the seconds of a job after the first one.

    The first job compiles the loops on the workers.
    """
    count(session, large_lake)
    start = time.monotonic()
    return count(session, large_lake), time.monotonic() - start


def count(session: SparkSession, lake: Path) -> dict[Any, Counts]:
    """Return the counts of a folder, one for each metric and fingerprint."""
    return spark.aggregate_paths(session, [str(lake)], METRICS).counts


@pytest.mark.acceptance
def test_twenty_million_reports_are_those_of_one_machine(
    undisturbed: tuple[dict[Any, Counts], float], large_lake: Path
) -> None:
    """The counts of 40 files, one of them with half of all reports, are those of one machine."""
    expected = aggregate_files([large_lake], METRICS)
    assert expected.n_reports == 10_000_000 + 39 * 256_411
    assert undisturbed[0] == expected.counts


@pytest.mark.acceptance
def test_an_executor_that_is_killed_changes_nothing(
    session: SparkSession, undisturbed: tuple[dict[Any, Counts], float], large_lake: Path
) -> None:
    """If an executor is killed during a job, Spark repeats its tasks, with the same counts."""
    expected, seconds = undisturbed
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(count, session, large_lake)
        time.sleep(seconds / 4)
        killed = executors_of(session)[0]
        assert not job.done()
        os.kill(killed, signal.SIGKILL)
        assert job.result() == expected
    assert killed not in executors_of(session)


def executors_of(session: SparkSession) -> list[int]:
    """Return the process ids of the executors of this session."""
    application = session.conf.get("spark.app.id")
    executors = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if application in words and any("ExecutorBackend" in word for word in words):
                executors.append(int(path.parent.name))
    return sorted(executors)


@pytest.mark.skipif(KIND == "classic", reason="it would start a second cluster")
def test_the_command_uses_a_remote_server(lake: Path, tmp_path: Path) -> None:
    """`rappor aggregate --engine spark --remote` writes the counts file of one machine."""
    (tmp_path / "m.toml").write_text(REGISTRY)
    out = tmp_path / "x.counts"
    words = ["aggregate", str(lake), "--registry", str(tmp_path / "m.toml"), "--metric", "page"]
    command = [sys.executable, "-c", "from rappor.cli import main; main()", *words]
    process = subprocess.run(
        [*command, "--out", str(out), "--engine", "spark", "--remote", KIND],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    expected = aggregate_files([lake], METRICS).counts
    assert Counts.load(out) == expected["page", METRICS["page"].params.fingerprint]
    assert "refused 3: cohort must be in [0, m - 1] (metric page" in process.stderr
    assert process.stdout.endswith(f"9 files: {BY_PATH}\n")
