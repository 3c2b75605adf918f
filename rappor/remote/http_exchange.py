"""One request to a collector and its answer, over HTTPS by the standard library.

Importing it takes longer than all that a device loads, so nothing but the collector's door does.
"""

from __future__ import annotations

import http.client
import json
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
"""Bytes of an answer: a year of days of 1,024 cohorts of 128 bits is less than half of it."""

_CHUNK: Final = 1 << 16
_LONGEST_DETAIL: Final = 500
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request: `path` with its query, and at most `seconds` for the whole exchange."""

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """What a collector answered: names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Exchange = Callable[[HttpRequest], HttpResponse]
"""Sends a request and returns the answer, whatever its status; CollectorError if there is none."""


class HttpExchange:
    """Sends requests to one collector, through the system's proxies, and follows no redirect."""

    def __init__(self, url: str, *, most_bytes: int = MOST_BYTES, allow_http: bool = False) -> None:
        """Parse the address of the collector.

        Parameters
        ----------
        url : an https address, or an http address of this machine.
        most_bytes : largest response, in bytes.
        allow_http : True also accepts http to a host name without a dot, such as the name of a
            service in a network of containers. Whoever can read that network reads the requests.

        Raises
        ------
        ParamsError
            The address is none of these.
        """
        self._base = _parse_url(url, allow_http=allow_http)
        self._opener = _opener(self._base)
        self._most_bytes = most_bytes

    def __repr__(self) -> str:
        """Name the host."""
        return f"HttpExchange({self._base.hostname!r})"

    def __call__(self, ask: HttpRequest) -> HttpResponse:
        """Send a request and read its answer to the end."""
        end = time.monotonic() + ask.seconds
        url = self._base._replace(path=self._base.path + ask.path).geturl()
        request = Request(url, ask.body, dict(ask.headers), method=ask.method)  # noqa: S310 - checked
        try:
            try:
                response = self._opener.open(request, timeout=ask.seconds)
            except HTTPError as error:  # an answer of another status than 2xx
                response = error
            with response:
                body = self._read(response, end)
                headers = {name.lower(): value for name, value in response.headers.items()}
                return HttpResponse(status=int(response.status), headers=headers, body=body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise CollectorError(f"the collector was not reached: {_told(reason)}") from None

    def _read(self, response: IO[bytes], end: float) -> bytes:
        """Read an answer that is neither too long nor too slow."""
        parts: list[bytes] = []
        size = 0
        while chunk := response.read(_CHUNK):
            parts.append(chunk)
            size += len(chunk)
            if size > self._most_bytes:
                raise CollectorError(
                    f"the answer of the collector must have at most {self._most_bytes:,} bytes: "
                    "ask for fewer days"
                )
            if time.monotonic() > end:
                raise CollectorError("the collector was not reached: its answer took too long")
        return b"".join(parts)


def read_problem(answer: HttpResponse) -> CollectorError:
    """Return the error that an answer is, with the sentence of its problem document (RFC 9457)."""
    try:
        detail = json.loads(answer.body)["detail"]
    except (ValueError, KeyError, TypeError, RecursionError):
        detail = "it gave no reason"
    return CollectorError(
        f"the collector answered {answer.status}: {_told(detail)}", status=answer.status
    )


class _NoRedirect(HTTPRedirectHandler):
    """A redirect would carry the token to another host: it is an answer like any other."""

    def redirect_request(self, *_: object) -> None:
        """Follow nothing."""
        return


def _opener(base: SplitResult) -> OpenerDirector:
    if base.scheme == "http":
        return build_opener(ProxyHandler({}), _NoRedirect)
    return build_opener(HTTPSHandler(context=ssl.create_default_context()), _NoRedirect)


def _parse_url(url: str, *, allow_http: bool) -> SplitResult:
    """Parse the address of a collector, or raise ParamsError."""
    if not isinstance(url, str) or not all("!" <= letter <= "~" for letter in url):
        raise ParamsError("url must be an https address in ASCII without spaces")
    try:
        parts = urlsplit(url)
        known = parts.hostname and parts.port != 0
    except ValueError:
        known = False
    is_allowed = known and (
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
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise ParamsError("url must have no user name, ? or #; give the token separately")
    return parts._replace(path=parts.path.rstrip("/"))


def _is_near(host: str, *, allow_http: bool) -> bool:
    """Tell whether http is acceptable to a host: this machine, or a neighbour if it is allowed.

    A name without a dot is not a public domain. It is resolved by the network of the containers.
    """
    return host in _LOOPBACK or (allow_http and "." not in host and ":" not in host)


def _told(reason: object) -> str:
    """Return the text of others for a terminal: one line of characters that can be seen."""
    text = "".join(c if c.isprintable() else " " for c in str(reason))
    return " ".join(text.split())[:_LONGEST_DETAIL] or type(reason).__name__
