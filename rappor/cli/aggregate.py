"""`rappor aggregate`: from uploads or stored reports to counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rappor.cli.commands import Command
from rappor.cli.console import Slow, print_json
from rappor.cli.options import json_option, metric_option, registry_option
from rappor.errors import DecodeError, FileError, MetricError
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

if TYPE_CHECKING:
    from rappor.counts.counts import Counts
    from rappor.engines.json_lines import Aggregation

_COUNTS_FILE = b"RAPPOR COUNTS "
"""How every counts file begins, whatever its version."""

_LINES = 1000
"""Lines between two looks at the progress display."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedReports:
    """How often a reason occurred, and the line (from 1) where it did first."""

    reason: str
    n: int
    first_line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregated:
    """What was added up, refused and written; `params` is the fingerprint."""

    metric: str
    params: str
    reports: int
    uploads: int
    repeated: int
    refused: tuple[RefusedReports, ...]
    out: str


@click.command(
    cls=Command,
    examples=(
        "rappor aggregate uploads.jsonl --registry metrics.toml --out week.counts",
        "rappor aggregate reports.parquet --registry metrics.toml \\\n"
        "  --metric search_engine --out week.counts --json",
    ),
)
@click.argument(
    "inputs", nargs=-1, required=True, type=click.Path(allow_dash=True), metavar="INPUTS"
)
@registry_option()
@metric_option()
@click.option(
    "--out", required=True, type=click.Path(), metavar="FILE", help="Counts file to write."
)
@json_option
def aggregate(
    *,
    inputs: tuple[str, ...],
    registry_path: str,
    metric_name: str | None,
    out: str,
    as_json: bool,
) -> None:
    """Add up uploads or stored reports into counts.

    INPUTS are one or more files of uploads, one JSON document a line (- is standard input), or
    .parquet files of reports. What is not a report is refused, and the refusals are counted by
    reason. --metric may be left out where only one metric is there.
    """
    registry = Registry.load(registry_path)
    if metric_name is not None:
        registry.metric(metric_name)
    tables = [path for path in inputs if Path(path).suffix == ".parquet"]
    streams = [path for path in inputs if path not in tables]
    name = metric_name or _only(registry, tables)
    summary = _read_uploads(streams, registry)
    counts = _one_metric(summary, name, needed=not tables)
    if tables:
        assert name is not None  # `_only` has seen to it
        stored = _add_tables(tables, registry.metric(name))
        counts = stored if counts is None else counts + stored
    refused = _refused(summary)
    if counts is None or counts.n_reports == 0:
        _warn(refused)
        raise DecodeError("inputs must hold at least 1 acceptable report, got 0")
    counts.save(out)
    found = Aggregated(
        metric=counts.metric,
        params=counts.params.fingerprint,
        reports=counts.n_reports,
        uploads=summary.n_uploads,
        repeated=summary.n_repeated,
        refused=refused,
        out=out,
    )
    if as_json:
        print_json(found)
    else:
        _print(found)


def _only(registry: Registry, tables: list[str]) -> str | None:
    """Return the metric's name where the registry leaves no choice."""
    if len(registry) == 1:
        return next(iter(registry))
    if tables:
        raise click.UsageError("give --metric: it must be known which one .parquet files hold")
    return None


def _read_uploads(paths: list[str], registry: Registry) -> Aggregation:
    """Sum all streams as one, so that a retry in another file is known again."""
    from rappor.engines.json_lines import aggregate_jsonl

    with Slow() as slow:
        return aggregate_jsonl(_lines(paths, slow), registry.lookup)


def _lines(paths: list[str], slow: Slow) -> Iterator[bytes]:
    """Yield every line of every stream, and show how many bytes are read."""
    sizes = [Path(path).stat().st_size for path in paths if Path(path).is_file()]
    total = sum(sizes) if len(sizes) == len(paths) else None
    done = 0
    for path in paths:
        try:
            with click.open_file(path, "rb") as stream:
                for number, line in enumerate(stream):
                    if number == 0 and line.startswith(_COUNTS_FILE):
                        raise FileError(path, "it holds counts already: rappor decode reads it")
                    yield line
                    done += len(line)
                    if number % _LINES == 0:
                        slow("reading uploads", done, total)
        except OSError as error:
            raise FileError(path, error.strerror or "unreadable") from None


def _one_metric(summary: Aggregation, name: str | None, *, needed: bool) -> Counts | None:
    """Return the counts of the one metric that is asked for, None if there are none."""
    names = {metric for metric, _ in summary.counts}
    if name is None and len(names) > 1:
        raise MetricError(
            f"give --metric: inputs hold reports of several metrics, {', '.join(sorted(names))}"
        )
    chosen = [c for (metric, _), c in summary.counts.items() if name in (None, metric)]
    if not chosen and needed and names:
        raise DecodeError(f"inputs must hold reports of {name}, got {', '.join(sorted(names))}")
    if len(chosen) > 1:
        parts = ", ".join(sorted(counts.params.part for counts in chosen))
        raise MetricError(f"inputs must hold one part of {chosen[0].metric}, got {parts}")
    return chosen[0] if chosen else None


def _add_tables(paths: list[str], metric: Metric) -> Counts:
    """Add up stored reports, and say what their days and the metric's interval tell of devices."""
    from rappor.counts.counts import Counts
    from rappor.counts.devices import squares_by_interval
    from rappor.engines.parquet import aggregate_parquet, count_days

    total = Counts.zero(metric.params, metric.name)
    for path in paths:
        total += aggregate_parquet(path, params=metric.params, metric=metric.name)
    days = [count_days(path) for path in paths]
    if None in days:
        return total
    periods = ((day, day, n) for each in days for day, n in (each or {}).items())
    squares = squares_by_interval(metric.interval, periods)
    return Counts(total.params, total.ones, total.reports, total.metric, squares)


def _refused(summary: Aggregation) -> tuple[RefusedReports, ...]:
    """Return the refusals, the most frequent first."""
    refused = (
        RefusedReports(reason=reason, n=each.n, first_line=each.first_line)
        for reason, each in summary.refused.items()
    )
    return tuple(sorted(refused, key=lambda each: -each.n))


def _print(found: Aggregated) -> None:
    click.echo(f"{found.reports:,} reports of {found.metric} in {found.out}")
    if found.repeated:
        click.echo(f"{found.repeated:,} uploads came again and were counted once")
    _warn(found.refused)


def _warn(refused: tuple[RefusedReports, ...]) -> None:
    for each in refused:
        click.echo(
            f"refused {each.n:,}, first on line {each.first_line:,}: {each.reason}", err=True
        )
