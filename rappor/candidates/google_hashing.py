"""Hash layout of google/rappor's Python and C++ clients, for decoding the data of those clients.

A hash layout is the rule that computes the bits of a string in a cohort. Here, hash i of a string
in a cohort is

    byte i of MD5(cohort as 4 bytes big-endian, then the string in UTF-8), modulo k

A byte is a poor index of a bit: with k > 256 the bits from 256 on are never set, and unless k
divides 256, the lower bits are set more often. The layout is therefore supported for decoding only,
and new metrics cannot have it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.candidates.uncompiled_hashing import mark_repeated_cells
from rappor.protocol.params import Params

GOOGLE_LAYOUT: Final = "google"
"""Name of the hash layout in a parameter set. The layout is part of a parameter set, so counts with
this layout never mix with other counts."""

_BLOCK_MESSAGES: Final = 1 << 16
"""Number of messages (pairs of a string and a cohort) that are hashed at a time. Their digests have
1 MiB and stay in the cache of a core. More messages need more memory."""


def compute_google_cells(values: Sequence[bytes], params: Params) -> NDArray[np.int32]:
    """Return the cells that each string sets in all cohorts, under google/rappor's layout.

    Parameters
    ----------
    values : n strings in UTF-8.
    params : the parameter set with k bits, h hash functions and m cohorts.

    Returns
    -------
    (n, m h) int32
        Entry [s, j h + i] is the cell that hash i of string s sets in cohort j. A cell is one bit
        of one cohort, with the number j k + bit. The entry is -1 if an earlier hash of the cohort
        sets the same bit.
    """
    k, h, m = params.k, params.h, params.m
    cells = np.empty((len(values), m * h), dtype=np.int32)
    first_cells = np.arange(m, dtype=np.int32)[:, None] * np.int32(k)
    step = max(_BLOCK_MESSAGES // m, 1)
    for start in range(0, len(values), step):
        digests = _compute_md5_digests(values[start : start + step], m)
        block = digests[:, :, :h] % np.int32(k) + first_cells
        cells[start : start + step] = block.reshape(-1, m * h)
    mark_repeated_cells(cells, h)
    return cells


def _compute_md5_digests(values: Sequence[bytes], m: int) -> NDArray[np.uint8]:
    """Return the MD5 of each string in each of m cohorts, (n, m, 16) uint8."""
    cohorts = [cohort.to_bytes(4, "big") for cohort in range(m)]
    digests = b"".join(
        hashlib.md5(cohort + value, usedforsecurity=False).digest()
        for value in values
        for cohort in cohorts
    )
    return np.frombuffer(digests, dtype=np.uint8).reshape(len(values), m, 16)
