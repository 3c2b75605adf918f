"""Command-line options for the settings of a collector, and the database that they name.

Each field of `Settings` has an option, an environment variable and a key in the TOML file of
`--config`. click combines the three. The first source that has the setting wins:

    flag        --max-reports 500
    variable    RAPPOR_SERVER_MAX_REPORTS=500
    file        max_reports = 500
    default     1000

A mistyped name is an error in all three, because a limit that is silently ignored protects nothing:
click refuses a flag, `_load_config` a key of the file, and `read_settings` a variable.
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
"""Beginning of the names of all environment variables of settings."""
_CONFIG: Final = f"{_PREFIX}CONFIG"
"""Variable that names the TOML file of settings. It is not a setting itself."""
_LINK: Final = re.compile(
    r"SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?"
)
"""Pattern of the variables that Kubernetes sets for a service named rappor-server, without the
prefix. `_is_link` treats the variable PORT by itself, because PORT is also a setting."""
_FIELDS: Final = {field.name: field for field in dataclasses.fields(Settings)}
"""Field of each setting, by name. Its metadata are the arguments of its option."""

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Such a function adds options to the function of a command."""


def _load_config(context: click.Context, _: click.Parameter, path: str | None) -> None:
    """Use the values of a TOML file as defaults of the options.

    click calls this function before it reads the other options, because `--config` is eager.

    Raises
    ------
    ConfigError
        The file is not TOML, names no setting, or has a list in place of one value.
    """
    if path is None:
        return
    try:
        context.default_map = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} must be TOML: {error}") from None
    for name, value in context.default_map.items():
        _check_name(f"{path}: {name}", name)
        # click would take the string "a.toml" for a list of six characters. A default of () marks a
        # setting that is a list.
        if isinstance(value, list) != (_FIELDS[name].default == ()):
            expected = "one value" if isinstance(value, list) else "a list"
            raise ConfigError(f"{path}: {name} must be {expected}, got {value!r}")


def _check_name(subject: str, name: str) -> None:
    """Raise ConfigError with a suggestion if a name is no setting.

    Parameters
    ----------
    subject : begin of the message, for example "server.toml: prot"
    name : name in the form of a field of `Settings`
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
    """Option whose variable is ignored if Kubernetes set the variable for a service."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the text of the variable, or None if it is not set by an operator."""
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
    """Return the option of one setting.

    Three kinds of settings follow from the default: False marks a flag, an empty tuple marks an
    option that may be repeated, and anything else is an option with one value.
    """
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
"""Adds --registry, --database and --config to a command, as a decorator."""
add_closing_options = add_setting_options("registry", "older", "database")
"""Decorator that adds these options and --older to a command that closes blocks. The rules of a
block depend on the older registries, too."""


def _show_all_options(context: click.Context, _: click.Parameter, is_set: bool) -> None:
    """Print the help with all options, and exit. click calls this function for `--help-all`."""
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
    # Every account of a machine can list the flags of all processes. A password there would leak
    # while the command runs, even if the command fails.
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
    """Yield the database of a collector, which must exist and have the schema of this version.

    Raises
    ------
    ConfigError
        The database does not exist or is empty.
    StoreError
        The database does not respond, or has the schema of another version.
    """
    from rappor_server.storage.database import open_database
    from rappor_server.storage.schema_versions import check_schema

    check_database(settings)
    with open_database(settings.database) as engine:
        check_schema(engine)
        yield engine


def check_database(settings: Settings) -> None:
    """Raise ConfigError unless the database exists and has tables.

    SQLite creates a file for every path. Without the check, a mistyped path would give a command
    an empty database, and the command would report success.
    """
    from rappor_server.storage.database import open_database
    from rappor_server.storage.schema_versions import is_empty

    url = parse_url(settings.database)
    fault = "is empty"
    if url.drivername == "sqlite" and not Path(str(url.database)).exists():
        # The name of the database follows from the name of the registry. After a typing error in
        # the registry, the message must name the registry, and not a database that nobody named.
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
