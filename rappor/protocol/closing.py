"""Closing: which bit pattern of a scope each report is drawn from.

A scope answers for a number of patterns, one unless the metric says more. Where there is one,
every report repeats it, and no later value is looked at. With more, the first value whose pattern
is not admitted closes the scope: from then on every report, whatever its value, is drawn from the
permanent response of the last report. Silence would tell that a new value came, and drawing among
the admitted ones would tell it again and again.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

Pattern = TypeVar("Pattern")
"""What names a bit pattern: the bits themselves, or a keyed hash of them."""


class Answered(NamedTuple, Generic[Pattern]):
    """What a scope has answered for: its patterns, that of the last report, whether it closed.

    `last` is what the next report is drawn from; it is None before the first.
    """

    admitted: tuple[Pattern, ...] = ()
    last: Pattern | None = None
    closed: bool = False

    def with_value(self, pattern: Pattern, *, patterns: int) -> Answered[Pattern]:
        """Return the state after a value of this pattern; `last` is what its report shows."""
        n_admitted = len(self.admitted)
        if self.closed or n_admitted > patterns:  # patterns were more before
            return self._replace(closed=True)
        if pattern in self.admitted:
            return self._replace(last=pattern)
        if n_admitted < patterns:
            return self._replace(admitted=(*self.admitted, pattern), last=pattern)
        return self._replace(closed=patterns > 1)
