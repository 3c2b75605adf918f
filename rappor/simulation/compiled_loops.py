"""The simulator's loops over packed bits, compiled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rappor.base.jit import compile_kernel
from rappor.candidates.murmur3 import hash_words


@compile_kernel
def set_hashed_bits(
    words: NDArray[np.uint32],
    values: NDArray[np.int64],
    cohorts: NDArray[np.uint16],
    k: int,
    h: int,
    packed: NDArray[np.uint8],
) -> None:
    """Set the bits of each device's value in its cohort, in packed reports of zeros.

    `words` are of `rappor.candidates.sha256.digest_texts`, (n_values, 4).
    """
    for row in range(len(values)):
        string = words[values[row]]
        for turn in range(h):
            seed = np.uint32(cohorts[row] * h + turn)
            x = np.uint64(hash_words(seed, string[0], string[1], string[2], string[3]))
            bit = x * np.uint64(k) >> np.uint64(32)
            packed[row, bit >> np.uint64(3)] |= np.uint8(1 << (bit & np.uint64(7)))


@compile_kernel
def add_hashed_devices(
    cells: NDArray[np.int32], devices: NDArray[np.int64], h: int, ones: NDArray[np.int64]
) -> None:
    """Add to every cell of `ones`, (m * k,), the devices, (n, m), whose string sets it."""
    for s in range(cells.shape[0]):
        for column in range(cells.shape[1]):
            if cells[s, column] >= 0:
                ones[cells[s, column]] += devices[s, column // h]


@compile_kernel
def pick_values(
    words: NDArray[np.uint64],
    guide: NDArray[np.int32],
    bits: int,
    steps: NDArray[np.float64],
    values: NDArray[np.int64],
) -> None:
    """Find the first step above the fraction that the highest 53 bits of each word make.

    `guide` says for each number of `bits` bits where to begin.
    """
    shift = np.uint64(64 - bits)
    for n in range(len(words)):
        uniform = np.float64(words[n] >> np.uint64(11)) * 2.0**-53
        value = guide[words[n] >> shift]
        while steps[value] <= uniform:
            value += 1
        values[n] = value


@compile_kernel
def compare_high_bytes(
    truth: NDArray[np.uint64],
    planes: NDArray[np.uint64],
    thresholds: NDArray[np.uint64],
    answer: NDArray[np.uint64],
    tied: NDArray[np.uint64],
) -> int:
    """Compare the highest bytes of all coins, bit by bit from the lowest, and count the ties.

    A byte is below another one where, at the highest bit in which they differ, it has a 0. So below
    is the majority of three: its bit is 0, the other's is 1, it is below in the bits under these.
    """
    for w in range(len(truth)):
        below, equal = np.uint64(0), ~np.uint64(0)
        for bit in range(8):
            zero = ~planes[bit, w]
            threshold = thresholds[0, bit] ^ (thresholds[1, bit] & truth[w])
            below = (threshold & zero) | (below & (threshold | zero))
            equal &= threshold ^ zero
        answer[w] = below | (truth[w] & thresholds[2, 2])
        tied[w] = equal
    n_tied = 0
    for w in range(len(truth)):
        word = tied[w]
        while word:
            word &= word - np.uint64(1)
            n_tied += 1
    return n_tied


@compile_kernel
def break_ties(
    truth: NDArray[np.uint64],
    tied: NDArray[np.uint64],
    rest: NDArray[np.uint64],
    thresholds: NDArray[np.uint64],
    answer: NDArray[np.uint64],
) -> None:
    """Decide each tied bit, in order, by the highest 56 bits of `rest`: the rest of its coin."""
    n = 0
    for w in range(len(truth)):
        word = tied[w]
        while word:
            lowest = word & (~word + np.uint64(1))
            low = thresholds[2, 1] if truth[w] & lowest else thresholds[2, 0]
            if rest[n] >> np.uint64(8) < low:
                answer[w] |= lowest
            n += 1
            word ^= lowest
