"""Counts of bit patterns of a response: dependence among three or more bits.

The input is the bits of many devices' first responses with their true bits. The output is one
`Check` that compares every count with its probability under a correct encoder.

Bits that are independent in pairs may be dependent in threes. For example, bit 3 may be the XOR of
the bits 1 and 2. So sets of s bits are observed. A set shows one of 2^s patterns. Given the true
bits of the set, each pattern has a known probability: the product of p*, q*, 1 - p* or 1 - q* over
the bits. The number of responses with a pattern is then binomial.

    bits of a response (k)    sets that are counted
    1 or 2                    none: the check is "not seen"
    3                         the whole response
    4 to 10                   all triples, and the whole response
    more than 10              all triples of neighbours, and 384 random triples

The whole check raises a false alarm with probability at most `FALSE_ALARM_RATE` (Bonferroni's
correction). The check misses a dependence among bits of no counted set, and a dependence that
changes frequencies by less than the binomial noise.
"""

from __future__ import annotations

from itertools import combinations
from typing import Final

import numpy as np

from rappor.auditing.check import Check, check_counts, mark_not_seen
from rappor.counts.arrays import Booleans, Floats, Integers

MAX_WHOLE_BITS: Final = 10
"""Largest number of bits whose whole response is counted.

The limit bounds memory and the number of counts: 10 bits have 1,024 patterns for each of 1,024 true
patterns.
"""

_RANDOM_TRIPLES: Final = 384
"""Number of random triples of longer responses, in addition to all neighbours.

All triples of 128 bits would be 341,376. More triples find more dependences and take more time.
"""


class Patterns:
    """Number of occurrences of each pattern in sets of bits, by the true bits of the set."""

    def __init__(self, k: int, rng: np.random.Generator) -> None:
        """Choose the sets of bits of a response of k bits."""
        self._sets = _choose_sets(k, rng)
        # For each size s of sets: (sets, 4^s). A column is true pattern * 2^s + pattern, where bit
        # number b of the set has the binary digit 2^b.
        self._counts = [np.zeros((len(sets), 4 ** sets.shape[1]), np.int64) for sets in self._sets]

    def add(self, bits: Booleans, truth: Booleans) -> None:
        """Add the (n, k) bits of responses, given their (n, k) true bits."""
        for sets, counts in zip(self._sets, self._counts, strict=True):
            n_sets, size = sets.shape
            # (n, sets): the column of `counts` for each response and set.
            codes = np.zeros((len(bits), n_sets), dtype=np.int32)
            for digit in range(size):
                bit_indices = sets[:, digit]
                codes += bits[:, bit_indices].astype(np.int32) << digit
                codes += truth[:, bit_indices].astype(np.int32) << size + digit
            # Row s of `counts` belongs to set s. Adding s times the length of a row makes every
            # code an index of the flattened table, so that one bincount counts all sets.
            codes += np.arange(n_sets, dtype=np.int32) * 4**size
            counts[:] += np.bincount(codes.ravel(), minlength=counts.size).reshape(counts.shape)

    def check(self, name: str, expected: tuple[float, float]) -> Check:
        """Compare every cell with its binomial distribution.

        `expected` contains the probabilities of a one, given true bit 0 and true bit 1. Patterns of
        true bits that no response has are left out.
        """
        ones, n, probabilities, cells_seen = [], [], [], list[tuple[Integers, int, int]]()
        for sets, counts in zip(self._sets, self._counts, strict=True):
            size = sets.shape[1]
            # Axes: set, true pattern, pattern.
            by_truth = counts.reshape(len(sets), 2**size, 2**size)
            # Number of responses with the same true pattern, repeated for every pattern.
            totals = by_truth.sum(axis=2, keepdims=True) + np.zeros_like(by_truth)
            set_indices, true_codes, pattern_codes = np.nonzero(totals)
            ones.append(by_truth[set_indices, true_codes, pattern_codes])
            n.append(totals[set_indices, true_codes, pattern_codes])
            probabilities.append(_compute_probabilities(size, expected)[true_codes, pattern_codes])
            cells = zip(
                set_indices.tolist(), true_codes.tolist(), pattern_codes.tolist(), strict=True
            )
            cells_seen += [
                (sets[set_index], true_code, pattern_code)
                for set_index, true_code, pattern_code in cells
            ]
        if not cells_seen:
            return mark_not_seen(name, "no response of three bits was seen")

        def describe_cell(index: int) -> str:
            bits, *codes = cells_seen[index]
            size = len(bits)
            named_bits = "all bits" if size > 3 else f"bits {', '.join(map(str, bits))}"
            # Digits in the order of the named bits. A binary number begins with its last digit.
            true, pattern = (f"{code:0{size}b}"[::-1] for code in codes)
            return f"{named_bits} show {pattern} given true {true}"

        return check_counts(
            name,
            np.concatenate(ones),
            np.concatenate(n),
            np.concatenate(probabilities),
            describe_cell,
        )


def _choose_sets(k: int, rng: np.random.Generator) -> list[Integers]:
    """Return the sets of bits by the table of this module: an array (sets, size) for each size.

    An element is the index of a bit.
    """
    if k < 3:
        return []
    if k <= MAX_WHOLE_BITS:
        triples = np.array(list(combinations(range(k), 3)))
        return [triples] if k == 3 else [triples, np.arange(k)[None, :]]
    neighbours = np.arange(k - 2)[:, None] + np.arange(3)
    random_triples = np.array([rng.choice(k, 3, replace=False) for _ in range(_RANDOM_TRIPLES)])
    return [np.concatenate([neighbours, random_triples])]


def _compute_probabilities(size: int, expected: tuple[float, float]) -> Floats:
    """Compute the (2^s, 2^s) probabilities of each pattern (column), given the true bits (row)."""
    # (2, 2): row true bit, column reported bit. Bits are independent, so the table of s bits is the
    # Kronecker product of s such tables. `kron` makes the digits of its first factor the higher
    # digits, so each new bit gets the next higher digit, as in the columns of `Patterns`.
    bit_table = np.array([[1 - expected[0], expected[0]], [1 - expected[1], expected[1]]])
    table = np.ones((1, 1))
    for _ in range(size):
        table = np.kron(bit_table, table)
    return table
