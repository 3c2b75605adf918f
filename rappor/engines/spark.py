"""Reports and counts on Apache Spark, in classic sessions and over Spark Connect.

Theory of operation: each worker turns its part of the reports into sums by the kernel of `sums`.
These, a row for each key and cohort, are shuffled by key and added up by the same kernel. Spark
does the retries and the shuffle; only sums leave the workers. The reports of a data frame come
from Spark, by `mapInArrow`; those of files are read by the workers themselves (`spark_files`),
without Java in between, which takes three quarters of the time of a data frame. Nothing here asks
for a SparkContext or an RDD, which Spark Connect and shared clusters do not have.
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
"""What Spark raises: errors of its own, and in classic sessions those of Java."""

_SHARES: Final = 8
"""Workers that add up one key, each some of its cohorts: each holds a table of all of them."""

_CAUSE: Final = re.compile(r"Caused by:|[\w.]+Error: ")
_LONGEST: Final = 1000
"""Characters of what is told of a failure."""

_ROWS: Final = 1 << 18
"""Rows that Spark hands to the kernel at a time; its own 10,000 cost more than the kernel does."""


def aggregate(reports: DataFrame, registry: Registry, *, by: Sequence[str] = ()) -> DataFrame:
    """Add up a data frame of reports, in one pass.

    Nothing runs before the result is asked for. A row that is no report, or not of the
    registry's metrics and parameters, is counted by its reason in the same pass. The columns are
    format, metric, params, cohort, bits (binary, or text in base64url) and perhaps day, those of
    `by`, texts that keep sums apart, such as a country, and others, which are ignored.

    Returns a data frame with a row for each metric, params, day, value of `by`, and cohort:
    `reports`, and `ones`, an array of k integers. Where `refused` is not null, the row says how
    many `reports` were refused for that reason. Raises ReportError where a column is missing or
    doubled.
    """
    check_columns(reports.columns, by)
    optional = [DAY] if DAY in reports.columns else []
    columns = [*COLUMNS, *optional, *by]
    rows = reports.select(_columns(columns))
    given: dict[str, Any] = {"shapes": shapes_of(registry), "by": tuple(by)}
    ship(reports.sparkSession)
    return _together(map_batches(rows, sum_reports, sum_schema(by), **given), by, given)


def _together(partial: DataFrame, by: Sequence[str], given: Mapping[str, Any]) -> DataFrame:
    """Bring the sums of all partitions together by their keys, and add them up."""
    keys = [*_columns(["metric", "params", DAY, *by]), F.col("cohort") % _SHARES]
    return map_batches(partial.repartition(*keys), add_sums, sum_schema(by), **given)


def collect_sums(sums: DataFrame, registry: Registry, *, by: Sequence[str] = ()) -> Sums:
    """Run what `aggregate` describes, and return the sums and the refusals."""
    collected = Sums(shapes_of(registry), by)
    for batch in _whole(sums, by).toArrow().to_batches():
        collected.add_sums(batch)
    return collected


def _whole(sums: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return the columns of sums; what a collector exports has no days and no refusals."""
    for name, kind in ((DAY, "date"), ("refused", "string")):
        if name not in sums.columns:
            sums = sums.withColumn(name, F.lit(None).cast(kind))
    return sums.select(_columns(sum_schema(by).names))


def to_counts(
    sums: DataFrame, registry: Registry, *, by: Sequence[str] = ()
) -> dict[Collection, Counts]:
    """Run what `aggregate` describes; return Counts by metric, fingerprint and values of `by`."""
    return counts_of(collect_sums(sums, registry, by=by), registry)


def decode(
    sums: DataFrame,
    candidates: Iterable[str] | Mapping[str, Iterable[str]],
    registry: Registry,
    *,
    by: Sequence[str] = (),
    **options: Any,
) -> DataFrame:
    """Decode many metrics and segments at once, each collection on one worker.

    The workers need the extra `analysis`. `sums` and `by` are those of `aggregate`, perhaps stored
    and read again; `candidates` are strings for all metrics, or for each its own; `options` are
    those of `rappor.decode`, such as `error_control`.

    Returns a data frame with the columns metric, params, those of `by`, reports, and of each
    estimate candidate, count, std_error, share, ci_low, ci_high, p_value and detected. A
    collection without an answer has one row, with the sentence in `error`.
    """
    ship(sums.sparkSession)
    given: dict[str, Any] = {
        "registry": registry,
        "candidates": _by_metric(candidates, registry),
        "by": tuple(by),
        "options": options,
    }

    def decoded(key: tuple[Any, ...], table: Any) -> Any:
        return decode_group(key, table, **given)

    accepted = _whole(sums, by).where(F.col("refused").isNull())
    grouped = accepted.groupBy(*_columns(["metric", "params", *by]))
    schema: Any = from_arrow_schema(estimates_schema(by))
    return grouped.applyInArrow(decoded, schema)


