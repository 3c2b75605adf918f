"""One HTTPS request to a collector and its response, by the standard library.

The module is imported by the collector's clients only: importing it takes longer than importing all
modules of a device.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Final
from urllib.error import HTTPError
from urllib.parse import SplitResult, urlsplit
from urllib.request import (
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

from rappor.base.errors import CollectorError, ParamsError

MOST_BYTES: Final = 1 << 29
"""Largest response in bytes, so that a wrong server cannot fill the memory. The counts of a year of
days with 1,024 cohorts of 128 bits have less than half of this size."""

_CHUNK: Final = 1 << 16
"""Bytes that are read at a time. The time limit is checked after each chunk."""

_LONGEST_DETAIL: Final = 500
"""Largest number of characters of a server's text in a message."""

_SINGLE_LABEL: Final = re.compile(r"[a-z][a-z0-9_-]*")
"""Host names without a dot, as services of a container network have them. Names of the compose file
may contain underscores."""
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
"""Hosts to which http is allowed: the bytes do not leave the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request to a collector.

    Attributes
    ----------
    method : such as "GET".
    path : path with the query, after the collector's address.
    headers : headers by name. `repr` leaves them out, because they contain the token.
    body : the body in bytes; None without a body.
    seconds : time limit of the whole exchange.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """The response of a collector.

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
"""Sends a request and returns the response, whatever its status is. Raises CollectorError if no
response arrives."""


class HttpExchange:
    """Sends requests to one collector, through the system's proxies, without following redirects.

    Parameters
    ----------
    url : address of the collector: https, or http to the same machine.
    most_bytes : largest response in bytes.
    allow_http : whether http is also allowed to a host name without a dot, such as the name of a
        service in a network of containers. Whoever can read that network reads the requests.

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
        """Name the host."""
        return f"HttpExchange({self._base.hostname!r})"

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Send a request, and read the whole response.

        Raises
        ------
        CollectorError
            The collector cannot be reached, or the response is too long or takes too much time.
        """
        end = time.monotonic() + request.seconds
        url = self._base._replace(path=self._base.path + request.path).geturl()
        sent = Request(  # noqa: S310 - the scheme was checked
            url, request.body, dict(request.headers), method=request.method
        )
        try:
            try:
                response = self._opener.open(sent, timeout=request.seconds)
            except HTTPError as error:
                # A status other than 2xx is a response like any other.
                response = error
            with response:
                body = self._read_body(response, end)
                headers = {name.lower(): value for name, value in response.headers.items()}
                return HttpResponse(status=int(response.status), headers=headers, body=body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            # ValueError: a header of the response cannot be parsed. The traceback is dropped,
            # because it could show the request with its token.
            reason = getattr(error, "reason", None) or error
            raise CollectorError(
                f"the collector was not reached: {_make_printable(reason)}"
            ) from None

    def _read_body(self, response: IO[bytes], end: float) -> bytes:
        """Read the body of a response, within the limits of length and time.

        The timeout of a socket limits each read. A server that sends one byte in each timeout
        would hold the program for ever, so the whole exchange has a limit, too.
        """
        parts: list[bytes] = []
        size = 0
        while chunk := response.read(_CHUNK):
            parts.append(chunk)
            size += len(chunk)
            if size > self._most_bytes:
                raise CollectorError(
                    f"the response of the collector must have at most {self._most_bytes:,} bytes: "
                    "ask for fewer days"
                )
            if time.monotonic() > end:
                raise CollectorError("the collector was not reached: its response took too long")
        return b"".join(parts)


def read_problem(response: HttpResponse) -> CollectorError:
    """Return the error of a response, with the sentence of its problem document (RFC 9457)."""
    try:
        detail = json.loads(response.body)["detail"]
    except (ValueError, KeyError, TypeError, RecursionError):
        # A proxy or another server may respond with any text.
        detail = "it gave no reason"
    return CollectorError(
        f"the collector responded {response.status}: {_make_printable(detail)}",
        status=response.status,
    )


class _NoRedirect(HTTPRedirectHandler):
    """Treats a redirect as a response. Following it would send the token to another host."""

    def redirect_request(self, *_: object) -> None:
        """Return no request, so that the redirect is not followed."""
        return


def _build_opener(base: SplitResult) -> OpenerDirector:
    # A request to the same machine must not pass through a proxy on another machine.
    if base.scheme == "http":
        return build_opener(ProxyHandler({}), _NoRedirect)
    return build_opener(HTTPSHandler(context=ssl.create_default_context()), _NoRedirect)


def _parse_address(url: str, *, allow_http: bool) -> SplitResult:
    """Parse and check the address of a collector."""
    # A line end in an address would be a header of the request.
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
        # "127.0.0.1:8080" has no scheme: the most frequent mistake. The address itself is not
        # repeated, because it may contain a password.
        scheme = url.partition("://")[0] if "://" in url else "no scheme"
        raise ParamsError(
            f"url must be an https address (http only to localhost), got {scheme}: write for "
            "example http://127.0.0.1:8080, and reach a collector on another machine by TLS or "
            "by a tunnel"
        )
    # A password in an address would appear in messages and logs.
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise ParamsError("url must have no user name, ? or #; give the token separately")
    return parts._replace(path=parts.path.rstrip("/"))


def _is_near(host: str, *, allow_http: bool) -> bool:
    """Return whether http is acceptable to a host.

    Requests to the same machine do not leave it. A name without a dot is not a public domain: the
    network of the containers resolves it, if `allow_http` accepts such a network.
    """
    # A number is no name: http://134744072 and http://0x8080808 are the public address 8.8.8.8.
    return host in _LOOPBACK or (allow_http and _SINGLE_LABEL.fullmatch(host) is not None)


def _make_printable(reason: object) -> str:
    """Turn the text of a server into one line of printable characters, for a terminal.

    Control characters of a foreign text could change what the terminal shows.
    """
    text = "".join(letter if letter.isprintable() else " " for letter in str(reason))
    return " ".join(text.split())[:_LONGEST_DETAIL] or type(reason).__name__
