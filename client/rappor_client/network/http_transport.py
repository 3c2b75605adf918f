"""The default transport: HTTPS by the standard library, each exchange over a connection of its own.

It uses the proxies that the system names, and its requests tell no more than the library's name
and version. Importing it takes longer than all the rest of the client, so it is imported only
when a collector is named.

A socket's timeout counts anew with each byte that arrives, and nothing bounds the time in which a
name is resolved. So each exchange runs in a thread of its own, and whoever waits for it shuts its
socket down when the time is over. Where no thread is to be had, as at the end of a program, the
exchange runs in place: before each wait for bytes, its socket is given the time that is left.
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
from rappor.base.threads import begin
from rappor_client.network.address import REPORTS, Address, check_key, parse_collector, parse_proxy
from rappor_client.network.transport import TransportResponse, UploadError
from rappor_client.version import installed_version

_GZIP_FROM_BYTES: Final = 1000  # below it the longer header costs more than gzip saves
_MAX_ANSWER_BYTES: Final = 1_000_000
_MOST_UNPACKED: Final = 10
"""A collector unpacks a body to at most this many times its size."""
_SUCCESS: Final = 2
"""First digit of the statuses with which a proxy accepts CONNECT (RFC 9110 section 9.3.6)."""
_LEAST_SECONDS: Final = 0.001


class HttpTransport:
    """Sends uploads over HTTPS, each over a connection of its own, through the system's proxies."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        """Keep the collector's address, and the key for sending if it wants one.

        Raises ParamsError unless the scheme is https, or http to this very machine, and for an
        address or a key that cannot be right.
        """
        self._address = parse_collector(url)
        if key is not None:
            check_key(key)
        self._key = key
        self._under_way: set[_Exchange] = set()

    def __repr__(self) -> str:
        """Name the host; the key is never shown."""
        return f"HttpTransport({self._address.host!r})"

    def send(self, body: bytes, *, timeout: float) -> TransportResponse:
        """Post an upload, compressed where that makes it shorter and collectors unpack it."""
        headers = {"Content-Type": "application/json"}
        packed = gzip.compress(body, mtime=0) if len(body) >= _GZIP_FROM_BYTES else body
        if len(packed) < len(body) <= _MOST_UNPACKED * len(packed):
            headers["Content-Encoding"] = "gzip"
            body = packed
        headers |= {"User-Agent": _user_agent(), "Connection": "close"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        exchange = _Exchange(self._address, body, headers, timeout)
        self._under_way.add(exchange)
        try:
            return exchange.result()
        finally:
            exchange.sever()  # also where a signal has ended the wait
            self._under_way.discard(exchange)

    def close(self) -> None:
        """Sever the exchange that another thread has under way, if there is one."""
        for exchange in self._under_way.copy():
            if exchange.process == os.getpid():  # a fork leaves its parent's exchanges alone
                exchange.sever()


class _Bounded(socket.socket):
    """A socket that waits for its next bytes until a deadline at most."""

    deadline = math.inf

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        """Receive as any socket does."""
        self.settimeout(_left(self.deadline))
        return super().recv_into(*args, **kwargs)


class _BoundedTls(_Bounded, ssl.SSLSocket):
    """The same, encrypted."""


class _Response(http.client.HTTPResponse):
    """A response after its interim responses (1xx), of which `http.client` skips 100 only."""

    def _read_status(self) -> tuple[str, int, str]:
        while True:
            version, status, reason = super()._read_status()  # type: ignore[misc]  # not in typeshed
            # 100 is skipped by the base class. The deadline of the socket bounds the loop.
            if not http.client.CONTINUE < status < http.client.OK:
                return version, status, reason
            http.client.parse_headers(self.fp)


@dataclass(eq=False)
class _Exchange:
    """One request and its answer, on a connection that no other one shares: it would link them."""

    address: Address
    body: bytes
    headers: Mapping[str, str] = field(repr=False)
    timeout: float
    process: int = field(default_factory=os.getpid)
    _answer: TransportResponse | None = None
    _failure: str = TimeoutError.__name__
    _socket: _Bounded | None = None
    _is_severed: bool = False
    _deadline: float = 0.0
    _is_over: threading.Event = field(default_factory=threading.Event)

    def result(self) -> TransportResponse:
        """Run in a thread and wait for it, not longer than the timeout; raise UploadError."""
        self._deadline = time.monotonic() + self.timeout
        try:
            begin(threading.Thread(target=self._run, name="rappor-exchange", daemon=True))
        except RuntimeError:  # no thread is to be had
            self._run()
        is_over = self._is_over.wait(self.timeout) and not self._is_severed
        failure = self._failure if is_over else TimeoutError.__name__
        if not is_over or self._answer is None:
            timed_out = failure == TimeoutError.__name__
            raise UploadError(f"the collector was not reached: {failure}", timed_out=timed_out)
        return self._answer

    def sever(self) -> None:
        """End the exchange from another thread: nothing more is sent."""
        self._is_severed = True
        self._is_over.set()
        if self._socket is not None:
            _shut_down(self._socket)

    def _run(self) -> None:
        try:
            self._answer = self._exchanged()
        except Exception as error:  # noqa: BLE001 - it is told, not raised, in the other thread
            self._failure = str(error) if isinstance(error, ParamsError) else type(error).__name__
        finally:
            if self._socket is not None:
                self._socket.close()
            self._is_over.set()

    def _exchanged(self) -> TransportResponse:
        address = self.address
        is_tls = address.scheme == "https"
        kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
        connection = kind(address.host, address.port)
        connection.response_class = _Response
        with contextlib.closing(connection):
            connection.sock = self._connected(_proxy(address) if is_tls else None)
            if is_tls:
                connection.sock = self._encrypted(connection.sock)
            connection.request("POST", address.path + REPORTS, self.body, dict(self.headers))
            with connection.getresponse() as response:
                return TransportResponse(
                    status=response.status,
                    body=response.read(_MAX_ANSWER_BYTES),
                    retry_after=_seconds(response.headers.get("Retry-After")),
                )

    def _connected(self, proxy: Address | None) -> _Bounded:
        """Connect to the collector, or to a proxy that connects to it."""
        near = proxy or self.address
        plain = socket.create_connection((near.host, near.port), self.timeout)
        connected = self._keep(_Bounded(fileno=plain.detach()))
        if proxy is not None:
            _open_tunnel(connected, self.address, proxy)
        return connected

    def _encrypted(self, plain: socket.socket) -> ssl.SSLSocket:
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        context.sslsocket_class = _BoundedTls
        name = self.address.host
        tls = context.wrap_socket(plain, server_hostname=name, do_handshake_on_connect=False)
        assert isinstance(tls, _BoundedTls)
        self._keep(tls)
        tls.do_handshake()
        return tls

    def _keep(self, connected: _Bounded) -> _Bounded:
        """Bound a socket and let `sever` reach it; refuse it if that has been called already."""
        self._socket = connected
        connected.settimeout(_left(self._deadline))
        connected.deadline = self._deadline
        if self._is_severed:
            connected.close()
            raise TimeoutError
        return connected


def _left(deadline: float) -> float:
    """Return the seconds that are left; a socket takes 0 for "do not wait"."""
    return max(deadline - time.monotonic(), _LEAST_SECONDS)


def _shut_down(connected: socket.socket) -> None:
    """End a connection that another thread is using, whatever it waits for."""
    with contextlib.suppress(OSError):  # it has ended by itself
        socket.socket.shutdown(connected, socket.SHUT_RDWR)  # an SSLSocket's own forgets its keys


def _open_tunnel(connected: socket.socket, to: Address, proxy: Address) -> None:
    """Ask a proxy to connect (RFC 9110 section 9.3.6)."""
    lines = [f"CONNECT {to.authority} HTTP/1.1", f"Host: {to.authority}"]
    if proxy.login is not None:
        login = base64.b64encode(proxy.login.encode()).decode()
        lines.append(f"Proxy-Authorization: Basic {login}")
    connected.sendall("\r\n".join([*lines, "", ""]).encode())
    with http.client.HTTPResponse(connected, method="CONNECT") as response:
        response.begin()
        if response.status // 100 != _SUCCESS:
            raise ParamsError(f"the system's proxy answered with status {response.status}")


def _proxy(address: Address) -> Address | None:
    """Return the proxy that the system names for a host."""
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415 - 40 ms, sender only

    named = getproxies().get(address.scheme)
    if not named or proxy_bypass(address.host):
        return None
    return parse_proxy(named)


def _seconds(retry_after: str | None) -> float | None:
    """Return the seconds of a Retry-After header (RFC 9110 section 10.2.3), which may have a date.

    None for any other text.
    """
    if retry_after is None:
        return None
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        date = email.utils.parsedate_to_datetime(retry_after)
        # HTTP dates are UTC, also the asctime format, which has no zone. Without `replace` it would
        # be read in the local zone of the device.
        timestamp = date.replace(tzinfo=date.tzinfo or datetime.UTC).timestamp()
        return max(timestamp - time.time(), 0.0)
    except (ValueError, OverflowError):
        return None


@functools.cache
def _user_agent() -> str:
    return f"rappor-client/{installed_version()}".removesuffix("/")
