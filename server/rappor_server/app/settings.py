"""Settings of a collector: default, unit, help text and type of each setting.

A field of `Settings` is the only definition of a setting. Its command-line option, its environment
variable and its key in a TOML file follow from the field (`cli/setting_options.py`):

    max_reports: int          --max-reports 500
                              RAPPOR_SERVER_MAX_REPORTS=500
                              max_reports = 500

The value of a setting comes from the first of these sources that has the setting: a flag, an
environment variable, a TOML file, the default. Every account of a machine can list the flags of
running processes. Secrets are therefore in files or in the environment: the upload keys in the file
that `upload_key_file` names, the URL of a database with a password in RAPPOR_SERVER_DATABASE.

`server/SETTINGS.md` documents all settings; a test compares its defaults with the fields.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import re
from pathlib import Path
from typing import Any, Final

import click

from rappor_server.base.errors import ConfigError
from rappor_server.ingest.validate import Suspicious
from rappor_server.storage.database import parse_url, sqlite_url

_ADDRESS: Final = re.compile(r"(?:[^\s:]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
"""Pattern of HOST:PORT. An IPv6 address is in brackets: [::1]:9090."""
_MAX_PORT: Final = 65_535
"""Largest port. TCP has 16 bits for a port."""
_PATH: Final = click.Path()
"""Type of a path. The file need not exist yet: `serve` reads it and names it in its message."""
_NUMBER: Final = click.IntRange(min=1)
"""Type of a number of which there must be at least one."""


class _ListItem(click.types.StringParamType):
    """Type of an item of a list. In an environment variable, commas separate the items."""

    envvar_list_splitter = ","  # click splits at white space, which paths may contain


def _parse_seconds(text: str) -> float:
    """Return a duration in seconds; raise BadParameter if it is not positive and finite.

    `inf` would be a wait without a limit, and `nan` fails every comparison.
    """
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise click.BadParameter(f"{text} is not a number of seconds above 0.")
    return seconds


def _declare_setting(default: Any, unit: str | None, help_text: str, value_type: Any = str) -> Any:
    """Return the field of a setting, whose metadata are the arguments of its command-line option.

    Parameters
    ----------
    default : default value. An empty tuple marks a list, and False marks a flag.
    unit : placeholder of the value in the help
    help_text : one or two sentences
    value_type : type of the value, as click defines types
    """
    option = {"metavar": unit, "help": help_text, "type": value_type}
    return dataclasses.field(default=default, metadata=option)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a collector. Sizes are in bytes, durations in seconds.

    The help text of each field describes the setting. Every limit `max_...` bounds the
    memory or the time that strangers can use.
    """

    registry: str = _declare_setting("", "TOML", "The registry file.", _PATH)
    older: tuple[str, ...] = _declare_setting(
        (),
        "TOML",
        "An earlier registry whose parameters are still accepted. May be repeated.",
        _ListItem(),
    )
    database: str = _declare_setting(
        "",
        "URL",
        "The database: sqlite:///FILE or postgresql://HOST/NAME. Without it an SQLite file beside "
        "the registry.",
    )
    database_seconds: float = _declare_setting(
        60.0,
        "SECONDS",
        "How long to wait at the start for a database that does not respond.",
        _parse_seconds,
    )
    host: str = _declare_setting("127.0.0.1", "ADDRESS", "The address to listen on.")
    port: int = _declare_setting(
        8080,
        "NUMBER",
        "The port to listen on. With 0 the system chooses one.",
        click.IntRange(0, _MAX_PORT),
    )
    admin: str = _declare_setting(
        "",
        "HOST:PORT",
        "A separate address for operators and analysts. The address of --host then only accepts "
        "uploads.",
    )
    pages: bool = _declare_setting(
        default=False,
        unit=None,
        help_text="Serve a dashboard at the address of --admin. People sign in with a token.",
        value_type=bool,
    )
    upload_key_file: str = _declare_setting(
        "",
        "FILE",
        "A file of upload keys, one NAME KEY LAST-DAY per line. Uploads must carry one of them. "
        "Without this file no key is needed.",
        _PATH,
    )
    stop_file: str = _declare_setting(
        "",
        "TOML",
        "A file of stopped metrics, one NAME = DAY per line. Devices must not report a metric "
        "until its day.",
        _PATH,
    )
    max_body: int = _declare_setting(
        1_000_000, "BYTES", "The largest upload before decompression.", _NUMBER
    )
    max_decompressed: int = _declare_setting(
        4_000_000, "BYTES", "The largest upload after decompression.", _NUMBER
    )
    max_reports: int = _declare_setting(
        1000, "REPORTS", "The largest number of reports in one upload.", _NUMBER
    )
    max_bodies: int = _declare_setting(
        128_000_000,
        "BYTES",
        "The most bytes of all request bodies in memory. Further requests get 503.",
        _NUMBER,
    )
    max_connections: int = _declare_setting(
        4_000,
        "CONNECTIONS",
        "The most device connections to one process. Further ones get 503.",
        _NUMBER,
    )
    max_source_connections: int = _declare_setting(
        256,
        "CONNECTIONS",
        "The most device connections of one source to one process, unless the source is one of "
        "--proxies. Further ones get 429.",
        _NUMBER,
    )
    body_seconds: float = _declare_setting(
        15.0,
        "SECONDS",
        "How long the head of a request may take to arrive, and then its body.",
        _parse_seconds,
    )
    rate: int = _declare_setting(
        0,
        "UPLOADS",
        "The most uploads of one source to one process in a minute. 0 means no limit.",
        click.IntRange(min=0),
    )
    origins: tuple[str, ...] = _declare_setting(
        (),
        "ORIGIN",
        "A web origin whose pages may upload, or * for all. May be repeated.",
        _ListItem(),
    )
    suspicious: str = _declare_setting(
        "refuse",
        None,
        "What to do with reports whose popcount no honest device sends.",
        click.Choice([choice.value for choice in Suspicious]),
    )
    readers: int = _declare_setting(
        1, "PROCESSES", "The number of processes that read counts for analysts.", _NUMBER
    )
    decoders: int = _declare_setting(
        2, "PROCESSES", "The number of processes that compute estimates.", _NUMBER
    )
    decode_seconds: float = _declare_setting(
        60.0,
        "SECONDS",
        "How long the computation of one response to an analyst may take.",
        _parse_seconds,
    )
    decode_bytes: int = _declare_setting(
        4_000_000_000,
        "BYTES",
        "How much memory the computation of one response to an analyst may take.",
        _NUMBER,
    )
    queries_per_token: int = _declare_setting(
        1, "QUERIES", "The most queries for estimates that one token may have in progress.", _NUMBER
    )
    analysis_folder: str = _declare_setting(
        "",
        "FOLDER",
        "The folder of results and of uploaded lists of candidates. Without it a folder beside the "
        "SQLite file, or beside the registry.",
        _PATH,
    )
    list_days: int = _declare_setting(
        90,
        "DAYS",
        "How long an uploaded list of candidates is kept after its last use.",
        click.IntRange(1, 36_500),
    )
    max_candidates: int = _declare_setting(
        1_000_000,
        "CANDIDATES",
        "The most candidates in one request for estimates.",
        _NUMBER,
    )
    commit_seconds: float = _declare_setting(
        15.0,
        "SECONDS",
        "How long an upload may wait for its commit. After that it gets 503.",
        _parse_seconds,
    )
    max_queue: int = _declare_setting(
        10_000, "UPLOADS", "The most uploads that wait for a commit. Further ones get 503.", _NUMBER
    )
    tls_certificate: str = _declare_setting(
        "", "PEM", "The certificate chain, to serve HTTPS directly.", _PATH
    )
    tls_key: str = _declare_setting(
        "", "PEM", "The private key of the certificate, without a passphrase.", _PATH
    )
    proxies: str = _declare_setting(
        "127.0.0.1",
        "ADDRESSES",
        "Addresses and networks of proxies whose X-Forwarded-For is trusted, separated by commas.",
    )

    def __post_init__(self) -> None:
        """Set the defaults that depend on other settings; raise ConfigError for contradictions."""
        if not self.registry:
            raise ConfigError("registry must be the path of a registry file, got nothing")
        # metrics.toml has the database metrics.sqlite3 beside it, so that every command finds the
        # same database from the same registry.
        if not self.database:
            url = sqlite_url(Path(self.registry).with_suffix(".sqlite3"))
            object.__setattr__(self, "database", url)  # the dataclass is frozen
        if not self.analysis_folder:
            object.__setattr__(self, "analysis_folder", self._choose_default_analysis_folder())
        if self.admin and not _ADDRESS.fullmatch(self.admin):
            raise ConfigError(f"admin must be HOST:PORT, got {self.admin!r}")
        if self.admin and self.admin_address[1] > _MAX_PORT:
            raise ConfigError(f"admin must have a port in [0, {_MAX_PORT}], got {self.admin!r}")
        # `PublicPathFilter` distinguishes the two addresses by their ports. With one port on two
        # hosts, devices could reach the endpoints of operators.
        if self.admin and self.port and self.admin_address[1] == self.port:
            raise ConfigError(f"admin must have another port than devices use, got {self.port}")
        # The pages show counts, and the public address must show nothing.
        if self.pages and not self.admin:
            raise ConfigError(
                "admin must be HOST:PORT if pages is set, got nothing: it is the address of the "
                "pages, such as --admin 127.0.0.1:9090"
            )
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigError("tls_certificate and tls_key must be set together, got one of them")
        self._check_proxies()

    def _check_proxies(self) -> None:
        """Raise ConfigError unless each item of `proxies` is an address or a network, or "*".

        uvicorn accepts any other item, such as a host name or 10.0.0.5/8, and compares it with the
        text of an address. The proxy would not be trusted, and all devices would be one source.
        """
        items = [item.strip() for item in self.proxies.split(",")]
        if items in ([""], ["*"]):  # no proxy, or every address
            return
        for item in items:
            try:
                ipaddress.ip_network(item)
            except ValueError:
                raise ConfigError(
                    "proxies must be addresses or networks, separated by commas, or one *, "
                    f"got {item!r}"
                ) from None

    def _choose_default_analysis_folder(self) -> str:
        """Return a folder beside the SQLite file, or beside the registry for PostgreSQL."""
        url = parse_url(self.database)
        if url.drivername == "sqlite":
            return f"{url.database}-analysis"
        return str(Path(self.registry).with_suffix(".analysis"))

    @property
    def admin_address(self) -> tuple[str, int]:
        """Host and port of the admin address, with the brackets of an IPv6 address removed."""
        host, _, port = self.admin.rpartition(":")
        return host.strip("[]"), int(port)
