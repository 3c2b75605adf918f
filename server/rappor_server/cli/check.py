"""`rappor-server check`: check a registry before it is served.

The command needs no database, so a developer can run it before a change of the registry is merged.
On the machine of a collector it reads the names of the metrics whose sums are stored. It prints
one finding a line, `LEVEL: SENTENCE` (`ingest/registry_check.py`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rappor.base.sentence_numbers import format_count
from rappor.cli.commands import Command
from rappor.cli.options import option
from rappor.registry.registry import Registry
from rappor_server.storage.database import utc_today

if TYPE_CHECKING:
    from rappor_server.ingest.registry_changes import Finding


@click.command(
    cls=Command,
    examples=(
        "rappor-server check metrics.toml",
        "rappor-server check new.toml --against metrics.toml",
    ),
)
@click.argument("registry", type=click.Path())
@option("--against", "TOML", "The previous registry.")
@option(
    "--devices",
    click.IntRange(min=1),
    "Number of devices that report in an interval, such as a day. The command warns if they are "
    "too few for the cohorts.",
    metavar="N",
)
def check(registry: str, against: str | None, devices: int | None) -> int:
    """Check a REGISTRY, the files that it names, and a change of it.

    The command warns of weak parameters, of metrics that expire within 30 days, and of unusable
    files of candidates. It shows how much of a device's budget each metric reserves, what a change
    costs a device, and which metrics have too many cohorts for their devices.

    Reports wait until they can be released together with others. With --against, the command warns
    if a change weakens this protection of reports that wait. A smaller min_cohort or min_reports
    releases them with fewer others than the old registry promised. If min_reports rises from 0, an
    analyst has seen the waiting reports one by one and can subtract them from a later sum.

    The command also names the metrics that left the registry and whose sums are still stored: in
    the SQLite file beside one of the registries, or in the database of the variable
    RAPPOR_SERVER_DATABASE. The exit code is 1 if the registry must not be served, because a change
    is refused, or because a metric that reports every event has no min_cohort of its own.
    """
    from rappor_server.ingest.registry_check import (
        check_edit,
        check_registry,
        explain_budget,
        explain_cohorts,
    )

    new = Registry.load(registry, today=utc_today())
    findings = check_registry(new, folder=Path(registry).parent, today=utc_today())
    findings += explain_budget(new)
    findings += explain_cohorts(new, devices=devices)
    if against is not None:
        findings += check_edit(Registry.load(against, today=utc_today()), new)
    findings += _check_stored(new, _find_database(registry, against))
    for finding in findings:
        click.echo(f"{finding.level}: {finding.text}")
    is_refused = any(finding.level == "refused" for finding in findings)
    if not is_refused:
        click.echo(f"{registry}: {format_count(len(new), 'metric')} may be served")
    return int(is_refused)


def _find_database(*registries: str | None) -> str | None:
    """Return the URL of the collector's database, or None if there is none yet.

    It is the database of the variable, or the SQLite file beside the first registry that has one.
    """
    from rappor_server.storage.database import sqlite_url

    if variable := os.environ.get("RAPPOR_SERVER_DATABASE"):
        return variable
    paths = [Path(path).with_suffix(".sqlite3") for path in registries if path is not None]
    return next((sqlite_url(path) for path in paths if path.exists()), None)


def _check_stored(registry: Registry, database: str | None) -> list[Finding]:
    """Return a warning for each metric that left the registry and whose sums are still stored."""
    from rappor_server.ingest.registry_changes import Finding
    from rappor_server.storage.database import open_database
    from rappor_server.storage.forgetting import list_stored_metrics
    from rappor_server.storage.schema_versions import check_schema

    if database is None:
        return []
    with open_database(database) as engine:
        check_schema(engine)
        stored = list_stored_metrics(engine)
    text = "it is not in the registry, and its sums are still stored: to delete them, run"
    return [
        Finding("warning", f"{name}: {text} rappor-server forget {name}")
        for name in sorted(stored - registry.keys())
    ]
