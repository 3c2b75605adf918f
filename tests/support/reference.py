"""The reference implementation of protocol version 1, with lists and loops: slow and obvious.

The module is the specification (rappor/protocol/README.md) written as code. It shares no code with
the packages, so it does not share their mistakes. Tests compare production code with this module,
and `make_vectors` writes the test vectors from it. Bits are lists of 0 and 1, with bit 0 first.
The letters u are coins, uniform 32-bit integers.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
from typing import Any

MASK = 2**32 - 1
"""Keeps the low 32 bits of an integer, as the arithmetic of MurmurHash3 requires."""


def compute_threshold(x: float) -> int:
    """Return the 32-bit threshold of a probability: floor(x * 2^32 + 0.5)."""
    return math.floor(x * 4294967296 + 0.5)


def rotate_left(x: int, r: int) -> int:
    """Return a 32-bit integer rotated to the left by r bits."""
    return ((x << r) | (x >> (32 - r))) & MASK


def hash_murmur3(data: bytes, seed: int) -> int:
    """Return MurmurHash3_x86_32 of bytes, after Appleby's public-domain description."""
    h = seed
    n_blocks = len(data) // 4
    for i in range(n_blocks):
        k = int.from_bytes(data[4 * i : 4 * i + 4], "little")
        k = (rotate_left((k * 0xCC9E2D51) & MASK, 15) * 0x1B873593) & MASK
        h = (rotate_left(h ^ k, 13) * 5 + 0xE6546B64) & MASK
    # The last one to three bytes that fill no block.
    tail = data[4 * n_blocks :]
    if len(tail) > 0:
        k = int.from_bytes(tail, "little")
        h ^= (rotate_left((k * 0xCC9E2D51) & MASK, 15) * 0x1B873593) & MASK
    h ^= len(data)
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & MASK
    return h ^ (h >> 16)


def compute_bloom_filter(value: str, cohort: int, k: int, h: int) -> list[int]:
    """Return the Bloom filter of a string in a cohort."""
    digest = hashlib.sha256(value.encode("utf-8")).digest()[:16]
    bits = [0] * k
    for j in range(h):
        x = hash_murmur3(digest, cohort * h + j)
        bits[(x * k) >> 32] = 1
    return bits


