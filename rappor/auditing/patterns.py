"""Patterns of several bits of a response: whole ones where bits are few, else three at a time.

Bits that are independent two by two may depend three by three. Which of the 2^s patterns a set of s
bits shows, given their true bits, is a multinomial count with known probabilities; each cell of it
is binomial. Up to ten bits all triples are counted and the whole pattern; above, neighbours and
triples drawn at random.
"""

from __future__ import annotations

from itertools import combinations
from typing import Final

import numpy as np

from rappor.auditing.check import Check, check_counts, mark_not_seen
from rappor.counts.arrays import Booleans, Floats, Integers

MAX_WHOLE_BITS: Final = 10
"""Bits of a response at most whose whole patterns are counted: 1,024 for each true pattern."""

_TRIPLES: Final = 384
"""Random triples of more bits, beside all neighbours."""


class Patterns:
    """How often sets of bits show each pattern, by the true bits behind them."""

    def __init__(self, k: int, rng: np.random.Generator) -> None:
        """Choose the sets of bits of a response of k bits."""
        self._sets = _sets_of(k, rng)
        self._counts = [np.zeros((len(sets), 4 ** sets.shape[1]), np.int64) for sets in self._sets]

    def add(self, bits: Booleans, truth: Booleans) -> None:
        """Add the (n, k) bits of responses and the true bits behind them."""
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
        """Compare every cell; `expected` are the probabilities of a one at a true 0 and 1."""
        ones, n, probabilities, places = [], [], [], list[tuple[Integers, int, int]]()
        for sets, counts in zip(self._sets, self._counts, strict=True):
            size = sets.shape[1]
            by_truth = counts.reshape(len(sets), 2**size, 2**size)
            totals = by_truth.sum(axis=2, keepdims=True) + np.zeros_like(by_truth)
            which, truth, shown = np.nonzero(totals)
            ones.append(by_truth[which, truth, shown])
            n.append(totals[which, truth, shown])
            probabilities.append(_probabilities(size, expected)[truth, shown])
            cells = zip(which.tolist(), truth.tolist(), shown.tolist(), strict=True)
            places += [(sets[each], true, pattern) for each, true, pattern in cells]
        if not places:
            return mark_not_seen(name, "no response of three bits was seen")

        def what(place: int) -> str:
            bits, truth, shown = places[place]
            size = len(bits)
            which = "all bits" if size > 3 else f"bits {', '.join(map(str, bits))}"
            return f"{which} show {shown:0{size}b} given true {truth:0{size}b}"

        return check_counts(
            name, np.concatenate(ones), np.concatenate(n), np.concatenate(probabilities), what
        )


def _sets_of(k: int, rng: np.random.Generator) -> list[Integers]:
    """Return the sets of bits, by their size: (sets, size) each."""
    if k < 3:
        return []
    if k <= MAX_WHOLE_BITS:
        triples = np.array(list(combinations(range(k), 3)))
        return [triples] if k == 3 else [triples, np.arange(k)[None, :]]
    neighbours = np.arange(k - 2)[:, None] + np.arange(3)
    drawn = np.array([rng.choice(k, 3, replace=False) for _ in range(_TRIPLES)])
    return [np.concatenate([neighbours, drawn])]


def _probabilities(size: int, expected: tuple[float, float]) -> Floats:
    """Return (2^s, 2^s): the probability of each pattern, a column, given the true bits, a row."""
    one = np.array([[1 - expected[0], expected[0]], [1 - expected[1], expected[1]]])
    table = np.ones((1, 1))
    for _ in range(size):
        table = np.kron(one, table)
    return table
