"""The network as an argument: what the client asks of a transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A collector's answer; `retry_after` is in seconds, None if the collector gave none."""

    status: int
    body: bytes = b""
    retry_after: float | None = None


class Transport(Protocol):
    """Carries uploads to one collector; the client uses it from one thread at a time."""

    def send(self, body: bytes, *, timeout: float) -> Answer:
        """Post an upload; raise UploadError if no whole answer comes within `timeout` seconds.

        Nothing else bounds the time: a flush lasts as long as this call.
        """

    def close(self) -> None:
        """End what another thread has under way, and close the connections.

        The next request opens new ones.
        """
