"""The randomized responses of google/rappor's clients, for tests and simulation only.

Never use them for a new metric. They are here so that known answers can be reproduced and
old collections imitated, and they keep what is wrong with the originals:

- one byte of a hash serves each bit, its lowest bit the response and its upper seven the
  decision, so f is kept to 1/128, and every client rounds it differently (`effective_f`);
- the Python client keys the response by secret and Bloom filter alone: two metrics whose
  strings set the same bits share it;
- a hash of 32 bytes serves at most 32 bits.

Bits are integers here: bit i has the value 2**i, as in the originals.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
from pathlib import Path
from typing import Final

from rappor.candidates.candidates import Candidates
from rappor.google.effective_noise import randomizing_levels
from rappor.ground.errors import ParamsError
from rappor.protocol.params import Params

HASHED_BITS: Final = 32
"""Most bits that one HMAC-SHA256 serves."""


def bloom(value: bytes, cohort: int, *, k: int, h: int) -> int:
    """Return the Bloom filter of a string: hash i is byte i of one MD5, modulo k."""
    digest = hashlib.md5(cohort.to_bytes(4, "big") + value, usedforsecurity=False).digest()
    bits = 0
    for byte in digest[:h]:
        bits |= 1 << byte % k
    return bits


def cohort_cpp(secret: bytes, m: int) -> int:
    """Return the cohort that the C++ client derives; m is a power of two."""
    return _first_word(hmac.digest(secret, b"", "sha256"), m)


def cohort_cpp_drbg(secret: bytes, m: int) -> int:
    """Return the cohort that the C++ client derives in its HMAC-DRBG mode."""
    return _first_word(_drbg(secret, b"", 4), m)


def permanent_python(secret: bytes, bits: int, *, k: int, f: float) -> int:
    """Return the Python client's permanent response; k is at most 32."""
    stream = hmac.digest(secret, _word(bits, k), "sha256")
    return _respond(stream, bits, k=k, threshold=randomizing_levels(f, "python"))


def permanent_cpp(secret: bytes, encoder_id: bytes, bits: int, *, k: int, f: float) -> int:
    """Return the C++ client's permanent response; k is at most 32."""
    stream = hmac.digest(secret, b"\x01" + encoder_id + _word(bits, k), "sha256")
    return _respond(stream, bits, k=k, threshold=randomizing_levels(f, "cpp"))


def permanent_cpp_drbg(secret: bytes, encoder_id: bytes, bits: int, *, k: int, f: float) -> int:
    """Return the C++ client's permanent response in its HMAC-DRBG mode; k is in whole bytes."""
    if k % 8:
        raise ParamsError(f"k must be a multiple of 8, got {k}")
    stream = _drbg(secret, b"\x01" + encoder_id + bits.to_bytes(k // 8, "big"), k)
    return _respond(stream, bits, k=k, threshold=randomizing_levels(f, "cpp"))


def instantaneous(permanent: int, *, p_mask: int, q_mask: int) -> int:
    """Return a report from masks whose bits are one with chance p and q."""
    return (p_mask & ~permanent) | (q_mask & permanent)


def _respond(stream: bytes, bits: int, *, k: int, threshold: int) -> int:
    """Keep each true bit or replace it: byte i decides on bit i."""
    response = 0
    for i, byte in enumerate(stream[:k]):
        bit = byte & 1 if byte >> 1 < threshold else bits >> i & 1
        response |= bit << i
    return response


def _word(bits: int, k: int) -> bytes:
    if k > HASHED_BITS:
        raise ParamsError(f"k must be at most {HASHED_BITS} for one hash, got {k}")
    return bits.to_bytes(4, "big")


def _first_word(stream: bytes, m: int) -> int:
    """Return the first four bytes, little-endian, modulo a power of two."""
    if m < 1 or m & (m - 1):
        raise ParamsError(f"m must be a power of two, got {m}")
    return int.from_bytes(stream[:4], "little") & (m - 1)


def _drbg(secret: bytes, personalization: bytes, n: int) -> bytes:
    """Return n bytes of HMAC-DRBG with SHA-256 (SP 800-90A, 10.1.2), instantiated anew."""
    seed = secret + personalization
    key, state = b"\x00" * 32, b"\x01" * 32
    for separator in (b"\x00", b"\x01"):
        key = hmac.digest(key, state + separator + seed, "sha256")
        state = hmac.digest(key, state, "sha256")
    output = b""
    while len(output) < n:
        state = hmac.digest(key, state, "sha256")
        output += state
    return output[:n]


def write_map(path: Path, candidates: Candidates, params: Params) -> None:
    """Write map.csv: a string, then cohort * k + bit + 1 of each hash in each cohort."""
    cells = candidates.cells(params, 0, len(candidates)).tolist()
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [text or "Empty", *(cell + 1 for cell in row if cell >= 0)]
            for text, row in zip(candidates.strings, cells, strict=True)
        )
