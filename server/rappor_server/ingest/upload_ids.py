"""What is stored of an upload's id and body, so that a retry is known and nothing is told.

The id has 128 random bits and is stored nowhere. So neither hash can be turned back by trying,
not even where the body holds a single yes or no.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

_DOMAIN: Final = b"rappor/1/upload\0"


def hash_id(upload_id: bytes) -> bytes:
    """Return the hash under which an upload is stored."""
    return hashlib.sha256(_DOMAIN + upload_id).digest()


def mac_body(upload_id: bytes, body: bytes) -> bytes:
    """Return the MAC of a body as it was received; its key is the upload's id."""
    return hmac.digest(upload_id, body, "sha256")
