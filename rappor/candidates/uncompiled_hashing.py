"""Hashes of candidates without a compiler: hash words of many strings, and cells of few strings.

A string sets up to h of the k bits of a report in each of m cohorts. Its bits in all cohorts are
computed in two steps:

1. The hash words: the first 16 bytes of the SHA-256 of the string, as four integers of 32 bits,
   each multiplied and rotated as MurmurHash3_x86_32 mixes a block. They do not depend on cohorts,
   so they are computed once for each string (`hash_texts`).
2. The cells: MurmurHash3_x86_32 of the words under m h seeds gives h bits in each of m cohorts.
   `compiled_hashing` computes them in a compiled loop. For few strings, loading the compiler would
   take longer than the hashing, so `compute_cells_uncompiled` computes one hash at a time.

A cell is one bit of one cohort. Bit i of cohort j has the number j k + i, which is also the row of
the design matrix. Example with k = 8 and h = 2: a string that sets the bits 5 and 0 in cohort 1 has
the cells 13 and 8 there.
"""

from __future__ import annotations

import hashlib
from typing import Final

import mmh3
import numpy as np
from numpy.typing import NDArray

from rappor.candidates.texts import Texts
from rappor.protocol.encodings.bloom import DIGEST_BYTES
from rappor.protocol.params import Params

MAX_UNCOMPILED_CELLS: Final = 1 << 19
"""Largest number of cells for which `compute_cells_uncompiled` is used. It takes less than 0.1
seconds for them, about as long as the compiled loop takes to load. For more cells, the compiled
loop is faster."""

_BLOCK_STRINGS: Final = 1 << 14
"""Number of strings that exist as Python objects at a time. It bounds the memory of hashing: about
60 bytes for each string."""

# Constants c1 and c2 with which MurmurHash3_x86_32 multiplies each block of four bytes.
_FIRST_MULTIPLIER: Final = 0xCC9E2D51
_SECOND_MULTIPLIER: Final = 0x1B873593


def hash_texts(texts: Texts) -> NDArray[np.uint32]:
    """Return the hash words of strings, in about half a microsecond each.

    Returns
    -------
    (n, 4) uint32
        Row s belongs to string s. The four words are the first 16 bytes of the SHA-256 of the
        string, little-endian, each multiplied and rotated as MurmurHash3_x86_32 mixes a block.
    """
    words = np.empty((len(texts), DIGEST_BYTES // 4), dtype=np.uint32)
    for start in range(0, len(texts), _BLOCK_STRINGS):
        block = slice(start, start + _BLOCK_STRINGS)
        digests = [
            hashlib.sha256(value).digest()[:DIGEST_BYTES]
            for value in texts.select(block).to_bytes()
        ]
        words[block] = np.frombuffer(b"".join(digests), dtype="<u4").reshape(-1, DIGEST_BYTES // 4)
    # Multiply, rotate left by 15 bits, multiply: the mixing of a block in MurmurHash3_x86_32.
    words *= np.uint32(_FIRST_MULTIPLIER)
    words = words << np.uint32(15) | words >> np.uint32(17)
    words *= np.uint32(_SECOND_MULTIPLIER)
    return words


def compute_cells_uncompiled(words: NDArray[np.uint32], params: Params) -> NDArray[np.int32]:
    """Return the cells that few strings set, as `compiled_hashing.compute_cells` does.

    Parameters
    ----------
    words : (n, 4) uint32. Hash words of n strings, from `hash_texts`.

    Returns
    -------
    (n, m h) int32
        Entry [s, j h + l] is the cell that hash function l sets in cohort j for string s, or -1.
    """
    # mmh3 mixes the bytes itself, so the mixing of `hash_texts` is undone: multiply by the inverse
    # multipliers modulo 2^32, and rotate back.
    blocks = words * np.uint32(pow(_SECOND_MULTIPLIER, -1, 1 << 32))
    blocks = blocks >> np.uint32(15) | blocks << np.uint32(17)
    data = (blocks * np.uint32(pow(_FIRST_MULTIPLIER, -1, 1 << 32))).astype("<u4").tobytes()
    digests = [data[start : start + DIGEST_BYTES] for start in range(0, len(data), DIGEST_BYTES)]
    seeds = range(params.m * params.h)
    hashes = [mmh3.hash(digest, seed, signed=False) for digest in digests for seed in seeds]
    bits = np.array(hashes, dtype=np.uint64) * np.uint64(params.k) >> np.uint64(32)
    first_cells = np.arange(params.m, dtype=np.int32).repeat(params.h) * np.int32(params.k)
    # Case: no strings. numpy cannot infer a dimension of -1 from an empty array.
    n_columns = -1 if len(words) else len(seeds)
    cells = bits.astype(np.int32).reshape(len(words), n_columns) + first_cells
    mark_repeated_cells(cells, params.h)
    return cells


def mark_repeated_cells(cells: NDArray[np.int32], h: int) -> None:
    """Replace a cell by -1 if an earlier hash function of its cohort sets the same cell.

    A repeated cell would count twice in the design matrix, but a device sets a bit only once.

    Parameters
    ----------
    cells : (n, m h) int32, changed in place.
    """
    cohorts = cells.reshape(len(cells), cells.shape[1] // h, h)
    for later in range(1, h):
        is_repeated = (cohorts[..., :later] == cohorts[..., later : later + 1]).any(axis=-1)
        cohorts[..., later][is_repeated] = -1
