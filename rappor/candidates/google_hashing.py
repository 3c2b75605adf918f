"""The hash layout of google/rappor's Python and C++ clients, for data collected by them.

Hash i of a string in a cohort is byte i of MD5(cohort as 4 bytes big-endian, then the string
in UTF-8), modulo k. A byte is little for an index: with k > 256 higher bits are never set, and
unless k divides 256 lower bits are set more often. So parameters with this layout are decoded,
but never offered for new metrics.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.candidates.few import drop_repeats
from rappor.protocol.params import Params

LAYOUT: Final = "google"

_HASHED: Final = 1 << 16
"""Messages hashed at a time: 1 MB of digests stay in a core's cache."""


def google_cells(values: Sequence[bytes], params: Params) -> NDArray[np.int32]:
    """Find the cells that each string sets, in every cohort.

    Returns
    -------
    (n, m * h) int32 as `candidates.murmur3.bloom_cells` writes them: the cell j * k + bit that
    hash i sets in cohort j, or -1 where an earlier hash of that cohort has set the same bit.
    """
    k, h, m = params.k, params.h, params.m
    cells = np.empty((len(values), m * h), dtype=np.int32)
    firsts = np.arange(m, dtype=np.int32)[:, None] * np.int32(k)
    step = max(_HASHED // m, 1)
    for start in range(0, len(values), step):
        digests = _digest_each(values[start : start + step], m)
        block = digests[:, :, :h] % np.int32(k) + firsts
        cells[start : start + step] = block.reshape(-1, m * h)
    drop_repeats(cells, h)
    return cells


def _digest_each(values: Sequence[bytes], m: int) -> NDArray[np.uint8]:
    """Hash strings one by one in each of m cohorts, (n, m, 16) uint8."""
    heads = [cohort.to_bytes(4, "big") for cohort in range(m)]
    digests = b"".join(
        hashlib.md5(head + value, usedforsecurity=False).digest()
        for value in values
        for head in heads
    )
    return np.frombuffer(digests, dtype=np.uint8).reshape(len(values), m, 16)
