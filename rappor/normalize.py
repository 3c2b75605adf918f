"""Named normalizers: what a metric does to a text before it is hashed.

A normalizer runs on the device and on the analyst's candidates alike, and its name is part
of the parameters' fingerprint. Each is idempotent and takes any text: where a host is asked
for and there is none, the result is the empty text, which is a value like any other.
"""

from __future__ import annotations

import functools
import ipaddress
import unicodedata
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from rappor.errors import MissingExtraError, ParamsError, ReportError


def normalize(name: str, text: str) -> str:
    """Apply the normalizer called `name` to a text.

    Raises
    ------
    ReportError: the text is not a text, or holds a lone surrogate.
    ParamsError: there is no such normalizer.
    MissingExtraError: "domain" needs the extra of that name.
    """
    if name not in _NORMALIZERS:
        raise ParamsError(f"normalize must be one of {', '.join(_NORMALIZERS)}, got {name!r}")
    if not isinstance(text, str):
        raise ReportError(f"a value must be a text, got {type(text).__name__}")
    if any(0xD800 <= ord(c) < 0xE000 for c in text) if not text.isascii() else False:
        raise ReportError(
            f"a value must be valid Unicode, got a text of {len(text)} characters with a lone "
            "surrogate"
        )
    return _NORMALIZERS[name](text)


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _casefold(text: str) -> str:
    """Fold case so that folding again changes nothing (Unicode 3.13, rule X7, composed)."""
    folded = unicodedata.normalize("NFD", text).casefold()
    folded = unicodedata.normalize("NFD", folded).casefold()
    return _nfc(folded)


def _host(text: str) -> str:
    """Return the lower-case ASCII host of a URL or of a bare host, "" where there is none.

    No user, port, path or final dot. Letters outside ASCII become their IDNA 2003 form,
    which is what the standard library has; a name that it refuses gives "".
    """
    text = text.strip()
    try:
        host = urlsplit(text if "//" in text else f"//{text}").hostname or ""
    except ValueError:
        return ""
    host = host.removesuffix(".")
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        ascii_host = host.encode("idna").decode() if not host.isascii() else host
    except UnicodeError:
        return ""
    return ascii_host.lower() if _is_host(ascii_host) else ""


def _is_host(host: str) -> bool:
    """Tell whether a name has only letters, digits, hyphens and underscores between dots."""
    labels = host.split(".")
    return all(
        label and label.isascii() and label.replace("-", "").replace("_", "").isalnum()
        for label in labels
    )


def _domain(text: str) -> str:
    """Return the registrable domain of a URL's host; hosts without one stay themselves."""
    host = _host(text)
    if not host or _is_address(host):
        return host
    return _public_suffixes().privatesuffix(host) or host


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


@functools.cache
def _public_suffixes() -> Any:
    try:
        from publicsuffixlist import PublicSuffixList  # noqa: PLC0415  # optional
    except ImportError:
        raise MissingExtraError("domain") from None
    return PublicSuffixList()


_NORMALIZERS: dict[str, Callable[[str], str]] = {
    "none": lambda text: text,
    "nfc": _nfc,
    "casefold": _casefold,
    "strip": str.strip,
    "host": _host,
    "domain": _domain,
}
