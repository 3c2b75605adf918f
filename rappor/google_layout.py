"""The hash layout of google/rappor's Python and C++ clients, for data collected by them.

Hash i of a string in a cohort is byte i of MD5(cohort as 4 bytes big-endian, then the string
in UTF-8), modulo k. One byte an index has its price, which this layout keeps: beyond k = 256
higher bits are never set, and unless k divides 256 lower bits are set more often. Such sets
are decoded, never offered for new metrics.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.compiled import compiled
from rappor.params import Params

LAYOUT: Final = "google"

_ONE_BLOCK: Final = 51
"""Longest string whose message (cohort, string, padding, length) fits MD5's 64-byte block."""

_SHIFTS: Final = np.array(
    [7, 12, 17, 22] * 4 + [5, 9, 14, 20] * 4 + [4, 11, 16, 23] * 4 + [6, 10, 15, 21] * 4,
    dtype=np.uint32,
)
_SINES: Final = np.array(
    [math.floor(abs(math.sin(i + 1)) * 2**32) for i in range(64)], dtype=np.uint32
)
"""RFC 1321, section 3.4."""


def google_cells(values: Sequence[bytes], params: Params) -> NDArray[np.int32]:
    """Find the cells that each string sets, in every cohort.

    Returns
    -------
    (n, m * h) int32 as `rappor.hashing.bloom_cells` writes them: the cell j * k + bit that
    hash i sets in cohort j, or -1 where an earlier hash of that cohort has set the same bit.
    """
    digests = np.empty((len(values), params.m, 16), dtype=np.uint8)
    short = np.array([len(value) <= _ONE_BLOCK for value in values], dtype=bool)
    _digest_blocks(_blocks([v for v in values if len(v) <= _ONE_BLOCK]), digests, short)
    for place in np.flatnonzero(~short).tolist():
        for cohort in range(params.m):
            message = cohort.to_bytes(4, "big") + values[place]
            digest = hashlib.md5(message, usedforsecurity=False).digest()
            digests[place, cohort] = np.frombuffer(digest, dtype=np.uint8)
    cells = np.empty((len(values), params.m * params.h), dtype=np.int32)
    _fill_cells(digests, params.k, params.h, cells)
    return cells


def _blocks(values: Sequence[bytes]) -> NDArray[np.uint32]:
    """Pad each message to MD5's block with the cohort left 0; (n, 16) uint32."""
    padded = [
        (b"\0\0\0\0" + value + b"\x80").ljust(56, b"\0")
        + (8 * (len(value) + 4)).to_bytes(8, "little")
        for value in values
    ]
    return np.frombuffer(b"".join(padded), dtype="<u4").astype(np.uint32).reshape(-1, 16)


@compiled
def _digest_blocks(
    blocks: NDArray[np.uint32], digests: NDArray[np.uint8], short: NDArray[np.bool_]
) -> None:
    """Write MD5 of each block for every cohort into (n, m, 16) digests, where `short`."""
    m = digests.shape[1]
    cohorts = np.empty(m, dtype=np.uint32)
    for cohort in range(m):  # big-endian, in MD5's little-endian words
        c = np.uint32(cohort)
        low = (c << np.uint32(24)) | ((c << np.uint32(8)) & np.uint32(0xFF0000))
        high = ((c >> np.uint32(8)) & np.uint32(0xFF00)) | (c >> np.uint32(24))
        cohorts[cohort] = low | high
    state = np.empty((4, m), dtype=np.uint32)
    block = 0
    for s in range(digests.shape[0]):
        if short[s]:
            _md5_lanes(blocks[block], cohorts, state)
            block += 1
            for cohort in range(m):
                for byte in range(16):
                    word = state[byte // 4, cohort] >> np.uint32(8 * (byte % 4))
                    digests[s, cohort, byte] = np.uint8(word & np.uint32(0xFF))


@compiled
def _md5_lanes(
    words: NDArray[np.uint32], first_words: NDArray[np.uint32], state: NDArray[np.uint32]
) -> None:
    """Hash one padded block, (16,), with each of m first words in its place (RFC 1321, 3.4).

    The cohorts go through every round side by side, so the compiler turns them into vector
    instructions. The state of cohort j is left in state[:, j].
    """
    m = len(first_words)
    starts = np.array([0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476], dtype=np.uint32)
    for part in range(4):
        state[part, :] = starts[part]
    a, b, c, d = state[0], state[1], state[2], state[3]
    for i in range(64):
        left = _SHIFTS[i]
        right = np.uint32(32) - left
        sine = _SINES[i]
        kind = i // 16
        place = (i, 5 * i + 1, 3 * i + 5, 7 * i)[kind] % 16
        for j in range(m):
            x, y, z = b[j], c[j], d[j]
            if kind == 0:
                mixed = (x & y) | (~x & z)
            elif kind == 1:
                mixed = (z & x) | (~z & y)
            elif kind == 2:
                mixed = x ^ y ^ z
            else:
                mixed = y ^ (x | ~z)
            word = first_words[j] if place == 0 else words[place]
            total = np.uint32(a[j] + mixed + sine + word)
            turned = np.uint32(total << left) | (total >> right)
            a[j] = z
            d[j] = y
            c[j] = x
            b[j] = np.uint32(x + turned)
    for part in range(4):
        for j in range(m):
            state[part, j] = np.uint32(state[part, j] + starts[part])


@compiled
def _fill_cells(digests: NDArray[np.uint8], k: int, h: int, cells: NDArray[np.int32]) -> None:
    for s in range(digests.shape[0]):
        for cohort in range(digests.shape[1]):
            for i in range(h):
                cell = np.int32(cohort * k + digests[s, cohort, i] % k)
                for earlier in range(i):
                    if cells[s, cohort * h + earlier] == cell:
                        cell = np.int32(-1)
                cells[s, cohort * h + i] = cell
