"""Normalizers: functions that map different spellings of a value to one spelling.

A metric of strings or of categories names its normalizer. The device normalizes a value before it
encodes the value, and the analyst normalizes candidates by the same function. Without a normalizer,
`Example.com` and `example.com` are different values: the analyst estimates a share for each of
them, instead of one share for the site.

Every normalizer is idempotent: normalizing a second time changes nothing. Results depend on tables,
so device and analyst may disagree if their tables have different versions:

- `none` and `strip` use no table that changes.
- `nfc` and `casefold` use the Unicode tables of the Python interpreter.
- `host` uses IDNA 2003 [RFC 3490], whose tables are frozen at Unicode 3.2. All versions of Python
  therefore agree. The later standard, IDNA 2008, would change with each version of Unicode.
  Browsers differ from IDNA 2003 in a few names: `host` maps the sharp s to "ss", and the final
  sigma to the ordinary sigma.
- `domain` uses the installed public-suffix list.

[RFC 3490] Faltstrom, Hoffman, Costello. Internationalizing domain names in applications. 2003.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rappor.base.errors import MissingExtraError, ParamsError, ReportError
from rappor.base.ranges import format_value

FIELD_SEPARATOR: Final = "\x1f"
"""This character separates the fields of a tuple in the names of candidates and categories."""

MAX_TEXT_BYTES: Final = 8192
"""Longest text that a normalizer reads or returns, in bytes of UTF-8. A longer text becomes the
empty text. Composing marks takes time that grows with the square of the length, so the limit bounds
the time of one value."""

_SCHEME: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?", re.ASCII)
"""Matches the scheme of a URL and its colon, or the empty text of a URL such as //example.com."""
_AUTHORITY_END: Final = re.compile(r"[/?#\\]")
"""Matches the character that ends the host and port of a URL. Browsers read a backslash as "/"."""
_PORT: Final = re.compile(r":0*[0-9]{0,5}\Z", re.ASCII)
"""Matches the port of a URL. The port may be empty or begin with zeros (RFC 3986 section 3.2.3)."""
_DRIVE: Final = re.compile(r"[A-Za-z]:(?:\Z|[?#\\]|/(?!/))")
"""Matches the start of a Windows path such as C:\\Users: a drive letter and a colon, at the end of
the text or before a character of `_AUTHORITY_END`. Bad case without this pattern: "C:" is read as a
host with an empty port, whatever character of `_AUTHORITY_END` follows. A URL whose scheme is one
letter, such as c://example.com, does not match: its colon is followed by two slashes."""
_HOST: Final = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*", re.ASCII)
"""Matches a host of one or more labels, separated by dots, after IDNA."""


class Normalizer(NamedTuple):
    """A normalizer, and two facts about it for audits and privacy notices.

    Attributes
    ----------
    rewrite : maps a text to its normal spelling.
    respell : maps a text of lower-case letters and dots to another spelling with the same result of
        `rewrite`. An audit encodes both spellings and expects equal bits. The normalizer `none` has
        no other spelling, so its `respell` returns the text unchanged.
    description : the kept information in words, for a privacy notice. It is empty if the normalizer
        keeps the whole text.
    """

    rewrite: Callable[[str], str]
    respell: Callable[[str], str]
    description: str


def normalize(name: str, text: object) -> str:
    """Map a text to its normal spelling.

    Parameters
    ----------
    name : a key of `NORMALIZERS`, or one key for each field of a tuple, separated by commas.
    text : the value. Its type is checked, because the value comes from the program that uses this
        library. The fields of a tuple are joined by `FIELD_SEPARATOR`.

    Returns
    -------
    str
        The normal spelling. The result is the empty text if the text or its normal spelling has
        more than `MAX_TEXT_BYTES` bytes. `none` returns a text of any length unchanged.

    Raises
    ------
    ParamsError
        The normalizer is unknown.
    MissingExtraError
        The normalizer is `domain`, and the public-suffix list is not installed.
    ReportError
        The value is not a str, contains a lone surrogate, or has another number of fields than
        `name` has normalizers. No other text raises an error. The message contains the type or the
        length of the value and never the value.

    Examples
    --------
    >>> normalize("casefold", "STRASSE"), normalize("casefold", "Straße")
    ('strasse', 'strasse')
    >>> normalize("host", "https://user@Example.COM:8080/path")
    'example.com'
    >>> normalize("host", "two words")
    ''
    """
    names = split_normalizers(name)
    if len(names) > 1:
        return _normalize_each_field(names, text)
    if name not in NORMALIZERS:
        raise ParamsError(
            f"normalize must be one of {', '.join(NORMALIZERS)}, got {format_value(name)}"
        )
    if not isinstance(text, str):
        raise ReportError(f"a value must be a text, got {type(text).__name__}")
    # A method of a subclass of str may raise an error with the value in its text.
    text = str.__str__(text)
    if name == "none":
        _count_bytes(text)  # raises ReportError for a lone surrogate
        return text
    # A rewritten text can be longer than its input: NFC decomposes some characters for good.
    normal = NORMALIZERS[name].rewrite(text) if _count_bytes(text) <= MAX_TEXT_BYTES else ""
    return normal if _count_bytes(normal) <= MAX_TEXT_BYTES else ""


def split_normalizers(name: str) -> tuple[str, ...]:
    """Return the normalizers of which a name consists: one for a text, several for a tuple."""
    return tuple(name.split(","))


