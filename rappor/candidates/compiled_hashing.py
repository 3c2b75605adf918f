"""Bloom bits of many strings at once: MurmurHash3_x86_32 of hash words under many seeds, compiled.

`rappor.protocol.encodings.bloom` computes the same bits for one string on a device. Test vectors
check both. The hash words, which do not depend on cohorts, come from
`uncompiled_hashing.hash_texts`, and its module explains words and cells. Importing this module
loads the compiler.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.base.jit import compile_kernel
from rappor.candidates.uncompiled_hashing import mark_repeated_cells
from rappor.protocol.params import Params

_LANES: Final = 256
"""Number of strings that are hashed side by side. Their words and bits fit into the first cache of
a core; more strings would leave the cache."""


def compute_cells(words: NDArray[np.uint32], params: Params) -> NDArray[np.int32]:
    """Return the cells that each string sets in all cohorts.

    Parameters
    ----------
    words : (n, 4) uint32 from `uncompiled_hashing.hash_texts`.

    Returns
    -------
    (n, m h) int32
        Entry [s, j h + l] is the cell j k + bit that hash function l of cohort j sets. It is -1 if
        an earlier hash function of the cohort sets the same bit.
    """
    k, h, m = params.k, params.h, params.m
    cells = np.empty((len(words), m * h), dtype=np.int32)
    first_cells = np.repeat(np.arange(m, dtype=np.int32) * np.int32(k), h)
    _fill_cells(np.ascontiguousarray(words), np.uint64(k), first_cells, cells)
    mark_repeated_cells(cells, h)
    return cells


@compile_kernel
def _fill_cells(
    words: NDArray[np.uint32],
    k: np.uint64,
    first_cells: NDArray[np.int32],
    cells: NDArray[np.int32],
) -> None:
    """Fill `cells` by hashing each string under one seed after another.

    The inner loop has no dependence between seeds, so the compiler vectorizes it.
    """
    for s in range(words.shape[0]):
        a, b, c, d = words[s, 0], words[s, 1], words[s, 2], words[s, 3]
        row = cells[s]
        for seed in range(len(first_cells)):
            x = np.uint64(hash_words(np.uint32(seed), a, b, c, d))
            row[seed] = first_cells[seed] + np.int32(x * k >> np.uint64(32))


@compile_kernel
def hash_words(x: np.uint32, a: np.uint32, b: np.uint32, c: np.uint32, d: np.uint32) -> np.uint32:
    """Return MurmurHash3_x86_32 of four hash words under the seed x. For compiled loops."""
    x = _mix(_mix(_mix(_mix(x, a), b), c), d)
    # The finalization of MurmurHash3: the length of 16 bytes, then the avalanche.
    x ^= np.uint32(16)
    x ^= x >> np.uint32(16)
    x = np.uint32(x * np.uint32(0x85EBCA6B))
    x ^= x >> np.uint32(13)
    x = np.uint32(x * np.uint32(0xC2B2AE35))
    return np.uint32(x ^ (x >> np.uint32(16)))


@compile_kernel
def _mix(x: np.uint32, word: np.uint32) -> np.uint32:
    """Return the state of MurmurHash3 after a block whose word is mixed already."""
    x ^= word
    x = np.uint32(np.uint32(x << np.uint32(13)) | (x >> np.uint32(19)))
    return np.uint32(np.uint32(x * np.uint32(5)) + np.uint32(0xE6546B64))


def add_row_values(
    words: NDArray[np.uint32],
    params: Params,
    table: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> None:
    """Add the two values of every row that each string sets, without storing its cells.

    This is the product of the design matrix with two vectors. Cells of a hundred million strings
    would not fit into memory.

    Parameters
    ----------
    words : (n, 4) uint32 from `uncompiled_hashing.hash_texts`.
    table : (m k, 2) float64. Two values for each row of the design matrix.
    sums : (n, 2) float64, changed in place.
    """
    _add_row_values(words, np.uint64(params.k), params.h, params.m, table, sums)


@compile_kernel
def _add_row_values(
    words: NDArray[np.uint32],
    k: np.uint64,
    h: int,
    m: int,
    table: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> None:
    """Add the values cohort by cohort for `_LANES` strings at a time."""
    bits = np.zeros((h, _LANES), dtype=np.uint32)
    block = np.zeros((4, _LANES), dtype=np.uint32)
    for first in range(0, len(words), _LANES):
        n = min(_LANES, len(words) - first)
        for word in range(4):
            block[word, :n] = words[first : first + n, word]
        for cohort in range(m):
            row = table[cohort * k : (cohort + 1) * k]
            for turn in range(h):
                _hash_lanes(np.uint32(cohort * h + turn), block, k, bits[turn])
            # The first hash function cannot repeat a bit, so its loop needs no comparison.
            for lane in range(n):
                bit = bits[0, lane]
                sums[first + lane, 0] += row[bit, 0]
                sums[first + lane, 1] += row[bit, 1]
            for turn in range(1, h):
                for lane in range(n):
                    bit = bits[turn, lane]
                    if _is_first_hash_of_bit(bits, turn, lane):
                        sums[first + lane, 0] += row[bit, 0]
                        sums[first + lane, 1] += row[bit, 1]


@compile_kernel
def _hash_lanes(
    seed: np.uint32, words: NDArray[np.uint32], k: np.uint64, bits: NDArray[np.uint32]
) -> None:
    """Write the bit of one hash function for `_LANES` strings into `bits`."""
    a, b, c, d = words[0], words[1], words[2], words[3]
    for lane in range(words.shape[1]):
        x = np.uint64(hash_words(seed, a[lane], b[lane], c[lane], d[lane]))
        bits[lane] = np.uint32(x * k >> np.uint64(32))


@compile_kernel
def _is_first_hash_of_bit(bits: NDArray[np.uint32], turn: int, lane: int) -> bool:
    """Return whether no earlier hash function of the cohort has set the same bit."""
    is_first = True
    for earlier in range(turn):
        is_first &= bits[earlier, lane] != bits[turn, lane]
    return is_first
