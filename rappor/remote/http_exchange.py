"""HTTPS exchange with a collector: one request and its response, by the standard library.

The module defends against four dangers of a foreign or hostile server: a response that fills the
memory, a response that never ends, a redirect that carries the token to another host, and text that
controls a terminal. Only clients of a collector import it, because its import takes longer than the
import of all modules of a device.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.error import HTTPError
from urllib.parse import SplitResult, urlsplit
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
    getproxies,
    proxy_bypass,
)

from rappor.base.errors import CollectorError, ParamsError

MOST_BYTES: Final = 1 << 29
"""Largest response in bytes: 512 MiB. The limit keeps a wrong server from filling the memory. The
counts of a year of days with 1,024 cohorts of 128 bits have less than half of this size."""

_CHUNK: Final = 1 << 16
"""Largest number of bytes that are read at a time: 64 KiB. Length and time are checked after each
chunk."""

_LONGEST_DETAIL: Final = 500
"""Largest number of characters of a server's text in a message. The error documents of a collector
are shorter."""

_SINGLE_LABEL: Final = re.compile(r"[a-z][a-z0-9_-]*")
"""Matches a host name without a dot, the form of the services of a container network. Names in a
compose file may contain underscores."""

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
"""Hosts to which http is always allowed, because the bytes do not leave the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """Request to a collector.

    Attributes
    ----------
    method : method of HTTP, such as "GET".
    path : path with the query, after the collector's address.
    headers : headers by name. `repr` leaves them out, because they contain the token.
    body : the body in bytes; None without a body.
    seconds : time limit of the exchange, in seconds, as `HttpExchange` applies it.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """Response of a collector.

    Attributes
    ----------
    status : HTTP status.
    headers : headers by name in lower case.
    body : the body in bytes.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


Exchange = Callable[[HttpRequest], HttpResponse]
"""Type of a function that sends a request and returns the response. A response with a status other
than 200 is returned, too. The function raises CollectorError if no response arrives."""


