"""What the commands share: the options of every setting, the open store, and the day."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from rappor_server import settings
from rappor_server.errors import ConfigError
from rappor_server.ingest.validate import Suspicious
from rappor_server.settings import Settings

if TYPE_CHECKING:
    from rappor_server.storage.store import Store

_PATH: Final = click.Path()


class _Flag(NamedTuple):
    """How a setting is given on the command line; the metavar is its unit."""

    metavar: str | None
    help: str
    type: Any = str


_FLAGS: Final[Mapping[str, _Flag]] = {
    "registry": _Flag("TOML", "The file of the registry.", _PATH),
    "older": _Flag(
        "TOML", "An earlier registry whose parameters are still accepted; may be repeated.", _PATH
    ),
    "database": _Flag(
        "URL",
        "The database, sqlite:///FILE or postgresql://HOST/NAME; by default an SQLite file "
        "beside the registry.",
    ),
    "database_seconds": _Flag(
        "SECONDS", "How long a start waits for a database that does not answer yet.", float
    ),
    "host": _Flag("ADDRESS", "The address to listen on."),
    "port": _Flag("NUMBER", "The port to listen on; 0 lets the system choose one.", int),
    "workers": _Flag(
        "PROCESSES",
        "The number of processes; more than one needs PostgreSQL and --admin.",
        int,
    ),
    "admin": _Flag(
        "HOST:PORT",
        "An address for operators and analysts; the other one then only receives.",
    ),
    "pages": _Flag(
        None,
        "Serve pages for people at the address of --admin; they sign in with a token.",
        bool,
    ),
    "upload_key_file": _Flag(
        "FILE",
        "A file of keys, NAME KEY LAST-DAY a line, of which uploads must carry one; without it "
        "everyone may send.",
        _PATH,
    ),
    "stop_file": _Flag(
        "TOML", "A file of metrics that devices stop reporting, with their last days.", _PATH
    ),
    "max_body": _Flag("BYTES", "The largest upload as it is sent.", int),
    "max_decompressed": _Flag("BYTES", "The largest upload after decompression.", int),
    "max_reports": _Flag("REPORTS", "The most reports in one upload.", int),
    "max_bodies": _Flag(
        "BYTES", "The most bytes of all bodies under way before others get 503.", int
    ),
    "max_connections": _Flag(
        "CONNECTIONS",
        "The most connections of devices to one process before others get 503.",
        int,
    ),
    "body_seconds": _Flag(
        "SECONDS", "How long the head of a request, and then its body, may take to arrive.", float
    ),
    "rate": _Flag(
        "UPLOADS",
        "Uploads that one source may send in a minute, for each worker; 0 is no limit.",
        int,
    ),
    "origins": _Flag("ORIGIN", "A web origin whose pages may send, or * for all; may be repeated."),
    "suspicious": _Flag(
        None,
        "What becomes of reports whose number of ones no honest device shows.",
        click.Choice([choice.value for choice in Suspicious]),
    ),
    "report_days": _Flag(
        "DAYS", "How long raw reports are kept, where a metric says keep_reports.", int
    ),
    "readers": _Flag("PROCESSES", "Processes that read counts for analysts.", int),
    "decoders": _Flag("PROCESSES", "Processes that make estimates.", int),
    "decode_seconds": _Flag("SECONDS", "How long one answer to an analyst may take.", float),
    "decode_bytes": _Flag("BYTES", "How much memory one answer to an analyst may take.", int),
    "jobs_per_token": _Flag("JOBS", "Estimates that one token may have under way.", int),
    "max_candidates": _Flag(
        "CANDIDATES", "The most candidates that one request for estimates may list.", int
    ),
    "commit_seconds": _Flag(
        "SECONDS", "How long an upload may wait for its commit before it gets 503.", float
    ),
    "max_queue": _Flag(
        "UPLOADS", "How many uploads may wait for a commit before others get 503.", int
    ),
    "tls_certificate": _Flag("PEM", "The certificate chain, to serve HTTPS directly.", _PATH),
    "tls_key": _Flag("PEM", "The private key of the certificate.", _PATH),
    "proxies": _Flag(
        "ADDRESSES", "Proxies, separated by commas, whose X-Forwarded-For is believed."
    ),
}

config_option = click.option(
    "--config",
    "file",
    type=click.Path(),
    metavar="TOML",
    envvar="RAPPOR_SERVER_CONFIG",
    help="A file of settings, also named by RAPPOR_SERVER_CONFIG; flags and other "
    "RAPPOR_SERVER_... variables come before it.",
)


def setting_option(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option of one setting; absent, the setting comes from elsewhere."""
    (default,) = (field.default for field in dataclasses.fields(Settings) if field.name == name)
    flag = _FLAGS[name]
    option = f"--{name.replace('_', '-')}"
    if flag.type is bool:
        return click.option(option, is_flag=True, default=None, help=flag.help)
    return click.option(
        option,
        type=flag.type,
        multiple=default == (),
        metavar=flag.metavar,
        help=f"{flag.help}{_told_default(default)}",
    )


def _told_default(default: object) -> str:
    """Say what a default is, where it is more than nothing."""
    if isinstance(default, int | float):
        return f" Default: {default:,.0f}." if default >= 10_000 else f" Default: {default:g}."
    return f" Default: {default}." if isinstance(default, str) and default else ""


def setting_options(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the options of settings, and --config, to a command."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        command = config_option(command)
        for name in reversed(names):
            command = setting_option(name)(command)
        return command

    return add


database_options = setting_options("registry", "database")
"""Adds --registry, --database and --config to a command."""


def read_settings(options: Mapping[str, Any]) -> Settings:
    """Return the settings behind a command's options."""
    flags = {name: value for name, value in options.items() if name != "file"}
    return settings.load(flags, file=options.get("file"))


def open_store(chosen: Settings) -> contextlib.closing[Store]:
    """Open the store for a command, and close it after; ConfigError where there is none yet."""
    from rappor_server.storage.store import Store

    check_database(chosen)
    return contextlib.closing(Store.open(chosen.database))


def check_database(chosen: Settings) -> None:
    """Raise ConfigError unless the database is there: a wrong address must not make a new one."""
    from rappor_server.storage.database import is_empty, open_engine, parse_url

    url = parse_url(chosen.database)
    is_there = url.drivername != "sqlite" or Path(str(url.database)).exists()
    if is_there:
        engine = open_engine(chosen.database)
        try:
            is_there = not is_empty(engine)
        finally:
            engine.dispose()
    if not is_there:
        raise ConfigError(
            f"database must be that of a collector, got {url.render_as_string()}, which holds "
            "nothing: rappor-server serve or migrate makes its tables"
        )


def today() -> datetime.date:
    """Return the day (UTC)."""
    return datetime.datetime.now(datetime.UTC).date()
