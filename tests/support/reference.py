"""A second implementation of protocol version 1, with lists and loops: slow and obvious.

It shares no code with the packages. Bits are lists of 0 and 1, bit 0 first.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
from typing import Any

MASK = 2**32 - 1


def threshold(x: float) -> int:
    """Return floor(x * 2^32 + 0.5)."""
    return math.floor(x * 4294967296 + 0.5)


def rotate_left(x: int, r: int) -> int:
    """Rotate a 32-bit integer."""
    return ((x << r) | (x >> (32 - r))) & MASK


def murmur3_x86_32(data: bytes, seed: int) -> int:
    """Hash with MurmurHash3_x86_32, after Appleby's public-domain description."""
    h = seed
    n_blocks = len(data) // 4
    for i in range(n_blocks):
        k = int.from_bytes(data[4 * i : 4 * i + 4], "little")
        k = (rotate_left((k * 0xCC9E2D51) & MASK, 15) * 0x1B873593) & MASK
        h = (rotate_left(h ^ k, 13) * 5 + 0xE6546B64) & MASK
    tail = data[4 * n_blocks :]
    if len(tail) > 0:
        k = int.from_bytes(tail, "little")
        h ^= (rotate_left((k * 0xCC9E2D51) & MASK, 15) * 0x1B873593) & MASK
    h ^= len(data)
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & MASK
    return h ^ (h >> 16)


def bloom(value: str, cohort: int, k: int, h: int) -> list[int]:
    """Return the Bloom filter of a string in a cohort."""
    digest = hashlib.sha256(value.encode("utf-8")).digest()[:16]
    bits = [0] * k
    for j in range(h):
        x = murmur3_x86_32(digest, cohort * h + j)
        bits[(x * k) >> 32] = 1
    return bits


def pack(bits: list[int]) -> bytes:
    """Put bit i at bit i mod 8, least significant first, of byte i div 8."""
    packed = [0] * math.ceil(len(bits) / 8)
    for i, bit in enumerate(bits):
        packed[i // 8] += bit * 2 ** (i % 8)
    return bytes(packed)


def unpack(packed: bytes, k: int) -> list[int]:
    """Undo `pack`."""
    return [packed[i // 8] // 2 ** (i % 8) % 2 for i in range(k)]


def expand(secret: bytes, info: bytes, n: int) -> bytes:
    """HKDF-Expand-SHA256 (RFC 5869 section 2.3)."""
    output, block, counter = b"", b"", 1
    while len(output) < n:
        block = hmac.new(secret, block + info + bytes([counter]), hashlib.sha256).digest()
        output += block
        counter += 1
    return output[:n]


def integers(data: bytes) -> list[int]:
    """Read little-endian 32-bit integers."""
    return [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]


def scope(metric: str, epoch: str, permanent_fingerprint: str) -> bytes:
    """Name what one permanent response answers for."""
    return (metric + "\x00" + epoch + "\x00" + permanent_fingerprint).encode("utf-8")


def cohort(secret: bytes, scope: bytes, m: int) -> int:
    """Return the device's cohort in a scope."""
    (u,) = integers(expand(secret, b"rappor/1/cohort\x00" + scope, 4))
    return (u * m) >> 32


def takes_part(secret: bytes, scope: bytes, sample: float) -> bool:
    """Return whether the device is in a sample; the scope is the metric's without any part."""
    (u,) = integers(expand(secret, b"rappor/1/sample\x00" + scope, 4))
    return u < threshold(sample)


def drawn_day(secret: bytes, scope: bytes, days: int) -> int:
    """Return the day of an epoch, from 0, from which on the device reports once.

    The last eight days are left for the report to leave.
    """
    (u,) = integers(expand(secret, b"rappor/1/day\x00" + scope, 4))
    return (u * (days - 8)) >> 32


def part(secret: bytes, scope: bytes, parts: list[tuple[str, float | None]]) -> str:
    """Return the device's part; the scope is that of the metric without any part."""
    (u,) = integers(expand(secret, b"rappor/1/part\x00" + scope, 4))
    start = 0
    for name, share in parts:
        if share is None or start <= u < start + threshold(share):
            return name
        start += threshold(share)
    raise AssertionError("the last part takes the rest")


def permanent_response(bits: list[int], t_1: int, t_0: int, coins: list[int]) -> list[int]:
    """Apply the permanent rule, bit by bit."""
    response = []
    for bit, u in zip(bits, coins, strict=True):
        if u < t_1:
            response.append(1)
        elif u < t_1 + t_0:
            response.append(0)
        else:
            response.append(bit)
    return response


def permanent(secret: bytes, scope: bytes, t_1: int, t_0: int, bits: list[int]) -> list[int]:
    """Return the permanent response of a device."""
    info = b"rappor/1/permanent\x00" + scope + b"\x00" + pack(bits)
    return permanent_response(bits, t_1, t_0, integers(expand(secret, info, 4 * len(bits))))


def instantaneous_response(memoised: list[int], t_p: int, t_q: int, coins: list[int]) -> list[int]:
    """Draw one report from the permanent response."""
    report = []
    for bit, u in zip(memoised, coins, strict=True):
        if bit == 1:
            report.append(1 if u < t_q else 0)
        else:
            report.append(1 if u < t_p else 0)
    return report


def base64url(data: bytes) -> str:
    """Write base64url without padding."""
    return base64.urlsafe_b64encode(data).decode().replace("=", "")


def canonical_hash(document: dict[str, Any], categories: list[str] | None = None) -> str:
    """Hash the canonical JSON of a parameter set, given with its thresholds."""
    document = dict(document)
    if categories is not None:
        document["categories"] = hashlib.sha256("\n".join(categories).encode()).hexdigest()
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint(document: dict[str, Any], categories: list[str] | None = None) -> str:
    """Hash a parameter set into 16 hex digits."""
    return canonical_hash(document, categories)[:16]


PUBLIC = ("p", "q", "segment", "interval", "epoch")
"""Keys that the permanent response does not depend on."""


def permanent_fingerprint(document: dict[str, Any], categories: list[str] | None = None) -> str:
    """Hash what the permanent response depends on into 64 hex digits."""
    without = {key: value for key, value in document.items() if key not in PUBLIC}
    return canonical_hash(without, categories)
