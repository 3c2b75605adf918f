"""Scales: functions from numbers to positions on an axis, and the round numbers beside the axis.

An axis is linear, logarithmic or broken. A broken axis leaves out a range of numbers, the gap, in
which no row has its interval. `Scale.broken` breaks an axis if both conditions hold:

- Half of the rows would lie in the first tenth of the unbroken axis.
- A range without rows would take at least half of the unbroken axis. This range becomes the gap.

Example: one string has 40 % of the reports, and a hundred strings have less than 1 %. Every chart
with a broken axis says so in a sentence.

>>> scale = Scale.over([0.0, 50.0], start=100, end=300)
>>> scale(25.0), scale.ticks(5)
(200.0, [0.0, 10.0, 20.0, 30.0, 40.0, 50.0])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

_STEP_SIZES: Final = (1, 2, 5, 10)
"""Neighbouring numbers beside an axis differ by one of these multiples of a power of ten."""

_CROWDED_SHARE: Final = 0.1
"""Proportion of an axis, from its beginning. The rows count as crowded if half of them lie in this
first part. A larger number breaks more axes."""

_MIN_GAP: Final = 0.5
"""Smallest proportion of an axis that a range without rows must have to be left out. A smaller
number breaks more axes."""

_MIN_LOWER_PART: Final = 0.72
"""Smallest proportion of a broken axis that the range below the gap gets. Most rows lie there. A
larger number leaves less of the axis for the rows above the gap."""

_GAP_LENGTH: Final = 0.05
"""The gap of a broken axis takes this proportion of its length, enough for two slashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Function from numbers in [low, high] to positions in [start, end].

    Attributes
    ----------
    low, high : the numbers at the ends of the axis. Numbers outside are drawn at the ends.
    start, end : positions of `low` and `high`, in any unit. `end` may be less than `start`, because
        heights on a screen grow downwards.
    log : True for a logarithmic axis.
    gap : ends of the range of numbers that a broken axis leaves out; None for an unbroken axis.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    gap: tuple[float, float] | None = None

    @classmethod
    def over(cls, values: Sequence[float], *, start: float, end: float, log: bool = False) -> Scale:
        """Return the scale from the smallest to the largest of some values."""
        low, high = min(values, default=1.0 if log else 0.0), max(values, default=1.0)
        if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
            # Case: all values are equal. The axis is extended, and the value is drawn in its
            # middle.
            margin = abs(low) / 2 or 0.5
            low, high = low - margin, high + margin
        return cls(low=low, high=high, start=start, end=end, log=log)

    @classmethod
    def broken(
        cls, row_ranges: Sequence[tuple[float, float]], *, start: float, end: float
    ) -> Scale:
        """Return the scale of 0 and of all rows, broken by the rule of this module.

        `row_ranges` contains the smallest and the largest number of each row.
        """
        unbroken = cls.over(
            [0.0, *(end for row_range in row_ranges for end in row_range)], start=start, end=end
        )
        gap = _find_gap(row_ranges, unbroken.high)
        if gap is None:
            return unbroken
        # Case: a single number above the gap. Its range would have no length, so the range gets at
        # least an eighth of the length of the range below the gap.
        below = gap[0] - unbroken.low
        above = max(unbroken.high - gap[1], below / 8)
        return replace(unbroken, gap=(gap[0], unbroken.high - above))

    def __call__(self, value: float) -> float:
        """Return the position of a number, rounded to a hundredth."""
        value = min(max(value, self.low), self.high)
        return round(
            self.start + self._compute_relative_position(value) * (self.end - self.start), 2
        )

    def _compute_relative_position(self, value: float) -> float:
        """Return the position of a number as a proportion of the axis, from 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        if self.gap is None:
            return (value - self.low) / (self.high - self.low)
        gap_low, gap_high = self.gap
        # Lengths of the ranges below and above the gap, in numbers of the axis. `lower` and `upper`
        # are their proportions of the drawn axis.
        below, above = gap_low - self.low, self.high - gap_high
        lower = (1 - _GAP_LENGTH) * max(_MIN_LOWER_PART, below / (below + above))
        if value <= gap_low:
            return lower * (value - self.low) / below
        upper = 1 - _GAP_LENGTH - lower
        return lower + _GAP_LENGTH + upper * max(value - gap_high, 0.0) / above

    def ticks(self, n: int) -> list[float]:
        """Return about n round numbers of the axis, or powers of ten of a logarithmic axis."""
        if self.log:
            return _list_powers(self.low, self.high)
        if self.gap is None:
            return _list_round_numbers(self.low, self.high, n)
        lower = _list_round_numbers(self.low, self.gap[0], n - 1)
        return lower + _list_round_numbers(self.gap[1], self.high, 3)


def _find_gap(
    row_ranges: Sequence[tuple[float, float]], largest: float
) -> tuple[float, float] | None:
    """Return the widest range without rows, or None if the axis must not be broken.

    Parameters
    ----------
    row_ranges : smallest and largest number of each row.
    largest : largest number of the axis.
    """
    middles = sorted((low + high) / 2 for low, high in row_ranges)
    if len(row_ranges) < 3 or middles[len(row_ranges) // 2] > _CROWDED_SHARE * largest:
        return None
    # `reached` is the largest number of the rows so far, in the order of their smallest number.
    widest, reached = (0.0, 0.0), 0.0
    for low, high in sorted(row_ranges):
        if low - reached > widest[1] - widest[0]:
            widest = (reached, low)
        reached = max(reached, high)
    return widest if widest[0] > 0 and widest[1] - widest[0] >= _MIN_GAP * largest else None


def _list_round_numbers(low: float, high: float, n: int) -> list[float]:
    """Return about n multiples of 1, 2 or 5 times a power of ten in [low, high]."""
    rough = (high - low) / n
    power = 10.0 ** math.floor(math.log10(rough))
    # The tolerances keep a tick at an end of the axis that rounding errors put beside it.
    step = next(size * power for size in _STEP_SIZES if size * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _list_powers(low: float, high: float) -> list[float]:
    """Return powers of ten in [low, high], and their multiples by 2 and 5 if the powers are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 2 else (1,)
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return [tick for tick in ticks if low <= tick * (1 + 1e-9) and tick <= high * (1 + 1e-9)]
