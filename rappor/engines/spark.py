"""Reports and counts on Apache Spark, in classic sessions and over Spark Connect.

How to think about it. Each worker converts its part of the reports to sums with the kernel of
`rappor.engines.sums`. The sums, a row for each key and cohort, are shuffled by key and added by the
same kernel. Spark does the shuffle and the retries. Only sums leave the workers:

    reports -> sum_reports (each partition) -> shuffle by key -> add_sums -> Counts

Spark passes the reports of a data frame to the kernel with `mapInArrow`. The workers open files
themselves (`rappor.engines.spark_files`). If Spark read the files, its Java code would take three
quarters of the time of a job. No function needs a SparkContext or an RDD, because sessions of Spark
Connect and of shared clusters have none.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rappor.base.errors import MissingExtraError, RapporError
from rappor.counts.counts import Counts
from rappor.engines.layout import COLUMNS, DAY, check_columns
from rappor.engines.machine import FileAggregation
from rappor.engines.sums import Sums, sum_schema
from rappor.engines.totals import Collection, counts_of, shapes_of
from rappor.engines.workers import add_sums, decode_group, estimates_schema, sum_reports
from rappor.registry.registry import Registry

try:
    import pyspark.sql.functions as F  # noqa: N812  # as everybody imports it
    from pyspark.errors import PySparkException
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.pandas.types import from_arrow_schema
except ImportError:
    raise MissingExtraError("spark") from None

try:
    from py4j.protocol import Py4JError
except ImportError:  # a client of Spark Connect has no Java at all
    Py4JError = PySparkException

from rappor.engines.shipping import ship
from rappor.engines.spark_files import Listing, list_files, map_batches

FAILURES: Final = (PySparkException, Py4JError)
"""Exceptions that Spark raises: PySpark's, and in classic sessions Java's."""

_PARTITIONS_OF_KEY: Final = 8
"""Number of partitions among which the cohorts of one key are divided: cohort j goes to the
partition number j modulo 8.

More partitions add the sums of a large key faster. But each partition has a table of all cohorts of
the key in memory.
"""

_CAUSE: Final = re.compile(r"Caused by:|[\w.]+Error: ")
"""Matches the beginning of a line that names a cause in the message of a failure."""

_MAX_MESSAGE: Final = 1000
"""Largest number of characters of a failure's message. Java's message contains a stack trace of
thousands of characters."""

_BATCH_ROWS: Final = 1 << 18
"""Number of rows that Spark passes to the kernel at a time.

With Spark's default of 10,000, the calls take longer than the kernel. More rows take more memory.
"""


def aggregate(reports: DataFrame, registry: Registry, *, by: Sequence[str] = ()) -> DataFrame:
    """Add the reports of a data frame in one pass.

    A row is refused if it is not a report, or its metric or parameters are not in the registry.
    Refused rows are counted by their reason in the same pass. The result is lazy, as all data
    frames of Spark: the job runs when the result is read.

    Parameters
    ----------
    reports : DataFrame
        Rows with the columns of `rappor.engines.layout` and of `by`. Bits are binary or text in
        base64url. Other columns are ignored.
    registry : Registry
        The registry, whose metrics and parameters are accepted.
    by : sequence of str
        Names of further columns of text, such as a country. Rows with different values are added
        separately.

    Returns
    -------
    DataFrame
        A row for each metric, params, day, value of `by` and cohort, with `reports`, and `ones`, an
        array of k integers. If `refused` is not null, the row counts `reports` rows that were
        refused for this reason.

    Raises
    ------
    ReportError
        If a column is missing or repeated.
    """
    check_columns(reports.columns, by)
    optional = [DAY] if DAY in reports.columns else []
    columns = [*COLUMNS, *optional, *by]
    rows = reports.select(_select_columns(columns))
    arguments: dict[str, Any] = {"shapes": shapes_of(registry), "by": tuple(by)}
    ship(reports.sparkSession)
    partition_sums = map_batches(rows, sum_reports, sum_schema(by), **arguments)
    return _add_partitions(partition_sums, by, arguments)


def _add_partitions(
    partition_sums: DataFrame, by: Sequence[str], arguments: Mapping[str, Any]
) -> DataFrame:
    """Shuffle the sums of all partitions by their keys, and add them.

    `arguments` are the keyword arguments of `rappor.engines.workers.add_sums`.
    """
    keys = [*_select_columns(["metric", "params", DAY, *by]), F.col("cohort") % _PARTITIONS_OF_KEY]
    return map_batches(partition_sums.repartition(*keys), add_sums, sum_schema(by), **arguments)


def collect_sums(sums: DataFrame, registry: Registry, *, by: Sequence[str] = ()) -> Sums:
    """Run the job of `aggregate`, and return the sums and the refusals."""
    combined = Sums(shapes_of(registry), by)
    for batch in _select_columns_of_sums(sums, by).toArrow().to_batches():
        combined.add_sums(batch)
    return combined


def _select_columns_of_sums(sums: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return the columns of sums. Sums that a collector exports have no day and no refusals."""
    for name, kind in ((DAY, "date"), ("refused", "string")):
        if name not in sums.columns:
            sums = sums.withColumn(name, F.lit(None).cast(kind))
    return sums.select(_select_columns(sum_schema(by).names))


