"""`rappor-server token`: create, list and revoke the read tokens of analysts.

A token is `rappor.NAME.SECRET`. NAME is the public name of the token: `token list` shows it, and
`token revoke` takes it as its argument. The commands read and write the database directly, so
collectors may run meanwhile. A collector refuses a revoked token at the next request.
"""

from __future__ import annotations

import datetime
from typing import Any

import click

from rappor.cli.commands import Group
from rappor.cli.options import option
from rappor.registry.registry import Registry
from rappor_server.base.errors import ConfigError
from rappor_server.cli.setting_options import add_database_options, open_database, read_settings
from rappor_server.storage.database import utc_today


@click.group(
    cls=Group,
    examples=(
        "rappor-server token create --registry metrics.toml",
        "rappor-server token list --registry metrics.toml",
    ),
)
def token() -> None:
    """Create, list and revoke the read tokens of analysts."""


@token.command(
    examples=(
        "rappor-server token create --registry metrics.toml",
        "rappor-server token create --registry metrics.toml --metric search_engine \\",
        '    --expires "$(date -u +%F)"',
    )
)
@add_database_options
@option(
    "--metric",
    "NAME",
    "A metric that the token may read. May be repeated. Default: all metrics.",
    name="metrics",
    multiple=True,
)
@option(
    "--expires",
    "DAY",
    "The last day (UTC) on which the token is valid, such as 2026-11-30. Default: valid until it "
    "is revoked.",
)
def create(metrics: tuple[str, ...], expires: datetime.datetime | None, **options: Any) -> None:
    """Create a token and print it as the last line.

    The token is printed once. The database stores only a hash of the token.
    """
    from rappor_server.storage import tokens

    settings = read_settings(options)
    # Without this check, a mistyped name would give a token that reads nothing. `registry.metric`
    # raises MetricError for an unknown name.
    registry = Registry.load(settings.registry, today=utc_today())
    for name in metrics:
        registry.metric(name)
    # A mistyped year would give a token that never works.
    if expires is not None and expires.date() < utc_today():
        raise ConfigError(f"--expires must be at least today, {utc_today()}, got {expires.date()}")
    with open_database(settings) as engine:
        created = tokens.create(
            engine,
            metrics=metrics or None,
            expires=expires.date() if expires else None,
            today=utc_today(),
        )
    # The sentence goes to standard error, so that a script reads only the token.
    click.echo("Save this token. It cannot be shown again.", err=True)
    click.echo(created)


@token.command("list", examples=("rappor-server token list --registry metrics.toml",))
@add_database_options
def list_tokens(**options: Any) -> None:
    """List all tokens with their public name, last day and metrics."""
    from rappor_server.storage import tokens

    with open_database(read_settings(options)) as engine:
        rows = tokens.list_all(engine)
        if not rows:
            # Standard output stays empty, so that a script reads no name of a token.
            click.echo("no token exists; `rappor-server token create` creates one", err=True)
        for row in rows:
            metrics = "all metrics"
            if row.metrics is not None:
                # `create` stores one metric or more. An empty tuple means that `list_all` could not
                # parse the metrics of the row, so that the token may read nothing.
                metrics = ", ".join(row.metrics) or "damaged"
            state = f"revoked {row.revoked}" if row.revoked else f"until {row.expires or '-'}"
            click.echo(f"{row.id}  {state}  {metrics}")


@token.command(
    examples=(
        "# the public name of a token is the first word of its line",
        "ID=$(rappor-server token list --registry metrics.toml | sed -n '1s/ .*//p')",
        'rappor-server token revoke "$ID" --registry metrics.toml',
    )
)
@click.argument("token_id", metavar="NAME")
@add_database_options
def revoke(token_id: str, **options: Any) -> int:
    """Revoke the token with the public NAME, at once.

    The exit code is 1 if no token has the name.
    """
    from rappor_server.storage import tokens

    with open_database(read_settings(options)) as engine:
        if tokens.revoke(engine, token_id, today=utc_today()):
            click.echo("revoked")
            return 0
    click.echo("no token has this name", err=True)
    return 1
