"""Command-line options for the settings of a collector, and the database that they name.

Each field of `Settings` has an option, an environment variable and a key in the TOML file of
`--config`. click combines the three: a flag wins over the variable, the variable over the file, the
file over the default.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rappor.base.atomic_files import read_text
from rappor.base.errors import FileError
from rappor.cli.options import Option
from rappor_server.app.settings import Settings
from rappor_server.base.errors import ConfigError
from rappor_server.storage.database import parse_url

if TYPE_CHECKING:
    from sqlalchemy import Engine


_PREFIX: Final = "RAPPOR_SERVER_"
_CONFIG: Final = f"{_PREFIX}CONFIG"
_LINK: Final = re.compile(
    r"SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?"
)
"""Names of the variables that Kubernetes sets for a service, after the prefix and without PORT."""
_FIELDS: Final = {field.name: field for field in dataclasses.fields(Settings)}

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _load_config(context: click.Context, _: click.Parameter, path: str | None) -> None:
    """Use the values of a TOML file as defaults of the options.

    click calls this function before it reads the other options, because the option is eager.
    """
    if path is None:
        return
    try:
        context.default_map = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} must be TOML: {error}") from None
    for name, value in context.default_map.items():
        _check_name(f"{path}: {name}", name)
        # click would take a string for a list of characters.
        if isinstance(value, list) != (_FIELDS[name].default == ()):
            expected = "one value" if isinstance(value, list) else "a list"
            raise ConfigError(f"{path}: {name} must be {expected}, got {value!r}")


def _check_name(subject: str, name: str) -> None:
    """Raise ConfigError with a suggestion if a name is no setting.

    Parameters
    ----------
    subject : where the name stands, as the message begins
    name : the name
    """
    if name not in _FIELDS:
        similar = difflib.get_close_matches(name, _FIELDS, n=1)
        hint = f"did you mean {similar[0]}?" if similar else f"one of {', '.join(_FIELDS)}"
        raise ConfigError(f"{subject} must name a setting; {hint}")


def add_setting_options(*names: str, hidden: tuple[str, ...] = ()) -> Decorator:
    """Return a decorator that adds the options of settings, and --config, to a command.

    Parameters
    ----------
    names : names of the settings
    hidden : names of the settings that only --help-all shows
    """
    options = [_make_option(name, is_hidden=name in hidden) for name in names]
    options.append(
        click.option(
            "--config",
            is_eager=True,
            expose_value=False,
            callback=_load_config,
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


class _SettingOption(Option):
    """An option whose variable is ignored if Kubernetes set it for a service of the same name."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the text of the variable, or None if there is none."""
        is_link = isinstance(self.envvar, str) and _is_link(self.envvar)
        return None if is_link else super().resolve_envvar_value(ctx)


def _is_link(variable: str) -> bool:
    """Return whether a variable describes a service of Kubernetes named rappor-server.

    Kubernetes sets such variables in all containers of a namespace, for example
    RAPPOR_SERVER_PORT=tcp://10.96.0.12:8080. Without this test the collector did not start there.
    """
    name = variable.removeprefix(_PREFIX)
    is_address = name == "PORT" and "://" in os.environ.get(variable, "")
    return is_address or _LINK.fullmatch(name) is not None


def _make_option(name: str, *, is_hidden: bool) -> Decorator:
    """Return the option of one setting."""
    field = _FIELDS[name]
    return click.option(
        f"--{name.replace('_', '-')}",
        cls=_SettingOption,
        default=None if field.default == () else field.default,
        show_default=field.default not in ("", False, ()),
        is_flag=field.default is False,
        multiple=field.default == (),
        envvar=f"{_PREFIX}{name.upper()}",
        hidden=is_hidden,
        **field.metadata,
    )


add_database_options = add_setting_options("registry", "database")
"""Decorator that adds --registry, --database and --config to a command."""
add_closing_options = add_setting_options("registry", "older", "database")
"""Decorator that adds these options and --older to a command that closes blocks. The rules of a
block depend on the older registries, too."""


def _show_all_options(context: click.Context, _: click.Parameter, is_set: bool) -> None:
    """Print the help with all options, and exit."""
    if is_set:
        for parameter in context.command.params:
            if isinstance(parameter, click.Option):
                parameter.hidden = False
        click.echo(context.get_help())
        context.exit()


add_help_all_option = click.option(
    "--help-all",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all_options,
    help="Show all options and exit.",
)


def read_settings(options: Mapping[str, Any]) -> Settings:
    """Return the settings of a command.

    Parameters
    ----------
    options : values of the options by name, as click passes them to the command

    Raises
    ------
    ConfigError
        An environment variable names no setting, a flag contains a password, the registry is
        missing, or settings contradict each other.
    """
    for variable in os.environ:
        if variable.startswith(_PREFIX) and not (variable == _CONFIG or _is_link(variable)):
            _check_name(variable, variable.removeprefix(_PREFIX).lower())
    source = click.get_current_context().get_parameter_source("database")
    is_flag = source is click.core.ParameterSource.COMMANDLINE
    if is_flag and parse_url(options["database"]).password:
        raise ConfigError(
            "database must have no password in a flag, which everybody on the machine can read: "
            f"put the URL into {_PREFIX}DATABASE"
        )
    if not options["registry"]:
        command = click.get_current_context().command
        is_option = any("--registry" in parameter.opts for parameter in command.params)
        source_name = "with --registry FILE" if is_option else "as the argument REGISTRY"
        raise ConfigError(
            f"registry must be given {source_name}, in {_PREFIX}REGISTRY or in the file of settings"
        )
    return Settings(**options)


@contextlib.contextmanager
def open_database(settings: Settings) -> Iterator[Engine]:
    """Yield the database of a collector; raise ConfigError if it does not exist."""
    from rappor_server.storage.database import check_schema, open_database

    check_database(settings)
    with open_database(settings.database) as engine:
        check_schema(engine)
        yield engine


def check_database(settings: Settings) -> None:
    """Raise ConfigError unless the database exists and has tables.

    SQLite creates a file for every path. Without the check, a mistyped path would give a command
    an empty database, and the command would report success.
    """
    from rappor_server.storage.database import is_empty, open_database

    url = parse_url(settings.database)
    fault = "is empty"
    if url.drivername == "sqlite" and not Path(str(url.database)).exists():
        # The name of the database follows from that of the registry. So a mistyped registry must
        # be named, not the database that would lie beside it.
        if not Path(settings.registry).exists():
            raise FileError(settings.registry, "it does not exist")
        fault = "does not exist"
    else:
        with open_database(settings.database) as engine:
            if not is_empty(engine):
                return
    raise ConfigError(
        f"database must be that of a collector, got {url.render_as_string()}, which {fault}: run "
        "rappor-server serve or migrate to create the tables"
    )
