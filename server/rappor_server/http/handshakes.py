"""TLS handshakes with limits on their number and duration.

The handshake is the exchange of keys before the first byte of HTTP. asyncio reports a TLS
connection to its protocol only after the handshake, and allows a minute for each handshake. Clients
that connect and send nothing would therefore not count as connections, and thousands of them would
use up the file descriptors of the process. `TlsAcceptor` accepts the connections itself and counts
each connection from its first packet.

A connection passes through three states:

    accepted      It is closed at once if a limit is reached.
    handshake     A task runs the handshake. The connection uses one unit of the quota of its
                  source. The handshake fails after `seconds`.
    established   `make_protocol` has created the HTTP protocol, which is counted by
                  `protocols`. The unit of the quota is released, and `BoundedProtocol` acquires a
                  unit of the quota of connections for the same source.

Invariant: handshakes plus established connections are at most `max_connections`.

A refused connection is closed without a response. A response would need a handshake, which is the
expensive part that the limit prevents.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sized
from typing import Final

from rappor_server.base.source_quota import SourceQuota, limit_scarce

_PAUSE_SECONDS: Final = 0.1
"""Time in seconds before the next attempt to accept a connection after a failure. A longer time
delays connections. A shorter time uses more CPU while the process has no free file descriptor,
because every attempt fails at once."""


class TlsAcceptor:
    """Accepts the connections of a listening socket and runs their TLS handshakes."""

    def __init__(  # noqa: PLR0913 - a socket, the protocol above it, and the limits
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        *,
        make_protocol: Callable[[], asyncio.Protocol],
        protocols: Sized,
        max_connections: int,
        quota: SourceQuota,
        seconds: float,
        on_refusal: Callable[[str], None],
    ) -> None:
        """Prepare to accept connections.

        Parameters
        ----------
        listener : the listening socket
        context : certificate and key
        make_protocol : creates the protocol of an established connection
        protocols : all protocols of established connections; only their number is used
        max_connections : largest number of handshakes and established connections together
        quota : limit on the handshakes of one source
        seconds : longest duration of a handshake, and of the exchange that closes TLS
        on_refusal : called with the name of the reached limit for each refused connection
        """
        self._listener = listener
        self._context = context
        self._make_protocol = make_protocol
        self._protocols = protocols
        self._max_connections = max_connections
        self._quota = quota
        self._seconds = seconds
        self._on_refusal = on_refusal
        self._handshakes: set[asyncio.Task[None]] = set()

    async def keep_accepting(self) -> None:
        """Accept connections until the task is cancelled; then close the socket."""
        self._listener.settimeout(0)  # asyncio accepts only from a socket that does not block
        try:
            while True:
                await self._accept()
        finally:
            self._listener.close()
            for task in self._handshakes:
                task.cancel()

    async def _accept(self) -> None:
        """Accept one connection, and start its handshake unless a limit is reached."""
        loop = asyncio.get_running_loop()
        try:
            connection, (address, *_) = await loop.sock_accept(self._listener)
        except OSError:
            # The process has no free file descriptor, or the client left before it was accepted.
            await asyncio.sleep(_PAUSE_SECONDS)
            return
        if limit := self._acquire(address):
            connection.close()
            self._on_refusal(limit)
            return
        task = loop.create_task(self._run_handshake(connection))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)
        task.add_done_callback(lambda _: self._quota.release(address))

    def _acquire(self, address: str) -> str:
        """Count a handshake for a source, unless a limit is reached.

        Returns the name of the reached limit (`max_connections` or `max_source_connections`), or an
        empty text if the handshake may begin.
        """
        n_taken = len(self._handshakes) + len(self._protocols)
        if n_taken >= self._max_connections:
            return "max_connections"
        limit = limit_scarce(n_taken, self._max_connections)
        return "" if self._quota.acquire(address, limit=limit) else "max_source_connections"

    async def _run_handshake(self, connection: socket.socket) -> None:
        """Run the handshake, then connect the connection with a new protocol."""
        # Clients break handshakes at will: they disconnect, time out or speak another protocol. All
        # of these are OSErrors. A line of the log for each would let a stranger fill the disk.
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._seconds,
                ssl_shutdown_timeout=self._seconds,
            )
