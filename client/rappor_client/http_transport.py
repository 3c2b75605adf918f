"""The default transport: HTTPS by the standard library, each exchange over a connection of its own.

It uses the proxies that the system names, and its requests tell no more than the library's name
and version. Importing it takes longer than all the rest of the client, so it is imported only
when a collector is named.
"""

from __future__ import annotations

import base64
import email.utils
import functools
import gzip
import http.client
import os
import ssl
import time
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from rappor.errors import ParamsError
from rappor_client.errors import UploadError
from rappor_client.transport import Answer
from rappor_client.version import installed_version

_REPORTS: Final = "/v1/reports"
_REGISTRY: Final = "/v1/registry"
_GZIP_FROM_BYTES: Final = 1000  # below it the longer header costs more than gzip saves
_MAX_ANSWER_BYTES: Final = 1_000_000
_MOST_UNPACKED: Final = 10
"""A collector unpacks a body to at most this many times its size."""
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class HttpTransport:
    """Sends uploads over HTTPS, each over a connection of its own, through the system's proxies."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        """Keep the collector's address, and the key for sending if the collector wants one.

        Raises ParamsError unless the scheme is https, or http to this very machine.
        """
        parts = urlsplit(url)
        local = parts.scheme == "http" and parts.hostname in _LOOPBACK
        if not parts.hostname or not (parts.scheme == "https" or local):
            raise ParamsError(
                "collector must be an https address (http only to localhost), got "
                f"{parts.scheme or 'no scheme'}"
            )
        self._parts = parts
        self._key = key
        self._connection: http.client.HTTPConnection | None = None
        self._owner = os.getpid()

    def __repr__(self) -> str:
        """Name the host; the key is never shown."""
        return f"HttpTransport({self._parts.hostname!r})"

    def send(self, body: bytes, *, timeout: float) -> Answer:
        """Post an upload, compressed where that makes it shorter and collectors unpack it."""
        headers = {"Content-Type": "application/json"}
        packed = gzip.compress(body, mtime=0) if len(body) >= _GZIP_FROM_BYTES else body
        if len(packed) < len(body) <= _MOST_UNPACKED * len(packed):
            headers["Content-Encoding"] = "gzip"
            body = packed
        return self._ask("POST", _REPORTS, body, headers, timeout)

    def registry(self, *, timeout: float) -> Answer:
        """Get the collector's registry."""
        return self._ask("GET", _REGISTRY, None, {"Accept": "application/toml"}, timeout)

    def close(self) -> None:
        """Do nothing: every exchange has a connection of its own."""

    def _ask(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: float
    ) -> Answer:
        """Make one exchange on a connection that no other one shares: it would link them."""
        headers = headers | {"User-Agent": _user_agent(), "Connection": "close"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        connection = _connect(self._parts, timeout)
        try:
            connection.request(method, self._parts.path.rstrip("/") + path, body, headers)
            response = connection.getresponse()
            data = response.read(_MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise UploadError(_reason(error)) from None
        finally:
            connection.close()
        return Answer(
            status=response.status,
            body=data,
            retry_after=_seconds(response.headers.get("Retry-After")),
        )


def _connect(parts: SplitResult, timeout: float) -> http.client.HTTPConnection:
    """Make a connection, through the proxy that the system names for the host."""
    host, port = str(parts.hostname), parts.port
    proxy = _proxy(parts.scheme, host)
    through = (proxy.hostname or "", proxy.port) if proxy else (host, port)
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=timeout)
    context = ssl.create_default_context()
    connection = http.client.HTTPSConnection(*through, timeout=timeout, context=context)
    if proxy:
        connection.set_tunnel(host, port, headers=_proxy_headers(proxy))
    return connection


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


def _proxy(scheme: str, host: str) -> SplitResult | None:
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415 - 40 ms, sender only

    address = getproxies().get(scheme)
    if not address or proxy_bypass(host):
        return None
    return urlsplit(address if "//" in address else f"//{address}")


def _seconds(retry_after: str | None) -> float | None:
    """Read Retry-After (RFC 9110 section 10.2.3): seconds or a date; None if it is neither."""
    if retry_after is None:
        return None
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        moment = email.utils.parsedate_to_datetime(retry_after)
        return max(moment.timestamp() - time.time(), 0.0)
    except (ValueError, OverflowError):
        return None


def _reason(error: Exception) -> str:
    return f"the collector was not reached: {type(error).__name__}"


@functools.cache
def _user_agent() -> str:
    return f"rappor-client/{installed_version()}".removesuffix("/")
