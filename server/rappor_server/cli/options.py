"""What the commands share: where the database is, and the day."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any

import click

from rappor_server import settings

_OPTIONS = (
    click.option("--registry", type=click.Path(), help="The registry's file (TOML)."),
    click.option("--database", help="sqlite:///FILE or postgresql://...; default: beside it."),
    click.option("--config", "file", type=click.Path(), help="Settings as TOML."),
)


def database_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --registry, --database and --config to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_settings(options: Mapping[str, Any]) -> settings.Settings:
    """Return the settings behind a command's options; UsageError without a registry."""
    flags = {name: value for name, value in options.items() if name != "file"}
    try:
        return settings.load(flags, file=options.get("file"))
    except TypeError:
        raise click.UsageError("give the registry: --registry metrics.toml") from None


def today() -> datetime.date:
    """Return the day (UTC)."""
    return datetime.datetime.now(datetime.UTC).date()
