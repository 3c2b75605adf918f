"""The encodings by name, and the one of a parameter set."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_choice
from rappor.protocol.encodings.bloom import Bloom
from rappor.protocol.encodings.boolean import Boolean
from rappor.protocol.encodings.buckets import Buckets
from rappor.protocol.encodings.encoding import Encoding
from rappor.protocol.encodings.onehot import OneHot
from rappor.protocol.encodings.shape import Shape

ENCODINGS: Final[Mapping[str, type[Encoding]]] = {
    kind.name: kind for kind in (Bloom, OneHot, Boolean, Buckets)
}
"""Every encoding, in the order of the documents and messages."""

_REMOVED: Final[Mapping[str, str]] = {
    "flags": "use a metric of encoding boolean for each flag",
}
"""The replacement of each encoding that a parameter set must not have any more."""


def encoding_named(name: object) -> type[Encoding]:
    """Return an encoding; ParamsError, with the replacement of a removed one, for another name."""
    if isinstance(name, str) and name in _REMOVED:
        raise ParamsError(f"encoding must not be {name!r}: {_REMOVED[name]}")
    check_choice("encoding", name, ENCODINGS)
    return ENCODINGS[str(name)]


def encoding_of(params: Shape) -> Encoding:
    """Return the encoding of a parameter set, for what it says of itself."""
    return ENCODINGS[params.encoding](params)


def encoder(params: Shape) -> Encoding:
    """Return the encoding of a parameter set, ready for values.

    Raises ParamsError where no value can be encoded: a foreign hash layout, or categories that
    the normalizer makes equal.
    """
    return _ready(params)


@functools.lru_cache(maxsize=256)
def _ready(params: Shape) -> Encoding:
    """Return a checked encoding; a device asks for it three times a report."""
    ready = encoding_of(params)
    ready.check_values()
    return ready


def parse_value(params: Shape, text: str) -> object:
    """Turn text, as on a command line, into a value of the parameters' encoding."""
    return encoder(params).parse_value(text)
