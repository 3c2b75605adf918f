"""The device's secret in a file of its own: created once, private, never silently replaced.

The file holds a line that names it, the 32 bytes of the secret and a checksum. It is read and
written inside a write transaction of the store, so that processes that start together agree.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from rappor.ground.files import replacing
from rappor.protocol.randomizer import SECRET_BYTES
from rappor_client.errors import IdentityError

_NAME: Final = "identity"
_MAGIC: Final = b"rappor identity 1\n"
_CHECK_BYTES: Final = 8
_PRIVATE: Final = 0o600

Stamp = tuple[int, int, int]
"""What tells one version of the file from another without reading it."""


def fresh_secret() -> bytes:
    """Draw a secret from the system's generator."""
    return os.urandom(SECRET_BYTES)


class SecretFile:
    """The secret's file in one folder."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; nothing is read yet."""
        self.path = folder / _NAME

    def exists(self) -> bool:
        """Return whether there is a file, whatever it holds."""
        return self.stamp() is not None  # `Path.exists` says no where a signal's handler raises

    def read(self) -> bytes:
        """Return the secret, or raise IdentityError; the message tells nothing of it."""
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise IdentityError(
                f"{self.path}: the identity must be readable: {error.strerror}"
            ) from None
        secret = data[len(_MAGIC) : len(_MAGIC) + SECRET_BYTES]
        if data != _file_of(secret):
            raise IdentityError(
                f"{self.path}: the identity must be the {len(_file_of(bytes(SECRET_BYTES)))} "
                f"bytes that this library wrote, got {len(data)} other bytes; open with "
                "on_bad_identity='reset' to start as a new device, or 'disable' to record nothing"
            )
        return secret

    def write(self, secret: bytes) -> None:
        """Write a secret, whole or not at all."""
        with replacing(self.path, mode=_PRIVATE) as file:
            file.write(_file_of(secret))

    def stamp(self) -> Stamp | None:
        """Return what changes when the file does, None if the file is gone."""
        try:
            status = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


def _file_of(secret: bytes) -> bytes:
    return _MAGIC + secret + hashlib.sha256(_MAGIC + secret).digest()[:_CHECK_BYTES]
