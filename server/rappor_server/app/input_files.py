"""Input files of a collector: registries, upload keys, stops, TLS certificate.

A stop makes all devices skip a metric until a day, which is included (`ingest/stops.py`). The file
of stops has that day for each stopped metric. An older registry is a registry under which devices
that were not updated still report.

The settings name the files, and `serve` reads them at its start and on SIGHUP. `InputFiles` holds
their texts and parses them. All files are read and checked together. A reload puts all of them in
force or none, so a collector never runs with a new registry and old keys:

    start   read, check            an invalid file ends the command with status 2
    SIGHUP  read, check, adopt     an invalid file changes nothing; the log has `reload refused`

A reload also checks that the files of candidates exist, which the registry names and analysts use.
A start only writes `candidates missing` to the log for each file that does not.
`rappor-server reload` makes the same checks before it sends SIGHUP.
"""

from __future__ import annotations

import datetime
import hashlib
import ssl
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from rappor.base.atomic_files import read_text
from rappor.candidates.entry_candidates import list_files
from rappor.registry.registry import Registry
from rappor_server.app.settings import Settings
from rappor_server.base.errors import ConfigError
from rappor_server.ingest.accepted_params import AcceptedParams
from rappor_server.ingest.registry_changes import find_conflicts
from rappor_server.ingest.stops import Stops
from rappor_server.ingest.upload_keys import UploadKeys


