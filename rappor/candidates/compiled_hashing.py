"""Bloom bits of many strings at once: compiled MurmurHash3_x86_32 under many seeds.

`rappor.protocol.encodings.bloom` computes the same bits for one string on a device. Test vectors
check both implementations. Importing this module loads the compiler.

A parameter set has k bits, h hash functions and m cohorts. Hash function l of
cohort j has the seed j h + l. It hashes the 16 bytes of a string's digest and sets the bit

    floor(hash * k / 2^32)     with the hash in [0, 2^32)

A digest is passed as four hash words, which `uncompiled_hashing.hash_texts` computes once for all
cohorts. A cell is one bit of one cohort: bit i of cohort j has the number j k + i.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.base.jit import compile_kernel
from rappor.candidates.uncompiled_hashing import mark_repeated_cells
from rappor.protocol.params import Params

_LANES: Final = 256
"""Number of strings that are hashed side by side. Their words (4 KB) and bits (1 KB for each hash
function) fit into the first-level cache of a core, which has 32 KB. More strings would not."""


def compute_cells(words: NDArray[np.uint32], params: Params) -> NDArray[np.int32]:
    """Return the cells that each string sets in all cohorts.

    Parameters
    ----------
    words : (n, 4) uint32. Hash words of n strings, from `uncompiled_hashing.hash_texts`.

    Returns
    -------
    (n, m h) int32
        Entry [s, j h + l] is the cell that hash function l of cohort j sets for string s. It is -1
        if an earlier hash function of the cohort sets the same bit.
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

    Parameters
    ----------
    words : (n, 4) uint32. Hash words of n strings.
    first_cells : (m h,) int32. Number of bit 0 of the cohort of each seed.
    cells : (n, m h) int32, changed in place.
    """
    for s in range(words.shape[0]):
        a, b, c, d = words[s, 0], words[s, 1], words[s, 2], words[s, 3]
        row = cells[s]
        for seed in range(len(first_cells)):
            hashed = np.uint64(hash_words(np.uint32(seed), a, b, c, d))
            row[seed] = first_cells[seed] + np.int32(hashed * k >> np.uint64(32))


@compile_kernel
def hash_words(x: np.uint32, a: np.uint32, b: np.uint32, c: np.uint32, d: np.uint32) -> np.uint32:
    """Return MurmurHash3_x86_32 of the hash words a, b, c, d under the seed x.

    x is the seed first, and then the state of the hash. Only compiled loops call the function.
    """
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
    """Return the state of MurmurHash3 after one more block of four bytes.

    `word` is the block after its multiplications and rotation (`uncompiled_hashing.hash_texts`).
    """
    x ^= word
    x = np.uint32(np.uint32(x << np.uint32(13)) | (x >> np.uint32(19)))
    return np.uint32(np.uint32(x * np.uint32(5)) + np.uint32(0xE6546B64))


def add_row_values(
    words: NDArray[np.uint32],
    params: Params,
    table: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> None:
    """Add, for each string, the two values of every cell that the string sets.

    This is the product of the transposed design matrix with two vectors: a row of the design matrix
    is a cell, a column is a string, and an entry is 1 if the string sets the cell. The cells are
    not stored, because the cells of a hundred million strings would not fit into memory.

    Parameters
    ----------
    words : (n, 4) uint32. Hash words of n strings, from `uncompiled_hashing.hash_texts`.
    params : the parameter set with k, h and m.
    table : (m k, 2) float64. Two values of each cell.
    sums : (n, 2) float64, changed in place. Two sums for each string.
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
    """Add the values cohort by cohort for `_LANES` strings at a time.

    A lane is the position of a string in a block of `_LANES` strings.
    """
    # bits[l, lane]: the bit that hash function l sets. block[w, lane]: hash word w of the string.
    bits = np.zeros((h, _LANES), dtype=np.uint32)
    block = np.zeros((4, _LANES), dtype=np.uint32)
    for first in range(0, len(words), _LANES):
        n = min(_LANES, len(words) - first)
        for word in range(4):
            block[word, :n] = words[first : first + n, word]
        for cohort in range(m):
            # In compiled code the product of a signed and an unsigned integer is a signed integer.
            # (In numpy it would be a float.)
            values = table[cohort * k : (cohort + 1) * k]
            for function in range(h):
                _hash_lanes(np.uint32(cohort * h + function), block, k, bits[function])
            # The first hash function cannot repeat a bit, so its loop needs no comparison.
            for lane in range(n):
                bit = bits[0, lane]
                sums[first + lane, 0] += values[bit, 0]
                sums[first + lane, 1] += values[bit, 1]
            for function in range(1, h):
                for lane in range(n):
                    bit = bits[function, lane]
                    if _is_first_hash_of_bit(bits, function, lane):
                        sums[first + lane, 0] += values[bit, 0]
                        sums[first + lane, 1] += values[bit, 1]


@compile_kernel
def _hash_lanes(
    seed: np.uint32, words: NDArray[np.uint32], k: np.uint64, bits: NDArray[np.uint32]
) -> None:
    """Write the bit of one hash function for `_LANES` strings into `bits`.

    Parameters
    ----------
    seed : the seed of the hash function, j h + l.
    words : (4, lanes) uint32. Hash words of the strings.
    bits : (lanes,) uint32, changed in place. Bit of each string, in [0, k).
    """
    a, b, c, d = words[0], words[1], words[2], words[3]
    for lane in range(words.shape[1]):
        hashed = np.uint64(hash_words(seed, a[lane], b[lane], c[lane], d[lane]))
        bits[lane] = np.uint32(hashed * k >> np.uint64(32))


@compile_kernel
def _is_first_hash_of_bit(bits: NDArray[np.uint32], function: int, lane: int) -> bool:
    """Return whether no earlier hash function of the cohort has set the same bit.

    A device sets a bit once, however many hash functions choose the bit.
    """
    is_first = True
    for earlier in range(function):
        is_first &= bits[earlier, lane] != bits[function, lane]
    return is_first
