"""All commands but `serve`: check, migrate, token, backup, restore, prune, export."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import click

from rappor.errors import RapporError
from rappor.registry.registry import Registry
from rappor_server import settings
from rappor_server.cli.options import database_options, read_settings, today
from rappor_server.cli.serve import serve


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rappor", prog_name="rappor-server")
def server() -> None:
    """Collect noisy reports, keep counts, answer analysts."""


def run(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 refused, 2 usage."""
    try:
        result = server.main(arguments, prog_name="rappor-server", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return 2
    except click.exceptions.Abort:
        return 130
    except RapporError as error:
        click.echo(f"rappor-server: {error}", err=True)
        return 2
    return result if isinstance(result, int) else 0


@server.command()
@click.argument("registry", type=click.Path())
@click.option("--against", type=click.Path(), help="The registry before an edit.")
def check(registry: str, against: str | None) -> int:
    """Check a registry, and an edit of it; 1 if the edit is refused."""
    from rappor_server.ingest.registry_check import check_edit, check_registry

    new = Registry.load(registry)
    findings = check_registry(new, today=today())
    if against is not None:
        findings += check_edit(Registry.load(against), new)
    for finding in findings:
        click.echo(f"{finding.level}: {finding.text}")
    refused = any(finding.level == "refused" for finding in findings)
    if not refused:
        click.echo(f"{registry}: {len(new)} metrics may be served")
    return int(refused)


@server.command()
@database_options
def migrate(**options: Any) -> None:
    """Bring the database to this version's schema, after a backup (SQLite)."""
    from rappor_server.storage.database import migrate as migrate_database

    backup = migrate_database(read_settings(options).database)
    if backup is not None:
        click.echo(f"the database as it was: {backup}")
    click.echo("the database has the schema of this version")


@server.group()
def token() -> None:
    """Make, list and revoke the tokens of analysts."""


@token.command("create")
@database_options
@click.option("--metric", "metrics", multiple=True, help="A metric that it may read; default all.")
@click.option("--expires", type=click.DateTime(["%Y-%m-%d"]), help="Its last day.")
def create_token(
    metrics: tuple[str, ...], expires: datetime.datetime | None, **options: Any
) -> None:
    """Make a token; it is the last line and is shown once."""
    from rappor_server.storage import tokens

    settings = read_settings(options)
    registry = Registry.load(settings.registry)
    for name in metrics:
        registry.metric(name)
    with _store(settings) as store:
        made = tokens.create(
            store,
            metrics=metrics or None,
            expires=expires.date() if expires else None,
            today=today(),
        )
    click.echo("Keep it; it cannot be shown again.", err=True)
    click.echo(made)


@token.command("list")
@database_options
def list_tokens(**options: Any) -> None:
    """List tokens by their public names."""
    from rappor_server.storage import tokens

    with _store(read_settings(options)) as store:
        for found in tokens.list_all(store):
            allowed = "all metrics" if found.metrics is None else ", ".join(found.metrics)
            state = f"revoked {found.revoked}" if found.revoked else f"until {found.expires or '-'}"
            click.echo(f"{found.id}  {state}  {allowed}")


@token.command("revoke")
@click.argument("token_id")
@database_options
def revoke_token(token_id: str, **options: Any) -> int:
    """End a token by its public name."""
    from rappor_server.storage import tokens

    with _store(read_settings(options)) as store:
        if tokens.revoke(store, token_id, today=today()):
            click.echo("revoked")
            return 0
    click.echo("there is no token of this name", err=True)
    return 1


@server.command()
@click.argument("path", type=click.Path(path_type=Path))
@database_options
def backup(path: Path, **options: Any) -> None:
    """Copy the whole database into one file, while collectors run."""
    from rappor_server.storage.backup import backup as back_up

    back_up(read_settings(options).database, path)
    click.echo(f"written: {path}")


@server.command()
@click.argument("path", type=click.Path(path_type=Path))
@database_options
def restore(path: Path, **options: Any) -> None:
    """Fill an empty database from a backup."""
    from rappor_server.storage.backup import restore as restore_database

    restore_database(path, read_settings(options).database)
    click.echo("restored")


@server.command()
@database_options
@click.option("--report-days", type=click.IntRange(min=1), help="How long raw reports are kept.")
def prune(report_days: int | None, **options: Any) -> None:
    """Delete upload ids after 14 days and raw reports after theirs; run it once a day."""
    from rappor_server.storage.retention import prune as prune_database

    settings = read_settings(options | {"report_days": report_days})
    with _store(settings) as store:
        pruned = prune_database(store, today=today(), report_days=settings.report_days)
    click.echo(
        f"deleted {pruned.ids} upload ids and {pruned.reports} raw reports, "
        f"folded {pruned.counters} counters"
    )


@server.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--metric", required=True, help="A metric that keeps reports.")
@click.option("--from", "first", type=click.DateTime(["%Y-%m-%d"]), required=True)
@click.option("--to", "last", type=click.DateTime(["%Y-%m-%d"]), required=True)
@database_options
def export(
    folder: Path,
    metric: str,
    first: datetime.datetime,
    last: datetime.datetime,
    **options: Any,
) -> None:
    """Write raw reports as Parquet, a file for each day and parameter set."""
    from rappor_server.analysis.export import export as export_reports

    settings = read_settings(options)
    Registry.load(settings.registry).metric(metric)
    with _store(settings) as store:
        for path in export_reports(
            store, folder, metric=metric, first=first.date(), last=last.date()
        ):
            click.echo(str(path))


def _store(settings: settings.Settings) -> Any:
    """Open the store for a command, made if it is a new SQLite file, and close it after."""
    import contextlib

    from rappor_server.storage.database import is_empty, open_engine
    from rappor_server.storage.database import migrate as migrate_database
    from rappor_server.storage.store import Store

    engine = open_engine(settings.database)
    if is_empty(engine):
        migrate_database(settings.database)
    engine.dispose()
    return contextlib.closing(Store.open(settings.database))


server.add_command(serve)
