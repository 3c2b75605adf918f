"""Commands that maintain the database: migrate, backup, restore, prune, forget, export.

| command | database     | collectors may run | changes                                           |
|---------|--------------|--------------------|---------------------------------------------------|
| migrate | older schema | of that version    | the schema; copies an SQLite file first           |
| backup  | any          | yes                | nothing but a new file                            |
| restore | empty        | no                 | fills the database                                |
| prune   | any          | yes                | deletes old keys and expired sums, closes blocks  |
| forget  | any          | yes                | deletes the sums of a metric                      |
| export  | any          | yes                | nothing but new files                             |

A timer of systemd runs `prune` and `backup` every day (`packaging/`).
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rappor.base.sentence_numbers import format_count
from rappor.cli.commands import Command
from rappor.cli.options import flag, option
from rappor.registry.registry import Registry
from rappor_server.base.errors import ConfigError, StoreError
from rappor_server.cli.setting_options import (
    add_closing_options,
    add_database_options,
    check_database,
    open_database,
    read_settings,
)
from rappor_server.storage.database import utc_today

if TYPE_CHECKING:
    from rappor_server.storage.forgetting import Forgotten


@click.command(cls=Command, examples=("rappor-server migrate --registry metrics.toml",))
@add_database_options
def migrate(**options: Any) -> None:
    """Update the database to the schema of this version.

    The command copies an SQLite file first. Run it before you start a new version of the
    collector.
    """
    from rappor_server.storage.schema_versions import migrate as migrate_database

    backup = migrate_database(read_settings(options).database)
    if backup is not None:
        click.echo(f"copy of the old database: {backup}; delete it once this version works")
    click.echo("the database has the schema of this version")


@click.command(cls=Command, examples=("rappor-server backup counts.bak --registry metrics.toml",))
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@add_database_options
def backup(path: Path, **options: Any) -> None:
    """Copy the whole database into one FILE while collectors run.

    The copy is an SQLite file, also if the database is PostgreSQL. The FILE must not exist yet.
    If FILE is a folder, the name of the copy contains the day (UTC), such as
    counts-2026-11-30.bak.
    """
    from rappor_server.operations.backup import backup as back_up

    if path.is_dir():
        path /= f"counts-{utc_today()}.bak"
    settings = read_settings(options)
    check_database(settings)
    back_up(settings.database, path)
    click.echo(f"written: {path}")


@click.command(
    cls=Command,
    examples=(
        "rappor-server restore counts.bak --registry metrics.toml \\",
        "    --database sqlite:///restored.sqlite3",
    ),
)
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@add_database_options
def restore(path: Path, **options: Any) -> None:
    """Fill an empty database from a backup FILE.

    A token that was revoked after the backup becomes valid again. Revoke it again.
    """
    from rappor_server.operations.backup import restore as restore_database
    from rappor_server.storage import tokens

    settings = read_settings(options)
    restore_database(path, settings.database)
    click.echo("restored")
    # The backup does not contain what was revoked after it, so the operator has to look at all
    # tokens that are valid now.
    with open_database(settings) as engine:
        valid = [token.id for token in tokens.list_all(engine) if token.is_valid(utc_today())]
    if valid:
        click.echo(f"valid tokens: {', '.join(valid)}; revoke those revoked after the backup again")


@click.command(
    cls=Command,
    examples=("rappor-server prune --registry metrics.toml",),
)
@flag("--yes", "Delete even if the clock looks wrong.")
@add_closing_options
def prune(*, yes: bool, **options: Any) -> None:
    """Delete deduplication keys after 14 days, and sums after the retention of their metric.

    The command also closes the blocks of past days. Run it once a day. It deletes nothing if the
    clock looks wrong: today is more than two days after the last day on which a collector ran,
    the collector did not run for more than two days before that day, or no upload came for more
    than 14 days. The exit code is 2 while the database contains batches that no merge can read.
    """
    from rappor_server.app.input_files import read_registries
    from rappor_server.operations import retention
    from rappor_server.operations.closing import close_all, earlier_of_clocks
    from rappor_server.storage.blocks import rules_in_force
    from rappor_server.storage.database import translate_errors
    from rappor_server.storage.inbox import count_unreadable
    from rappor_server.storage.merge import merge_all

    settings = read_settings(options)
    with open_database(settings) as engine:
        # With a clock that is weeks ahead, the keys of recent uploads would be deleted, and retries
        # of these uploads would be counted twice.
        if not yes:
            retention.check_clock(engine, utc_today())
        merge_all(engine)
        n_keys = retention.prune(engine, today=utc_today())
    click.echo(f"deleted {format_count(n_keys, 'deduplication key')}")
    # The registries are read last. If one is invalid, the keys have been deleted nevertheless.
    registries = read_registries(settings, today=utc_today())
    rules = rules_in_force(registries)
    with open_database(settings) as engine:
        forgotten = retention.forget_expired(engine, registries[0].values(), today=utc_today())
        for name, deleted in forgotten.items():
            click.echo(_format_forgotten(name, deleted))
        close_all(engine, rules, earlier_of_clocks(engine, utc_today()))
        with translate_errors(), engine.connect() as db:
            unreadable = count_unreadable(db)
        # The failed unit tells the operator of uploads that nobody counts. Everything else of the
        # command is done.
        if unreadable:
            raise StoreError(
                f"every batch of uploads must be readable, got {unreadable:,} unreadable: see the "
                "runbook",
                retryable=False,
            )


@click.command(
    cls=Command,
    examples=(
        "rappor-server forget old_metric --registry metrics.toml",
        "rappor-server forget search_engine --before 2025-01-01 --registry metrics.toml",
    ),
)
@click.argument("metric", metavar="METRIC")
@option("--before", "DAY", "First day (UTC) that stays. By default everything is deleted.")
@add_database_options
def forget(metric: str, before: datetime.datetime | None, **options: Any) -> None:
    """Delete the counters and blocks of a METRIC for good.

    METRIC may have left the registry. With --before, release windows that are dated on that day or
    later stay, with all of their days. Collectors may run meanwhile, and reports that arrive are
    counted. A backup from before still has the deleted sums: after a restore, run the command
    again.
    """
    from rappor_server.operations.retention import forget_metric
    from rappor_server.storage.forgetting import list_stored_metrics

    settings = read_settings(options)
    with open_database(settings) as engine:
        stored = sorted(list_stored_metrics(engine))
        deleted = forget_metric(engine, metric, before=before.date() if before else None)
    # A typing error must not look like success.
    if metric not in stored and not any(deleted):
        names = ", ".join(stored) or "none"
        raise ConfigError(f"METRIC must have counters or blocks, got {metric}: stored are {names}")
    click.echo(_format_forgotten(metric, deleted))


def _format_forgotten(metric: str, deleted: Forgotten) -> str:
    """Return the line about deleted sums."""
    return (
        f"deleted {format_count(deleted.reports, 'report')} of {metric} in "
        f"{format_count(deleted.blocks, 'block')} and {format_count(deleted.counters, 'counter')}"
    )


@click.command(
    cls=Command,
    examples=(
        "rappor-server export lake --registry metrics.toml --metric search_engine \\",
        "    --from 2026-01-01 --to 2026-01-31",
    ),
)
@click.argument("folder", type=click.Path(path_type=Path))
@option("--metric", "NAME", "A metric of the registry.", required=True)
@option("--from", "DAY", "First day (UTC).", name="first", required=True)
@option("--to", "DAY", "Last day (UTC).", name="last", required=True)
@add_database_options
def export(
    folder: Path,
    metric: str,
    first: datetime.datetime,
    last: datetime.datetime,
    **options: Any,
) -> None:
    """Write the counts of a metric into a FOLDER as Parquet files.

    The files contain what analysts may read: the windows of blocks that are dated on these days.
    The days must have ended. The files are in partitions (folders named column=value), which
    Spark, DuckDB and warehouses read. The command needs the extra `arrow`.
    """
    from rappor_server.releases.export import export_counts

    if first > last:
        raise click.UsageError(f"--from must not be after --to, got {first:%Y-%m-%d}")
    # A day that has not ended gets further reports. A later export of the same day would then
    # contain another number.
    if last.date() >= utc_today():
        raise click.UsageError(f"--to must be a day that has ended (UTC), got {last:%Y-%m-%d}")
    settings = read_settings(options)
    entry = Registry.load(settings.registry, today=utc_today()).metric(metric)
    with open_database(settings) as engine:
        paths = export_counts(engine, folder, entry, first=first.date(), last=last.date())
    for path in paths:
        click.echo(str(path))
    if not paths:
        click.echo("no counts are released for these days", err=True)
