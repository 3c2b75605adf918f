"""Bloom bits of few strings, one hash at a time: loading the compiled loops would take longer."""

from __future__ import annotations

from typing import Final

import mmh3
import numpy as np
from numpy.typing import NDArray

from rappor.protocol.encodings.bloom import DIGEST_BYTES
from rappor.protocol.params import Params

FEW: Final = 1 << 19
"""Cells up to which strings are few: they take less than a tenth of a second."""


def few_cells(words: NDArray[np.uint32], params: Params) -> NDArray[np.int32]:
    """Find the cells that each string sets; see `rappor.candidates.murmur3.bloom_cells`."""
    blocks = words * np.uint32(pow(0x1B873593, -1, 1 << 32))  # undoes what `digest_texts` mixes
    blocks = blocks >> np.uint32(15) | blocks << np.uint32(17)
    data = (blocks * np.uint32(pow(0xCC9E2D51, -1, 1 << 32))).astype("<u4").tobytes()
    digests = [data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES)]
    seeds = range(params.m * params.h)
    hashes = [mmh3.hash(digest, seed, signed=False) for digest in digests for seed in seeds]
    bits = np.array(hashes, dtype=np.uint64) * np.uint64(params.k) >> np.uint64(32)
    firsts = np.arange(params.m, dtype=np.int32).repeat(params.h) * np.int32(params.k)
    cells = bits.astype(np.int32).reshape(len(words), -1 if len(words) else len(seeds)) + firsts
    drop_repeats(cells, params.h)
    return cells


def drop_repeats(cells: NDArray[np.int32], h: int) -> None:
    """Write -1 over each cell, (n, m * h), that an earlier one of its cohort repeats."""
    cohorts = cells.reshape(len(cells), cells.shape[1] // h, h)
    for later in range(1, h):
        repeated = (cohorts[..., :later] == cohorts[..., later : later + 1]).any(axis=-1)
        cohorts[..., later][repeated] = -1
