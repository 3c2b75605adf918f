"""Compiled loops of the simulator over packed bits.

numba compiles the functions at their first call. They check no bounds: an index outside an array
would read other memory, so callers check first. `true_bits` uses the loops over Bloom filters,
`weighted_sampler` uses `pick_values`, and `channels` uses the comparisons of coins and explains
their method.

The letters are those of a parameter set: k bits, h hash functions, m cohorts. Packed bits have bit
0 in the lowest binary digit of the first byte.
"""

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

    `words` are from `rappor.candidates.uncompiled_hashing.hash_texts`, (n_values, 4). `values` and
    `cohorts` are (n,): the index of each device's value, and its cohort. `packed` is
    (n, ceil(k/8)) and contains zeros. The bit of hash function l in cohort j is
    floor(hash k / 2^32), with the 32-bit hash of seed j h + l, as in the protocol.
    """
    for row in range(len(values)):
        string = words[values[row]]
        for hash_index in range(h):
            seed = np.uint32(cohorts[row] * h + hash_index)
            hash_value = np.uint64(hash_words(seed, string[0], string[1], string[2], string[3]))
            bit = hash_value * np.uint64(k) >> np.uint64(32)
            packed[row, bit >> np.uint64(3)] |= np.uint8(1 << (bit & np.uint64(7)))


@compile_kernel
def add_hashed_devices(
    cells: NDArray[np.int32], devices: NDArray[np.int64], h: int, ones: NDArray[np.int64]
) -> None:
    """Add to every cell of `ones` the number of devices whose string sets the cell.

    A cell is one bit of one cohort: bit i of cohort j is cell j k + i. `cells` is (n, m h): the
    cell that each hash function of each cohort sets for each string. It is negative if an earlier
    hash function of the cohort sets the same bit, because a bit is set once. `devices` is (n, m):
    the number of devices by string and cohort. `ones` is (m k,).
    """
    for string in range(cells.shape[0]):
        for column in range(cells.shape[1]):
            if cells[string, column] >= 0:
                ones[cells[string, column]] += devices[string, column // h]


@compile_kernel
def pick_values(
    words: NDArray[np.uint64],
    guide: NDArray[np.int32],
    bits: int,
    steps: NDArray[np.float64],
    values: NDArray[np.int64],
) -> None:
    """Select a value for each random word: the first whose cumulated weight exceeds a fraction.

    The fraction is the highest 53 bits of the word, divided by 2^53. `steps`, (n_values,), are the
    cumulated weights. `guide`, (2^bits,), contains the index at which the search begins, by the
    highest `bits` bits of the word. The selected indices are written into `values`.
    """
    shift = np.uint64(64 - bits)
    for row in range(len(words)):
        # 53 bits fit a float exactly. `steps` ends with 1, which no fraction reaches.
        uniform = np.float64(words[row] >> np.uint64(11)) * 2.0**-53
        value = guide[words[row] >> shift]
        while steps[value] <= uniform:
            value += 1
        values[row] = value


@compile_kernel
def compare_high_bytes(
    truth: NDArray[np.uint64],
    planes: NDArray[np.uint64],
    thresholds: NDArray[np.uint64],
    response: NDArray[np.uint64],
    tied: NDArray[np.uint64],
) -> int:
    """Compare the highest bytes of all coins with those of their thresholds, and count the ties.

    A word has one binary digit for each of 64 coins. `truth`, (n,), contains the true bits.
    `planes`, (8, n), contains binary digit 0 to 7 of the highest bytes of the coins. `thresholds`
    is from `rappor.simulation.channels.build_threshold_words`.

    `response` gets a 1 for each coin below its threshold, `tied` a 1 for each tie. The bits of the
    bytes are compared from the lowest to the highest. A byte is below another byte if it has a 0 at
    the highest bit in which the two differ. The update of `below` is therefore the majority of
    three: the coin's bit is 0, the threshold's bit is 1, the lower bits are below.
    """
    for index in range(len(truth)):
        below, equal = np.uint64(0), ~np.uint64(0)
        for bit in range(8):
            coin_is_zero = ~planes[bit, index]
            # Row 1 has the digits in which the threshold of a true 1 differs.
            threshold = thresholds[0, bit] ^ (thresholds[1, bit] & truth[index])
            below = (threshold & coin_is_zero) | (below & (threshold | coin_is_zero))
            equal &= threshold ^ coin_is_zero
        # thresholds[2, 2] is all ones if a true 1 stays a 1 for every coin.
        response[index] = below | (truth[index] & thresholds[2, 2])
        tied[index] = equal
    n_tied = 0
    for index in range(len(truth)):
        word = tied[index]
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

    `tied` and `response` are the output of `compare_high_bytes`. The words of `low_bits` are used
    in the order of the tied bits. A decided 1 is written into `response`.
    """
    n_decided = 0
    for index in range(len(truth)):
        word = tied[index]
        while word:
            # The lowest 1 of the word, by two's complement.
            lowest = word & (~word + np.uint64(1))
            # Compare the low 56 bits: the high bytes are equal.
            low = thresholds[2, 1] if truth[index] & lowest else thresholds[2, 0]
            if low_bits[n_decided] >> np.uint64(8) < low:
                response[index] |= lowest
            n_decided += 1
            word ^= lowest
