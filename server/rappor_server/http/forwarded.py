"""The address of a client behind a proxy: `X-Forwarded-For` and `Forwarded` (RFC 7239).

Input: the headers of a request whose connection comes from a trusted proxy (the setting `proxies`).
Output: `client` and `scheme` of the ASGI scope, as if the client had connected itself.

uvicorn reads `X-Forwarded-For` and `X-Forwarded-Proto`. This middleware writes the addresses and
the scheme of `Forwarded` into the same two headers, so that uvicorn's rule holds for all of them:
the client is the last address that is no trusted proxy. An example:

    Forwarded: for=192.0.2.60;proto=https, for="[2001:db8::17]:4711"
    X-Forwarded-For: 192.0.2.60, [2001:db8::17]:4711
    X-Forwarded-Proto: https

A proxy that sets one of the headers may pass on the other one as the client sent it. A client could
then choose its address, and evade the limits of its source. If both headers name different clients,
nobody knows which header the proxy has set, and the request gets 400.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from rappor_server.base.problems import Problem, render_problem
from rappor_server.base.source_quota import identify_source

_PAIR: Final = re.compile(
    r"""[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=("(?:[^"\\]|\\.)*"|[^\s;,"]+)[ \t]*([;,]|$)"""
)
"""Pattern of NAME=VALUE and of the separator after it. A value with other characters is quoted."""
_FOR: Final = b"x-forwarded-for"
_PROTO: Final = b"x-forwarded-proto"


class _Forwarded(NamedTuple):
    """Content of the header `Forwarded`.

    Attributes
    ----------
    addresses : addresses of the client and of the proxies, in the order of the way
    scheme : scheme by which the last proxy was reached that names one; empty if none does
    """

    addresses: list[str]
    scheme: str


class ForwardedHeaders(ProxyHeadersMiddleware):
    """Sets the client of a request by the headers of a trusted proxy."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Call the application with the client that the headers name."""
        client, _ = scope.get("client") or ("", 0)
        if scope["type"] == "http" and client in self.trusted_hosts:
            headers = scope["headers"]
            values = [value for name, value in headers if name == b"forwarded"]
            if values:
                try:
                    scope["headers"] = self._translate(headers, b",".join(values).decode("latin1"))
                except ValueError as error:
                    problem = render_problem(Problem(HTTPStatus.BAD_REQUEST, str(error)))
                    await problem(scope, receive, send)
                    return
        await super().__call__(scope, receive, send)

    def _translate(
        self, headers: list[tuple[bytes, bytes]], text: str
    ) -> list[tuple[bytes, bytes]]:
        """Return headers with the two that uvicorn reads.

        Raises ValueError if `Forwarded` is malformed or names another client.
        """
        forwarded = parse_forwarded(text)
        addresses = ", ".join(forwarded.addresses)
        named = b", ".join(value for name, value in headers if name == _FOR).decode("latin1")
        if named and self._find_source(named) != self._find_source(addresses):
            raise ValueError("Forwarded and X-Forwarded-For must name the same client")
        translated = [*headers]
        if not named:
            translated.append((_FOR, addresses.encode("latin1")))
        if forwarded.scheme and not any(name == _PROTO for name, _ in headers):
            translated.append((_PROTO, forwarded.scheme.encode("latin1")))
        return translated

    def _find_source(self, addresses: str) -> str:
        """Return the source of the last address that is no trusted proxy."""
        host, _ = self.trusted_hosts.get_trusted_client_address(addresses)
        return identify_source(host)


def parse_forwarded(text: str) -> _Forwarded:
    """Return the addresses and the scheme of a header `Forwarded`; ValueError if it is malformed.

    Examples
    --------
    >>> parse_forwarded('for=192.0.2.60;proto=https, For="[2001:db8::17]:4711"')
    _Forwarded(addresses=['192.0.2.60', '[2001:db8::17]:4711'], scheme='https')
    """
    addresses, scheme, position, address = [], "", 0, ""
    while position < len(text):
        match = _PAIR.match(text, position)
        if match is None:
            raise ValueError("Forwarded must be written as in RFC 7239")
        name, value, separator = match.groups()
        if value.startswith('"'):
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        if name.lower() == "for":
            address = value
        elif name.lower() == "proto":
            scheme = value.lower()
        if separator != ";":
            # A proxy that does not know or hide its predecessor leaves its address out.
            addresses.append(address or "unknown")
            address = ""
        position = match.end()
    return _Forwarded(addresses, scheme)
