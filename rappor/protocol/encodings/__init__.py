"""Encodings: which bits of a report a value sets, and all that follows from it.

One file an encoding. Nothing outside this folder asks which encoding it is; it asks a property.
"""

from rappor.protocol.encodings.catalogue import (
    ENCODINGS,
    encoder,
    encoding_named,
    encoding_of,
    parse_value,
)
from rappor.protocol.encodings.encoding import Encoding

__all__ = ["ENCODINGS", "Encoding", "encoder", "encoding_named", "encoding_of", "parse_value"]
