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

MASK = 2**64 - 1


def threshold(x: float) -> int:
    """Return floor(x * 2^32 + 0.5)."""
    return math.floor(x * 4294967296 + 0.5)


def rotate_left(x: int, r: int) -> int:
    """Rotate a 64-bit integer."""
    return ((x << r) | (x >> (64 - r))) & MASK


def fmix64(x: int) -> int:
    """Mix 64 bits as MurmurHash3 ends."""
    x ^= x >> 33
    x = (x * 0xFF51AFD7ED558CCD) & MASK
    x ^= x >> 33
    x = (x * 0xC4CEB9FE1A85EC53) & MASK
    x ^= x >> 33
    return x


def murmur3_x64_128(data: bytes) -> tuple[int, int]:
    """Hash with MurmurHash3_x64_128, seed 0, after Appleby's public-domain description."""
    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    h1 = h2 = 0
    n_blocks = len(data) // 16
    for i in range(n_blocks):
        k1 = int.from_bytes(data[16 * i : 16 * i + 8], "little")
        k2 = int.from_bytes(data[16 * i + 8 : 16 * i + 16], "little")
        h1 ^= (rotate_left((k1 * c1) & MASK, 31) * c2) & MASK
        h1 = (rotate_left(h1, 27) + h2) & MASK
        h1 = (h1 * 5 + 0x52DCE729) & MASK
        h2 ^= (rotate_left((k2 * c2) & MASK, 33) * c1) & MASK
        h2 = (rotate_left(h2, 31) + h1) & MASK
        h2 = (h2 * 5 + 0x38495AB5) & MASK
    tail = data[16 * n_blocks :]
    if len(tail) > 8:
        k2 = int.from_bytes(tail[8:], "little")
        h2 ^= (rotate_left((k2 * c2) & MASK, 33) * c1) & MASK
    if len(tail) > 0:
        k1 = int.from_bytes(tail[:8], "little")
        h1 ^= (rotate_left((k1 * c1) & MASK, 31) * c2) & MASK
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & MASK
    h2 = (h2 + h1) & MASK
    h1, h2 = fmix64(h1), fmix64(h2)
    h1 = (h1 + h2) & MASK
    h2 = (h2 + h1) & MASK
    return h1, h2


def bloom(value: str, cohort: int, k: int, h: int) -> list[int]:
    """Return the Bloom filter of a string in a cohort."""
    a, b = murmur3_x64_128(value.encode("utf-8"))
    bits = [0] * k
    for j in range(h):
        x = fmix64((a + (cohort * h + j + 1) * (b | 1)) % 2**64)
        bits[((x >> 32) * k) >> 32] = 1
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


def cohort(secret: bytes, metric: str, m: int) -> int:
    """Return the device's cohort for a metric."""
    (u,) = integers(expand(secret, b"rappor/1/cohort\x00" + metric.encode(), 4))
    return (u * m) >> 32


def permanent_response(bits: list[int], t_f: int, coins: list[int]) -> list[int]:
    """Apply the permanent rule, bit by bit."""
    response = []
    for bit, u in zip(bits, coins, strict=True):
        if u < t_f:
            response.append(1)
        elif u < 2 * t_f:
            response.append(0)
        else:
            response.append(bit)
    return response


def permanent(secret: bytes, metric: str, epoch: str, t_f: int, bits: list[int]) -> list[int]:
    """Return the permanent response of a device."""
    info = b"rappor/1/permanent\x00" + metric.encode() + b"\x00" + epoch.encode() + b"\x00"
    info += str(t_f).encode() + b"\x00" + pack(bits)
    return permanent_response(bits, t_f, integers(expand(secret, info, 4 * len(bits))))


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


def fingerprint(document: dict[str, Any], categories: list[str] | None = None) -> str:
    """Hash a parameter set, given with its thresholds, into 16 hex digits."""
    document = dict(document)
    if categories is not None:
        document["categories"] = hashlib.sha256("\n".join(categories).encode()).hexdigest()
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).digest()[:8].hex()
