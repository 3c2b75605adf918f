"""The network as an argument: what the client asks of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a collector said; `retry_after` in seconds, None if it did not say."""

    status: int
    body: bytes = b""
    retry_after: float | None = None


class Transport(Protocol):
    """Carries uploads to one collector; used by one thread at a time."""

    def send(self, body: bytes, *, timeout: float) -> Answer:
        """Post an upload; UploadError if no whole answer comes back in the seconds given."""

    def registry(self, *, timeout: float) -> Answer:
        """Get the collector's registry as TOML; UploadError as above."""

    def close(self) -> None:
        """Let go of connections; the next use opens others."""
