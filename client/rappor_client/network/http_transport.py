"""The default transport: HTTPS by the standard library, one connection for each upload.

The transport uses the proxies of the system. Its requests reveal name and version of this library
and nothing else about the device. Importing this module takes longer than importing all other
modules of the client, so the client imports it only if the host program names a collector.

An exchange is one request and its response. An exchange must end within its timeout, whatever the
server does:

- The timeout of a socket starts anew with every byte that arrives, so a server that sends one byte
  a second would hold a caller for hours.
- Nothing bounds the duration of a name lookup.

So every exchange runs in a thread of its own, and two deadlines bound it:

1. The caller waits for the result until the deadline. Then it marks the exchange as severed, shuts
   the socket down, and raises UploadError(timed_out=True). A name lookup may still run in the
   thread; the socket that it opens afterwards is closed at once (`_register`).
2. Before every wait for bytes, the timeout of the socket is set to the time until the deadline
   (`_DeadlineSocket`). This deadline matters where no thread can start, as at the end of a program
   from Python 3.12 on. Then the exchange runs in the thread of the caller.

Example with a timeout of 10 s: the lookup takes 4 s, TLS 1 s, and the server then sends one byte a
second. The socket waits 5 s in all, then raises TimeoutError, 10 s after the call.

`close` severs the exchange of another thread. Consent may have been withdrawn, so nothing may be
sent after `close` has returned. No connection is kept for another upload, because a shared
connection would link two reports of one device.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import email.utils
import functools
import gzip
import http.client
import math
import os
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rappor.base.errors import ParamsError
from rappor.base.threads import start_thread
from rappor_client.network.address import (
    UPLOAD_PATH,
    Address,
    check_key,
    parse_collector,
    parse_proxy,
)
from rappor_client.network.transport import TransportResponse, UploadError
from rappor_client.version import installed_version

_MIN_GZIP_BYTES: Final = 1000
"""Smallest body, in bytes, that is compressed. Below it the longer header costs more than gzip
saves."""
_MAX_RESPONSE_BYTES: Final = 1_000_000
"""Largest part of a response, in bytes, that is read. The value bounds the memory that a wrong
server can fill."""
_MAX_GZIP_RATIO: Final = 10
"""Largest ratio of a body to its compressed form that collectors unpack. A more compressible body
is sent as it is."""
_SUCCESS_CLASS: Final = 2
"""First digit of the statuses by which a proxy accepts CONNECT (RFC 9110 section 9.3.6)."""
_TIMED_OUT: Final = TimeoutError.__name__
"""Name of the failure if an exchange has no result at its deadline. A socket raises an error of
this name at its own deadline, so one name is enough for both deadlines."""
_MIN_SOCKET_SECONDS: Final = 0.001
"""Smallest timeout, in seconds, that a socket gets. A socket takes 0 for "do not wait"."""


class HttpTransport:
    """A transport that sends uploads over HTTPS, through the proxies of the system.

    Parameters
    ----------
    url : str
        Address of the collector: https, or http to this machine.
    key : str, optional
        The upload key, if the collector requires one.

    Raises
    ------
    ParamsError
        The address or the key cannot be right.

    Examples
    --------
    >>> HttpTransport("https://telemetry.example.org", key="secret")
    HttpTransport('telemetry.example.org')
    """

    def __init__(self, url: str, *, key: str | None = None) -> None:
        self._address = parse_collector(url)
        if key is not None:
            check_key(key)
        self._key = key
        self._running: set[_Exchange] = set()

    def __repr__(self) -> str:
        """Return the host without the key."""
        return f"HttpTransport({self._address.host!r})"

    def send(self, body: bytes, *, timeout: float) -> TransportResponse:
        """Post an upload; see `Transport.send`.

        The body is compressed if compression makes it shorter and collectors unpack the result.
        """
        packed = gzip.compress(body, mtime=0) if len(body) >= _MIN_GZIP_BYTES else body
        is_packed = len(packed) < len(body) <= _MAX_GZIP_RATIO * len(packed)
        # The headers contain the upload key. A local variable would show them in a traceback.
        exchange = _Exchange(
            self._address,
            packed if is_packed else body,
            self._build_headers(is_packed=is_packed),
            timeout,
        )
        self._running.add(exchange)
        try:
            return exchange.run()
        finally:
            # A signal, such as Ctrl-C, may have ended the wait. Without `sever` the exchange went
            # on in its thread, also beyond a later `withdraw()`.
            exchange.sever()
            self._running.discard(exchange)

    def _build_headers(self, *, is_packed: bool) -> dict[str, str]:
        """Return the headers of an upload, whose body is compressed if `is_packed`."""
        headers = {"Content-Type": "application/json"}
        if is_packed:
            headers["Content-Encoding"] = "gzip"
        headers |= {"User-Agent": _user_agent(), "Connection": "close"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        return headers

    def close(self) -> None:
        """Sever the exchange of another thread; see `Transport.close`."""
        for exchange in self._running.copy():
            # The child of a fork has a copy of this set. A shutdown by the child would end the
            # connection of its parent, because both share the socket.
            if exchange.process == os.getpid():
                exchange.sever()


class _DeadlineSocket(socket.socket):
    """A socket that waits for bytes until its deadline, by the monotonic clock, and no longer."""

    deadline = math.inf

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        """Receive bytes as `socket.socket.recv_into` does, within the time that is left."""
        self.settimeout(_count_seconds_until(self.deadline))
        return super().recv_into(*args, **kwargs)


class _DeadlineTlsSocket(_DeadlineSocket, ssl.SSLSocket):
    """A TLS socket that waits for bytes until its deadline and no longer."""


class _FinalResponse(http.client.HTTPResponse):
    """The final response of a server, after any number of interim responses (1xx)."""

    def _read_status(self) -> tuple[str, int, str]:
        """Read the status line of the final response, and skip interim responses (100 to 199)."""
        # `http.client` skips the interim response 100 only, and took 103 (Early Hints) for the
        # final one. The deadline of the socket bounds this loop.
        while True:
            version, status, reason = super()._read_status()  # type: ignore[misc]  # not in typeshed
            if not http.client.CONTINUE < status < http.client.OK:
                return version, status, reason
            http.client.parse_headers(self.fp)


@dataclass(eq=False)
class _Exchange:
    """One request and its response, on a connection of its own.

    Attributes
    ----------
    address, body, headers, timeout
        The request, and its longest duration in seconds.
    process
        The process that began the exchange. A child of a fork leaves it alone.

    `_response` and `_failure` are written in the thread of the exchange, before `_is_over` is set.
    `_is_severed` is set in another thread.
    """

    address: Address
    body: bytes
    headers: Mapping[str, str] = field(repr=False)
    timeout: float
    process: int = field(default_factory=os.getpid)
    _response: TransportResponse | None = None
    _failure: str = _TIMED_OUT
    _socket: _DeadlineSocket | None = None
    _is_severed: bool = False
    _deadline: float = 0.0
    _is_over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> TransportResponse:
        """Run the exchange in a thread, and wait for its response until the timeout.

        Raises UploadError if no response arrived. The error contains the type of the failure only:
        a message of the operating system may contain addresses.
        """
        self._deadline = time.monotonic() + self.timeout
        try:
            start_thread(threading.Thread(target=self._run, name="rappor-exchange", daemon=True))
        except RuntimeError:
            # No thread can start: the process is at its limit, or the interpreter ends. A flush in
            # an `atexit` handler must still deliver, so the exchange runs in this thread.
            self._run()
        is_over = self._is_over.wait(self.timeout) and not self._is_severed
        if is_over and self._response is not None:
            return self._response
        failure = self._failure if is_over else _TIMED_OUT
        message = f"the collector was not reached: {failure}"
        raise UploadError(message, timed_out=failure == _TIMED_OUT)

    def sever(self) -> None:
        """End the exchange from another thread; nothing is sent afterwards."""
        self._is_severed = True
        self._is_over.set()
        if self._socket is not None:
            _shut_down(self._socket)

    def _run(self) -> None:
        """Make the exchange, and store its response or the name of its failure."""
        try:
            self._response = self._request()
        except Exception as error:  # noqa: BLE001 - `run` raises UploadError in the caller's thread
            self._failure = _name_failure(error)
        finally:
            if self._socket is not None:
                self._socket.close()
            self._is_over.set()

    def _request(self) -> TransportResponse:
        """Connect, send the request and read the response."""
        address = self.address
        is_tls = address.scheme == "https"
        kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
        connection = kind(address.host, address.port)
        connection.response_class = _FinalResponse
        with contextlib.closing(connection):
            connection.sock = self._connect(_find_proxy(address) if is_tls else None)
            if is_tls:
                connection.sock = self._encrypt(connection.sock)
            connection.request("POST", address.path + UPLOAD_PATH, self.body, dict(self.headers))
            with connection.getresponse() as response:
                return TransportResponse(
                    status=response.status,
                    body=response.read(_MAX_RESPONSE_BYTES),
                    retry_after=parse_retry_after(response.headers.get("Retry-After")),
                )

    def _connect(self, proxy: Address | None) -> _DeadlineSocket:
        """Connect to the collector, directly or through a tunnel of a proxy."""
        peer = proxy or self.address
        plain = socket.create_connection((peer.host, peer.port), self.timeout)
        connected = self._register(_DeadlineSocket(fileno=plain.detach()))
        if proxy is not None:
            _open_tunnel(connected, self.address, proxy)
        return connected

    def _encrypt(self, plain: socket.socket) -> ssl.SSLSocket:
        """Return a TLS socket over a connected socket, after the handshake."""
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        context.sslsocket_class = _DeadlineTlsSocket
        name = self.address.host
        # The handshake waits for the server too, so the socket needs its deadline before.
        tls = context.wrap_socket(plain, server_hostname=name, do_handshake_on_connect=False)
        assert isinstance(tls, _DeadlineTlsSocket)
        self._register(tls)
        tls.do_handshake()
        return tls

    def _register(self, connected: _DeadlineSocket) -> _DeadlineSocket:
        """Store a new socket, so that `sever` reaches it, and set its deadline.

        Raises TimeoutError if `sever` was called while the connection was made, for example during
        a long name lookup: nothing may be sent any more.
        """
        self._socket = connected
        connected.settimeout(_count_seconds_until(self._deadline))
        connected.deadline = self._deadline
        if self._is_severed:
            connected.close()
            raise TimeoutError
        return connected


def _count_seconds_until(deadline: float) -> float:
    """Return the seconds until a deadline, as a timeout that a socket accepts."""
    return max(deadline - time.monotonic(), _MIN_SOCKET_SECONDS)


def _shut_down(connected: socket.socket) -> None:
    """End a connection that another thread is using, also while that thread waits for bytes."""
    with contextlib.suppress(OSError):  # the connection has ended by itself
        # `SSLSocket.shutdown` would discard the TLS state that the other thread is using.
        socket.socket.shutdown(connected, socket.SHUT_RDWR)


def _open_tunnel(connected: socket.socket, to: Address, proxy: Address) -> None:
    """Request a tunnel to an address from a proxy (RFC 9110 section 9.3.6)."""
    lines = [f"CONNECT {to.authority} HTTP/1.1", f"Host: {to.authority}"]
    if proxy.login is not None:
        login = base64.b64encode(proxy.login.encode()).decode()
        lines.append(f"Proxy-Authorization: Basic {login}")
    connected.sendall("\r\n".join([*lines, "", ""]).encode())
    # Without `_FinalResponse`, an interim response of the proxy was taken for a refusal.
    with _FinalResponse(connected, method="CONNECT") as response:
        response.begin()
        # Every status 2xx accepts the tunnel. Some proxies send 201, which was once taken for a
        # refusal.
        if response.status // 100 != _SUCCESS_CLASS:
            raise ParamsError(f"the system's proxy answered with status {response.status}")


def _name_failure(error: Exception) -> str:
    """Return a text for a failure of an exchange, without the address."""
    if isinstance(error, ParamsError):  # a sentence of this library about the system's proxy
        return str(error)
    name = type(error).__name__
    # Few people know that a misspelt host raises an error of the function getaddrinfo.
    if isinstance(error, socket.gaierror):
        return f"the name of its host was not found ({name})"
    return name


def _find_proxy(address: Address) -> Address | None:
    """Return the proxy that the system names for a host, or None."""
    # This import takes 40 ms. Only processes that send uploads need it.
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415 - a slow import

    proxy = getproxies().get(address.scheme)
    if not proxy or proxy_bypass(address.host):
        return None
    return parse_proxy(proxy)


def parse_retry_after(header: str | None) -> float | None:
    """Return the seconds of a header Retry-After (RFC 9110 section 10.2.3).

    The header contains seconds or a date. The result is None for any other text.
    """
    if header is None:
        return None
    if header.strip().isdecimal():
        return float(header)
    try:
        date = email.utils.parsedate_to_datetime(header)
        # Dates of HTTP are UTC, also in the asctime format, which names no zone. Without `replace`
        # Python read such a date in the local zone of the device, so the wait was hours too long.
        timestamp = date.replace(tzinfo=date.tzinfo or datetime.UTC).timestamp()
        return max(timestamp - time.time(), 0.0)
    except (ValueError, OverflowError):
        return None


@functools.cache
def _user_agent() -> str:
    """Return the header User-Agent, without a slash where no version is installed."""
    return f"rappor-client/{installed_version()}".removesuffix("/")
