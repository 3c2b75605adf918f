"""The common spelling of an upload, read fast.

JSON spells one upload in many ways. Devices write one of them: no white space, the keys in one
order, plain numbers. Bytes that come back when they are decoded and encoded again are that
spelling, so no key is doubled or unknown and no number is odd. Whatever else was sent is read by
the protocol's strict reader, which also has the word on everything that is refused.
"""

from __future__ import annotations

import binascii
from typing import Final

import msgspec

_ID_LENGTH: Final = 22
_TO_BASE64: Final = bytes.maketrans(b"-_+/=", b"+/!!!")
"""base64url to base64; what is in the other alphabet only becomes foreign to both."""
_PADDING: Final = (b"", b"===", b"==", b"=")
_LAST: Final = ("", "", "AQgw", "AEIMQUYcgkosw048")
"""By the length beyond whole groups: the last characters whose spare bits are 0."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One report as it stands in an upload, its fields of the right kinds and not judged yet."""

    metric: str
    params: str
    cohort: int
    bits: str


class Upload(msgspec.Struct, frozen=True, gc=False):
    """An upload in the common spelling."""

    v: int
    id: str
    reports: list[Entry]


_DECODER: Final = msgspec.json.Decoder(Upload)
_ENCODER: Final = msgspec.json.Encoder()


def read_canonical(body: bytes) -> tuple[bytes, list[Entry]] | None:
    """Return the 16 bytes of the id and the entries, None for any other spelling or upload."""
    try:
        upload = _DECODER.decode(body)
        is_canonical = _ENCODER.encode(upload) == body
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if not is_canonical or upload.v != 1 or not upload.reports or len(upload.id) != _ID_LENGTH:
        return None
    upload_id = unpack(upload.id)
    return None if upload_id is None else (upload_id, upload.reports)


def unpack(text: str) -> bytes | None:
    """Read base64url in the one spelling that has neither padding nor spare bits; None if not."""
    tail = len(text) % 4
    if tail and text[-1] not in _LAST[tail]:
        return None
    try:
        return binascii.a2b_base64(
            text.encode("ascii").translate(_TO_BASE64) + _PADDING[tail], strict_mode=True
        )
    except ValueError:
        return None