@contextlib.contextmanager
def open_session(remote: str | None = None) -> Iterator[SparkSession]:
    """Open a session for aggregation, and stop it at the end.

    Without `remote`, the address of a Spark Connect server, Spark's own settings decide. What
    Spark refuses becomes a RapporError of one line.
    """
    builder = SparkSession.builder
    if remote is not None:
        builder = builder.remote(remote)
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")  # none is used
    try:
        session = builder.getOrCreate()
    except PySparkException as error:
        if error.getCondition() == "CONNECT_URL_NOT_SET":  # a client of Spark Connect alone
            raise RapporError(
                "--remote must name a Spark Connect server, got none; a session on this machine "
                "needs the extra rappor[spark-classic]"
            ) from None
        raise RapporError(f"Spark: {message_of(error)}") from None
    try:
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(_ROWS))
        # A fingerprint of digits only, as the name of a folder, would be taken for a number.
        session.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
        yield session
    except FAILURES as error:
        raise RapporError(f"Spark: {message_of(error)}") from None
    finally:
        session.stop()


def message_of(error: Exception) -> str:
    """Return in one line what Spark says of a failure, and its causes.

    One of them names a broken file, or is what the kernel said.
    """
    lines = [line.strip() for line in str(error).splitlines()]
    causes = [line for line in lines if _CAUSE.match(line)]
    first = next((line for line in lines if line), type(error).__name__)
    return " ".join(dict.fromkeys([first, *causes]))[:_LONGEST]


def sum_files(
    session: SparkSession, paths: Sequence[str], registry: Registry, *, by: Sequence[str] = ()
) -> DataFrame:
    """Add up files and folders of reports; returns what `aggregate` does.

    They are read as on one machine: Parquet, CSV with a header and JSON lines, in all folders
    below; a file counts once, however often it is named. Tasks open the files themselves where the
    workers see them by their paths, and get them from Spark as bytes where not. Paths are as Spark
    spells them, such as s3://lake/reports.

    Raises FileError, with the name, where a folder is a table, whose files are not its rows, and
    where a file is of no known kind, or too large to be handed over.
    """
    return _sum_files(session, paths, registry, by)[0]


def aggregate_paths(
    session: SparkSession, paths: Sequence[str], registry: Registry
) -> FileAggregation:
    """Add up files and folders of reports in one job; see `sum_files`."""
    sums, listing = _sum_files(session, paths, registry, ())
    collected = collect_sums(sums, registry)
    return FileAggregation(
        counts=counts_of(collected, registry),
        refused=collected.refused,
        first_refused={},
        n_files=len(listing.files),
        n_resumed=0,
        road=listing.road,
    )


def _sum_files(
    session: SparkSession, paths: Sequence[str], registry: Registry, by: Sequence[str]
) -> tuple[DataFrame, Listing]:
    ship(session)
    listing = list_files(session, paths)
    given: dict[str, Any] = {"shapes": shapes_of(registry), "by": tuple(by)}
    frame, read = listing.tasks(session)
    partial = map_batches(frame, read, sum_schema(by), **given)
    return _together(partial, by, given), listing


def _by_metric(
    candidates: Iterable[str] | Mapping[str, Iterable[str]], registry: Registry
) -> dict[str, list[str]]:
    """Return the candidates of each metric; those that are no strings will take none."""
    if isinstance(candidates, Mapping):
        return {name: list(strings) for name, strings in candidates.items()}
    strings = list(candidates)
    return {metric.name: strings for metric in registry.values()}


def _columns(names: Iterable[str]) -> list[Column]:
    """Return columns by names that may hold spaces."""
    return [F.col("`" + name.replace("`", "``") + "`") for name in names]
