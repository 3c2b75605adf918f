"""MD5 of many short messages at once, compiled.

The messages are those of `google_hashing`: a cohort's number, then a string. Importing this
loads the compiler, which takes longer and more memory than hashing a short list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.jit import compiled

LONGEST: Final = 51
"""Longest string whose message fits MD5's 64-byte block: 4 bytes for the cohort, 1 of padding
and 8 for the length come on top."""

_SHIFTS: Final = np.array(
    [7, 12, 17, 22] * 4 + [5, 9, 14, 20] * 4 + [4, 11, 16, 23] * 4 + [6, 10, 15, 21] * 4,
    dtype=np.uint32,
)
_SINES: Final = np.array(
    [math.floor(abs(math.sin(i + 1)) * 2**32) for i in range(64)], dtype=np.uint32
)
"""RFC 1321, section 3.4."""


def digest_strings(values: Sequence[bytes], m: int) -> NDArray[np.uint8]:
    """Hash strings of at most LONGEST bytes in each of m cohorts.

    Returns
    -------
    (n, m, 16) uint8.
    """
    n = len(values)
    lengths = np.fromiter(map(len, values), dtype=np.int64, count=n)
    padded = np.zeros((n, 64), dtype=np.uint8)
    texts = np.array(values, dtype=f"S{LONGEST}")
    padded[:, 4 : 4 + LONGEST] = texts.view(np.uint8).reshape(n, LONGEST)
    padded[np.arange(n), 4 + lengths] = 0x80
    padded[:, 56:] = (8 * (lengths + 4)).astype("<u8").view(np.uint8).reshape(n, 8)
    blocks = padded.view("<u4").astype(np.uint32, copy=False)
    cohorts = np.arange(m, dtype=">u4").view("<u4").astype(np.uint32)
    states = np.empty((n, 4, m), dtype=np.uint32)
    _fill_states(blocks, cohorts, states)
    words = np.ascontiguousarray(states.transpose(0, 2, 1)).astype("<u4", copy=False)
    return words.view(np.uint8)


@compiled
def _fill_states(
    blocks: NDArray[np.uint32], first_words: NDArray[np.uint32], states: NDArray[np.uint32]
) -> None:
    for s in range(len(blocks)):
        _md5_lanes(blocks[s], first_words, states[s])


@compiled
def _md5_lanes(
    words: NDArray[np.uint32], first_words: NDArray[np.uint32], state: NDArray[np.uint32]
) -> None:
    """Hash one padded block, (16,), with each of m first words in its place (RFC 1321, 3.4).

    The cohorts go through every round side by side, so the compiler turns them into vector
    instructions. The state of cohort j is left in state[:, j].
    """
    m = len(first_words)
    starts = np.array([0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476], dtype=np.uint32)
    for part in range(4):
        state[part, :] = starts[part]
    a, b, c, d = state[0], state[1], state[2], state[3]
    for i in range(64):
        left = _SHIFTS[i]
        right = np.uint32(32) - left
        sine = _SINES[i]
        kind = i // 16
        place = (i, 5 * i + 1, 3 * i + 5, 7 * i)[kind] % 16
        for j in range(m):
            x, y, z = b[j], c[j], d[j]
            if kind == 0:
                mixed = (x & y) | (~x & z)
            elif kind == 1:
                mixed = (z & x) | (~z & y)
            elif kind == 2:
                mixed = x ^ y ^ z
            else:
                mixed = y ^ (x | ~z)
            word = first_words[j] if place == 0 else words[place]
            total = np.uint32(a[j] + mixed + sine + word)
            turned = np.uint32(total << left) | (total >> right)
            a[j] = z
            d[j] = y
            c[j] = x
            b[j] = np.uint32(x + turned)
    for part in range(4):
        for j in range(m):
            state[part, j] = np.uint32(state[part, j] + starts[part])
