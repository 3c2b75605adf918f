"""All encodings by name, and the encoding of a parameter set."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_choice
from rappor.protocol.encodings.bloom import Bloom
from rappor.protocol.encodings.boolean import Boolean
from rappor.protocol.encodings.buckets import Buckets
from rappor.protocol.encodings.encoding import Encoding, EncodingParams
from rappor.protocol.encodings.onehot import OneHot
from rappor.protocol.encodings.sets import Sets

ENCODINGS: Final[Mapping[str, type[Encoding]]] = {
    kind.name: kind for kind in (Bloom, OneHot, Boolean, Buckets, Sets)
}
"""Maps names to encoding classes. Documents and messages list encodings in this order."""

_REMOVED: Final[Mapping[str, str]] = {
    "flags": "use a metric of encoding boolean for each flag",
}
"""Names of removed encodings, each with the advice that its error message gives."""


def get_encoding_class(name: object) -> type[Encoding]:
    """Return the class of an encoding; raise ParamsError for an unknown or a removed name."""
    if isinstance(name, str) and name in _REMOVED:
        raise ParamsError(f"encoding must not be {name!r}: {_REMOVED[name]}")
    check_choice("encoding", name, ENCODINGS)
    return ENCODINGS[str(name)]


def get_encoding(params: EncodingParams) -> Encoding:
    """Return the encoding of a parameter set, to read its properties.

    Some parameter sets describe counts only, for example counts of other software with another hash
    layout. Their encoding has properties, but encodes no value. To encode values, call
    `get_encoder`, which raises ParamsError for such a parameter set.
    """
    return ENCODINGS[params.encoding](params)


def get_encoder(params: EncodingParams) -> Encoding:
    r"""Return the encoding of a parameter set, to encode values.

    Raises
    ------
    ParamsError
        No value can be encoded: the parameters have the hash layout of other software, or the
        normalizer maps two categories to the same text or a category to the empty text.
    MissingExtraError
        The normalizer is `domain`, and the public-suffix list is not installed.

    Examples
    --------
    >>> from rappor import Params
    >>> params = Params.profile("balanced", encoding="onehot", categories=("dark", "light"))
    >>> encoder = get_encoder(params)
    >>> encoder.find_set_bits("light", 0), encoder.encode("light", 0)
    ([1], b'\x02')
    """
    return _get_cached_encoder(params)


@functools.lru_cache(maxsize=256)
def _get_cached_encoder(params: EncodingParams) -> Encoding:
    """Return a checked encoding.

    The cache saves the check, which takes longer than encoding a value. A device gets the encoder
    of a metric several times for each report.
    """
    encoding = get_encoding(params)
    encoding.check_can_encode()
    return encoding


def parse_value(params: EncodingParams, text: str) -> object:
    """Convert a text, for example from a command line, to a value of a parameter set.

    Raises
    ------
    ReportError
        The text is not a value of the encoding.

    Examples
    --------
    >>> from rappor import Params
    >>> parse_value(Params.profile("balanced", encoding="boolean"), "yes")
    True
    """
    return get_encoder(params).parse_value(text)
