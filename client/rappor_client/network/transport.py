"""The interface between the client and the network: `Transport`, its response and its error.

A host program may pass a transport of its own as `Client.open(collector=...)`, for example one that
uses the connection pool of the host. Without one, the client sends through
`rappor_client.network.http_transport.HttpTransport`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rappor.base.errors import RapporError


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportResponse:
    """The complete response of a collector to one upload.

    Attributes
    ----------
    status : int
        Status code of HTTP.
    body : bytes
        Body of the response, without content encoding.
    retry_after : float, optional
        Seconds that the collector asks the client to wait (header Retry-After), None without the
        header.

    Examples
    --------
    >>> TransportResponse(status=503, retry_after=120.0)
    TransportResponse(status=503, body=b'', retry_after=120.0)
    """

    status: int
    body: bytes = b""
    retry_after: float | None = None


class UploadError(RapporError):
    """An attempt to send an upload that ended without a result for its report.

    Parameters
    ----------
    reason : str
        Message of the error. The message must not contain the body of the upload.
    status : int, optional
        Status code of HTTP, None if no response arrived.
    retryable : bool, default True
        Whether another attempt may succeed. The client drops the report otherwise.
    retry_after : float, optional
        Seconds to wait before the next attempt, None if the collector did not ask for a time.
    timed_out : bool, default False
        Whether the timeout of the attempt ended before a complete response arrived.

    Examples
    --------
    >>> error = UploadError("the collector is in maintenance", status=503, retry_after=60.0)
    >>> error.retryable, error.retry_after
    (True, 60.0)
    """

    def __init__(
        self,
        reason: str,
        *,
        status: int | None = None,
        retryable: bool = True,
        retry_after: float | None = None,
        timed_out: bool = False,
    ) -> None:
        self.status = status
        self.timed_out = timed_out
        self.retryable = retryable
        self.retry_after = retry_after
        super().__init__(reason)


class Transport(Protocol):
    """A carrier of uploads to one collector. The client calls `send` from one thread at a time.

    Examples
    --------
    A transport that prints every upload, for a first look at the traffic of a program:

    >>> class Printer:
    ...     def send(self, body, *, timeout):
    ...         print(body.decode())
    ...         return TransportResponse(status=200, body=b'{"reports": [{"status": "accepted"}]}')
    ...
    ...     def close(self):
    ...         pass
    >>> Printer().send(b'{"v": 1}', timeout=10.0).status
    {"v": 1}
    200
    """

    def send(self, body: bytes, *, timeout: float) -> TransportResponse:
        """Post an upload to the collector.

        A flush lasts as long as this method: no other timer interrupts a transport.

        Parameters
        ----------
        body : bytes
            The upload as JSON, to be sent without any change.
        timeout : float
            Longest duration of the call, in seconds.

        Returns
        -------
        TransportResponse
            Response of the collector, whatever its status is.

        Raises
        ------
        UploadError
            No complete response arrived within `timeout` seconds.
        """

    def close(self) -> None:
        """Abort the request of another thread, and close all connections.

        The next `send` opens new connections. The client calls this method when consent ends, and
        nothing may be sent after the call.
        """
