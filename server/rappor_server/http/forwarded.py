"""The address of a client behind a proxy: `X-Forwarded-For` and `Forwarded` (RFC 7239).

The input is the headers of a request that a trusted proxy sends (the setting `proxies`). The output
is `client` and `scheme` of the ASGI scope, as if the client had connected without a proxy.

uvicorn reads `X-Forwarded-For` and `X-Forwarded-Proto`. This middleware writes the addresses and
the scheme of `Forwarded` into the same two headers, so that uvicorn's rule holds for all of them:
the client is the last address that is no trusted proxy. An example:

    Forwarded: for=192.0.2.60;proto=https, for="[2001:db8::17]:4711"
    X-Forwarded-For: 192.0.2.60, [2001:db8::17]:4711
    X-Forwarded-Proto: https

A proxy that sets only one of the two headers `Forwarded` and `X-Forwarded-For` may pass on the
other header as the client sent it. A client could then choose its address, and evade the limits
that the collector applies to each source of requests. (Source: an IPv4 address, or the first 64
bits of an IPv6 address.) If the two headers name clients of different sources, the collector
cannot tell which header the proxy has set, and the request gets 400.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from rappor_server.base.problems import Problem, render_problem
from rappor_server.base.source_quota import identify_source

_PAIR: Final = re.compile(
    r"""[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=("(?:[^"\\]|\\.)*"|[^\s;,"]+)[ \t]*"""
    r"""(?:(?:;[ \t]*)*(,|$)|(?:;[ \t]*)+)"""
)
"""Pattern of one pair NAME=VALUE and of the separator after the pair. A value with a space, comma,
semicolon or quotation mark must stand in quotation marks. A semicolon separates the pairs of one
element, and a comma separates the elements. Each proxy appends one element. The grammar of RFC 7239
allows further semicolons, also at the end of an element: `for=192.0.2.60;`. The third group is the
comma or the empty text at the end of an element, and None before a further pair."""
_FOR: Final = b"x-forwarded-for"
_PROTO: Final = b"x-forwarded-proto"


class _Forwarded(NamedTuple):
    """Content of the header `Forwarded`.

    Attributes
    ----------
    addresses : address of the client, then the addresses of the proxies in the order in which they
        passed on the request; the text "unknown" for a missing address
    scheme : "https" or "http", by which the request reached a proxy. If several proxies name a
        scheme, it is the scheme of the last of them. It is empty if no proxy names a scheme.
    """

    addresses: list[str]
    scheme: str


class ForwardedHeaders(ProxyHeadersMiddleware):
    """Middleware that sets the client of a request by the headers of a trusted proxy."""

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
        """Return the headers of a request, with the two headers that uvicorn reads.

        `text` is the content of the header `Forwarded`. A header of uvicorn that the request has
        already is not changed.

        Raises ValueError if `Forwarded` is malformed, or names a client of another source than
        `X-Forwarded-For`.
        """
        forwarded = parse_forwarded(text)
        addresses = ", ".join(forwarded.addresses)
        x_addresses = b", ".join(value for name, value in headers if name == _FOR).decode("latin1")
        if x_addresses and self._find_source(x_addresses) != self._find_source(addresses):
            raise ValueError("Forwarded and X-Forwarded-For must name the same client")
        translated = [*headers]
        if not x_addresses:
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
        name, value, element_end = match.groups()
        if value.startswith('"'):
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        if name.lower() == "for":
            address = value
        elif name.lower() == "proto":
            scheme = value.lower()
        if element_end is not None:
            # A proxy that hides the address of its client, or does not have the address, may omit
            # `for`. "unknown" then takes the place of the address. Otherwise the last address in
            # the list would be the address of an earlier client.
            addresses.append(address or "unknown")
            address = ""
        position = match.end()
    return _Forwarded(addresses, scheme)
