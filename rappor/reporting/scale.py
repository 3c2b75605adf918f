"""A linear scale: where a number is drawn, and which numbers are written beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_NICE = (1, 2, 5, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Maps [low, high] to [start, end], which may fall."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], *, start: float, end: float) -> Scale:
        """Return the scale of the span of these values; of one value, a span around it."""
        low, high = min(values, default=0.0), max(values, default=1.0)
        if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
            margin = abs(low) / 2 or 0.5
            low, high = low - margin, high + margin
        return cls(low=low, high=high, start=start, end=end)

    def __call__(self, value: float) -> float:
        """Return where a value is drawn, to a hundredth."""
        part = (value - self.low) / (self.high - self.low)
        return round(self.start + part * (self.end - self.start), 2)

    def ticks(self, n: int) -> list[float]:
        """Return about n round numbers in the span, at least two."""
        rough = (self.high - self.low) / n
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(size * power for size in _NICE if size * power >= rough * (1 - 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]
