"""Tests for every kind of Spark session; `test_spark.py` runs this file in a process for each kind.

SPARK_SESSION is "classic", or the address of a Connect server.
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
from report_files import DAYS, METRICS, REGISTRY, as_text, bare, rows_of, write_packed, write_rows
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
    """Yield a session of the kind that the environment asks for, classic or Connect."""
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
    """Return partitions of both metrics on two days: skewed, empty, and with refused rows."""
    folder = tmp_path_factory.mktemp("lake")
    for name in METRICS:
        for number, n in enumerate((60_000, 700, 1, 0)):
            write_packed(
                folder / f"{name}-{number}.parquet", name, n, seed=number, day=DAYS[number % 2]
            )
    good = rows_of("page", 1)[0]
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
    """Return the sums of the lake, stored and read again, as a nightly job does."""
    path = str(tmp_path_factory.mktemp("sums") / "sums.parquet")
    spark.aggregate(session.read.parquet(str(lake)), METRICS).write.parquet(path)
    return session.read.parquet(path)


def test_sums_are_those_of_one_machine(sums: DataFrame, lake: Path) -> None:
    """Sums, refusals of the same pass, and the bound on squared reports are equal."""
    expected = aggregate_files([lake], METRICS)
    assert spark.collect_sums(sums, METRICS).refused == expected.refused
    assert sum(expected.refused.values()) == 18
    assert spark.to_counts(sums, METRICS) == expected.counts
    assert expected.n_reports == 2 * 60_701 + 3


def test_every_key_comes_out_once(sums: DataFrame) -> None:
    """There is one row for each metric, params, day and cohort, in columns that SQL can use."""
    assert sums.columns == ["metric", "params", "day", "cohort", "reports", "ones", "refused"]
    rows = [row for row in sums.collect() if row.refused is None]
    keys = {(row.metric, row.params, row.day, row.cohort) for row in rows}
    assert len(keys) == len(rows) == 8 * 2 + 1 + 2  # both metrics and days; one day is null
    assert all(len(row.ones) == METRICS[row.metric].params.k for row in rows)


def test_nothing_is_nothing(session: SparkSession, lake: Path) -> None:
    """Without rows there are no sums and no error."""
    rows = session.read.parquet(str(lake)).where("metric = 'nothing at all'")
    assert spark.to_counts(spark.aggregate(rows, METRICS), METRICS) == {}


def test_a_missing_column_is_named_at_once(session: SparkSession, lake: Path) -> None:
    """The error is raised before a job runs."""
    with pytest.raises(ReportError, match="it has no column format"):
        spark.aggregate(session.read.parquet(str(lake)).drop("format"), METRICS)


def check_paths(session: SparkSession, paths: list[str], access: str) -> None:
    """Check that files and folders give the counts of one machine, by this way of reading."""
    local = [path.removeprefix("viewfs://lake") for path in paths]
    expected = aggregate_files(local, METRICS)
    frame = spark.aggregate_paths(session, paths, METRICS)
    assert (frame.counts, frame.refused) == (expected.counts, expected.refused)
    assert (frame.n_files, frame.file_access) == (expected.n_files, access)
    assert expected.n_reports > 0


def write_mixed(folder: Path) -> None:
    """Write files of all kinds in folders of days, with odd names, empty and overlapping."""
    for day in DAYS:
        rows = [as_text(row) for row in rows_of("page", 50, day=day)]
        kept = [{k: v for k, v in row.items() if k != "day"} for row in rows]
        for name in ("x.csv", "x y{1}.jsonl", "x[0]*.csv.gz"):
            write_rows(folder / f"day={day}" / name, [*kept, kept[0] | {"cohort": 8}])
    write_rows(folder / "a.parquet", rows_of("page", 5))
    write_rows(folder / "more" / "b.parquet", rows_of("page", 7))
    for name in ("_hidden.parquet", "_metadata", ".x.parquet.crc"):
        (folder / "more" / name).write_bytes(b"no rows")
    (folder / "empty.jsonl").write_bytes(b"")
    write_rows(folder / "_part=1" / "c.parquet", rows_of("page", 3))


def test_files_are_those_of_one_machine(session: SparkSession, lake: Path, tmp_path: Path) -> None:
    """Workers open the files, and each file counts once, however often it is named."""
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
    """Each row group and each line belongs to one task."""
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


def broken(path: Path) -> None:
    """Damage a row group of a file with an intact footer."""
    data = bytearray(path.read_bytes())
    data[8 : len(data) // 2] = bytes(len(data) // 2 - 8)
    path.write_bytes(data)


@pytest.mark.parametrize("root", ["", "viewfs://lake"])
def test_what_cannot_be_read_is_named(session: SparkSession, tmp_path: Path, root: str) -> None:
    """The error is one sentence with the path, and no file is skipped."""
    write_rows(tmp_path / "a" / "a.parquet", rows_of("page", 5))
    for name, make, reason in (
        ("group.parquet", lambda path: broken(write_rows(path, rows_of("page", 500))), "as [pP]"),
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
    """Write Parquet whose cohorts are floats, which no file of reports may have."""
    write_rows(path, [row | {"cohort": 1.5} for row in rows_of("page", 5)])


def test_a_path_that_spark_does_not_read_is_named(session: SparkSession, tmp_path: Path) -> None:
    """Spark reports a missing path. This package reports hidden paths and broken links."""
    write_rows(tmp_path / "_x.parquet", rows_of("page", 5))
    write_rows(tmp_path / "links" / "x.parquet", rows_of("page", 5))
    (tmp_path / "links" / "_part=1").mkdir()
    (tmp_path / "links" / "_part=1" / "y.parquet").symlink_to("nothing")
    for name, reason in (
        ("nothing", ""),
        ("_x.parquet", ": its name begins with a dot"),
        ("links", "/_part=1/y.parquet: No such file"),
    ):
        with pytest.raises((FileError, *spark.FAILURES), match=f"{name}{reason}"):
            spark.aggregate_paths(session, [f"{tmp_path}/{name}"], METRICS)


def test_what_spark_does_not_list_is_named(session: SparkSession, tmp_path: Path) -> None:
    """Names that Java cannot read, and endless links, are errors."""
    folder = tmp_path / "bytes"
    write_rows(folder / "a.parquet", rows_of("page", 5))
    write_rows(folder / "more" / "b.csv", rows_of("page", 5))
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
    """Spark reads some hidden folders. They are skipped, unless they are named."""
    write_rows(tmp_path / "a.parquet", rows_of("page", 5))
    write_rows(tmp_path / "_metadata_old" / "b.parquet", rows_of("page", 7))
    write_rows(tmp_path / "_metadata.parquet", rows_of("page", 3))
    write_rows(tmp_path / "draft._COPYING_" / "c.parquet", rows_of("page", 2))
    for name in ("", "/_metadata_old", "/_metadata_old/b.parquet"):
        check_paths(session, [f"{root}{tmp_path}{name}"], AS_BYTES if root else BY_PATH)


def test_a_folder_whose_name_has_a_colon_is_read(session: SparkSession, tmp_path: Path) -> None:
    """The text before the colon is not a scheme: the file is distinct from one elsewhere."""
    for seed, folder in enumerate(("t=a:b", "t=b", "a:b")):
        path = write_rows(tmp_path / folder / "x.csv", rows_of("page", 5, seed=seed))
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
def test_wildcards_pass_no_file_by(session: SparkSession, tmp_path: Path, root: str) -> None:
    """Hidden names are skipped unless they are spelt out. Then they are counted or refused."""
    names = ("a.csv", "_b.csv", ".c.csv", "_old/d.csv", "more/e.csv", "more/_f.csv", "[g].csv")
    for seed, name in enumerate(names):
        write_rows(tmp_path / name, rows_of("page", 5 + seed, seed=seed))
    for pattern, meant in (
        ("*", ("a.csv", "more/e.csv", "[g].csv")),
        ("{a,more/?,?g?}.csv", ("a.csv", "more/e.csv", "[g].csv")),
        ("_old/[^e]*", ("_old/d.csv",)),
    ):
        frame = spark.aggregate_paths(session, [f"{root}{tmp_path}/{pattern}"], METRICS)
        expected = aggregate_files([tmp_path / name for name in meant], METRICS)
        assert (frame.counts, frame.n_files) == (expected.counts, len(meant))
    (tmp_path / "more" / "dead.csv").symlink_to("nothing")
    for pattern, reason in (("_*", "its name begins"), ("{a,_b}.csv", "its name begins")):
        with pytest.raises(FileError, match=reason):
            spark.aggregate_paths(session, [f"{root}{tmp_path}/{pattern}"], METRICS)
    if not root:
        with pytest.raises(FileError, match=r"more/dead.csv: No such file"):
            spark.aggregate_paths(session, [f"{tmp_path}/m*/d*", f"{tmp_path}/a.csv"], METRICS)


def test_a_file_under_two_addresses_is_named(session: SparkSession, tmp_path: Path) -> None:
    """One file under s3:// and s3a:// is an error, and so are links among passed files."""
    write_rows(tmp_path / "day=2026-11-01" / "a.parquet", rows_of("page", 5))
    paths = [str(tmp_path), f"viewfs://lake{tmp_path}"]
    with pytest.raises(FileError, match=r"a.parquet: it is .* under another address"):
        spark.aggregate_paths(session, paths, METRICS)
    for name in ("x.csv", "y.csv"):  # without rows, twins are no two files
        write_rows(tmp_path / name, rows_of("page", 1)).write_text(
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
def test_the_files_of_a_table_are_not_its_rows(
    session: SparkSession, tmp_path: Path, sign: str, kind: str
) -> None:
    """A table of Delta Lake, Hudi or Iceberg is refused: whole, by a folder in or above it."""
    table = tmp_path / "lake" / "table[1],{a}"
    write_rows(table / "day=2026-11-01" / "a.parquet", rows_of("page", 5))
    (table / sign).parent.mkdir()
    (table / sign).write_text("{}")
    name = spark_files._escape_wildcards(str(table))
    for path in (name, f"{name}/day=2026-11-01", f"{tmp_path}/lake"):
        with pytest.raises(FileError, match=f"lake/table.*: it is a table of {kind}"):
            spark.aggregate_paths(session, [path], METRICS)


@pytest.mark.parametrize("root", ["", "viewfs://lake"])
def test_a_file_that_changes_is_named(session: SparkSession, tmp_path: Path, root: str) -> None:
    """The file changes between Spark's list and its task."""
    path = write_rows(tmp_path / "a.parquet", rows_of("page", 5))
    sums = spark.sum_files(session, [f"{root}{tmp_path}"], METRICS)
    write_rows(path, rows_of("page", 6))
    with pytest.raises(spark.FAILURES) as caught:
        spark.to_counts(sums, METRICS)
    assert "a.parquet: it changed after it was listed" in spark.message_of(caught.value)


def test_a_file_that_changes_takes_no_other_road(session: SparkSession, tmp_path: Path) -> None:
    """Workers that see another version do see the file, so it is not passed as bytes."""
    path = write_rows(tmp_path / "a.parquet", rows_of("page", 5))
    with pytest.raises(spark.FAILURES, match=r"a.parquet: it changed after it was listed"):
        spark_files._find_distinct_files(session, [(f"file:{path}", 0, 5)])


def write_odd_csv(folder: Path) -> None:
    """Write four lines with a report, and other lines with one fault each.

    The cohorts "+5" and "5.0" are whole numbers, as R and spreadsheets write them.
    """
    good = as_text(rows_of("page", 1)[0])
    rows = [good | {"cohort": cohort} for cohort in (" 5", "+5", "-0", "5.0", "8")]
    header, first = ",".join(good), ",".join(map(str, good.values()))
    odd = [f"{first},more", first.rpartition(",")[0], '2,"page', "", "  "]
    quoted = ",".join(f'"{value}"' for value in good.values())
    lines = [header, *(",".join(map(str, row.values())) for row in rows), *odd, first, quoted]
    (folder / "odd.csv").write_text("\n".join(lines))


def write_odd_json(folder: Path) -> None:
    """Write two lines with a report, one of them named by its folder, and lines with a fault."""
    good = as_text(rows_of("page", 1)[0])
    text = json.dumps(good)
    changes: list[dict[str, Any]] = [{"cohort": "5"}, {"format": 1.0}, {"day": 5}, {"metric": 5}]
    odd = [f"[{text},{text}]", text.replace('"', "'"), f"{text}{text}", "junk", "7", "", " "]
    lines = [json.dumps(good | change) for change in [*changes, {"metric": None}]]
    (folder / "metric=page").mkdir()
    (folder / "metric=page" / "odd.jsonl").write_text("\n".join([*odd, *lines, text]))


@pytest.mark.parametrize(("write", "n_reports"), [(write_odd_csv, 4), (write_odd_json, 2)])
def test_odd_texts_are_judged_as_on_one_machine(
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


def test_what_the_kernel_says_is_told(session: SparkSession, tmp_path: Path) -> None:
    """The message is one line with the reason of the kernel, not only Spark's."""
    rows = [row | {"cohort": 1.5} for row in rows_of("page", 5)]
    frame = session.read.parquet(str(write_rows(tmp_path / "x.parquet", rows)))
    with pytest.raises(spark.FAILURES) as caught:
        spark.to_counts(spark.aggregate(frame, METRICS), METRICS)
    assert "cohort must be integers, got double" in spark.message_of(caught.value)


def test_segments_are_kept_apart_and_decoded_at_once(session: SparkSession, tmp_path: Path) -> None:
    """Each metric and country has the estimates of one machine, and one has an error."""
    rows = [
        row | {"country of use": f"c{i % 5}"}
        for name in METRICS
        for i, row in enumerate(rows_of(name, 4000))
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
        mine = {
            row.candidate: row
            for row in decoded
            if (row.metric, row.params, row["country of use"]) == (name, fingerprint, country)
        }
        for row in estimates.rows():
            got = mine.pop(row["candidate"])
            for column in ("count", "std_error", "p_value"):
                assert got[column] == pytest.approx(row[column], rel=1e-6, abs=1e-9)
            assert (got.reports, got.detected, got.error) == (
                segment_counts.n_reports,
                row["detected"],
                None,
            )
        assert mine == {}
    none = spark.decode(sums, {}, METRICS, by=by).where("metric = 'page'").collect()
    assert [row.candidate for row in none] == [None] * 5
    assert all("candidates must number at least 1" in row.error for row in none)


def test_the_statement_for_spark_counts_what_the_kernel_counts(
    session: SparkSession, lake: Path, tmp_path: Path
) -> None:
    """Spark runs the SQL of a warehouse on all but the large files, with equal counts."""
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
        assert Counts.from_csv(path, counts.params, name) == bare({("x",): counts})[("x",)]


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
    """Return the sums of the large lake, and the seconds of a job after compilation."""
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
    """Sums of many files and a large file are equal to those of one machine."""
    expected = aggregate_files([large_lake], METRICS)
    assert expected.n_reports == 10_000_000 + 39 * 256_411
    assert undisturbed[0] == expected.counts


@pytest.mark.acceptance
def test_an_executor_that_is_killed_changes_nothing(
    session: SparkSession, undisturbed: tuple[dict[Any, Counts], float], large_lake: Path
) -> None:
    """An executor is killed in the middle of a job, and Spark repeats its tasks."""
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
    """Return the processes of this session's executors."""
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
    answer = subprocess.run(
        [*command, "--out", str(out), "--engine", "spark", "--remote", KIND],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    expected = aggregate_files([lake], METRICS).counts
    assert Counts.load(out) == expected["page", METRICS["page"].params.fingerprint]
    assert "refused 3: cohort must be in [0, m - 1] (of page" in answer.stderr
    assert answer.stdout.endswith(f"9 files: {BY_PATH}\n")