def to_counts(
    sums: DataFrame, registry: Registry, *, by: Sequence[str] = ()
) -> dict[Collection, Counts]:
    """Run the job of `aggregate`, and return Counts.

    Parameters
    ----------
    sums : DataFrame
        Result of `aggregate`, possibly stored and read again.
    registry, by
        As in `aggregate`.

    Returns
    -------
    dict
        Counts by metric, fingerprint and values of `by`.
    """
    return counts_of(collect_sums(sums, registry, by=by), registry)


def decode(
    sums: DataFrame,
    candidates: Iterable[str] | Mapping[str, Iterable[str]],
    registry: Registry,
    *,
    by: Sequence[str] = (),
    **options: Any,
) -> DataFrame:
    """Decode many metrics and segments, each collection on one worker.

    The workers need the extra `analysis`.

    Parameters
    ----------
    sums : DataFrame
        Result of `aggregate`, possibly stored and read again.
    candidates : iterable of str, or mapping
        Candidates of all metrics, or candidates by the name of the metric.
    registry, by
        As in `aggregate`.
    **options
        Options of `rappor.decode`, such as `error_control`.

    Returns
    -------
    DataFrame
        A row for each estimate, with the columns metric, params, the columns of `by`, reports,
        candidate, count, std_error, share, ci_low, ci_high, p_value and detected. A collection that
        cannot be decoded has one row, with the reason in `error`.
    """
    ship(sums.sparkSession)
    arguments: dict[str, Any] = {
        "registry": registry,
        "candidates": _group_by_metric(candidates, registry),
        "by": tuple(by),
        "options": options,
    }

    def decode_collection(key: tuple[Any, ...], table: Any) -> Any:
        return decode_group(key, table, **arguments)

    accepted = _select_columns_of_sums(sums, by).where(F.col("refused").isNull())
    grouped = accepted.groupBy(*_select_columns(["metric", "params", *by]))
    schema: Any = from_arrow_schema(estimates_schema(by))
    return grouped.applyInArrow(decode_collection, schema)


