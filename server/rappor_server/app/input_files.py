"""Contents of the files that the settings name: registries, upload keys, stops, certificate.

All files are read and checked together. A reload replaces all of them or none, so a collector never
runs with a new registry and old keys.
"""

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
from rappor_server.ingest.accepted_params import AcceptedParams
from rappor_server.ingest.registry_changes import find_conflicts
from rappor_server.ingest.stops import Stops
from rappor_server.ingest.upload_keys import UploadKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFiles:
    """Texts of the files that the settings name. A text is empty if the settings name no file.

    Attributes
    ----------
    registry : the current registry
    older : earlier registries whose parameters are still accepted
    keys : upload keys
    stops : stopped metrics
    certificate : certificate chain for TLS
    private_key : private key of the certificate
    """

    registry: str
    older: tuple[str, ...]
    keys: str = field(repr=False)
    stops: str
    certificate: str
    private_key: str = field(repr=False)

    @classmethod
    def read(cls, settings: Settings, *, today: datetime.date) -> Self:
        """Read and check all files; raise RapporError for the first invalid file."""
        inputs = cls(
            registry=read_text(settings.registry),
            older=tuple(map(read_text, settings.older)),
            keys=_read_optional(settings.upload_key_file),
            stops=_read_optional(settings.stop_file),
            certificate=_read_optional(settings.tls_certificate),
            private_key=_read_optional(settings.tls_key),
        )
        inputs.parse_accepted_params(settings, today=today)
        inputs.parse_upload_keys(settings)
        if inputs.certificate:
            inputs.load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        return inputs

    @property
    def digest(self) -> str:
        """Digest of the text of the registry."""
        return hashlib.sha256(self.registry.encode()).hexdigest()[:16]

    def parse_accepted_params(self, settings: Settings, *, today: datetime.date) -> AcceptedParams:
        """Return the registry and the parameters under which reports are accepted.

        Raises RapporError if a registry or the file of stops is invalid.
        """
        texts = (self.registry, *self.older)
        current, *older = _parse_registries(texts, settings, today)
        stops = Stops()
        if settings.stop_file:
            stops = Stops.loads(self.stops, path=settings.stop_file, metrics=current, today=today)
        return AcceptedParams(current, older, text=self.registry, digest=self.digest, stops=stops)

    def parse_upload_keys(self, settings: Settings) -> UploadKeys | None:
        """Return the upload keys, or None if uploads need no key."""
        path = settings.upload_key_file
        return UploadKeys.loads(self.keys, path=path) if path else None

    def load_certificate(self, context: ssl.SSLContext) -> None:
        """Load the certificate and the key into a TLS context.

        Python loads certificates only from files. The texts are therefore written into a temporary
        folder that only the owner can read.

        Raises
        ------
        ConfigError
            Certificate and key do not belong together, or the key has a passphrase.
        """
        with tempfile.TemporaryDirectory(prefix="rappor-server-") as folder:
            chain, key = Path(folder) / "chain.pem", Path(folder) / "key.pem"
            chain.write_text(self.certificate, encoding="utf-8")
            key.write_text(self.private_key, encoding="utf-8")
            try:
                # Without a password, OpenSSL would ask the terminal for the passphrase of a key. A
                # collector that reloads its files would wait for the terminal and not serve.
                context.load_cert_chain(chain, key, password="")
            except (ssl.SSLError, ValueError):
                raise ConfigError(
                    "tls_certificate and tls_key must be PEM files that belong together, the key "
                    "without a passphrase"
                ) from None


def read_registries(settings: Settings, *, today: datetime.date) -> list[Registry]:
    """Return the current registry and the older registries, checked as `serve` checks them."""
    return _parse_registries(map(read_text, _list_registry_paths(settings)), settings, today)


def _list_registry_paths(settings: Settings) -> tuple[str, ...]:
    return (settings.registry, *settings.older)


def _parse_registries(
    texts: Iterable[str], settings: Settings, today: datetime.date
) -> list[Registry]:
    """Return the current registry and the older registries.

    Reports of all these registries arrive side by side. The releases of the current registry must
    therefore keep the promises of the older registries.

    Parameters
    ----------
    texts : text of the current registry, then of each older registry
    settings : settings with the paths of the registries
    today : the present day (UTC)

    Raises
    ------
    ConfigError
        The current registry conflicts with an older one.
    """
    paths = _list_registry_paths(settings)
    current, *older = (
        Registry.loads(text, path=path, today=today)
        for path, text in zip(paths, texts, strict=True)
    )
    for path, registry in zip(settings.older, older, strict=True):
        for conflict in find_conflicts(registry, current):
            raise ConfigError(f"{settings.registry}, after {path}: {conflict.text}")
    return [current, *older]


def _read_optional(path: str) -> str:
    """Return the text of a file, or an empty text if the path is empty."""
    return read_text(path) if path else ""
