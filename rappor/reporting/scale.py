"""Where a number is drawn, and which numbers are written beside an axis.

An axis is linear, logarithmic or broken. It is broken by one rule (`broken`): half of the rows
would lie in its first tenth, and half of the axis, in one stretch, would have no row. Whoever draws
such an axis says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

_NICE: Final = (1, 2, 5, 10)
_CROWDED: Final = 0.1
_EMPTY: Final = 0.5
"""Parts of an axis: the rows up to here are crowded; an omitted stretch is at least this wide."""

_LOWER: Final = 0.72
_BREAK: Final = 0.05
"""Parts of a broken axis: at least this much below the gap, and the gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Maps [low, high] to [start, end], which may fall; values outside are drawn at its ends.

    Of `gap`, both ends of what a broken axis leaves out, nothing is drawn.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    gap: tuple[float, float] | None = None

    @classmethod
    def over(cls, values: Sequence[float], *, start: float, end: float, log: bool = False) -> Scale:
        """Return the scale of the span of these values; of one value, a span around it."""
        low, high = min(values, default=1.0 if log else 0.0), max(values, default=1.0)
        if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
            margin = abs(low) / 2 or 0.5
            low, high = low - margin, high + margin
        return cls(low=low, high=high, start=start, end=end, log=log)

    @classmethod
    def broken(cls, spans: Sequence[tuple[float, float]], *, start: float, end: float) -> Scale:
        """Return the scale of 0 and these rows, (low, high) each, broken by the rule above."""
        whole = cls.over([0.0, *(end for span in spans for end in span)], start=start, end=end)
        gap = _gap(spans, whole.high)
        if gap is None:
            return whole
        room = gap[0] - whole.low
        above = max(whole.high - gap[1], room / 8)
        return replace(whole, gap=(gap[0], whole.high - above))

    def __call__(self, value: float) -> float:
        """Return where a value is drawn, to a hundredth."""
        value = min(max(value, self.low), self.high)
        return round(self.start + self._part(value) * (self.end - self.start), 2)

    def _part(self, value: float) -> float:
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        if self.gap is None:
            return (value - self.low) / (self.high - self.low)
        below, above = self.gap
        room, more = below - self.low, self.high - above
        lower = (1 - _BREAK) * max(_LOWER, room / (room + more))
        if value <= below:
            return lower * (value - self.low) / room
        upper = 1 - _BREAK - lower
        return lower + _BREAK + upper * max(value - above, 0.0) / more

    def ticks(self, n: int) -> list[float]:
        """Return about n round numbers in the span; powers of ten where it is logarithmic."""
        if self.log:
            return _powers(self.low, self.high)
        if self.gap is None:
            return _round_numbers(self.low, self.high, n)
        lower = _round_numbers(self.low, self.gap[0], n - 1)
        return lower + _round_numbers(self.gap[1], self.high, 3)


def _gap(spans: Sequence[tuple[float, float]], most: float) -> tuple[float, float] | None:
    """Return the widest stretch without rows, if the others are crowded and it is wide enough."""
    middles = sorted((low + high) / 2 for low, high in spans)
    if len(spans) < 3 or middles[len(spans) // 2] > _CROWDED * most:
        return None
    found, reached = (0.0, 0.0), 0.0
    for low, high in sorted(spans):
        if low - reached > found[1] - found[0]:
            found = (reached, low)
        reached = max(reached, high)
    return found if found[0] > 0 and found[1] - found[0] >= _EMPTY * most else None


def _round_numbers(low: float, high: float, n: int) -> list[float]:
    rough = (high - low) / n
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in _NICE if size * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _powers(low: float, high: float) -> list[float]:
    """Return powers of ten, with 2 and 5 times as much if these are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 2 else (1,)
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return [tick for tick in ticks if low <= tick * (1 + 1e-9) and tick <= high * (1 + 1e-9)]
