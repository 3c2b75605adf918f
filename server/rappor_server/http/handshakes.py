"""TLS: a connection counts, and has the time of a head, before its handshake is over.

A server of the event loop knows nothing of connections in their handshake, and gives each a
minute. Thousands of them would take every descriptor of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sized
from typing import Final

from rappor_server.base.connection_limits import Sources

_PAUSE_SECONDS: Final = 0.1
"""Before the next try to take a connection, while the system has no descriptor for one."""


class Handshakes:
    """Takes the connections of a listening socket and makes each of them secure."""

    def __init__(  # noqa: PLR0913 - a connection, what it speaks, and its bounds
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        *,
        new_protocol: Callable[[], asyncio.Protocol],
        connections: Sized,
        most: int,
        sources: Sources,
        seconds: float,
        refuse: Callable[[str], None],
    ) -> None:
        """Allow `most` connections, those whose handshake is over included.

        `sources` bounds handshakes by source, and `refuse` is told which bound was crossed. A
        handshake may take this many seconds, and so may the end of TLS. A connection too many is
        closed without a word, because an answer would need a handshake.
        """
        self._listener = listener
        self._context = context
        self._new_protocol = new_protocol
        self._connections = connections
        self._most = most
        self._sources = sources
        self._seconds = seconds
        self._refuse = refuse
        self._open: set[asyncio.Task[None]] = set()

    async def keep_accepting(self) -> None:
        """Take connections until the task is cancelled, which closes the listening socket."""
        self._listener.settimeout(0)
        try:
            while True:
                await self._accept()
        finally:
            self._listener.close()
            for task in self._open:
                task.cancel()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection, (address, *_) = await loop.sock_accept(self._listener)
        except OSError:
            await asyncio.sleep(_PAUSE_SECONDS)
            return
        if bound := self._crossed_bound(address):
            connection.close()
            self._refuse(bound)
            return
        task = loop.create_task(self._shake_hands(connection))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        task.add_done_callback(lambda _: self._sources.give_back(address))

    def _crossed_bound(self, address: str) -> str:
        """Return which bound one more connection crosses, if any; else count its source."""
        if len(self._open) + len(self._connections) >= self._most:
            return "max_connections"
        return "" if self._sources.take(address) else "max_source_connections"

    async def _shake_hands(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # strangers break handshakes at will
            await asyncio.get_running_loop().connect_accepted_socket(
                self._new_protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._seconds,
                ssl_shutdown_timeout=self._seconds,
            )