class MissingCandidates(NamedTuple):
    """A file of candidates that cannot be read.

    Attributes
    ----------
    metric : name of the metric
    file : name of the file in the registry
    reason : reason of the operating system, such as "No such file or directory"
    """

    metric: str
    file: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFiles:
    """Texts of the files that the settings name. A text is empty if the settings name no file.

    Attributes
    ----------
    registry : TOML of the current registry
    older : TOML of each earlier registry whose parameters are still accepted
    keys : upload keys, one `NAME KEY LAST-DAY` a line
    stops : TOML of the last day of each stop, `METRIC = DAY`
    certificate : certificate chain for TLS, in PEM
    private_key : private key of the certificate, in PEM

    The two secrets are left out of `repr`, which a log or a traceback may show.
    """

    registry: str
    older: tuple[str, ...]
    keys: str = field(repr=False)
    stops: str
    certificate: str
    private_key: str = field(repr=False)

    @classmethod
    def read(cls, settings: Settings, *, today: datetime.date) -> Self:
        """Read and check all files.

        Parameters
        ----------
        settings : settings with the paths of the files
        today : present day (UTC). A stop must end within 30 days, because devices accept no longer
            stop. A metric whose last day is before `today` has expired.

        Raises
        ------
        RapporError
            A file cannot be read or is invalid. The message names the first such file.
        """
        inputs = cls(
            registry=read_text(settings.registry),
            older=tuple(map(read_text, settings.older)),
            keys=_read_optional(settings.upload_key_file),
            stops=_read_optional(settings.stop_file),
            certificate=_read_optional(settings.tls_certificate),
            private_key=_read_optional(settings.tls_key),
        )
        # The results are thrown away. The parsers raise the errors of invalid files now, before
        # anything is changed.
        inputs.parse_accepted_params(settings, today=today)
        inputs.parse_upload_keys(settings)
        # The setting decides and not the text: an empty file is an invalid certificate. Otherwise a
        # collector whose certificate file is empty would serve HTTP without TLS.
        if settings.tls_certificate:
            inputs.load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        return inputs

    @property
    def digest(self) -> str:
        """Digest of the text of the registry: 16 hexadecimal digits of its SHA-256.

        It is the ETag of /v1/registry, and operators compare it between processes. 64 bits
        distinguish all registries that one team ever writes.
        """
        return hashlib.sha256(self.registry.encode()).hexdigest()[:16]

    def parse_accepted_params(self, settings: Settings, *, today: datetime.date) -> AcceptedParams:
        """Return the current registry, and the parameter sets under which reports are accepted.

        Raises
        ------
        RapporError
            A registry or the file of stops is invalid, or the registry conflicts with an older one.
        """
        texts = (self.registry, *self.older)
        current, *older = _parse_registries(texts, settings, today)
        stops = Stops()
        if settings.stop_file:
            stops = Stops.loads(self.stops, path=settings.stop_file, metrics=current, today=today)
        return AcceptedParams(current, older, text=self.registry, digest=self.digest, stops=stops)

    def check_candidate_files(self, settings: Settings, *, today: datetime.date) -> None:
        """Raise ConfigError if a file of candidates of the current registry cannot be read.

        A reload checks the files: the registry before stays in force, and the pages of the metric
        keep their candidates. A start does not check them, because devices report without
        candidates, and a collector that did not start would lose more than a page. It writes
        `candidates missing` to its log.
        """
        for missing in self.find_missing_candidates(settings, today=today):
            raise ConfigError(
                f"{settings.registry}: metric {missing.metric!r}: candidates must be a file that "
                f"can be read, got {missing.file}: {missing.reason}"
            )

    def find_missing_candidates(
        self, settings: Settings, *, today: datetime.date
    ) -> Iterator[MissingCandidates]:
        """Yield the files of candidates of the current registry that cannot be read."""
        folder = Path(settings.registry).parent
        registry = self.parse_accepted_params(settings, today=today).registry
        for metric in registry.values():
            for name in list_files(metric.candidates or ()):
                try:
                    (folder / name).open("rb").close()
                except OSError as error:
                    yield MissingCandidates(metric.name, name, error.strerror or str(error))

    def parse_upload_keys(self, settings: Settings) -> UploadKeys | None:
        """Return the upload keys, or None if uploads need no key; raise FileError if invalid."""
        path = settings.upload_key_file
        return UploadKeys.loads(self.keys, path=path) if path else None

    def load_certificate(self, context: ssl.SSLContext) -> None:
        """Load the certificate and the key into a TLS context.

        A reload calls this method with the context of the running server. Later handshakes use the
        renewed certificate, and established connections continue.

        Python loads certificates only from files. The texts are therefore written into a temporary
        folder that only the owner can read. The original files are not loaded directly, because a
        renewal may replace one of them between the check and the load.

        Raises
        ------
        ConfigError
            Certificate and key do not belong together, the key has a passphrase, or the temporary
            folder cannot be written.
        """
        try:
            self._load_certificate_files(context)
        except (ssl.SSLError, ValueError):
            raise ConfigError(
                "tls_certificate and tls_key must be PEM files that belong together, the key "
                "without a passphrase"
            ) from None
        except OSError as error:  # for example, the disk of the temporary folder is full
            raise ConfigError(
                "tls_certificate and tls_key must be copied into a temporary folder: "
                f"{error.strerror}"
            ) from None

    def _load_certificate_files(self, context: ssl.SSLContext) -> None:
        """Write certificate and key into a temporary folder, and load them into a TLS context."""
        with tempfile.TemporaryDirectory(prefix="rappor-server-") as folder:
            chain, key = Path(folder) / "chain.pem", Path(folder) / "key.pem"
            chain.write_text(self.certificate, encoding="utf-8")
            key.write_text(self.private_key, encoding="utf-8")
            # Without a password, OpenSSL would ask the terminal for the passphrase of a key. A
            # collector that reloads its files would wait for the terminal and stop serving.
            context.load_cert_chain(chain, key, password="")


def read_registries(settings: Settings, *, today: datetime.date) -> list[Registry]:
    """Return the current registry, then the older registries, checked as `serve` checks them.

    Commands such as `prune` and `publish` use this function. They need neither keys nor stops.
    """
    return _parse_registries(map(read_text, _list_registry_paths(settings)), settings, today)


def _list_registry_paths(settings: Settings) -> tuple[str, ...]:
    return (settings.registry, *settings.older)


def _parse_registries(
    texts: Iterable[str], settings: Settings, today: datetime.date
) -> list[Registry]:
    """Return the current registry, then the older registries.

    Devices that were not updated report under an older registry, so reports of all these
    registries arrive side by side. The current registry must therefore keep the promises of the
    older registries to their devices: for example, `min_reports` must not fall.

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
        # The first conflict of any level is an error. The command `rappor-server check` shows some
        # conflicts as warnings only, because they do no harm after reports of the older registry
        # are no longer accepted. Here the settings name the older registry, so its reports are
        # still accepted.
        for conflict in find_conflicts(registry, current):
            raise ConfigError(f"{settings.registry}, after {path}: {conflict.text}")
    return [current, *older]


def _read_optional(path: str) -> str:
    """Return the text of a file, or an empty text if the setting names no file."""
    return read_text(path) if path else ""
