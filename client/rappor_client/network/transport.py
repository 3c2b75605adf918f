"""The network as an argument: what the client asks of a transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rappor.base.errors import RapporError


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportResponse:
    """A collector's answer; `retry_after` is in seconds, None if the collector gave none."""

    status: int
    body: bytes = b""
    retry_after: float | None = None


class UploadError(RapporError):
    """An upload got no answer that settles it."""

    def __init__(
        self,
        reason: str,
        *,
        status: int | None = None,
        retryable: bool = True,
        retry_after: float | None = None,
        timed_out: bool = False,
    ) -> None:
        """Keep the HTTP status if there was one, and whether and when (seconds) to try again.

        `timed_out` says that the time given was over before an answer came.
        """
        self.status = status
        self.timed_out = timed_out
        self.retryable = retryable
        self.retry_after = retry_after
        super().__init__(reason)


class Transport(Protocol):
    """Carries uploads to one collector; the client uses it from one thread at a time."""

    def send(self, body: bytes, *, timeout: float) -> TransportResponse:
        """Post an upload; raise UploadError if no whole answer comes within `timeout` seconds.

        Nothing else bounds the time: a flush lasts as long as this call.
        """

    def close(self) -> None:
        """End what another thread has under way, and close the connections.

        The next request opens new ones.
        """
