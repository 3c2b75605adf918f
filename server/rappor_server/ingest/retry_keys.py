"""Deduplication keys: 16 bytes by which the collector recognises that an upload is a retry.

A device that gets no response sends the same bytes again. The first copy may have been counted. The
merge is the transaction that adds the reports of uploads to the counters. It compares the key of
each upload with the keys of the last 14 days, and skips an upload whose key is stored. (A device
drops an upload after seven days, so a later retry does not occur.)

    key = first 16 bytes of HMAC-SHA256(key = id of the upload, message = body of the upload)

The body is the whole JSON of the upload, and contains the id. So a retry, which has the same bytes,
has the same key. The id has 128 random bits and is stored nowhere. A
thief of the keys can therefore not test a guess of a body, not even of a body with a single bit.
"""

from __future__ import annotations

import hmac
from typing import Final

KEY_BYTES: Final = 16
"""Length of a key in bytes. Among n different uploads, two have equal keys with a probability of at
most n^2 / 2^129: 10^-13 for 10^13 uploads. A longer key makes the largest table longer."""


def key_of_upload(upload_id: bytes, body: bytes) -> bytes:
    """Return the key of an upload: the first 16 bytes of HMAC-SHA256 of the body under the id."""
    return hmac.digest(upload_id, body, "sha256")[:KEY_BYTES]


def key_of_report(upload_key: bytes, position: int) -> bytes:
    """Return the key of one report of an upload that was accepted in part.

    A retry of such an upload may be accepted to a larger part, because the registry has changed.
    Each report therefore has a key of its own.

    Parameters
    ----------
    upload_key : key of the upload
    position : index of the report in its upload, from 1
    """
    # Position 0 would give the key of the upload itself. A retry would then find the key of the
    # whole upload, and none of its other reports would ever be counted.
    return (int.from_bytes(upload_key) ^ position).to_bytes(KEY_BYTES)
