"""Bloom bits of many strings at once: MurmurHash3_x86_32 of 16 bytes under many seeds, compiled.

The device's `rappor.protocol.encodings.bloom` computes the same bits one string at a time; the
golden vectors hold both to it. What depends on the string alone, four mixed words, comes from
`rappor.candidates.sha256`. Importing this loads the compiler.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.base.jit import compile_kernel
from rappor.candidates.few import drop_repeats
from rappor.protocol.params import Params


def bloom_cells(words: NDArray[np.uint32], params: Params) -> NDArray[np.int32]:
    """Find the cells that each string sets, in every cohort.

    Parameters
    ----------
    words : (n, 4) uint32, from `rappor.candidates.sha256.digest_texts`.

    Returns
    -------
    (n, m * h) int32: at [s, j * h + l] the cell j * k + bit that hash l sets in cohort j,
    or -1 where an earlier hash of that cohort has set the same bit.
    """
    k, h, m = params.k, params.h, params.m
    cells = np.empty((len(words), m * h), dtype=np.int32)
    firsts = np.repeat(np.arange(m, dtype=np.int32) * np.int32(k), h)
    _fill(np.ascontiguousarray(words), np.uint64(k), firsts, cells)
    drop_repeats(cells, h)
    return cells


@compile_kernel
def _fill(
    words: NDArray[np.uint32], k: np.uint64, firsts: NDArray[np.int32], cells: NDArray[np.int32]
) -> None:
    """Hash under one seed after another: a loop that the compiler turns into vectors."""
    for s in range(words.shape[0]):
        a, b, c, d = words[s, 0], words[s, 1], words[s, 2], words[s, 3]
        row = cells[s]
        for seed in range(len(firsts)):
            x = np.uint64(hash_words(np.uint32(seed), a, b, c, d))
            row[seed] = firsts[seed] + np.int32(x * k >> np.uint64(32))


@compile_kernel
def hash_words(x: np.uint32, a: np.uint32, b: np.uint32, c: np.uint32, d: np.uint32) -> np.uint32:
    """Hash four words from `digest_texts` under a seed x; for compiled loops."""
    x = _mix(_mix(_mix(_mix(x, a), b), c), d)
    x ^= np.uint32(16)
    x ^= x >> np.uint32(16)
    x = np.uint32(x * np.uint32(0x85EBCA6B))
    x ^= x >> np.uint32(13)
    x = np.uint32(x * np.uint32(0xC2B2AE35))
    return np.uint32(x ^ (x >> np.uint32(16)))


@compile_kernel
def _mix(x: np.uint32, word: np.uint32) -> np.uint32:
    x ^= word
    x = np.uint32(np.uint32(x << np.uint32(13)) | (x >> np.uint32(19)))
    return np.uint32(np.uint32(x * np.uint32(5)) + np.uint32(0xE6546B64))


_LANES: Final = 256
"""Strings hashed side by side: their words and bits stay in the first cache."""


def add_rows(
    words: NDArray[np.uint32],
    params: Params,
    table: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> None:
    """Add two values of each row over the rows that each string sets; no bits are held.

    Parameters
    ----------
    words : (n, 4) uint32, from `rappor.candidates.sha256.digest_texts`.
    table : (m * k, 2) float64. Values of the rows.
    sums : (n, 2) float64, changed in place.
    """
    _add_rows(words, np.uint64(params.k), params.h, params.m, table, sums)


@compile_kernel
def _add_rows(
    words: NDArray[np.uint32],
    k: np.uint64,
    h: int,
    m: int,
    table: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> None:
    bits = np.zeros((h, _LANES), dtype=np.uint32)
    here = np.zeros((4, _LANES), dtype=np.uint32)
    for first in range(0, len(words), _LANES):
        n = min(_LANES, len(words) - first)
        for word in range(4):
            here[word, :n] = words[first : first + n, word]
        for cohort in range(m):
            row = table[cohort * k : (cohort + 1) * k]
            for turn in range(h):
                _hash_lanes(np.uint32(cohort * h + turn), here, k, bits[turn])
            for lane in range(n):
                bit = bits[0, lane]
                sums[first + lane, 0] += row[bit, 0]
                sums[first + lane, 1] += row[bit, 1]
            for turn in range(1, h):
                for lane in range(n):
                    bit = bits[turn, lane]
                    if _is_fresh(bits, turn, lane):
                        sums[first + lane, 0] += row[bit, 0]
                        sums[first + lane, 1] += row[bit, 1]


@compile_kernel
def _hash_lanes(
    seed: np.uint32, words: NDArray[np.uint32], k: np.uint64, bits: NDArray[np.uint32]
) -> None:
    a, b, c, d = words[0], words[1], words[2], words[3]
    for lane in range(words.shape[1]):
        x = np.uint64(hash_words(seed, a[lane], b[lane], c[lane], d[lane]))
        bits[lane] = np.uint32(x * k >> np.uint64(32))


@compile_kernel
def _is_fresh(bits: NDArray[np.uint32], turn: int, lane: int) -> bool:
    """Return whether no earlier hash of the cohort has set the same bit."""
    fresh = True
    for earlier in range(turn):
        fresh &= bits[earlier, lane] != bits[turn, lane]
    return fresh
