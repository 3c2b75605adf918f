"""Bloom bits of many strings at once: the protocol's hash in array operations.

The device's `rappor.protocol.encodings.bloom` computes the same bits one string at a time; the
golden vectors hold both to it. SHA-256 of a string serves every cohort. Of MurmurHash3_x86_32,
what depends on the string alone, four mixed words, is computed once; a cohort then costs four
rotations and a finalizer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.protocol.encodings.bloom import DIGEST_BYTES
from rappor.protocol.params import Params

_HASHED: Final = 1 << 15
"""Cells computed at a time: their arrays stay in a second-level cache."""

COMPILED_FROM: Final = 1 << 26
"""Cells of a list from which on `murmur3` is worth loading: arrays take 0.5 s for as many."""


def digest_strings(values: Iterable[bytes]) -> NDArray[np.uint32]:
    """Hash every value once, as far as no cohort is needed.

    Returns
    -------
    (n, 4) uint32: the words of the first 16 bytes of SHA-256, little-endian, each mixed as
    MurmurHash3_x86_32 mixes a block.
    """
    digests = b"".join([hashlib.sha256(value).digest()[:DIGEST_BYTES] for value in values])
    words = np.frombuffer(digests, dtype="<u4").astype(np.uint32).reshape(-1, DIGEST_BYTES // 4)
    words *= np.uint32(0xCC9E2D51)
    _rotate_left(words, 15)
    words *= np.uint32(0x1B873593)
    return words


def bloom_cells(words: NDArray[np.uint32], params: Params) -> NDArray[np.int32]:
    """Find the cells that each string sets, in every cohort.

    Parameters
    ----------
    words : (n, 4) uint32, from `digest_strings`.

    Returns
    -------
    (n, m * h) int32: at [s, j * h + l] the cell j * k + bit that hash l sets in cohort j,
    or -1 where an earlier hash of that cohort has set the same bit.
    """
    m, h = params.m, params.h
    cells = np.empty((len(words), m * h), dtype=np.int32)
    seeds = np.arange(m * h, dtype=np.uint32)[:, None]
    firsts = np.repeat(np.arange(m, dtype=np.int32) * np.int32(params.k), h)[:, None]
    step = max(_HASHED // (m * h), 1)
    for start in range(0, len(words), step):
        block = _bits(words[start : start + step].T, seeds, params.k) + firsts
        drop_repeats(block.reshape(m, h, -1))
        cells[start : start + step] = block.T
    return cells


def bits_in_cohorts(
    words: NDArray[np.uint32], cohorts: NDArray[np.unsignedinteger], *, k: int, h: int
) -> NDArray[np.int32]:
    """Find the bits that each string sets in one cohort of its own.

    Parameters
    ----------
    words : (n, 4) uint32, from `digest_strings`.
    cohorts : (n,) of an unsigned integer dtype.
    k, h : bits, and hash functions.

    Returns
    -------
    (n, h) int32, bits in [0, k), or -1 where an earlier hash has set the same bit.
    """
    seeds = np.arange(h, dtype=np.uint32)[:, None]
    seeds = seeds + cohorts.astype(np.uint32) * np.uint32(h)
    bits = np.empty((len(words), h), dtype=np.int32)
    step = max(_HASHED // h, 1)
    for start in range(0, len(words), step):
        here = slice(start, start + step)
        block = _bits(words[here].T, seeds[:, here], k)
        drop_repeats(block[None])
        bits[here] = block.T
    return bits


def _bits(words: NDArray[np.uint32], seeds: NDArray[np.uint32], k: int) -> NDArray[np.int32]:
    """Return the bits of strings, words (4, n), under seeds that broadcast to (s, n)."""
    x = np.broadcast_to(seeds, (len(seeds), words.shape[1])).copy()
    for word in words:
        x ^= word
        _rotate_left(x, 13)
        x *= np.uint32(5)
        x += np.uint32(0xE6546B64)
    x ^= np.uint32(DIGEST_BYTES)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    return (x.astype(np.uint64) * np.uint64(k) >> np.uint64(32)).astype(np.int32)


def _rotate_left(x: NDArray[np.uint32], r: int) -> None:
    """Rotate every word, in place."""
    high = x >> np.uint32(32 - r)
    x <<= np.uint32(r)
    x |= high


def drop_repeats(cells: NDArray[np.int32]) -> None:
    """Write -1 over each of a cohort's h cells, (m, h, n), that an earlier one repeats."""
    for later in range(1, cells.shape[1]):
        repeated = (cells[:, :later] == cells[:, later : later + 1]).any(axis=1)
        cells[:, later][repeated] = -1
