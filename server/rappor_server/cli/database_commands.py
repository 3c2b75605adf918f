"""Commands that maintain the database: migrate, backup, restore, prune, forget, export.

| command | needs a database    | may collectors run?     | effect                                |
|---------|---------------------|-------------------------|---------------------------------------|
| migrate | with an old schema  | yes, of the old version | changes the schema; an SQLite file is |
|         |                     |                         | copied first                          |
| backup  | with tables         | yes                     | writes a file                         |
| restore | that is empty       | no                      | fills the database                    |
| prune   | with tables         | yes                     | deletes old keys and expired sums,    |
|         |                     |                         | and closes blocks                     |
| forget  | with tables         | yes                     | deletes the sums of a metric          |
| export  | with tables         | yes                     | writes files                          |

Timers of systemd run `prune` and `backup` every day (`server/packaging/`).
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rappor.base.errors import RapporError
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
    from rappor_server.app.settings import Settings
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
    If FILE is a folder, the name of the copy contains the day and the time (UTC), such as
    counts-2026-11-30T012005Z.bak.
    """
    from rappor_server.operations.backup import backup as back_up

    if path.is_dir():
        # With the day alone, a backup by hand made the backup of the timer fail on the same day.
        path /= f"counts-{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H%M%SZ}.bak"
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
@flag("--complete", "No collector ran after the backup: set no report aside.")
@add_database_options
def restore(path: Path, *, complete: bool, **options: Any) -> None:
    """Fill an empty database from a backup FILE.

    Reports of a backup of an earlier day that were not released yet are set aside. Since then,
    analysts may have read them in a sum with later reports, and the difference of that sum and a
    new one could be a single report.

    A token that was revoked after the backup becomes valid again. Revoke it again.
    """
    from rappor_server.operations.backup import restore as restore_database
    from rappor_server.storage import tokens

    settings = read_settings(options)
    set_aside = restore_database(path, settings.database, today=utc_today(), is_complete=complete)
    click.echo("restored")
    if set_aside:
        click.echo(
            f"set aside, because they may be released already: {format_count(set_aside, 'report')}"
        )
    # The backup does not contain what was revoked after it, so the operator has to look at all
    # tokens that are valid now.
    with open_database(settings) as engine:
        valid = [token.id for token in tokens.list_all(engine) if token.is_valid(utc_today())]
    if valid:
        click.echo(
            f"valid tokens: {', '.join(valid)}; revoke again the tokens that were revoked after "
            "the backup"
        )


@click.command(
    cls=Command,
    examples=("rappor-server prune --registry metrics.toml",),
)
@flag("--yes", "Delete even if the clock looks wrong.")
@add_closing_options
def prune(*, yes: bool, **options: Any) -> None:
    """Delete deduplication keys after 14 days, and sums after the retention of their metric.

    The command also closes the blocks of past days. Run it once a day.

    A clock that is ahead would delete too much. The command therefore deletes nothing after a gap
    that a jump of the clock may have made: more than two days between the last two days on which a
    collector ran, or between the last of them and today, or more than 14 days without an upload. If
    the clock is right and there was no collector or no upload, use --yes.

    The exit code is 2 while the database contains uploads that cannot be read.
    """
    from rappor_server.app.input_files import read_registries
    from rappor_server.operations import retention
    from rappor_server.operations.closing import close_ended_days
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
    # The registries are read only now. The keys above need no registry, so an invalid registry does
    # not keep them beyond their 14 days.
    registries = read_registries(settings, today=utc_today())
    rules = rules_in_force(registries)
    with open_database(settings) as engine:
        forgotten = retention.forget_expired(engine, registries[0].values(), today=utc_today())
        for name, deleted in forgotten.items():
            click.echo(_format_forgotten(name, deleted))
        close_ended_days(engine, rules, utc_today())
        with translate_errors(), engine.connect() as db:
            unreadable = count_unreadable(db)
        # Unreadable batches contain uploads that no merge can count. With this error, the service
        # of systemd that runs `prune` fails, and the operator notices. It is raised last, so that
        # one damaged batch does not stop the other work.
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

    METRIC need not be in the registry any more. Collectors may run meanwhile, and reports that
    arrive are counted. If METRIC is still collected, the command says so after it has deleted all
    days.

    Analysts read release windows, which are sums of several days, and a window is deleted as a
    whole or not at all. With --before, a window whose last day is that day or later stays, also
    with its days before that day. Active installations and weekly trends then begin with the first
    week or epoch of which nothing was deleted.

    An earlier backup still contains the deleted sums. After a restore, run the command again.
    """
    from rappor_server.operations.retention import forget_metric
    from rappor_server.storage.forgetting import list_stored_metrics

    first_kept = before.date() if before else None
    # --before 2062-01-01 with a mistyped year must not delete all days.
    if first_kept is not None and first_kept > utc_today():
        raise ConfigError(f"--before must be at most today, {utc_today()}, got {first_kept}")
    settings = read_settings(options)
    with open_database(settings) as engine:
        deleted = forget_metric(engine, metric, before=first_kept)
        # The metrics are listed after `forget_metric`, which merges the inbox. Before the merge,
        # all reports of a new metric may be in the inbox, and the metric would be called unknown.
        stored = sorted(list_stored_metrics(engine))
    # Nothing was deleted and nothing is stored, so the name is probably mistyped. The command must
    # not report success.
    if metric not in stored and not any(deleted):
        names = ", ".join(stored) or "none"
        raise ConfigError(f"METRIC must have counters or blocks, got {metric}: stored are {names}")
    click.echo(_format_forgotten(metric, deleted))
    # With --before, the metric is meant to go on.
    last_day = None if before else _find_last_day(settings, metric)
    if last_day is not None:
        click.echo(
            f"{metric} is still collected until {last_day}, and new reports are counted; to end "
            "it, remove it from the registry, or stop it (stop_file)"
        )


def _find_last_day(settings: Settings, name: str) -> datetime.date | None:
    """Return the last day on which reports of a metric are accepted; None if it has passed.

    Returns None for an unknown metric, and if a registry cannot be read. Sums can be deleted with
    an invalid registry, too.
    """
    from rappor_server.app.input_files import read_registries

    try:
        registries = read_registries(settings, today=utc_today())
    except RapporError:
        return None
    # Devices that were not updated report under an older registry until its last day.
    days = [registry[name].expires for registry in registries if name in registry]
    return max((day for day in days if day >= utc_today()), default=None)


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

    The files contain what analysts may read: the release windows (sums of several days) whose last
    day is one of these days. The days must have ended. The files are in partitions (folders named
    column=value), which Spark, DuckDB and warehouses read. The command needs the extra `arrow`.
    """
    from rappor_server.releases.export import export_counts

    if first > last:
        raise click.UsageError(f"--from must not be after --to, got {first:%Y-%m-%d}")
    # A day that has not ended gets further reports. A later export of the same days would then
    # contain other counts.
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
