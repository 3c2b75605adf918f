"""`rappor aggregate`: from uploads or stored reports to counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rappor.cli.console import Slow, json_option, print_json, registry_option
from rappor.errors import DecodeError, FileError, MetricError
from rappor.registry.registry import Registry

if TYPE_CHECKING:
    from rappor.counts.counts import Counts
    from rappor.engines.json_lines import Aggregation

_TOLD = 1000
"""Lines between two looks at the progress display."""


@click.command()
@click.argument("inputs", nargs=-1, required=True, type=click.Path(allow_dash=True))
@registry_option
@click.option("--metric", "name", help="Metric to sum; may be left out where there is one.")
@click.option("--out", required=True, type=click.Path(), help="Counts file to write.")
@json_option
def aggregate(
    inputs: tuple[str, ...], registry_path: str, name: str | None, out: str, as_json: bool
) -> None:
    """Sum reports into counts.

    INPUTS are files of uploads, one JSON document a line (- is standard input), or .parquet
    files of reports. What is not a report is refused, counted by reason, and told.
    """
    registry = Registry.load(registry_path)
    if name is not None:
        registry.metric(name)
    tables = [path for path in inputs if Path(path).suffix == ".parquet"]
    streams = [path for path in inputs if path not in tables]
    summary = _read_uploads(streams, registry)
    counts = _one_metric(summary, name or _only(registry, tables), needed=not tables)
    for path in tables:
        counts = _add_table(counts, path, registry, name or _only(registry, tables))
    if counts is None or counts.n_reports == 0:
        _tell_refusals(summary)
        raise DecodeError("inputs must hold at least 1 acceptable report, got 0")
    counts.save(out)
    if as_json:
        print_json(_document(summary, counts, out))
        return
    click.echo(f"{counts.n_reports:,} reports of {counts.metric} in {out}")
    if summary.n_repeated:
        click.echo(f"{summary.n_repeated:,} uploads had come before and were counted once")
    _tell_refusals(summary)


def _only(registry: Registry, tables: list[str]) -> str | None:
    """Return the metric's name where the registry leaves no choice."""
    if len(registry) == 1:
        return next(iter(registry))
    if tables:
        raise click.UsageError("say which metric the .parquet files hold, with --metric")
    return None


def _read_uploads(paths: list[str], registry: Registry) -> Aggregation:
    """Sum all streams as one, so that a retry in another file is known again."""
    from rappor.engines.json_lines import aggregate_jsonl

    with Slow() as slow:
        return aggregate_jsonl(_lines(paths, slow), registry.lookup)


def _lines(paths: list[str], slow: Slow) -> Iterator[bytes]:
    """Yield every line of every stream, telling how many bytes are read."""
    sizes = [Path(path).stat().st_size for path in paths if Path(path).is_file()]
    total = sum(sizes) if len(sizes) == len(paths) else None
    done = 0
    for path in paths:
        try:
            with click.open_file(path, "rb") as stream:
                for number, line in enumerate(stream):
                    yield line
                    done += len(line)
                    if number % _TOLD == 0:
                        slow("reading uploads", done, total)
        except OSError as error:
            raise FileError(path, error.strerror or "unreadable") from None


def _one_metric(summary: Aggregation, name: str | None, *, needed: bool) -> Counts | None:
    """Return the counts of the one metric that is asked for, None if there are none."""
    names = {metric for metric, _ in summary.counts}
    if name is None and len(names) > 1:
        raise MetricError(f"inputs hold {', '.join(sorted(names))}: say which with --metric")
    chosen = [c for (metric, _), c in summary.counts.items() if name in (None, metric)]
    if not chosen and needed and names:
        raise DecodeError(f"inputs must hold reports of {name}, got {', '.join(sorted(names))}")
    return chosen[0] if chosen else None


def _add_table(counts: Counts | None, path: str, registry: Registry, name: str | None) -> Counts:
    from rappor.engines.parquet import aggregate_parquet

    assert name is not None  # `_only` has seen to it
    found = aggregate_parquet(path, params=registry.metric(name).params, metric=name)
    return found if counts is None else counts + found


def _document(summary: Aggregation, counts: Counts, out: str) -> dict[str, object]:
    return {
        "metric": counts.metric,
        "params": counts.params.fingerprint,
        "reports": counts.n_reports,
        "uploads": summary.n_uploads,
        "repeated": summary.n_repeated,
        "refused": [
            {"reason": reason, "n": refusal.n, "first_line": refusal.first_line}
            for reason, refusal in summary.refused.items()
        ],
        "out": out,
    }


def _tell_refusals(summary: Aggregation) -> None:
    for reason, refusal in sorted(summary.refused.items(), key=lambda item: -item[1].n):
        click.echo(
            f"refused {refusal.n:,}, first on line {refusal.first_line:,}: {reason}", err=True
        )
