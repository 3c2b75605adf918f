"""Settings: flags, then environment (RAPPOR_SERVER_...), then a TOML file, then defaults.

All commands read the same ones, so that one file serves the collector, its timers and operators.

Secrets come from files or from the environment, never from a flag: the upload key is in the
file that `upload_key_file` names, and a database's address with a password belongs in
RAPPOR_SERVER_DATABASE.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_type_hints

from rappor.files import read_text
from rappor_server.errors import ConfigError
from rappor_server.ingest.validate import Suspicious
from rappor_server.storage.database import parse_url, sqlite_url

_PREFIX: Final = "RAPPOR_SERVER_"
_FILE: Final = "config"
"""What names the file of settings in the environment."""
_WORDS: Final = {"true": True, "false": False}
_ADDRESS: Final = re.compile(r"(?:[^\s:]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a collector runs; sizes in bytes, times in seconds.

    registry : the registry's file.
    older : earlier registries whose parameters are still accepted from clients that lag behind.
    database : sqlite:///FILE or postgresql://...; an SQLite file beside the registry by default.
    database_seconds : how long a start waits for a database that does not answer yet.
    host, port, workers : where the collector listens, and in how many processes.
    admin : HOST:PORT of an address for operators and analysts; then host and port only receive.
        Several workers need it, because the one behind it knows all estimates under way.
    pages : whether that address has pages for people, who sign in with a token.
    upload_key_file : a file with the keys of which uploads must carry one; without it everyone may
        send.
    stop_file : a TOML file of metrics that devices stop reporting, and their last days.
    max_body, max_decompressed, max_reports : limits of one upload: bytes sent, bytes, reports.
    max_bodies : bytes of all bodies under way, beyond which others are turned away.
    max_connections : connections of devices to one process, beyond which others are turned away.
    body_seconds : how long the head of a request, and then its body, may take to arrive.
    rate : uploads a minute from one source; 0 is no limit.
    origins : web origins whose pages may send; * is all of them.
    suspicious : refuse, quarantine or accept reports whose popcount no honest device shows.
    report_days : how many days raw reports are kept, where a metric keeps them.
    readers, decoders : processes for reading counts, and for estimates.
    decode_seconds, decode_bytes : how long an answer may take, and how much memory.
    jobs_per_token : estimates that one token may have under way.
    max_candidates : how many candidates one request for estimates may list.
    commit_seconds : how long an upload waits for its commit before it is told to retry.
    max_queue : how many uploads may wait for their commit before others are turned away.
    tls_certificate, tls_key : PEM files, to serve HTTPS directly.
    proxies : addresses of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed.
    """

    registry: str
    older: tuple[str, ...] = ()
    database: str = ""
    database_seconds: float = 60.0
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    admin: str = ""
    pages: bool = False
    upload_key_file: str = ""
    stop_file: str = ""
    max_body: int = 1_000_000
    max_decompressed: int = 4_000_000
    max_reports: int = 1000
    max_bodies: int = 128_000_000
    max_connections: int = 4_000
    body_seconds: float = 15.0
    rate: int = 0
    origins: tuple[str, ...] = ()
    suspicious: str = "refuse"
    report_days: int = 90
    readers: int = 1
    decoders: int = 2
    decode_seconds: float = 60.0
    decode_bytes: int = 4_000_000_000
    jobs_per_token: int = 1
    max_candidates: int = 1_000_000
    commit_seconds: float = 15.0
    max_queue: int = 10_000
    tls_certificate: str = ""
    tls_key: str = ""
    proxies: str = "127.0.0.1"

    def __post_init__(self) -> None:
        """Refuse settings that are out of range or exclude each other."""
        if not self.registry:
            raise ConfigError("registry must be the path of a registry's file, got nothing")
        if not self.database:
            object.__setattr__(self, "database", beside(self.registry))
        _check_numbers(self)
        _check_combinations(self)

    @property
    def admin_address(self) -> tuple[str, int]:
        """The host and the port of the operators' address."""
        host, _, port = self.admin.rpartition(":")
        return host.strip("[]"), int(port)


def _check_numbers(settings: Settings) -> None:
    for name in (
        "workers",
        "max_body",
        "max_decompressed",
        "max_reports",
        "max_bodies",
        "max_connections",
        "max_queue",
        "max_candidates",
        "readers",
        "decoders",
        "decode_bytes",
        "jobs_per_token",
        "report_days",
    ):
        if getattr(settings, name) < 1:
            raise ConfigError(f"{name} must be at least 1, got {getattr(settings, name)}")
    for name in ("body_seconds", "commit_seconds", "decode_seconds", "database_seconds"):
        if not 0 < getattr(settings, name) < math.inf:
            raise ConfigError(f"{name} must be above 0 seconds, got {getattr(settings, name)}")
    if settings.rate < 0 or not 0 <= settings.port < 1 << 16:
        raise ConfigError("rate must be at least 0, and port in [0, 65535]")