def pack(bits: list[int]) -> bytes:
    """Put bit i at bit i mod 8, least significant first, of byte i div 8."""
    packed = [0] * math.ceil(len(bits) / 8)
    for i, bit in enumerate(bits):
        packed[i // 8] += bit * 2 ** (i % 8)
    return bytes(packed)


def unpack(packed: bytes, k: int) -> list[int]:
    """Return the k bits of packed bits."""
    return [packed[i // 8] // 2 ** (i % 8) % 2 for i in range(k)]


def expand(secret: bytes, info: bytes, n: int) -> bytes:
    """Return n bytes of HKDF-Expand-SHA256 (RFC 5869 section 2.3)."""
    output, block, counter = b"", b"", 1
    while len(output) < n:
        block = hmac.new(secret, block + info + bytes([counter]), hashlib.sha256).digest()
        output += block
        counter += 1
    return output[:n]


def read_integers(data: bytes) -> list[int]:
    """Read little-endian 32-bit integers."""
    return [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]


def encode_scope(metric: str, epoch: str, permanent_fingerprint: str) -> bytes:
    """Return the bytes that name a scope."""
    return (metric + "\x00" + epoch + "\x00" + permanent_fingerprint).encode("utf-8")


def derive_cohort(secret: bytes, scope: bytes, m: int) -> int:
    """Return the device's cohort in a scope."""
    (u,) = read_integers(expand(secret, b"rappor/1/cohort\x00" + scope, 4))
    return (u * m) >> 32


def is_sampled(secret: bytes, scope: bytes, sampling_rate: float) -> bool:
    """Return whether a device takes part in a metric at a sampling rate.

    `scope` is the scope of the base parameters, which name no part such as `prefix:3`.
    """
    (u,) = read_integers(expand(secret, b"rappor/1/sample\x00" + scope, 4))
    return u < compute_threshold(sampling_rate)


def derive_report_day(secret: bytes, scope: bytes, days: int) -> int:
    """Return the first day, counted from 0, on which a device may report once in an epoch.

    The last eight days of an epoch are never drawn. A report leaves a day after its interval, and
    the other seven days are for retries.
    """
    (u,) = read_integers(expand(secret, b"rappor/1/day\x00" + scope, 4))
    return (u * (days - 8)) >> 32


def derive_part(secret: bytes, scope: bytes, parts: list[tuple[str, float | None]]) -> str:
    """Return the part of a string that a device reports, such as `prefix:3`.

    Parts are pairs of a name and a share of the devices. The last part has the remaining devices,
    so its share is None. `scope` is the scope of the base parameters, which name no part.
    """
    (u,) = read_integers(expand(secret, b"rappor/1/part\x00" + scope, 4))
    start = 0
    for name, share in parts:
        if share is None or start <= u < start + compute_threshold(share):
            return name
        start += compute_threshold(share)
    raise AssertionError("the last part must have the remaining coins")


def draw_permanent_response(bits: list[int], t_1: int, t_0: int, coins: list[int]) -> list[int]:
    """Force each bit to 1 with threshold t_1, to 0 with threshold t_0, or keep the true bit."""
    response = []
    for bit, u in zip(bits, coins, strict=True):
        if u < t_1:
            response.append(1)
        elif u < t_1 + t_0:
            response.append(0)
        else:
            response.append(bit)
    return response


def derive_permanent_response(
    secret: bytes, scope: bytes, t_1: int, t_0: int, bits: list[int]
) -> list[int]:
    """Return the permanent response of a device to true bits."""
    info = b"rappor/1/permanent\x00" + scope + b"\x00" + pack(bits)
    return draw_permanent_response(
        bits, t_1, t_0, read_integers(expand(secret, info, 4 * len(bits)))
    )


def draw_instantaneous_response(
    permanent: list[int], t_p: int, t_q: int, coins: list[int]
) -> list[int]:
    """Send each bit of a permanent response as 1 with threshold t_q if it is 1, else t_p."""
    report = []
    for bit, u in zip(permanent, coins, strict=True):
        if bit == 1:
            report.append(1 if u < t_q else 0)
        else:
            report.append(1 if u < t_p else 0)
    return report


def choose_own_buckets(own: list[int], k: int, n: int, u: list[int]) -> list[int]:
    """Return n of k buckets: the own buckets of a value, cut or padded at random by the coins u."""
    buckets = sorted(own)
    if len(buckets) > n:
        remaining, buckets = buckets, []
        for i in range(n):
            chosen = remaining[(u[i] * len(remaining)) >> 32]
            remaining = [bucket for bucket in remaining if bucket != chosen]
            buckets.append(chosen)
    elif len(buckets) < n:
        for i in range(n - len(buckets)):
            free = [bucket for bucket in range(k) if bucket not in buckets]
            buckets.append(free[(u[i] * len(free)) >> 32])
    return sorted(buckets)


def draw_bucket(own: list[int], k: int, n: int, t: int, u: list[int]) -> int:
    """Return the bucket that generalized randomized response reports, by the n + 2 coins u.

    `t` is the threshold of `keep`.
    """
    chosen = choose_own_buckets(own, k, n, u)
    if u[n] < t:
        return chosen[(u[n + 1] * n) >> 32]
    return (u[n + 1] * k) >> 32


def derive_bucket_coins(secret: bytes, scope: bytes, own: list[int], k: int, n: int) -> list[int]:
    """Return the n + 2 coins of a device's generalized randomized response to its own buckets."""
    bits = pack([1 if i in own else 0 for i in range(k)])
    info = b"rappor/1/grr\x00" + scope + b"\x00" + bits
    return read_integers(expand(secret, info, 4 * (n + 2)))


def list_own_buckets(items: list[str], cohort: int, k: int) -> list[int]:
    """Return the own buckets of a set of strings in a cohort, in ascending order."""
    own: list[int] = []
    for item in items:
        if item != "":
            bucket = compute_bloom_filter(item, cohort, k, 1).index(1)
            if bucket not in own:
                own.append(bucket)
    return sorted(own)


def encode_base64url(data: bytes) -> str:
    """Return bytes in base64url without padding."""
    return base64.urlsafe_b64encode(data).decode().replace("=", "")


def hash_canonical_json(document: dict[str, Any], categories: list[str] | None = None) -> str:
    """Return the SHA-256 of the canonical JSON of a parameter set, which contains thresholds."""
    document = dict(document)
    if categories is not None:
        document["categories"] = hashlib.sha256("\n".join(categories).encode()).hexdigest()
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def compute_fingerprint(document: dict[str, Any], categories: list[str] | None = None) -> str:
    """Return the fingerprint of a parameter set, 16 hex digits."""
    return hash_canonical_json(document, categories)[:16]


KEYS_OF_REPORTS_ONLY = ("p", "q", "segment", "interval", "epoch")
"""Keys that do not change the permanent response, so the permanent fingerprint leaves them out."""


def compute_permanent_fingerprint(
    document: dict[str, Any], categories: list[str] | None = None
) -> str:
    """Return the permanent fingerprint of a parameter set, 64 hex digits."""
    without = {key: value for key, value in document.items() if key not in KEYS_OF_REPORTS_ONLY}
    return hash_canonical_json(without, categories)