class HttpExchange:
    """Transport of requests to one collector over HTTPS.

    Requests pass through the proxies of the system. Redirects are not followed.

    `HttpRequest.seconds` limits each wait for bytes of the server, and the time in which the body
    arrives. The header of a response has no limit of its own: a server may send at most 100 lines,
    but any number of seconds may pass between the first line and the last one.

    Parameters
    ----------
    url : address of the collector: https, or http to the same machine.
    most_bytes : largest response in bytes.
    allow_http : True to allow http to a host name without a dot, such as the name of a service in a
        network of containers. Everybody who can read that network can read the requests.

    Raises
    ------
    ParamsError
        The address has another scheme, a user name, a query or a fragment.
    """

    def __init__(self, url: str, *, most_bytes: int = MOST_BYTES, allow_http: bool = False) -> None:
        """Parse the address. No request is sent yet."""
        self._base = _parse_address(url, allow_http=allow_http)
        self._opener = _build_opener(self._base)
        self._most_bytes = most_bytes

    def __repr__(self) -> str:
        """Return a text with the host."""
        return f"HttpExchange({self._base.hostname!r})"

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Send a request, and read the whole response.

        Raises
        ------
        CollectorError
            The collector cannot be reached, or the response is too long or takes too much time.
        """
        _check_proxy(self._base)
        end = time.monotonic() + request.seconds
        url = self._base._replace(path=self._base.path + request.path).geturl()
        sent = Request(  # noqa: S310 - the scheme was checked
            url, request.body, dict(request.headers), method=request.method
        )
        try:
            try:
                response = self._opener.open(sent, timeout=request.seconds)
            except HTTPError as error:
                # urllib raises an error for a status other than 2xx, which is a response, too.
                response = error
            with response:
                body = self._read_body(response, end)
                headers = {name.lower(): value for name, value in response.headers.items()}
                return HttpResponse(status=int(response.status), headers=headers, body=body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            # Case ValueError: a header of the response cannot be parsed. `from None` drops the
            # original traceback, because it could show the request with its token.
            reason = getattr(error, "reason", None) or error
            raise CollectorError(
                f"the collector was not reached: {_make_printable(reason)}"
            ) from None

    def _read_body(self, response: http.client.HTTPResponse, end: float) -> bytes:
        """Read the body of a response, within the limits of length and time.

        Bad case: a server that sends one byte before each timeout of the socket. The timeout limits
        a single wait only, so the whole exchange needs a limit, `end`, in seconds of the monotonic
        clock.
        """
        parts: list[bytes] = []
        size = 0
        # `read1` returns the bytes that have arrived. `read` would wait for a whole chunk, and such
        # a server would never let it return to the check of the time.
        while chunk := response.read1(_CHUNK):
            parts.append(chunk)
            size += len(chunk)
            if size > self._most_bytes:
                raise CollectorError(
                    f"the response of the collector must have at most {self._most_bytes:,} bytes: "
                    "ask for fewer days"
                )
            if time.monotonic() > end:
                raise CollectorError("the collector was not reached: its response took too long")
        # `length` is the number of bytes that the header announced and that have not arrived. Bad
        # case: the connection ends in the middle of the body. The part that arrived is no response.
        if response.length:
            raise CollectorError(
                "the collector was not reached: the connection ended before the response was "
                "complete"
            )
        return b"".join(parts)


def read_problem(response: HttpResponse) -> CollectorError:
    """Return the error of a response, with the sentence of its problem document (RFC 9457)."""
    try:
        detail = json.loads(response.body)["detail"]
    except (ValueError, KeyError, TypeError, RecursionError):
        # Case: a proxy or another server, which may respond with any text.
        detail = "it gave no reason"
    return CollectorError(
        f"the collector responded {response.status}: {_make_printable(detail)}",
        status=response.status,
    )


class _FinalResponse(http.client.HTTPResponse):
    """The final response of a server, after any number of interim responses (1xx)."""

    def _read_status(self) -> tuple[str, int, str]:
        """Read the status line of the final response, and skip interim responses (100 to 199)."""
        # Case: 103 (Early Hints). `http.client` skips 100 only, and nothing before a tunnel. The
        # timeout of the socket bounds each wait of this loop.
        while True:
            version, status, reason = super()._read_status()  # type: ignore[misc]  # not in typeshed
            if not http.client.CONTINUE <= status < http.client.OK:
                return version, status, reason
            http.client.parse_headers(self.fp)


class _TunnelResponse(_FinalResponse):
    """Response of a proxy to CONNECT. Every status 2xx accepts the tunnel, as 200 does."""

    def _read_status(self) -> tuple[str, int, str]:
        """Read the status line. `http.client` takes 201 to 299 for a refusal."""
        version, status, reason = super()._read_status()
        is_accepted = http.client.OK <= status < http.client.MULTIPLE_CHOICES
        return version, int(http.client.OK) if is_accepted else status, reason


class _HttpConnection(http.client.HTTPConnection):
    """Connection whose interim responses are skipped."""

    response_class = _FinalResponse


class _HttpsConnection(http.client.HTTPSConnection):
    """Connection over TLS, perhaps through the tunnel of a proxy."""

    response_class: type[http.client.HTTPResponse] = _FinalResponse

    def _tunnel(self) -> None:
        """Request a tunnel from the proxy."""
        self.response_class = _TunnelResponse
        super()._tunnel()  # type: ignore[misc]  # not in typeshed
        self.response_class = _FinalResponse


class _HttpHandler(HTTPHandler):
    """Handler of urllib for http."""

    def http_open(self, req: Request) -> http.client.HTTPResponse:
        """Send a request."""
        return self.do_open(_HttpConnection, req)


class _HttpsHandler(HTTPSHandler):
    """Handler of urllib for https, with the certificates that the system trusts."""

    def https_open(self, req: Request) -> http.client.HTTPResponse:
        """Send a request."""
        return self.do_open(_HttpsConnection, req, context=ssl.create_default_context())


class _NoRedirect(HTTPRedirectHandler):
    """Handler that returns a redirect as the response.

    Following the redirect would send the token to another host.
    """

    def redirect_request(self, *_: object) -> None:
        """Return no request, so that the redirect is not followed."""
        return


def _build_opener(base: SplitResult) -> OpenerDirector:
    """Build the object of urllib that sends requests."""
    # An http request stays on the machine or in a container network. Without this branch it would
    # pass through a proxy on another machine.
    if base.scheme == "http":
        return build_opener(ProxyHandler({}), _HttpHandler, _NoRedirect)
    return build_opener(_HttpsHandler, _NoRedirect)


def _check_proxy(base: SplitResult) -> None:
    """Raise CollectorError if requests would pass through a proxy whose address cannot be right.

    urllib reports such an address as an error of the collector's address or name.
    """
    text = getproxies().get(base.scheme)
    # Requests over http pass through no proxy.
    if base.scheme == "http" or not text or proxy_bypass(str(base.hostname)):
        return
    try:
        parts = urlsplit(text if "//" in text else f"//{text}")
        has_host = bool(parts.hostname) and parts.port != 0 and not parts.netloc.endswith(":")
        is_http = parts.scheme in ("", "http", "https")
    except ValueError:  # the port is no number or too large, or a bracket is missing
        has_host = is_http = False
    if not (has_host and is_http and all("!" <= letter <= "~" for letter in text)):
        # The message does not contain the address, which may contain a password.
        raise CollectorError(
            "the collector was not reached: the system's proxy must be an http address such as "
            "http://proxy.example.org:3128"
        )


def _parse_address(url: str, *, allow_http: bool) -> SplitResult:
    """Parse and check the address of a collector."""
    # Case: a line break in the address. The rest of the address would become a header of the
    # request.
    if not isinstance(url, str) or not all("!" <= letter <= "~" for letter in url):
        raise ParamsError("url must be an https address in ASCII without spaces")
    try:
        parts = urlsplit(url)
        # `urlsplit` ignores text after the bracket of an IPv6 address, and urllib does not: with
        # "[::1].example.org" the check would see this machine, and the request would leave it.
        after_bracket = parts.netloc.rpartition("]")[2] if "]" in parts.netloc else ""
        has_host = (
            parts.hostname
            and parts.port != 0
            and (not after_bracket or after_bracket.startswith(":"))
        )
    except ValueError:
        has_host = False
    is_allowed = has_host and (
        parts.scheme == "https"
        or (parts.scheme == "http" and _is_near(str(parts.hostname), allow_http=allow_http))
    )
    if not is_allowed:
        # The most frequent mistake is an address without a scheme, such as "127.0.0.1:8080". The
        # message does not contain the address, because it may contain a password.
        scheme = url.partition("://")[0] if "://" in url else "no scheme"
        raise ParamsError(
            f"url must be an https address (http only to localhost), got {scheme}: write for "
            "example http://127.0.0.1:8080, and reach a collector on another machine by TLS or "
            "by a tunnel"
        )
    # Case: a password in the address. It would appear in messages and logs.
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise ParamsError("url must have no user name, ? or #; give the token separately")
    return parts._replace(path=parts.path.rstrip("/"))


def _is_near(host: str, *, allow_http: bool) -> bool:
    """Return whether http is acceptable to a host.

    Requests to the same machine do not leave it. A name without a dot is not a public domain: the
    network of the containers resolves it, if `allow_http` accepts such a network.
    """
    # Case: a public address in another notation. http://134744072 and http://0x8080808 are the
    # address 8.8.8.8, so the name must begin with a letter.
    return host in _LOOPBACK or (allow_http and _SINGLE_LABEL.fullmatch(host) is not None)


def _make_printable(reason: object) -> str:
    """Convert the text of a server to one line of printable characters.

    Control characters of a foreign text could hide or change text on a terminal.
    """
    text = "".join(letter if letter.isprintable() else " " for letter in str(reason))
    return " ".join(text.split())[:_LONGEST_DETAIL] or type(reason).__name__
