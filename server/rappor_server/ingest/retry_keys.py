"""Keys of uploads and reports, by which the collector recognises a retry.

The key of an upload is a MAC of its body under its id. Two uploads with equal bytes have equal
keys, so a retry is recognised. The id has 128 random bits and is stored nowhere. Nobody can
therefore find the body of a key by trying all bodies, even if the body contains a single bit.
"""

from __future__ import annotations

import hmac
from typing import Final

KEY_BYTES: Final = 16
"""Length of a key in bytes. With n stored keys, two of them are equal with probability n^2 /
2^129."""


def key_of_upload(upload_id: bytes, body: bytes) -> bytes:
    """Return the key of an upload: the first 16 bytes of HMAC-SHA256 of the body under the id."""
    return hmac.digest(upload_id, body, "sha256")[:KEY_BYTES]


def key_of_report(upload_key: bytes, position: int) -> bytes:
    """Return the key of one report; `position` is its index in the upload, from 1."""
    # Position 0 would give the key of the upload itself. A partial upload with this report would
    # then count as a whole one.
    return (int.from_bytes(upload_key) ^ position).to_bytes(KEY_BYTES)
