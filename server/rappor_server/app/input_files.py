"""What a collector reads from files: checked as a whole, and replaced as a whole by a reload."""

from __future__ import annotations

import datetime
import hashlib
import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from rappor.base.atomic_files import read_text
from rappor.registry.registry import Registry
from rappor_server.app.settings import Settings
from rappor_server.base.errors import ConfigError
from rappor_server.ingest.accepted_params import AcceptedParams, why_unfit
from rappor_server.ingest.registry_changes import find_conflicts
from rappor_server.ingest.stops import Stops
from rappor_server.ingest.upload_keys import UploadKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFiles:
    """The texts of the files that settings name; where they name none, the text is empty."""

    registry: str
    older: tuple[str, ...]
    keys: str = field(repr=False)
    stops: str
    certificate: str
    private_key: str = field(repr=False)

    @classmethod
    def read(cls, settings: Settings, *, today: datetime.date) -> Self:
        """Read and check all files; a RapporError says what is wrong with the first wrong one."""
        found = cls(
            registry=read_text(settings.registry),
            older=tuple(map(read_text, settings.older)),
            keys=_read(settings.upload_key_file),
            stops=_read(settings.stop_file),
            certificate=_read(settings.tls_certificate),
            private_key=_read(settings.tls_key),
        )
        found.accepted_params(settings, today=today)
        found.upload_keys(settings)
        if found.certificate:
            found.load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        return found

    @property
    def digest(self) -> str:
        """A name of the registry's text."""
        return hashlib.sha256(self.registry.encode()).hexdigest()[:16]

    def accepted_params(self, settings: Settings, *, today: datetime.date) -> AcceptedParams:
        """Return what may be accepted; what has expired before this year costs nothing."""
        texts = (self.registry, *self.older)
        current, *older = _parse_registries(texts, settings, today)
        stops = Stops()
        if settings.stop_file:
            stops = Stops.loads(self.stops, path=settings.stop_file, metrics=current, today=today)
        return AcceptedParams(current, older, text=self.registry, digest=self.digest, stops=stops)

    def upload_keys(self, settings: Settings) -> UploadKeys | None:
        """Return the upload keys, None if everyone may send."""
        path = settings.upload_key_file
        return UploadKeys.loads(self.keys, path=path) if path else None

    def load_certificate(self, context: ssl.SSLContext) -> None:
        """Let a context use the certificate from now on; ConfigError if the two do not fit."""
        with tempfile.TemporaryDirectory(prefix="rappor-server-") as folder:  # mode 0700
            chain, key = Path(folder) / "chain.pem", Path(folder) / "key.pem"
            chain.write_text(self.certificate, encoding="utf-8")
            key.write_text(self.private_key, encoding="utf-8")
            try:
                context.load_cert_chain(chain, key, password="")  # or it would ask the terminal
            except (ssl.SSLError, ValueError):
                raise ConfigError(
                    "tls_certificate and tls_key must be PEM files that belong together, the key "
                    "without a passphrase"
                ) from None


def read_registries(settings: Settings, *, today: datetime.date) -> list[Registry]:
    """Return the current registry and the older ones, as `serve` reads and checks them."""
    return _parse_registries(map(read_text, _registry_paths(settings)), settings, today)


def _registry_paths(settings: Settings) -> tuple[str, ...]:
    return (settings.registry, *settings.older)


def _parse_registries(
    texts: Iterable[str], settings: Settings, today: datetime.date
) -> list[Registry]:
    """Return the registries in force; ConfigError if the current one conflicts with an older one.

    Reports under all of these registries arrive side by side, so the release of the current
    registry must keep what the older ones promised.
    """
    paths = _registry_paths(settings)
    current, *older = (
        Registry.loads(text, path=path, today=today)
        for path, text in zip(paths, texts, strict=True)
    )
    for reason in filter(None, map(why_unfit, current.values())):
        raise ConfigError(f"{settings.registry}: {reason}")
    for path, registry in zip(settings.older, older, strict=True):
        for conflict in find_conflicts(registry, current):
            raise ConfigError(f"{settings.registry}, after {path}: {conflict.text}")
    return [current, *older]


def _read(path: str) -> str:
    return read_text(path) if path else ""
