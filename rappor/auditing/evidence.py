"""What an audit keeps of the responses: tallies, added a block of devices at a time."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rappor.protocol.params import Params

Bits = NDArray[np.bool_]
Integers = NDArray[np.int64]

Stage = Literal["report", "reports", "permanent"]
"""What an observer sees of a device: one report, several, or the permanent response itself."""

Keys = tuple[Integers, Integers]
"""(trials,) twice, from `game_keys`: where naming a value is right, and where it is wrong."""


class Ones:
    """How often each bit was one, by its true bit: (2, k) int64, true 0 first."""

    def __init__(self, k: int) -> None:
        """Start with no response."""
        self.n = np.zeros((2, k), dtype=np.int64)
        self.ones = np.zeros((2, k), dtype=np.int64)

    def add(self, bits: Bits, truth: Bits) -> None:
        """Add the (n, k) bits of responses and the true bits behind them."""
        self.n += (~truth).sum(axis=0), truth.sum(axis=0)
        self.ones += (bits & ~truth).sum(axis=0), (bits & truth).sum(axis=0)


class Matches:
    """How often two bits with the same truth are both one: (2,) int64, true 0 first."""

    def __init__(self) -> None:
        """Start with no response."""
        self.n = np.zeros(2, dtype=np.int64)
        self.both = np.zeros(2, dtype=np.int64)

    def add(self, first: Bits, second: Bits, truths: tuple[Bits, Bits]) -> None:
        """Add two arrays of bits of one shape, and the true bits behind each."""
        both = first & second
        for truth in (0, 1):
            alike = (truths[0] == truth) & (truths[1] == truth)
            self.n[truth] += alike.sum()
            self.both[truth] += (both & alike).sum()

    def add_neighbours(self, bits: Bits, truth: Bits) -> None:
        """Compare bits 0 and 1, 2 and 3, ... of each response: pairs without a common bit."""
        even = bits.shape[1] // 2 * 2
        first, second = slice(0, even, 2), slice(1, even, 2)
        self.add(bits[:, first], bits[:, second], (truth[:, first], truth[:, second]))


class Unrelated(NamedTuple):
    """Matches of two responses of a device that must share no coins.

    Shared coins are clearest in `same_bits`, the devices with the same true bits both times.
    """

    everyone: Matches
    same_bits: Matches


class Evidence:
    """All tallies of one audit."""

    def __init__(self, params: Params) -> None:
        """Start with no response."""
        self.trials = 0
        self._keys: dict[Stage, list[Keys]] = {}
        self.cohorts = np.zeros((2, params.m), dtype=np.int64)
        """Devices by side of their pair and cohort."""
        self.reports = Ones(params.k)
        self.permanents = Ones(params.k)
        self.within_reports, self.within_permanents = Matches(), Matches()
        """Different bits of one response."""
        self.again = Matches()
        """The same bit in two reports of one device and value."""
        self.moved = 0
        """Devices whose cohort changed."""
        self.returned = self.redrawn = 0
        """Devices whose permanent response was seen twice, and those in which it changed."""
        self.other_value: dict[Stage, Unrelated] = {}
        self.other_metric: dict[Stage, Unrelated] = {}

    def add_game(self, stage: Stage, keys: Keys) -> None:
        """Add the trials of an observer's game."""
        self._keys.setdefault(stage, []).append(keys)

    def game(self, stage: Stage) -> Keys | None:
        """Return the keys of a game over all trials, None if it was not played."""
        if stage not in self._keys:
            return None
        right, wrong = zip(*self._keys[stage], strict=True)
        return np.concatenate(right), np.concatenate(wrong)
