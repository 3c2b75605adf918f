"""Addresses of collectors and proxies, parsed and checked when a client opens.

A wrong address is a mistake of the host program. The mistake must raise ParamsError when the client
opens, because an address that fails only in the background sender would fail without a message.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from rappor.base.errors import ParamsError

UPLOAD_PATH: Final = "/v1/reports"
"""Path of the collector's endpoint that receives uploads, after the path of the address."""
_DEFAULT_PORTS: Final = {"https": 443, "http": 80}
_LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Address of a collector or of a proxy.

    Attributes
    ----------
    scheme : str
        "https" or "http".
    host : str
        Name or IP address, IPv6 without brackets.
    port : int
        TCP port.
    path : str
        Path without a final slash.
    login : str, optional
        Name and password for a proxy, as NAME:PASSWORD. The repr does not contain the login.
    """

    scheme: str
    host: str
    port: int
    path: str = ""
    login: str | None = field(default=None, repr=False)

    @property
    def authority(self) -> str:
        """Host and port as the method CONNECT writes them, for example `[::1]:443`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_collector(url: str) -> Address:
    """Parse the address of a collector: https, or http to this machine.

    The address of the endpoint, which ends in `/v1/reports`, names the same collector.

    Raises
    ------
    ParamsError
        The address is wrong. The message does not contain the address, because an address may
        contain a password.
    """
    parts = _split("collector", url)
    is_local = parts.scheme == "http" and parts.hostname in _LOOPBACK_HOSTS
    if not (parts.scheme == "https" or is_local):
        # For `localhost:8080`, `urlsplit` returns the scheme "localhost".
        scheme = parts.scheme if "://" in url else "no scheme"
        raise ParamsError(
            "collector must be an https address such as https://telemetry.example.org (http only "
            f"to this machine, such as http://localhost:8080), got {scheme or 'no scheme'}"
        )
    # A user name in the address would be sent to nobody, and the uploads would be refused without
    # the key. The message names the argument that the caller was looking for.
    if "@" in parts.netloc:
        raise ParamsError("collector must have no user name; pass the upload key as upload_key=")
    if "?" in url or "#" in url:
        raise ParamsError("collector must be an address without ? and #")
    address = _build_address("collector", parts)
    # Documents show the address of the endpoint, so people copy it. Without the cut, uploads went
    # to /v1/reports/v1/reports, and each of them got the status 404.
    return dataclasses.replace(address, path=address.path.removesuffix(UPLOAD_PATH).rstrip("/"))


def parse_proxy(text: str) -> Address:
    """Parse the address of a proxy: http, also without a scheme (`proxy.example.org:3128`).

    Raises
    ------
    ParamsError
        The address is wrong, or has another scheme.
    """
    parts = _split("the system's proxy", text if "//" in text else f"//{text}")
    if parts.scheme not in ("", "http"):
        raise ParamsError(f"the system's proxy must be an http address, got {parts.scheme}")
    login = None
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return _build_address("the system's proxy", parts._replace(scheme="http"), login)


def check_key(key: str) -> None:
    """Raise ParamsError for an upload key that no HTTP header can contain.

    The message does not contain the key.
    """
    if not key or not all("!" <= letter <= "~" for letter in key):
        raise ParamsError("upload_key must be printable ASCII without spaces")


def _split(name: str, text: str) -> SplitResult:
    """Split an address into its parts; ParamsError for a text that is no address.

    `name` is the subject of the message.
    """
    # `urlsplit` removes line breaks and tabs without an error, so it would accept an address that
    # a registry or a shell has broken into two lines.
    if not isinstance(text, str) or not all("!" <= letter <= "~" for letter in text):
        raise ParamsError(
            f"{name} must be an address in ASCII without spaces "
            "(names in other letters in punycode, xn--...)"
        )
    try:
        return urlsplit(text)
    except ValueError:
        raise ParamsError(f"{name} must be an address, with IPv6 in brackets") from None


def _build_address(name: str, parts: SplitResult, login: str | None = None) -> Address:
    """Build an address from its parts; ParamsError for a port or a host that cannot exist."""
    host = parts.hostname or ""
    try:
        port = parts.port
    except ValueError:  # the port is no number, or above 65535
        port = 0
    if port == 0 or parts.netloc.endswith(":"):
        raise ParamsError(f"{name} must have a port in [1, 65535], or none")
    # `urlsplit` accepts brackets around any text, and an IPv6 address without brackets, whose last
    # group it takes for the port. Both would fail only when the first upload is sent.
    is_bracketed = parts.netloc.rpartition("@")[2].startswith("[")
    if not host or is_bracketed != _is_ipv6(host) or any(letter in host for letter in "%\\,;"):
        raise ParamsError(f"{name} must have a host name, an IPv4 address or an IPv6 in brackets")
    return Address(
        scheme=parts.scheme,
        host=host,
        port=port or _DEFAULT_PORTS[parts.scheme],
        path=parts.path.rstrip("/"),
        login=login,
    )


def _is_ipv6(host: str) -> bool:
    """Return whether a host is an IPv6 address."""
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
