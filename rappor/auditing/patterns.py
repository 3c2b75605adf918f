"""Counts of bit patterns of a response: whole short responses, else three bits at a time.

Bits that are independent in pairs may be dependent in threes. A set of s bits shows one of 2^s
patterns. Given the true bits, the patterns have a multinomial distribution with known
probabilities, and each of its cells is binomial. Up to ten bits, all triples and the whole response
are counted. Above ten bits, triples of neighbours and random triples are counted.
"""

from __future__ import annotations

from itertools import combinations
from typing import Final

import numpy as np

from rappor.auditing.check import Check, check_counts, mark_not_seen
from rappor.counts.arrays import Booleans, Floats, Integers

MAX_WHOLE_BITS: Final = 10
"""Largest number of bits whose whole response is counted: 1,024 patterns for each true pattern."""

_RANDOM_TRIPLES: Final = 384
"""Number of random triples of longer responses, in addition to all neighbours."""


class Patterns:
    """Number of occurrences of each pattern in sets of bits, by the true bits of the set."""

    def __init__(self, k: int, rng: np.random.Generator) -> None:
        """Choose the sets of bits of a response of k bits."""
        self._sets = _choose_sets(k, rng)
        self._counts = [np.zeros((len(sets), 4 ** sets.shape[1]), np.int64) for sets in self._sets]

    def add(self, bits: Booleans, truth: Booleans) -> None:
        """Add the (n, k) bits of responses, given their (n, k) true bits."""
        for sets, counts in zip(self._sets, self._counts, strict=True):
            n_sets, size = sets.shape
            codes = np.zeros((len(bits), n_sets), dtype=np.int32)
            for place in range(size):
                at = sets[:, place]
                codes += bits[:, at].astype(np.int32) << place
                codes += truth[:, at].astype(np.int32) << size + place
            codes += np.arange(n_sets, dtype=np.int32) * 4**size
            counts[:] += np.bincount(codes.ravel(), minlength=counts.size).reshape(counts.shape)

    def check(self, name: str, expected: tuple[float, float]) -> Check:
        """Compare every cell with its binomial distribution.

        `expected` contains the probabilities of a one, given true bit 0 and true bit 1.
        """
        ones, n, probabilities, cells_seen = [], [], [], list[tuple[Integers, int, int]]()
        for sets, counts in zip(self._sets, self._counts, strict=True):
            size = sets.shape[1]
            by_truth = counts.reshape(len(sets), 2**size, 2**size)
            totals = by_truth.sum(axis=2, keepdims=True) + np.zeros_like(by_truth)
            which, truth, pattern_codes = np.nonzero(totals)
            ones.append(by_truth[which, truth, pattern_codes])
            n.append(totals[which, truth, pattern_codes])
            probabilities.append(_compute_probabilities(size, expected)[truth, pattern_codes])
            cells = zip(which.tolist(), truth.tolist(), pattern_codes.tolist(), strict=True)
            cells_seen += [(sets[each], true, pattern) for each, true, pattern in cells]
        if not cells_seen:
            return mark_not_seen(name, "no response of three bits was seen")

        def what(place: int) -> str:
            bits, truth, pattern_codes = cells_seen[place]
            size = len(bits)
            which = "all bits" if size > 3 else f"bits {', '.join(map(str, bits))}"
            return f"{which} show {pattern_codes:0{size}b} given true {truth:0{size}b}"

        return check_counts(
            name, np.concatenate(ones), np.concatenate(n), np.concatenate(probabilities), what
        )


def _choose_sets(k: int, rng: np.random.Generator) -> list[Integers]:
    """Return the sets of bits, one array of shape (sets, size) for each size."""
    if k < 3:
        return []
    if k <= MAX_WHOLE_BITS:
        triples = np.array(list(combinations(range(k), 3)))
        return [triples] if k == 3 else [triples, np.arange(k)[None, :]]
    neighbours = np.arange(k - 2)[:, None] + np.arange(3)
    drawn = np.array([rng.choice(k, 3, replace=False) for _ in range(_RANDOM_TRIPLES)])
    return [np.concatenate([neighbours, drawn])]


def _compute_probabilities(size: int, expected: tuple[float, float]) -> Floats:
    """Compute the (2^s, 2^s) probabilities of each pattern (column), given the true bits (row)."""
    one = np.array([[1 - expected[0], expected[0]], [1 - expected[1], expected[1]]])
    table = np.ones((1, 1))
    for _ in range(size):
        table = np.kron(one, table)
    return table
