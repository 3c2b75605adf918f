"""Encodings: the rules by which a value sets bits of a report, and their privacy loss.

Each encoding is a class in a file of its own. Code outside this package never compares names of
encodings. It reads a property of the class, such as `is_hashed`.
"""

from rappor.protocol.encodings.encoding import Encoding
from rappor.protocol.encodings.encodings_by_name import (
    ENCODINGS,
    get_encoder,
    get_encoding,
    get_encoding_class,
    parse_value,
)

__all__ = [
    "ENCODINGS",
    "Encoding",
    "get_encoder",
    "get_encoding",
    "get_encoding_class",
    "parse_value",
]
