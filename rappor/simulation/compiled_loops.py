"""Compiled loops of the simulator over packed bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rappor.base.jit import compile_kernel
from rappor.candidates.compiled_hashing import hash_words


@compile_kernel
def set_hashed_bits(
    words: NDArray[np.uint32],
    values: NDArray[np.int64],
    cohorts: NDArray[np.uint16],
    k: int,
    h: int,
    packed: NDArray[np.uint8],
) -> None:
    """Set the Bloom filter of each device's value in its cohort.

    `words` are from `rappor.candidates.uncompiled_hashing.hash_texts`, (n_values, 4). `packed`
    contains reports of zeros. The bit is the high half of a 32-bit hash times k, as in the
    protocol.
    """
    for row in range(len(values)):
        string = words[values[row]]
        for turn in range(h):
            seed = np.uint32(cohorts[row] * h + turn)
            x = np.uint64(hash_words(seed, string[0], string[1], string[2], string[3]))
            # floor(x k / 2^32) is uniform on the k bits, without a division.
            bit = x * np.uint64(k) >> np.uint64(32)
            packed[row, bit >> np.uint64(3)] |= np.uint8(1 << (bit & np.uint64(7)))


@compile_kernel
def add_hashed_devices(
    cells: NDArray[np.int32], devices: NDArray[np.int64], h: int, ones: NDArray[np.int64]
) -> None:
    """Add to every cell of `ones`, (m * k,), the devices, (n, m), whose string sets the cell.

    A negative cell marks a hash function that sets a bit which another one has set.
    """
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
    """Find, for the fraction of the highest 53 bits of each word, the first step above it.

    `guide` contains the start of the search for each number of `bits` bits.
    """
    shift = np.uint64(64 - bits)
    for n in range(len(words)):
        # 53 bits fit a float exactly. `steps` ends with 1, which no fraction reaches.
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
    response: NDArray[np.uint64],
    tied: NDArray[np.uint64],
) -> int:
    """Compare the highest bytes of all coins with those of their thresholds, and count the ties.

    `response` gets a 1 for each coin below its threshold, `tied` a 1 for each tie. The bits of the
    bytes are compared from the lowest to the highest. A byte is below another byte if it has a 0 at
    the highest bit in which the two differ. The update of `below` is therefore the majority of
    three: the coin's bit is 0, the threshold's bit is 1, the lower bits are below.
    """
    for w in range(len(truth)):
        below, equal = np.uint64(0), ~np.uint64(0)
        for bit in range(8):
            zero = ~planes[bit, w]
            threshold = thresholds[0, bit] ^ (thresholds[1, bit] & truth[w])
            below = (threshold & zero) | (below & (threshold | zero))
            equal &= threshold ^ zero
        # The third word is all ones if a true 1 stays a 1 for every coin.
        response[w] = below | (truth[w] & thresholds[2, 2])
        tied[w] = equal
    n_tied = 0
    for w in range(len(truth)):
        word = tied[w]
        # Each turn removes the lowest 1 of the word.
        while word:
            word &= word - np.uint64(1)
            n_tied += 1
    return n_tied


@compile_kernel
def break_ties(
    truth: NDArray[np.uint64],
    tied: NDArray[np.uint64],
    low_bits: NDArray[np.uint64],
    thresholds: NDArray[np.uint64],
    response: NDArray[np.uint64],
) -> None:
    """Decide each tied coin by its low 56 bits: the highest 56 bits of a word of `low_bits`.

    The words are used in the order of the tied bits.
    """
    n = 0
    for w in range(len(truth)):
        word = tied[w]
        while word:
            # The lowest 1 of the word, by two's complement.
            lowest = word & (~word + np.uint64(1))
            # Compare the low 56 bits: the high bytes are equal.
            low = thresholds[2, 1] if truth[w] & lowest else thresholds[2, 0]
            if low_bits[n] >> np.uint64(8) < low:
                response[w] |= lowest
            n += 1
            word ^= lowest
