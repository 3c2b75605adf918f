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
    "registry": _Flag("TOML", "The registry file.", _PATH),
    "older": _Flag(
        "TOML", "An earlier registry whose parameters are still accepted. May be repeated.", _PATH
    ),
    "database": _Flag(
        "URL",
        "The database: sqlite:///FILE or postgresql://HOST/NAME. Default: an SQLite file beside "
        "the registry.",
    ),
    "database_seconds": _Flag(
        "SECONDS", "How long to wait at the start for a database that does not answer.", float
    ),
    "host": _Flag("ADDRESS", "The address to listen on."),
    "port": _Flag("NUMBER", "The port to listen on. With 0 the system chooses one.", int),
    "workers": _Flag(
        "PROCESSES",
        "The number of worker processes. More than one needs PostgreSQL and --admin.",
        int,
    ),
    "admin": _Flag(
        "HOST:PORT",
        "A separate address for operators and analysts. The other one then only takes uploads.",
    ),
    "pages": _Flag(
        None,
        "Serve a dashboard at the address of --admin. People sign in with a token.",
        bool,
    ),
    "upload_key_file": _Flag(
        "FILE",
        "A file of upload keys, one NAME KEY LAST-DAY per line. Uploads must carry one of them. "
        "Without this file everybody may upload.",
        _PATH,
    ),
    "stop_file": _Flag(
        "TOML",
        "A file of metrics that devices must stop reporting, each with the last day of the stop.",
        _PATH,
    ),
    "max_body": _Flag("BYTES", "The largest upload before decompression.", int),
    "max_decompressed": _Flag("BYTES", "The largest upload after decompression.", int),
    "max_reports": _Flag("REPORTS", "The largest number of reports in one upload.", int),
    "max_bodies": _Flag(
        "BYTES", "The most bytes of all request bodies in memory. Further requests get 503.", int
    ),
    "max_connections": _Flag(
        "CONNECTIONS",
        "The most device connections to one process. Further ones get 503.",
        int,
    ),
    "body_seconds": _Flag(
        "SECONDS", "How long the head of a request may take to arrive, and then its body.", float
    ),
    "rate": _Flag(
        "UPLOADS",
        "Uploads that one source may send to one worker in a minute. 0 means no limit.",
        int,
    ),
    "origins": _Flag(
        "ORIGIN", "A web origin whose pages may upload, or * for all. May be repeated."
    ),
    "suspicious": _Flag(
        None,
        "What to do with reports whose number of ones no honest device sends.",
        click.Choice([choice.value for choice in Suspicious]),
    ),
    "report_days": _Flag(
        "DAYS", "How long raw reports are kept, for metrics with keep_reports.", int
    ),
    "readers": _Flag("PROCESSES", "The number of processes that read counts for analysts.", int),
    "decoders": _Flag("PROCESSES", "The number of processes that compute estimates.", int),
    "decode_seconds": _Flag("SECONDS", "How long one answer to an analyst may take.", float),
    "decode_bytes": _Flag("BYTES", "How much memory one answer to an analyst may take.", int),
    "jobs_per_token": _Flag("JOBS", "Estimates that one token may have in progress.", int),
    "max_candidates": _Flag("CANDIDATES", "The most candidates in one request for estimates.", int),
    "commit_seconds": _Flag(
        "SECONDS", "How long an upload may wait for its commit. After that it gets 503.", float
    ),
    "max_queue": _Flag(
        "UPLOADS", "How many uploads may wait for a commit. Further ones get 503.", int
    ),
    "tls_certificate": _Flag("PEM", "The certificate chain, to serve HTTPS directly.", _PATH),
    "tls_key": _Flag("PEM", "The private key of the certificate.", _PATH),
    "proxies": _Flag("ADDRESSES", "Proxies whose X-Forwarded-For is trusted, separated by commas."),
}

config_option = click.option(
    "--config",
    "file",
    type=click.Path(),
    metavar="TOML",
    envvar="RAPPOR_SERVER_CONFIG",
    help="A file of settings, or RAPPOR_SERVER_CONFIG. Flags and other RAPPOR_SERVER_... variables "
    "take precedence.",
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
            f"database must be that of a collector, got {url.render_as_string()}, which is "
            "empty: run rappor-server serve or migrate to create the tables"
        )


def today() -> datetime.date:
    """Return the day (UTC)."""
    return datetime.datetime.now(datetime.UTC).date()
