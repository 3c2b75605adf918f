"""Reports and counts as data frames of Apache Spark, in classic sessions and over Spark Connect.

Theory of operation: `mapInArrow` hands each worker its rows as Arrow batches, and the kernel of
`sums` turns them into sums of its partition. These, a row for each key and cohort, are shuffled
by key and added up by the same kernel. Spark does the reading, the retries and the shuffle; only
sums leave the workers. Nothing here asks for a SparkContext or an RDD, which Spark Connect and
shared clusters do not have.

The kernel reaches the workers as a .zip of this package, once a session.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import io
import re
import shutil
import tempfile
import warnings
import weakref
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from rappor.counts.counts import Counts
from rappor.engines.layout import COLUMNS, DAY, MALFORMED, check_columns
from rappor.engines.machine import FileAggregation
from rappor.engines.sums import Sums, sum_schema
from rappor.engines.totals import Collection, counts_of, shapes_of
from rappor.engines.workers import (
    LINES,
    add_sums,
    decode_group,
    estimates_schema,
    read_lines,
    sum_reports,
)
from rappor.ground.errors import FileError, MissingExtraError, RapporError
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

FAILURES: Final = (PySparkException, Py4JError)
"""What Spark raises: errors of its own, and in classic sessions those of Java."""

_SHIPPED: Final = weakref.WeakSet[SparkSession]()
"""Sessions whose workers have this package."""

_SHARES: Final = 8
"""Workers that add up one key, each some of its cohorts: each holds a table of all of them."""

_CORRUPT: Final = "_corrupt"
"""The column of a row of CSV that has too few fields, or too many."""

_CAUSE: Final = re.compile(r"Caused by:|[\w.]+Error: ")
_LONGEST: Final = 1000
"""Characters of what is told of a failure."""

_ROWS: Final = 1 << 18
"""Rows that Spark hands to the kernel at a time; its own 10,000 cost more than the kernel does."""


def aggregate(reports: DataFrame, registry: Registry, *, by: Sequence[str] = ()) -> DataFrame:
    """Add up a data frame of reports, in one pass.

    Nothing runs before the result is asked for. A row that is no report, or not of the
    registry's metrics and parameters, is counted by its reason in the same pass.

    Parameters
    ----------
    reports : with the columns format, metric, params, cohort, bits and perhaps day; bits are
        binary, or text in base64url. Other columns are ignored.
    by : further columns of text that keep sums apart, such as a country; no dots in their names.

    Returns
    -------
    A data frame with a row for each metric, params, day, value of `by`, and cohort: `reports`,
    and `ones`, an array of k integers. Where `refused` is not null, the row says how many
    `reports` were refused for that reason.

    Raises
    ------
    ReportError
        A column is missing or doubled.
    """
    check_columns(reports.columns, by)
    optional = [name for name in (DAY, MALFORMED) if name in reports.columns]
    columns = [*COLUMNS, *optional, *by]
    rows = reports.select(_columns(columns))
    given: dict[str, Any] = {"shapes": shapes_of(registry), "by": tuple(by)}
    schema: Any = from_arrow_schema(sum_schema(by))
    ship(reports.sparkSession)
    partial = rows.mapInArrow(functools.partial(sum_reports, **given), schema)
    keys = [*_columns(["metric", "params", DAY, *by]), F.col("cohort") % _SHARES]
    together = partial.repartition(*keys)
    return together.mapInArrow(functools.partial(add_sums, **given), schema)


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

    The workers need the extra `analysis`.

    Parameters
    ----------
    sums : as `aggregate` returns them, or stored and read again.
    candidates : strings for all metrics, or for each metric its own.
    by : the columns that keep collections apart, as `aggregate` was given them.
    options : those of `rappor.decode`, such as `detection`.

    Returns
    -------
    A data frame with the columns metric, params, those of `by`, reports, and of each estimate
    candidate, count, std_error, proportion, ci_low, ci_high, p_value and detected. A collection
    without an answer has one row, with the sentence in `error`.
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


def read_reports(session: SparkSession, path: str) -> DataFrame:
    """Read stored reports from a path as Spark spells it; it tells the kind by the path's end.

    It reads CSV with a header, JSON lines, and Parquet where the path says neither. Texts are read
    as on one machine; a line that is no row is marked, and `aggregate` counts it.

    Raises
    ------
    FileError
        Spark would leave files out: beside files, it reads only folders named column=value.
    """
    name = path.lower().removesuffix(".gz")
    if name.endswith(".csv"):
        rows = _read_csv(session, path)
    elif name.endswith((".json", ".jsonl", ".ndjson")):
        ship(session)
        lines = session.read.text(path, lineSep="\n")
        schema: Any = from_arrow_schema(LINES)
        rows = lines.mapInArrow(read_lines, schema)
    else:
        rows = session.read.parquet(path)
    everything = session.read.format("binaryFile").option("recursiveFileLookup", "true").load(path)
    n_left_out = everything.select("path").count() - len(rows.inputFiles())
    if n_left_out > 0:
        raise FileError(path, f"Spark leaves out {n_left_out:,} files in folders: name these too")
    texts = [
        name for name, kind in rows.dtypes if name in ("format", "cohort") and kind == "string"
    ]
    for name in texts:  # as strictly as on one machine
        number = f"CASE WHEN {name} RLIKE '^[0-9]{{1,9}}$' THEN CAST({name} AS INT) END"
        rows = rows.withColumn(name, F.expr(number))
    return rows


def _read_csv(session: SparkSession, path: str) -> DataFrame:
    options: dict[str, Any] = {
        "header": True,
        "enforceSchema": False,
        "escape": '"',
        "lineSep": "\n",
    }
    columns = session.read.csv(path, **options).schema
    rows = session.read.schema(columns.add(_CORRUPT, "string")).csv(
        path, columnNameOfCorruptRecord=_CORRUPT, **options
    )
    return rows.withColumn(MALFORMED, F.col(_CORRUPT).isNotNull())


def aggregate_paths(
    session: SparkSession, paths: Sequence[str], registry: Registry
) -> FileAggregation:
    """Add up all reports that some paths hold, in one job."""
    frames = [aggregate(read_reports(session, path), registry) for path in paths]
    sums = collect_sums(
        functools.reduce(lambda first, second: first.union(second), frames), registry
    )
    return FileAggregation(
        counts=counts_of(sums, registry),
        refused=sums.refused,
        first_refused={},
        n_files=len(paths),
        n_resumed=0,
    )


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


def ship(session: SparkSession) -> None:
    """Send this package to the session's workers, once however often it is called."""
    if session not in _SHIPPED:
        session.addArtifacts(str(kernel_zip()), pyfile=True)
        _SHIPPED.add(session)


@functools.cache
def kernel_zip() -> Path:
    """Write this package into a .zip that workers can import, and return its path.

    Its name tells its contents, so that a session never holds two of one name that differ. It is
    removed when the process ends.
    """
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, files("rappor"), "rappor")
    digest = hashlib.sha256(data.getvalue()).hexdigest()[:12]
    folder = Path(tempfile.mkdtemp(prefix="rappor-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / f"rappor-{digest}.zip"
    path.write_bytes(data.getvalue())
    return path


def _add(archive: zipfile.ZipFile, folder: Any, name: str) -> None:
    """Add the sources of a package; the time of each is the same, so that equal ones are."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        inner = f"{name}/{entry.name}"
        if entry.is_dir():
            _add(archive, entry, inner)
        elif entry.name.endswith((".py", ".pyi")):
            archive.writestr(zipfile.ZipInfo(inner), entry.read_bytes())
