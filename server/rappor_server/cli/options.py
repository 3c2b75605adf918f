"""What the commands share: the options of every setting and the open database."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rappor.base.atomic_files import read_text
from rappor.cli.options import Option
from rappor_server.app.settings import Settings
from rappor_server.base.errors import ConfigError
from rappor_server.storage.database import parse_url

if TYPE_CHECKING:
    from sqlalchemy import Engine


_PREFIX: Final = "RAPPOR_SERVER_"
_CONFIG: Final = f"{_PREFIX}CONFIG"
_FIELDS: Final = {field.name: field for field in dataclasses.fields(Settings)}

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _read_file(context: click.Context, _: click.Parameter, path: str | None) -> None:
    """Let a file of settings give the defaults of the options that follow."""
    if path is None:
        return
    try:
        context.default_map = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} must be TOML: {error}") from None
    for name, value in context.default_map.items():
        _check_name(f"{path}: {name}", name)
        if isinstance(value, list) != (_FIELDS[name].default == ()):
            kind = "one value" if isinstance(value, list) else "a list"
            raise ConfigError(f"{path}: {name} must be {kind}, got {value!r}")


def _check_name(place: str, name: str) -> None:
    """Raise ConfigError for a name that is no setting, with the one that comes close."""
    if name not in _FIELDS:
        close = difflib.get_close_matches(name, _FIELDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"one of {', '.join(_FIELDS)}"
        raise ConfigError(f"{place} must name a setting; {hint}")


def setting_options(*names: str, hidden: tuple[str, ...] = ()) -> Decorator:
    """Return a decorator that adds the options of settings, and --config, to a command.

    `--help` leaves the hidden ones to `--help-all`.
    """
    options = [_option(name, is_hidden=name in hidden) for name in names]
    options.append(
        click.option(
            "--config",
            is_eager=True,
            expose_value=False,
            callback=_read_file,
            type=click.Path(),
            metavar="TOML",
            envvar=_CONFIG,
            help=f"A file of settings. Also the variable {_CONFIG}. Flags and other {_PREFIX}... "
            "variables take precedence.",
        )
    )

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _option(name: str, *, is_hidden: bool) -> Decorator:
    """Return the option of one setting."""
    field = _FIELDS[name]
    return click.option(
        f"--{name.replace('_', '-')}",
        cls=Option,
        default=None if field.default == () else field.default,
        show_default=field.default not in ("", False, ()),
        is_flag=field.default is False,
        multiple=field.default == (),
        envvar=f"{_PREFIX}{name.upper()}",
        hidden=is_hidden,
        **field.metadata,
    )


database_options = setting_options("registry", "database")
"""Adds --registry, --database and --config to a command."""
closing_options = setting_options("registry", "older", "database")
"""Adds the same options and --older to a command that closes blocks."""


def _show_all(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        for each in context.command.params:
            if isinstance(each, click.Option):
                each.hidden = False
        click.echo(context.get_help())
        context.exit()


help_all_option = click.option(
    "--help-all",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all,
    help="Show all options and exit.",
)


def read_settings(options: Mapping[str, Any]) -> Settings:
    """Return the settings behind a command's options, which click has read and checked."""
    for key in os.environ:
        if key.startswith(_PREFIX) and key != _CONFIG:
            _check_name(key, key.removeprefix(_PREFIX).lower())
    source = click.get_current_context().get_parameter_source("database")
    is_flag = source is click.core.ParameterSource.COMMANDLINE
    if is_flag and parse_url(options["database"]).password:
        raise ConfigError(
            "database must have no password in a flag, which everyone on the machine can read: "
            f"put the address in {_PREFIX}DATABASE"
        )
    if not options["registry"]:
        command = click.get_current_context().command
        is_option = any("--registry" in each.opts for each in command.params)
        given = "with --registry FILE" if is_option else "as the argument REGISTRY"
        raise ConfigError(
            f"registry must be given {given}, in {_PREFIX}REGISTRY or in the file of settings"
        )
    return Settings(**options)


@contextlib.contextmanager
def open_database(chosen: Settings) -> Iterator[Engine]:
    """Open the database for a command, and close it after; ConfigError where there is none yet."""
    from rappor_server.storage.database import check_schema, open_database

    check_database(chosen)
    with open_database(chosen.database) as engine:
        check_schema(engine)
        yield engine


def check_database(chosen: Settings) -> None:
    """Raise ConfigError unless the database is there: a wrong address must not make a new one."""
    from rappor_server.storage.database import is_empty, open_database

    url = parse_url(chosen.database)
    fault = "is empty"
    if url.drivername == "sqlite" and not Path(str(url.database)).exists():
        fault = "does not exist"
    else:
        with open_database(chosen.database) as engine:
            if not is_empty(engine):
                return
    raise ConfigError(
        f"database must be that of a collector, got {url.render_as_string()}, which {fault}: run "
        "rappor-server serve or migrate to create the tables"
    )
