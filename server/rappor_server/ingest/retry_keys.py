"""What is kept of an upload's id and body: its key, so that a retry is known and nothing is told.

An upload is its bytes. The id has 128 random bits and is stored nowhere, so a key cannot be turned
back by trying, not even where the body holds a single yes or no.
"""

from __future__ import annotations

import hmac
from typing import Final

KEY_BYTES: Final = 16


def key_of_upload(upload_id: bytes, body: bytes) -> bytes:
    """Return the key of an upload: 16 bytes of the MAC of its body under its id."""
    return hmac.digest(upload_id, body, "sha256")[:KEY_BYTES]


def key_of_report(upload_key: bytes, place: int) -> bytes:
    """Return the key of one report; `place` is its place in the upload, from 1."""
    return (int.from_bytes(upload_key) ^ place).to_bytes(KEY_BYTES)
