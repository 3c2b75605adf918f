"""`rappor sql`: the SQL statement that counts stored reports inside a data warehouse."""

from __future__ import annotations

import click

from rappor.base.errors import MetricError
from rappor.cli.commands import command
from rappor.cli.console import print_json
from rappor.cli.options import (
    flag_field,
    json_option,
    metric_argument,
    option_field,
    registry_option,
)
from rappor.engines.sql import DIALECTS, count_sql, refused_sql
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry


@command(
    "rappor sql search_engine --registry metrics.toml --dialect duckdb \\\n"
    "  --source \"'lake/**/*.parquet'\"",
    "rappor sql search_engine --registry metrics.toml --dialect bigquery --refused",
)
def sql(
    *,
    metric_name: str = metric_argument(),
    registry_path: str = registry_option(),
    dialect: str = option_field(
        list(DIALECTS), "The database that the statement is written for.", required=True
    ),
    table: str = option_field(
        "TABLE",
        "Table of reports. The statement contains this text after FROM.",
        default="reports",
        flags="--source",
    ),
    part: str | None = option_field(
        "PART", "Part of the string, such as prefix:3, for a metric with parts."
    ),
    refused: bool = flag_field("Count refused reports by reason, instead of accepted reports."),
    as_json: bool = json_option(),
) -> None:
    """Print the statement that counts reports in a warehouse.

    The table needs the columns format, metric, params, cohort and bits (bytes). The result has the
    columns cohort, reports, bit_0, bit_1 and so on. Save the result as CSV with a header: `rappor
    decode` and Counts.from_csv read it. The command sends nothing anywhere.
    """
    metric = Registry.load(registry_path).metric(metric_name)
    if metric.segments:
        # The statement selects the fingerprint of one parameter set. Each segment has a parameter
        # set and a fingerprint of its own.
        raise MetricError(f"metric {metric.name!r} has segments: rappor aggregate adds them up")
    params = metric.part_params(_check_part(metric, part))
    write = refused_sql if refused else count_sql
    statement = write(params, metric.name, dialect=dialect, table=table)
    if as_json:
        head = {"metric": metric.name, "params": params.fingerprint, "dialect": dialect}
        print_json(head | {"statement": statement})
    else:
        click.echo(statement, nl=False)


def _check_part(metric: Metric, part: str | None) -> str:
    """Return the name of the part to count; an empty text for a metric without parts.

    Parts have different devices and different bits, so each part has counts of its own.
    """
    # The name of the only part of a metric without parts is an empty text.
    allowed = [item.name for item in metric.parts] or [""]
    name = part or ""
    if name not in allowed:
        expected = f"one of {', '.join(allowed)}"
        if not metric.parts:
            expected = "omitted: the metric has no parts"
        got = "none" if part is None else repr(part)
        raise MetricError(f"--part must be {expected}, got {got}")
    return name