@contextlib.contextmanager
def open_session(remote: str | None = None) -> Iterator[SparkSession]:
    """Open a session for aggregation, and stop it at the end.

    Parameters
    ----------
    remote : str, optional
        Address of a Spark Connect server. Without an address, the settings of Spark decide.

    Raises
    ------
    RapporError
        If Spark fails. The message has one line.
    """
    builder = SparkSession.builder
    if remote is not None:
        builder = builder.remote(remote)
    # This package passes Arrow batches and no pandas data to Spark.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
    try:
        session = builder.getOrCreate()
    except PySparkException as error:
        if error.getCondition() == "CONNECT_URL_NOT_SET":
            # Only the client of Spark Connect is installed, which cannot run Spark on this machine.
            raise RapporError(
                "--remote must name a Spark Connect server, got none; a session on this machine "
                "needs the extra rappor[spark-classic]"
            ) from None
        raise RapporError(f"Spark: {message_of(error)}") from None
    try:
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(_BATCH_ROWS))
        # Spark would read a fingerprint of digits only, in the name of a folder, as a number.
        session.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
        yield session
    except FAILURES as error:
        raise RapporError(f"Spark: {message_of(error)}") from None
    finally:
        session.stop()


def message_of(error: Exception) -> str:
    """Return the message of a failure and of its causes, in one line.

    The first line is general. Only the lines of the causes name a broken file, or contain the
    message of the kernel.
    """
    lines = [line.strip() for line in str(error).splitlines()]
    causes = [line for line in lines if _CAUSE.match(line)]
    first = next((line for line in lines if line), type(error).__name__)
    return " ".join(dict.fromkeys([first, *causes]))[:_MAX_MESSAGE]


def sum_files(
    session: SparkSession, paths: Sequence[str], registry: Registry, *, by: Sequence[str] = ()
) -> DataFrame:
    """Add the reports of files and folders.

    Files are read as on one machine: Parquet, CSV with a header and JSON lines, in all folders
    below the paths. A file counts once, even if several paths name it. If all workers see the files
    by their paths, tasks open the files. Otherwise Spark passes whole files as bytes.

    Parameters
    ----------
    session : SparkSession
        The session.
    paths : sequence of str
        Paths in the syntax of Spark, such as s3://lake/reports.
    registry, by
        As in `aggregate`.

    Returns
    -------
    DataFrame
        As `aggregate` returns it.

    Raises
    ------
    FileError
        If a folder is a table of Delta Lake, Hudi or Iceberg, or a file has an unknown suffix, or
        is too large to be passed as bytes.
    """
    return _sum_files(session, paths, registry, by)[0]


def aggregate_paths(
    session: SparkSession, paths: Sequence[str], registry: Registry
) -> FileAggregation:
    """Add the reports of files and folders in one job, as `sum_files`.

    Parameters
    ----------
    session, paths, registry
        As in `sum_files`.

    Returns
    -------
    FileAggregation

    Raises
    ------
    FileError
        As `sum_files`.
    """
    sums, listing = _sum_files(session, paths, registry, ())
    combined = collect_sums(sums, registry)
    return FileAggregation(
        counts=counts_of(combined, registry),
        refused=combined.refused,
        first_refused={},
        n_files=len(listing.files),
        n_resumed=0,
        file_access=listing.access,
    )


def _sum_files(
    session: SparkSession, paths: Sequence[str], registry: Registry, by: Sequence[str]
) -> tuple[DataFrame, Listing]:
    """Return the sums of files and folders, and the list of the files."""
    ship(session)
    listing = list_files(session, paths)
    arguments: dict[str, Any] = {"shapes": shapes_of(registry), "by": tuple(by)}
    frame, sum_tasks = listing.tasks(session)
    partition_sums = map_batches(frame, sum_tasks, sum_schema(by), **arguments)
    return _add_partitions(partition_sums, by, arguments), listing


def _group_by_metric(
    candidates: Iterable[str] | Mapping[str, Iterable[str]], registry: Registry
) -> dict[str, list[str]]:
    """Return the candidates of each metric. Metrics of categories ignore their candidates."""
    if isinstance(candidates, Mapping):
        return {name: list(strings) for name, strings in candidates.items()}
    strings = list(candidates)
    return {metric.name: strings for metric in registry.values()}


def _select_columns(names: Iterable[str]) -> list[Column]:
    """Return columns by their names, which may contain spaces."""
    return [F.col("`" + name.replace("`", "``") + "`") for name in names]
