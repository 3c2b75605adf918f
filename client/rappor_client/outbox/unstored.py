"""Prepared reports that wait in memory, because another process holds the database's lock.

They are stored with the next report, flush or step of the sender, and lost when the process ends
before. What waits here holds no value, only what was prepared of it.
"""

from __future__ import annotations

import collections
import os
from dataclasses import dataclass, field
from typing import Final

from rappor.protocol.randomizer import Secret
from rappor.registry.metric import Metric
from rappor_client.budget.prepared import Prepared

_MOST: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """What was prepared of a value under a secret at a moment, and whether the value fitted.

    `answers` are a report for each metric that is answered together, what programs record first.
    """

    secret: Secret
    answers: tuple[tuple[Metric, Prepared], ...] = field(repr=False)
    now: float
    fits: bool

    @property
    def asked(self) -> Metric:
        """The metric that was recorded."""
        return self.answers[0][0]


class Unstored:
    """At most a hundred reports; the oldest go first, and `n_dropped` counts them."""

    def __init__(self) -> None:
        """Begin without any."""
        self.n_dropped = 0
        self._waiting = collections.deque[Late]()
        self._process = os.getpid()

    def __bool__(self) -> bool:
        """Return whether a report waits here, or was dropped and is not counted yet."""
        self._leave_to_the_parent()
        return bool(self._waiting or self.n_dropped)

    def add(self, late: Late) -> None:
        """Keep one more."""
        self._leave_to_the_parent()
        self._waiting.append(late)
        if len(self._waiting) > _MOST:
            self._waiting.popleft()
            self.n_dropped += 1

    def take(self) -> list[Late]:
        """Take out all that wait, the oldest first."""
        taken = []
        while self:
            try:
                taken.append(self._waiting.popleft())
            except IndexError:
                break
        return taken

    def put_back(self, taken: list[Late]) -> None:
        """Let what was taken wait on, before all others."""
        self._waiting.extendleft(reversed(taken))

    def clear(self) -> None:
        """Forget all of it."""
        self._waiting.clear()
        self.n_dropped = 0

    def _leave_to_the_parent(self) -> None:
        """Forget, in a process that was forked, what its parent will store."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self.clear()