def _normalize_each_field(names: Sequence[str], text: object) -> str:
    """Normalize each field of a tuple, whose fields are joined by `FIELD_SEPARATOR`."""
    fields = text.split(FIELD_SEPARATOR) if isinstance(text, str) else []
    if len(fields) != len(names):
        description = f"{len(fields)} fields" if fields else type(text).__name__
        raise ReportError(
            f"a value must have {len(names)} fields joined by U+001F, got {description}"
        )
    return FIELD_SEPARATOR.join(map(normalize, names, fields))


def _count_bytes(text: str) -> int:
    """Return the length of a text in bytes of UTF-8; raise ReportError for a lone surrogate."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise ReportError(
            f"a value must be valid Unicode, got {len(text)} characters with a lone surrogate"
        ) from None


def _keep_unchanged(text: str) -> str:
    return text


def _compose(text: str) -> str:
    """Return a text in Unicode's composed form, NFC."""
    # Loading the tables takes time that a metric without a normalizer need not spend.
    import unicodedata  # noqa: PLC0415

    return unicodedata.normalize("NFC", text)


def _decompose(text: str) -> str:
    """Return a text in Unicode's decomposed form, NFD."""
    import unicodedata  # noqa: PLC0415

    return unicodedata.normalize("NFD", text)


def _fold_case(text: str) -> str:
    """Fold the case of a text as in definition D145 of the Unicode standard, then compose it.

    Folding must start from the decomposed text. In a composed text, U+0345 (a subscript iota, which
    folds to the letter iota) stands before another mark in some spellings and after it in others.
    Case folding of the composed text gave these spellings different results.
    """
    return _compose(_decompose(text).casefold())


def _extract_host(text: str) -> str:
    """Return the lower-case ASCII host of a URL or of a bare host name; empty if there is no host.

    The result has no port, no user name and no trailing dot. An IPv4 address stays unchanged. An
    IPv6 literal keeps its brackets, and its letters become lower-case.
    """
    text = text.strip()
    # A Windows path looks like a scheme or a host with a port. It has no host.
    host = "" if _DRIVE.match(text) else _PORT.sub("", _extract_authority(text))
    if host.startswith("["):
        return _read_ipv6_literal(host)
    # IDNA 2003 has no rule for a character that Unicode 3.2 lacks. Python folds the case of such a
    # character by the newer tables of the interpreter, so the result would depend on the version of
    # Python.
    if not host.isascii() and any(map(_is_newer_than_unicode_3_2, host)):
        return ""
    try:
        ascii_host = host.encode("idna").decode("ascii").lower().removesuffix(".")
    except UnicodeError:  # an empty, over-long or prohibited label
        return ""
    # IDNA encodes spaces, "@" and other characters of ASCII as they are, so check the result.
    return ascii_host if _HOST.fullmatch(ascii_host) else ""


def _is_newer_than_unicode_3_2(character: str) -> bool:
    """Return whether Unicode 3.2, the version of IDNA 2003, lacks a character."""
    import unicodedata  # noqa: PLC0415

    return unicodedata.ucd_3_2_0.category(character) == "Cn"


def _write_url(host: str) -> str:
    """Return a URL of a host in upper case, with a port and a path: another spelling of `host`."""
    return f"https://{host.upper()}:443/x"


def _extract_authority(text: str) -> str:
    """Return the host and port of a URL (RFC 3986 section 3.2), or the start of any other text.

    A text without "//" has no user name, so an "@" in it stays and later makes the host invalid.
    Hence a mail address has no host.
    """
    scheme, slashes, after_scheme = text.partition("//")
    # The user name may contain "@", so the host follows the last "@".
    if slashes and _SCHEME.fullmatch(scheme):
        return _AUTHORITY_END.split(after_scheme, maxsplit=1)[0].rpartition("@")[2]
    return _AUTHORITY_END.split(text, maxsplit=1)[0]


def _read_ipv6_literal(host: str) -> str:
    """Return an IPv6 literal in lower case; empty if the literal is invalid or has a zone."""
    try:
        ipaddress.IPv6Address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return ""
    # ipaddress accepts a literal without "]", and a zone such as %eth0, which names a network
    # interface of one machine.
    return host.lower() if host.endswith("]") and "%" not in host else ""


def _extract_domain(text: str) -> str:
    """Return the registrable domain of a host. A public suffix or an address stays unchanged."""
    host = _extract_host(text)
    # An IPv4 address ends with digits, which no domain does.
    if host.startswith("[") or host.rpartition(".")[2].isdigit():
        return host
    return _load_public_suffixes().privatesuffix(host) or host


@functools.cache
def _load_public_suffixes() -> Any:
    """Load the public-suffix list; raise MissingExtraError without the extra `domain`."""
    try:
        from publicsuffixlist import PublicSuffixList  # noqa: PLC0415  (an extra, slow to load)
    except ModuleNotFoundError:
        raise MissingExtraError("domain") from None
    return PublicSuffixList()


NORMALIZERS: Final[Mapping[str, Normalizer]] = {
    "none": Normalizer(rewrite=_keep_unchanged, respell=_keep_unchanged, description=""),
    "nfc": Normalizer(
        rewrite=_compose, respell=_decompose, description="in Unicode's composed form"
    ),
    "casefold": Normalizer(
        rewrite=_fold_case,
        respell=str.upper,
        description="upper and lower case count as the same",
    ),
    "strip": Normalizer(
        rewrite=str.strip,
        respell=" {} ".format,
        description="without spaces around it",
    ),
    "host": Normalizer(
        rewrite=_extract_host,
        respell=_write_url,
        description="only the host of a web address",
    ),
    "domain": Normalizer(
        rewrite=_extract_domain,
        respell="https://www.{}/".format,
        description="only the domain of a web address",
    ),
}
"""All normalizers by name. The names are part of the fingerprint of a parameter set, so a name
never changes its meaning."""
