"""Bloom bits of many strings at once: the protocol's hash, compiled.

The device's `rappor.encoding` computes the same bits one string at a time; the golden
vectors hold both to it. One MurmurHash3 of a string serves every cohort, so a block of
candidates in all cohorts costs little more than reading it.
"""

from __future__ import annotations

from collections.abc import Iterable

import mmh3
import numpy as np
from numpy.typing import NDArray

from rappor.compiled import compiled
from rappor.params import Params


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
    cells = np.empty((len(digests), params.m * params.h), dtype=np.int32)
    _fill_cells(digests, params.k, params.h, params.m, cells)
    return cells


@compiled
def _fill_cells(
    digests: NDArray[np.uint64], k: int, h: int, m: int, cells: NDArray[np.int32]
) -> None:
    bits = np.uint64(k)
    half = np.uint64(32)
    for s in range(digests.shape[0]):
        x = digests[s, 0]
        step = digests[s, 1] | np.uint64(1)
        for j in range(m):
            for hash_index in range(h):
                x += step
                cell = np.int32(j * k) + np.int32(((_fmix64(x) >> half) * bits) >> half)
                for earlier in range(hash_index):
                    if cells[s, j * h + earlier] == cell:
                        cell = np.int32(-1)
                cells[s, j * h + hash_index] = cell


@compiled
def _fmix64(x: np.uint64) -> np.uint64:
    """MurmurHash3's 64-bit finalizer."""
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xFF51AFD7ED558CCD)
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xC4CEB9FE1A85EC53)
    x ^= x >> np.uint64(33)
    return x
