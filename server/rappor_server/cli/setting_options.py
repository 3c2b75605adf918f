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
import copy
import dataclasses
import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from rappor.base.atomic_files import read_text
from rappor.base.errors import FileError
from rappor.cli.options import Option
from rappor_server.app.settings import Settings
from rappor_server.base.errors import ConfigError
from rappor_server.storage.database import parse_url

if TYPE_CHECKING:
    from sqlalchemy import Engine


_PREFIX: Final = "RAPPOR_SERVER_"
"""The names of all environment variables of settings begin with this prefix."""
_CONFIG: Final = f"{_PREFIX}CONFIG"
"""Variable that names the TOML file of settings. It is not a setting itself."""
_SERVICE_VARIABLE: Final = re.compile(
    r"([A-Z0-9_]+_)?"
    r"(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
"""Pattern of the variables that Kubernetes sets for a service named rappor-server, or for a service
such as rappor-server-postgres, without the prefix. The pattern lacks the variable PORT, which
Kubernetes sets as well. An operator may set the same variable, because `port` is a setting.
`_is_set_by_kubernetes` decides by the value of PORT who has set it."""
_PORT_VARIABLE: Final = re.compile(r"([A-Z0-9_]+_)?PORT")
"""Pattern of the variables that Kubernetes sets to the address of a service, without the prefix."""
_FIELDS: Final = {field.name: field for field in dataclasses.fields(Settings)}
"""Field of each setting, by name. Its metadata are the arguments of its option."""

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Type of a decorator that adds options to the function of a command."""


def _load_config(context: click.Context, _: click.Parameter, path: str | None) -> None:
    """Use the values of a TOML file as defaults of the options.

    click calls this function before it reads the other options, because `--config` is eager.
    """
    if path is not None:
        context.default_map = read_config(path)
        context.meta[_CONFIG] = path  # for `_name_source`


def read_config(path: str) -> dict[str, Any]:
    """Return the settings in a TOML file, by name.

    Raises
    ------
    ConfigError
        The file is not TOML, or has a key that is not a setting, or a value has the wrong type or
        is out of range. The message names the file.
    """
    try:
        config = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} must be TOML: {error}") from None
    for name, value in config.items():
        _check_name(f"{path}: {name}", name)
        if not _is_valid(name, value):
            # A URL of a database may contain a password.
            shown_value = f"a {type(value).__name__}" if name == "database" else repr(value)
            raise ConfigError(f"{path}: {name} must be {_describe_valid(name)}, got {shown_value}")
    return config


def _is_valid(name: str, value: Any) -> bool:
    """Return whether a value of a TOML file has the type and the range of a setting.

    click would convert values of other types, and name no file in its errors. Bad cases: "a.toml"
    became a list of six characters, 2.5 the port 2, true the port 1, and a date ended the command
    with a traceback.
    """
    field = _FIELDS[name]
    if field.default == ():
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    # TOML has integers for numbers of seconds, too: body_seconds = 3.
    types = (int, float) if isinstance(field.default, float) else type(field.default)
    # bool is a subclass of int in Python.
    if not isinstance(value, types) or isinstance(value, bool) != (field.default is False):
        return False
    try:
        click.types.convert_type(field.metadata["type"]).convert(value, None, None)
    except click.BadParameter:
        return False
    return True


def _describe_valid(name: str) -> str:
    """Return the type and the range of a setting in words, such as "an integer of at least 1"."""
    default, value_type = _FIELDS[name].default, _FIELDS[name].metadata["type"]
    if default == ():
        return "a list of texts"
    if isinstance(value_type, click.IntRange):
        least, most = value_type.min, value_type.max
        return (
            f"an integer of at least {least}"
            if most is None
            else f"an integer in [{least}, {most}]"
        )
    if isinstance(value_type, click.Choice):
        return f"one of {', '.join(value_type.choices)}"
    if default is False:
        return "true or false"
    if name == "proxies":  # the only text with several items; other settings are lists
        return "a text of addresses separated by commas"
    return "a number of seconds above 0" if isinstance(default, float) else "a text"


def _check_name(subject: str, name: str) -> None:
    """Raise ConfigError with a suggestion if a name is no setting.

    Parameters
    ----------
    subject : first words of the message: the name as the operator wrote it, and the file that
        contains it, such as "server.toml: prot"
    name : the name, spelled like a field of `Settings`, such as "prot"
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
    hidden : names of the settings whose options `--help` leaves out and `--help-all` shows
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
    """Option of a setting. It ignores an environment variable that Kubernetes has set.

    An error names the source of the value: click itself names the flag, even if nobody has passed
    it and the value is in a variable. `read_config` checks the values of a file.
    """

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Convert the value; raise ConfigError with the name of the variable if it is invalid."""
        try:
            return super().process_value(ctx, value)
        except click.BadParameter:
            if ctx.get_parameter_source(self.name or "") is not ParameterSource.ENVIRONMENT:
                raise
            expected = _describe_valid(self.name or "")
            raise ConfigError(f"{self.envvar} must be {expected}, got {value!r}") from None

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the value of the variable, or None if no operator has set it."""
        if isinstance(self.envvar, str) and _is_set_by_kubernetes(self.envvar):
            return None
        return super().resolve_envvar_value(ctx)


def _is_set_by_kubernetes(variable: str) -> bool:
    """Return whether Kubernetes has set a variable to describe a service of the namespace.

    Kubernetes tells all containers of a namespace the addresses of all services, in variables that
    begin with the name of the service. For a service named rappor-server they have the prefix of
    settings: RAPPOR_SERVER_PORT=tcp://10.96.0.12:8080. A collector that took them for settings did
    not start, because tcp://10.96.0.12:8080 is no port. Nor did one beside a database with the
    service rappor-server-postgres, because RAPPOR_SERVER_POSTGRES_SERVICE_HOST is no setting.
    """
    name = variable.removeprefix(_PREFIX)
    is_address = _PORT_VARIABLE.fullmatch(name) and "://" in os.environ.get(variable, "")
    return bool(is_address or _SERVICE_VARIABLE.fullmatch(name))


def _make_option(name: str, *, is_hidden: bool) -> Decorator:
    """Return the decorator that adds the option of one setting.

    The default of the setting decides the kind of the option. With the default False it is a flag,
    and with an empty tuple it may be repeated. With any other default it has one value.
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
"""Decorator that adds --registry, --database and --config to a command."""
add_closing_options = add_setting_options("registry", "older", "database")
"""Decorator that adds --registry, --older, --database and --config to a command that closes blocks.
A block may contain reports of devices that were not updated and still have an older registry. It
closes by the largest `min_cohort` and `min_reports` of all these registries (`rules_in_force`)."""


def _show_all_options(context: click.Context, _: click.Parameter, is_set: bool) -> None:
    """Print the help with all options, and exit. click calls this function for `--help-all`."""
    if is_set:
        # A copy: the options of the command itself stay hidden in a later `--help` of this process.
        command = copy.copy(context.command)
        command.params = [copy.copy(parameter) for parameter in command.params]
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                parameter.hidden = False
        click.echo(command.get_help(context))
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
        is_setting = variable.startswith(_PREFIX) and variable != _CONFIG
        if is_setting and not _is_set_by_kubernetes(variable):
            _check_name(variable, variable.removeprefix(_PREFIX).lower())
    # Every account of a machine can list the flags of all processes. A password there would leak
    # while the command runs, even if the command fails.
    source = click.get_current_context().get_parameter_source("database")
    is_flag = source is ParameterSource.COMMANDLINE
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
    try:
        return Settings(**options)
    except ConfigError as error:
        raise ConfigError(f"{_name_source(str(error))}{error}") from None


def _name_source(message: str) -> str:
    """Return the file or the variable of the first setting that a message names, with a colon.

    The text is empty if the value comes from a flag. `Settings` does not know the sources, and its
    messages begin with the names of settings: "admin must be HOST:PORT, got 'x'".
    """
    context = click.get_current_context()
    for name in re.findall(r"\w+", message.partition(" must ")[0]):
        source = context.get_parameter_source(name)
        if source is ParameterSource.ENVIRONMENT:
            return f"{_PREFIX}{name.upper()}: "
        if source is ParameterSource.DEFAULT_MAP:
            return f"{context.meta[_CONFIG]}: "
    return ""


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
        # Without --database, the database is the file beside the registry with the same name and
        # the ending .sqlite3. If the path of the registry is mistyped, both files are missing. The
        # message must then name the registry, because the operator has not typed the database.
        if not Path(settings.registry).exists():
            raise FileError(settings.registry, "it does not exist")
        fault = "does not exist"
    else:
        with open_database(settings.database) as engine:
            if not is_empty(engine):
                return
    raise ConfigError(
        f"database must contain the tables of a collector, got {url.render_as_string()}, which "
        f"{fault}: run rappor-server serve or migrate to create the tables"
    )
