"""The named normalizers: what is the same value, on the device and for candidates alike.

`host` uses the IDNA of 2003 that comes with Python: frozen at Unicode 3.2, so every version
of Python agrees, where the later standard would change with its tables. What Unicode did not have
then is in no host, for Python would fold it by its own tables. It differs from browsers for few
names: it maps the sharp s to "ss" and the final sigma to the usual one.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from rappor.base.errors import MissingExtraError, ParamsError, ReportError
from rappor.base.ranges import format_value

LONGEST: Final = 8192
"""Bytes of UTF-8 that a normalizer takes: composing marks takes time that grows with the square."""

_SCHEME: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?", re.ASCII)
_AUTHORITY_END: Final = re.compile(r"[/?#\\]")
_PORT: Final = re.compile(r":0*[0-9]{0,5}\Z", re.ASCII)
"""Port of a URL, which may be empty or begin with zeros (RFC 3986 section 3.2.3)."""
_DRIVE: Final = re.compile(r"[A-Za-z]:(?:\Z|[?#\\]|/(?!/))")
"""Start of a path of Windows, such as C:\\Users, which is no host with an empty port."""
_HOST: Final = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*", re.ASCII)


class Normalizer(NamedTuple):
    """What a normalizer does, and what others have to know of it.

    `rewrite` makes equal spellings one value. `respell` spells a text of lower-case letters and
    dots in another way that `rewrite` undoes, or returns it as it is; an audit asks for both.
    `described` says for people what is kept of a text; empty if all of it is.
    """

    rewrite: Callable[[str], str]
    respell: Callable[[str], str]
    described: str


def normalize(name: str, text: object) -> str:
    """Return the text as the normalizer `name` writes it; normalising again changes nothing.

    A text of more than LONGEST bytes in UTF-8, before or after, fits nowhere: like a text without
    a host it becomes the empty text, under every normalizer but none.

    Raises ReportError for what is no text or holds a lone surrogate, and for no other text.
    """
    if name not in NORMALIZERS:
        raise ParamsError(
            f"normalize must be one of {', '.join(NORMALIZERS)}, got {format_value(name)}"
        )
    if not isinstance(text, str):
        raise ReportError(f"a value must be a text, got {type(text).__name__}")
    if name == "none":
        _size(text)
        return text
    normal = NORMALIZERS[name].rewrite(text) if _size(text) <= LONGEST else ""
    return normal if _size(normal) <= LONGEST else ""


def _size(text: str) -> int:
    """Return the bytes of a text; ReportError for a lone surrogate."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise ReportError(
            f"a value must be valid Unicode, got {len(text)} characters with a lone surrogate"
        ) from None


def _keep(text: str) -> str:
    return text


def _nfc(text: str) -> str:
    import unicodedata  # noqa: PLC0415 - tables that a metric without a normalizer does not need

    return unicodedata.normalize("NFC", text)


def _nfd(text: str) -> str:
    import unicodedata  # noqa: PLC0415

    return unicodedata.normalize("NFD", text)


def _casefold(text: str) -> str:
    """Fold case as in Unicode's definition D145: of the decomposed text, composed at the end.

    The composed text has U+0345, which folds to the letter iota, before another mark in some
    spellings and after it in others. Decomposed, all of them have one order.
    """
    return _nfc(_nfd(text).casefold())


def _host(text: str) -> str:
    """Return the lower-case ASCII host of a URL or of a bare host; empty if there is none.

    Port, user and a trailing dot are dropped, address literals stay as they are written.
    """
    text = text.strip()
    host = "" if _DRIVE.match(text) else _PORT.sub("", _authority(text))
    if host.startswith("["):
        return _ipv6_literal(host)
    if not host.isascii() and any(map(_is_later, host)):
        return ""
    try:
        ascii_host = host.encode("idna").decode("ascii").lower().removesuffix(".")
    except UnicodeError:  # an empty, over-long or prohibited label
        return ""
    return ascii_host if _HOST.fullmatch(ascii_host) else ""


def _is_later(character: str) -> bool:
    """Return whether Unicode 3.2 had no such character."""
    import unicodedata  # noqa: PLC0415

    return unicodedata.ucd_3_2_0.category(character) == "Cn"


def _shout(host: str) -> str:
    return f"https://{host.upper()}:443/x"


def _authority(text: str) -> str:
    """Return what stands where a URL names its host; without // only a host and its port do."""
    scheme, slashes, rest = text.partition("//")
    if slashes and _SCHEME.fullmatch(scheme):
        return _AUTHORITY_END.split(rest, maxsplit=1)[0].rpartition("@")[2]
    return _AUTHORITY_END.split(text, maxsplit=1)[0]


def _ipv6_literal(host: str) -> str:
    try:
        ipaddress.IPv6Address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return ""
    return host.lower() if host.endswith("]") and "%" not in host else ""


def _domain(text: str) -> str:
    """Return the registrable domain of a host; public suffixes and addresses stay whole."""
    host = _host(text)
    if host.startswith("[") or host.rpartition(".")[2].isdigit():
        return host
    return _public_suffixes().privatesuffix(host) or host


@functools.cache
def _public_suffixes() -> Any:
    try:
        from publicsuffixlist import PublicSuffixList  # noqa: PLC0415  (an extra, slow to load)
    except ModuleNotFoundError:
        raise MissingExtraError("domain") from None
    return PublicSuffixList()


NORMALIZERS: Final[Mapping[str, Normalizer]] = {
    "none": Normalizer(rewrite=_keep, respell=_keep, described=""),
    "nfc": Normalizer(rewrite=_nfc, respell=_nfd, described="in Unicode's composed form"),
    "casefold": Normalizer(
        rewrite=_casefold,
        respell=str.upper,
        described="upper and lower case count as the same",
    ),
    "strip": Normalizer(
        rewrite=str.strip,
        respell=" {} ".format,
        described="without spaces around it",
    ),
    "host": Normalizer(rewrite=_host, respell=_shout, described="only the host of a web address"),
    "domain": Normalizer(
        rewrite=_domain,
        respell="https://www.{}/".format,
        described="only the domain of a web address",
    ),
}
"""The one list of normalizers."""
