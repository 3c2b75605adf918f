"""`rappor-server check`: check a registry before it is served.

The command reads files only. It needs no database, so a developer can run it before a change of the
registry is merged. It prints one finding a line, `LEVEL: SENTENCE` (`ingest/registry_check.py`).
"""

from __future__ import annotations

from pathlib import Path

import click

from rappor.base.sentence_numbers import format_count
from rappor.cli.commands import Command
from rappor.cli.options import option
from rappor.registry.registry import Registry
from rappor_server.storage.database import utc_today


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
    costs a device, and which metrics have too many cohorts for their devices. With --against, it
    also warns if waiting reports would be released with fewer others than their devices were
    promised: if min_cohort falls, or if min_reports falls to 0 or rises from 0. The exit code is 1
    if the registry must not be served, because a change is refused, or because a metric that
    reports every event has no min_cohort of its own.
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
    for finding in findings:
        click.echo(f"{finding.level}: {finding.text}")
    is_refused = any(finding.level == "refused" for finding in findings)
    if not is_refused:
        click.echo(f"{registry}: {format_count(len(new), 'metric')} may be served")
    return int(is_refused)
