"""Addresses of collectors and proxies: right, or refused with a sentence when a client opens."""

from __future__ import annotations

import dataclasses
import ipaddress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from rappor.base.errors import ParamsError

REPORTS: Final = "/v1/reports"
"""Path of the endpoint that receives uploads."""
_PORTS: Final = {"https": 443, "http": 80}
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to connect to; `login` is what a proxy asks for, as NAME:PASSWORD."""

    scheme: str
    host: str
    port: int
    path: str = ""
    login: str | None = field(default=None, repr=False)

    @property
    def authority(self) -> str:
        """Host and port, as CONNECT wants them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_collector(url: str) -> Address:
    """Read a collector's address: https, or http to this very machine.

    An address of the endpoint, which ends in `/v1/reports`, names the same collector.
    """
    parts = _split("collector", url)
    is_local = parts.scheme == "http" and parts.hostname in _LOOPBACK
    if not parts.hostname or not (parts.scheme == "https" or is_local):
        raise ParamsError(
            "collector must be an https address (http only to localhost), got "
            f"{parts.scheme or 'no scheme'}"
        )
    if "@" in parts.netloc:
        raise ParamsError("collector must have no user name; pass the upload key as upload_key=")
    if "?" in url or "#" in url:
        raise ParamsError("collector must be an address without ? and #")
    address = _address("collector", parts)
    # Without the cut, uploads would go to /v1/reports/v1/reports and each get the status 404.
    return dataclasses.replace(address, path=address.path.removesuffix(REPORTS).rstrip("/"))


def parse_proxy(text: str) -> Address:
    """Read a proxy's address: http, which is meant where no scheme is written."""
    parts = _split("the system's proxy", text if "//" in text else f"//{text}")
    if parts.scheme not in ("", "http"):
        raise ParamsError(f"the system's proxy must be an http address, got {parts.scheme}")
    login = None
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return _address("the system's proxy", parts._replace(scheme="http"), login)


def check_key(key: str) -> None:
    """Refuse an upload key that no header can hold; the message does not show it."""
    if not key or not all("!" <= letter <= "~" for letter in key):
        raise ParamsError("upload_key must be printable ASCII without spaces")


def _split(what: str, text: str) -> SplitResult:
    """Split an address; white space, which `urlsplit` would drop, is refused."""
    if not isinstance(text, str) or not all("!" <= letter <= "~" for letter in text):
        raise ParamsError(
            f"{what} must be an https address in ASCII without spaces "
            "(names in other letters in punycode, xn--...)"
        )
    try:
        return urlsplit(text)
    except ValueError:
        raise ParamsError(f"{what} must be an address, with IPv6 in brackets") from None


def _address(what: str, parts: SplitResult, login: str | None = None) -> Address:
    host = parts.hostname or ""
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0 or parts.netloc.endswith(":"):
        raise ParamsError(f"{what} must have a port in [1, 65535], or none")
    bracketed = parts.netloc.rpartition("@")[2].startswith("[")
    if not host or bracketed != _is_ipv6(host) or any(letter in host for letter in "%\\,;"):
        raise ParamsError(f"{what} must have a host name, an IPv4 address or an IPv6 in brackets")
    return Address(
        scheme=parts.scheme,
        host=host,
        port=port or _PORTS[parts.scheme],
        path=parts.path.rstrip("/"),
        login=login,
    )


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
