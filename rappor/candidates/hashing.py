"""Bloom bits of many strings at once: the protocol's hash in array operations.

The device's `rappor.protocol.encodings` computes the same bits one string at a time; the test
vectors are the same for both. One MurmurHash3 of a string serves every cohort, so a block of
candidates in all cohorts costs little more than reading it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import mmh3
import numpy as np
from numpy.typing import NDArray

from rappor.protocol.params import Params

_HASHED: Final = 1 << 15
"""Cells computed at a time: 256 KB of hashes stay in a core's cache."""


def digest_strings(values: Iterable[bytes]) -> NDArray[np.uint64]:
    """Hash every value once with MurmurHash3_x64_128, seed 0.

    Returns
    -------
    (n, 2) uint64: the little-endian halves a and b of each digest.
    """
    digests = b"".join(map(mmh3.mmh3_x64_128_digest, values))
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64, copy=False).reshape(-1, 2)


def bloom_cells(digests: NDArray[np.uint64], params: Params) -> NDArray[np.int32]:
    """Find the cells that each string sets, in every cohort.

    Parameters
    ----------
    digests : (n, 2) uint64, from `digest_strings`.

    Returns
    -------
    (n, m * h) int32: at [s, j * h + l] the cell j * k + bit that hash l sets in cohort j,
    or -1 where an earlier hash of that cohort has set the same bit.
    """
    m, h = params.m, params.h
    cells = np.empty((len(digests), m * h), dtype=np.int32)
    hops = np.arange(1, m * h + 1, dtype=np.uint64)[:, None]
    firsts = np.repeat(np.arange(m, dtype=np.int32) * np.int32(params.k), h)[:, None]
    step = max(_HASHED // (m * h), 1)
    for start in range(0, len(digests), step):
        a, b = np.ascontiguousarray(digests[start : start + step].T)
        bits = _fmix64(a + hops * (b | np.uint64(1))) >> np.uint64(32)
        bits = bits * np.uint64(params.k) >> np.uint64(32)
        block = bits.astype(np.int32) + firsts
        drop_repeats(block.reshape(m, h, -1))
        cells[start : start + step] = block.T
    return cells


def _fmix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """MurmurHash3's 64-bit finalizer, in place."""
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xFF51AFD7ED558CCD)
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xC4CEB9FE1A85EC53)
    x ^= x >> np.uint64(33)
    return x


def drop_repeats(cells: NDArray[np.int32]) -> None:
    """Write -1 over each of a cohort's h cells, (m, h, n), that an earlier one repeats."""
    for later in range(1, cells.shape[1]):
        repeated = (cells[:, :later] == cells[:, later : later + 1]).any(axis=1)
        cells[:, later][repeated] = -1
