"""Compiled loops of the simulator over packed bits.

The simulator makes the reports of millions of devices. Its loops over single bits would take too
long in Python, so numba compiles the functions of this module at their first call:

    function                step of the simulation                            caller
    pick_values             choose the value of each device                   weighted_sampler
    set_hashed_bits         set the true bits of each device's value          true_bits
    add_hashed_devices      count the true ones of devices by bit and         true_bits
                            cohort, without the bits of each device
    compare_high_bytes,     add noise: a bit of the report is 1 if a random   channels
    break_ties              coin is below a threshold

The comparison of coins works on 64 bits at once. Example with bytes of two digits instead of eight:
the threshold is 10 in binary, and three coins have the digits 01, 10 and 11. One word contains the
low digits of all coins, 1 0 1, and another word contains their high digits, 0 1 1. A few operations
on the two words give 1 0 0, the coins below the threshold, and 0 1 0, the coins that equal it. Such
a coin is a tie, and its further digits decide.

The functions check no bounds: an index outside an array would read other memory, so callers check
first. The letters are those of a parameter set: k bits, h hash functions, m cohorts. Packed bits
have bit 0 in the lowest binary digit of the first byte.
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

    `words` is (n_values, 4): the digest of each value, four 32-bit integers from
    `rappor.candidates.uncompiled_hashing.hash_texts`. `values` and `cohorts` are (n,): the index of
    each device's value, and its cohort. `packed` is (n, ceil(k/8)) and contains zeros.

    Hash function number l (from 0) of cohort j has the seed j h + l. Its 32-bit hash x sets the bit
    floor(x k / 2^32), as in the protocol.
    """
    for row in range(len(values)):
        string = words[values[row]]
        for hash_index in range(h):
            seed = np.uint32(cohorts[row] * h + hash_index)
            hash_value = np.uint64(hash_words(seed, string[0], string[1], string[2], string[3]))
            bit = hash_value * np.uint64(k) >> np.uint64(32)
            # Byte bit // 8, binary digit bit % 8.
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
    random_words: NDArray[np.uint64],
    guide: NDArray[np.int32],
    bits: int,
    steps: NDArray[np.float64],
    values: NDArray[np.int64],
) -> None:
    """Select a value by weight for each random word.

    The highest 53 bits of a word are a uniform number in [0, 1), in units of 2^-53. The selected
    value is the first value whose cumulated weight exceeds the uniform number. A search from the
    first value would be slow, so a guide table contains the value at which the search begins.

    `random_words` is (n,): uniform 64-bit integers. `steps` is (n_values,): the cumulated weights,
    of which the last is 1. `guide` is (2^bits,). The highest `bits` bits of a random word are the
    index of an entry. The entry is the smallest value that any word with these highest bits can
    select. The selected indices are written into `values`, (n,).

    *Example.* Three values have the weights .3, .4 and .3, so `steps` is .3, .7, 1. With `bits` = 1
    the guide has two entries: value 0 for uniform numbers below .5, and value 1 for all others. A
    uniform number of .8 begins at value 1. Its step .7 does not exceed .8, so the result is value
    2.
    """
    shift = np.uint64(64 - bits)
    for row in range(len(random_words)):
        # A float contains 53 bits exactly. `steps` ends with 1, which no uniform number reaches, so
        # the search ends inside the array.
        uniform = np.float64(random_words[row] >> np.uint64(11)) * 2.0**-53
        value = guide[random_words[row] >> shift]
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

    A coin is a uniform 64-bit number that decides one bit of a report. The bit is 1 if the coin is
    below its threshold, which depends on the true bit. A *tie* is a coin whose highest byte equals
    the highest byte of its threshold, so that the lower 56 bits decide (`break_ties`).

    A word has one binary digit for each of 64 coins, so one operation on words compares a digit of
    64 coins. All arrays are of words:

        truth       (n,)    true bits
        planes      (8, n)  [b, i]: binary digit b of the highest bytes of 64 coins
        thresholds  (3, 8)  [0, b]: digit b of the highest byte of the threshold of a true 0, in
                            all 64 places
                            [1, b]: 64 ones if the two thresholds have different digits b, else 0
                            [2, 0], [2, 1]: low 56 bits of the thresholds of a true 0, a true 1
                            [2, 2]: 64 ones if a true 1 is sent as 1 for every coin, else 0
        response    (n,)    output: 1 for each coin whose highest byte is below
        tied        (n,)    output: 1 for each tie

    The digits are compared from the lowest to the highest. A byte is below another byte if it has a
    0 at the highest digit in which both differ. Therefore a coin is below after digit b in two
    cases: its digit is 0 and the digit of the threshold is 1, or both digits are equal and the coin
    was below in the lower digits. With c the digit of the coin, t the digit of the threshold and
    `below` the result of the lower digits:

        t   c   below after this digit
        1   0   1
        0   0   as before
        1   1   as before
        0   1   0

    The code computes (t and not c) or (below and (t or not c)).
    """
    for index in range(len(truth)):
        below, equal = np.uint64(0), ~np.uint64(0)
        for bit in range(8):
            coin_is_zero = ~planes[bit, index]
            # The threshold of each place: the digit for a true 0, reversed where the true bit is 1
            # and the threshold of a true 1 has the other digit.
            threshold = thresholds[0, bit] ^ (thresholds[1, bit] & truth[index])
            below = (threshold & coin_is_zero) | (below & (threshold | coin_is_zero))
            equal &= threshold ^ coin_is_zero
        # Case: a true 1 is sent as 1 for every coin. Its threshold is 2^64, which does not fit 64
        # bits, so `thresholds` contains 2^64 - 1. The coin 2^64 - 1 is not below this threshold.
        # So the bit is set here for every coin.
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
    """Decide each tied coin by its low 56 bits.

    Only tied coins need low bits, so they are drawn after `compare_high_bytes`, one random word for
    each tie. The highest 56 bits of the word are the low bits of the coin.

    `tied` and `response` are the output of `compare_high_bytes`, which also explains `thresholds`.
    `low_bits`, (n_tied,), contains one word for each tie, in the order of the ties. A decided 1 is
    written into `response`.
    """
    n_decided = 0
    for index in range(len(truth)):
        word = tied[index]
        while word:
            # The lowest 1 of the word, by two's complement.
            lowest = word & (~word + np.uint64(1))
            # Low 56 bits of the threshold of a true 1, or of a true 0.
            low = thresholds[2, 1] if truth[index] & lowest else thresholds[2, 0]
            if low_bits[n_decided] >> np.uint64(8) < low:
                response[index] |= lowest
            n_decided += 1
            word ^= lowest
