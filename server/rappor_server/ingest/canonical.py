"""Fast parser for uploads in canonical form.

JSON can write one upload in many ways. Devices write the canonical form: no white space, keys in
the order of `Upload` and `Entry`, integers without fractions or exponents. An upload is canonical
if decoding and encoding it again returns the same bytes. The comparison excludes duplicate keys,
unknown keys and unusual numbers without a check for each of these cases:

    {"v":1,"id":"...","reports":[...]}      canonical
    {"v": 1,"id":"...","reports":[...]}     a space: not canonical, but a valid upload
    {"v":1,"v":1,"id":"...",...}            encoded again it has one "v": not canonical

The fast parser never refuses an upload. It returns None for any upload that is not canonical, and
the strict parser of the protocol (`rappor.protocol.wire`) decides about such an upload.
"""

from __future__ import annotations

import binascii
from typing import Final

import msgspec

_ID_LENGTH: Final = 22
"""Length of an upload id in characters: 16 bytes in base64url without padding. The protocol
determines the value."""
_TO_BASE64: Final = bytes.maketrans(b"-_+/=", b"+/!!!")
"""Translation table from base64url to base64. It maps +, / and =, which base64url lacks, to a
character that neither alphabet has, so the decoder rejects them."""
_PADDING: Final = (b"", b"===", b"==", b"=")
"""Padding that base64 needs, by the length of the text modulo 4. No sequence of bytes has a text of
length 1 modulo 4; the three characters make the decoder reject such a text."""
_LAST_CHARACTERS: Final = ("", "", "AQgw", "AEIMQUYcgkosw048")
"""Allowed last characters, by the length of the text modulo 4. A character stands for 6 bits. Of
the last character, 4 bits (length 2) or 2 bits (length 3) belong to no byte and must be 0, as they
are in these characters. Otherwise two texts would stand for the same bytes."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One report of an upload. Its fields have the right types; their values are not checked.

    The order of the fields is the order of the keys in canonical form.
    """

    metric: str
    params: str
    cohort: int
    bits: str


class Upload(msgspec.Struct, frozen=True, gc=False):
    """An upload in canonical form. The fields have the names and the order of the JSON keys."""

    v: int
    id: str
    reports: list[Entry]


_DECODER: Final = msgspec.json.Decoder(Upload)
_ENCODER: Final = msgspec.json.Encoder()


def read_canonical(body: bytes) -> tuple[bytes, list[Entry]] | None:
    """Return the id of an upload (16 bytes) and its entries, or None if it is not canonical."""
    # Encoding again is quicker than a check of white space, order of keys, duplicate keys, unknown
    # keys and forms of numbers, and forgets none of them.
    try:
        upload = _DECODER.decode(body)
        is_canonical = _ENCODER.encode(upload) == body
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # Not JSON, another type, a lone surrogate, or deeply nested lists.
        return None
    if not is_canonical or upload.v != 1 or not upload.reports or len(upload.id) != _ID_LENGTH:
        return None
    upload_id = unpack(upload.id)
    return None if upload_id is None else (upload_id, upload.reports)


def unpack(text: str) -> bytes | None:
    """Decode base64url without padding; return None for any other text.

    Each sequence of bytes has exactly one text. Texts whose unused bits are not 0 are rejected.
    """
    remainder = len(text) % 4
    if remainder and text[-1] not in _LAST_CHARACTERS[remainder]:
        return None
    try:
        return binascii.a2b_base64(
            text.encode("ascii").translate(_TO_BASE64) + _PADDING[remainder], strict_mode=True
        )
    except ValueError:
        return None
