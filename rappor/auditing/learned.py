"""A learned distinguisher: any rule that tells two values by a report bounds the loss from below.

The game of `rappor.auditing.lower_bound` reads the bits of the two values only. Here an observer
also looks at the cohort, at every other bit and at how many are set. Boosted trees learn on one
half of the devices which value a report speaks for; on the other half their answers are counted,
and bounded by Clopper and Pearson as the game's.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.auditing.lower_bound import loss_bound

_Bits = NDArray[np.bool_]
_Integers = NDArray[np.int64]

_LEAST: Final = 1000
"""Devices of a pair below which nothing is learned."""

_BINS: Final = 32
"""Steps of the odds that an answer may have."""


class Lessons:
    """Reports of one pair of values: enough to learn from, and to be examined on."""

    def __init__(self, most: int = 40_000) -> None:
        """Keep at most this many devices."""
        self._most, self._kept = most, 0
        self._features: list[NDArray[np.int16]] = []
        self._sides: list[_Integers] = []

    def add(
        self, cohorts: _Integers, reports: _Bits, pair: tuple[_Bits, _Bits], sides: _Integers
    ) -> None:
        """Add reports of devices with the first (0) or the second value (1) of the pair.

        `pair` are the (n, k) true bits of both values in each device's cohort.
        """
        room = slice(0, max(0, self._most - self._kept))
        only = pair[0] & ~pair[1], pair[1] & ~pair[0]
        own = [(reports & bits).sum(axis=1) for bits in only]
        rest = (reports & ~(pair[0] | pair[1])).sum(axis=1)
        columns = np.column_stack([*own, rest, rest % 2, cohorts, cohorts % 2, reports])
        self._features.append(columns[room].astype(np.int16))
        self._sides.append(sides[room])
        self._kept += len(sides[room])

    def bound(self, level: float) -> float | None:
        """Return a lower bound of the loss of a report, in nats; None if too few were seen."""
        if self._kept < _LEAST:
            return None
        from sklearn.ensemble import HistGradientBoostingClassifier  # noqa: PLC0415 - a second

        features, sides = np.concatenate(self._features), np.concatenate(self._sides)
        half = len(sides) // 2
        if len(np.unique(sides[:half])) < 2:
            return None
        model = HistGradientBoostingClassifier(max_iter=40, max_leaf_nodes=15, random_state=0)
        model.fit(features[:half], sides[:half])
        odds = model.decision_function(features[half:])
        signed = np.where(sides[half:] == 1, odds, -odds)
        edges = np.quantile(np.abs(odds), np.linspace(0, 1, _BINS + 1)[1:-1])
        steps = np.searchsorted(edges, np.abs(signed)) * 2
        right, wrong = steps + (signed > 0), steps + (signed <= 0)
        return loss_bound(right.astype(np.int64), wrong.astype(np.int64), level=level)
