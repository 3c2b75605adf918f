"""`rappor-server check`: check a registry before it is served.

The command needs no database, so a developer can run it before a change of the registry is merged.
If there is a database, the command also warns of metrics whose sums are still stored although the
registry does not contain them any more. Each finding is one line, `LEVEL: SENTENCE`
(`ingest/registry_check.py`).
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
    """Check a REGISTRY, the files that it names, and its changes since a previous registry.

    The command warns of weak parameters, of metrics that expire within 30 days, and of unusable
    files of candidates. It shows how much of a device's budget each metric reserves, what a change
    costs a device, and which metrics have too many cohorts for their devices.

    A collector holds reports back until it can release a sum of enough reports. With --against, the
    command refuses a change that weakens the protection of reports that are held back. First case:
    min_cohort or min_reports falls. Then a sum has fewer reports than the previous registry
    promised. Second case: min_reports rises from 0. While min_reports is 0, analysts see every
    report at once, and they can subtract these reports from a later sum.

    The command also names the metrics that are not in the registry any more and whose sums are
    still stored. It looks in the database of the variable RAPPOR_SERVER_DATABASE, or of the file of
    settings that the variable RAPPOR_SERVER_CONFIG names. Without them, it looks in the SQLite file
    beside REGISTRY, or beside the previous registry.

    The exit code is 1 if --against finds a change that is refused. If a metric or a category is
    gone, or a metric has another meaning, the registry must never be served. If a minimum falls or
    rises from 0, `serve` refuses it while the setting `older` names the previous registry.
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
    """Return the URL of the collector's database, or None if the machine has no database.

    The first of these databases is returned: the database of the variable RAPPOR_SERVER_DATABASE;
    the database of the file of settings in RAPPOR_SERVER_CONFIG; an SQLite file beside one of the
    registries, or beside the registry of the file of settings.

    Parameters
    ----------
    registries : paths of registries; None is skipped
    """
    from rappor_server.cli.setting_options import read_config
    from rappor_server.storage.database import parse_url, sqlite_url

    if variable := os.environ.get("RAPPOR_SERVER_DATABASE"):
        return variable
    config_path = os.environ.get("RAPPOR_SERVER_CONFIG")
    config = read_config(config_path) if config_path else {}
    if configured := config.get("database"):
        url = parse_url(configured)
        # SQLite would create the file. Before the first start of the collector, it is missing.
        is_missing = url.drivername == "sqlite" and not Path(str(url.database)).exists()
        return None if is_missing else str(configured)
    candidates = (*registries, config.get("registry"))
    paths = [Path(path).with_suffix(".sqlite3") for path in candidates if path is not None]
    return next((sqlite_url(path) for path in paths if path.exists()), None)


def _check_stored(registry: Registry, database: str | None) -> list[Finding]:
    """Return a warning for each metric whose sums are stored and that the registry lacks."""
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