def _check_combinations(settings: Settings) -> None:
    choices = [choice.value for choice in Suspicious]
    if settings.suspicious not in choices:
        raise ConfigError(
            f"suspicious must be one of {', '.join(choices)}, got {settings.suspicious!r}"
        )
    if settings.admin and not _ADDRESS.fullmatch(settings.admin):
        raise ConfigError(f"admin must be HOST:PORT, got {settings.admin!r}")
    if settings.admin and settings.port and settings.admin_address[1] == settings.port:
        raise ConfigError(f"admin must be on another port than devices use, got {settings.port}")
    if settings.pages and not settings.admin:
        raise ConfigError(
            "admin must be HOST:PORT where there are pages, got nothing: people open them at that "
            "address"
        )
    if bool(settings.tls_certificate) != bool(settings.tls_key):
        raise ConfigError("tls_certificate and tls_key must be given together")
    if settings.workers > 1 and settings.database.startswith("sqlite"):
        raise ConfigError(
            f"workers must be 1 on SQLite, got {settings.workers}: several workers need "
            "PostgreSQL (--database postgresql://...)"
        )
    if settings.workers > 1 and not settings.admin:
        raise ConfigError(
            "admin must be HOST:PORT where there are several workers, got nothing: analysts and "
            "operators ask the worker at that address"
        )


def beside(registry: str) -> str:
    """Return the address of the SQLite file beside a registry."""
    return sqlite_url(Path(registry).with_suffix(".sqlite3"))


def load(
    flags: Mapping[str, Any],
    *,
    environment: Mapping[str, str] = os.environ,
    file: str | None = None,
) -> Settings:
    """Return the settings; a flag that is None was not given.

    Raises ConfigError for a setting that is unknown or of another kind, and FileError if the file
    cannot be read.
    """
    kinds = get_type_hints(Settings)
    chosen = _from_file(file, kinds) if file else {}
    chosen |= _from_environment(environment, kinds)
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    if "database" in given and parse_url(given["database"]).password:
        raise ConfigError(
            "database must have no password in a flag, which everyone on the machine can read: "
            f"put the address in {_PREFIX}DATABASE"
        )
    if "registry" not in chosen | given:
        raise ConfigError(
            f"registry must be given, as --registry FILE, in {_PREFIX}REGISTRY or in the file of "
            "settings"
        )
    return Settings(**chosen | given)


def _from_environment(environment: Mapping[str, str], kinds: Mapping[str, Any]) -> dict[str, Any]:
    chosen = {}
    for key, text in environment.items():
        name = key.removeprefix(_PREFIX).lower()
        if not key.startswith(_PREFIX) or name == _FILE:
            continue
        if name not in kinds:
            raise _no_setting(key, name, kinds)
        chosen[name] = _read(key, text, kinds[name])
    return chosen


def _no_setting(place: str, name: str, kinds: Mapping[str, Any]) -> ConfigError:
    """Return the error for a name that is no setting, with the one that comes close."""
    close = difflib.get_close_matches(name, kinds, n=1)
    hint = f"did you mean {close[0]}?" if close else f"one of {', '.join(kinds)}"
    return ConfigError(f"{place} must name a setting; {hint}")


def _read(name: str, text: str, kind: Any) -> Any:
    """Read a setting from its text; the entries of a list are separated by commas."""
    if kind is bool:
        if text not in _WORDS:
            raise ConfigError(f"{name} must be true or false, got {text!r}")
        return _WORDS[text]
    if kind not in (int, float, str):
        return tuple(filter(None, text.split(",")))
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{name} must be a number, got {text!r}") from None


def _from_file(path: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    try:
        document = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} must be TOML: {error}") from None
    chosen = {}
    for name, value in document.items():
        if name not in kinds:
            raise _no_setting(f"{path}: {name}", name, kinds)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            chosen[name] = tuple(value)
        elif type(value) is kinds[name] or (kinds[name] is float and type(value) is int):
            chosen[name] = value
        else:
            raise ConfigError(f"{path}: {name} must be of type {kinds[name]}, got {value!r}")
    return chosen
