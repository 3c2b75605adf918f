"""Error control: the p-values up to which candidates are detected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from rappor.base.errors import DecodeError
from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.estimator.error_control import ErrorControl
from rappor.estimator.p_values import EDGES, PValues

_MOST_LAMBDA: Final = 0.5
"""P-value above which candidates count as absent, where there are many: the usual choice [STS04]. A
smaller one counts more present candidates among them."""

_LEAST_ABOVE: Final = 20
"""Absent candidates that should be above lambda if all are absent: the one that is added then costs
a twentieth of the level at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The thresholds of a correction: the i-th smallest p-value is held to the i-th.

    Attributes
    ----------
    level : the error rate.
    rising : True where the i-th is i times the first (step-up), False where all are equal.
    n_absent : candidates that the level is divided by.
    largest : no threshold is above it.
    """

    level: float
    rising: bool
    n_absent: float
    largest: float = 1.0

    @classmethod
    def of(
        cls, detection: ErrorControl, *, n_candidates: int, n_within: Callable[[float], float]
    ) -> Steps:
        """Return the thresholds of a correction; `n_within` counts p-values up to a bound.

        "adaptive" estimates how many candidates are absent from the p-values above lambda, and
        counts one more. With it the false discovery rate is at most `level` in every sample of
        independent p-values ([STS04] theorem 3); without it, in large ones only.
        """
        level = detection.alpha
        if detection.method != "adaptive":
            rising = detection.method == "bh"
            return cls(level=level, rising=rising, n_absent=n_candidates)
        # Lambda depends on the number of candidates only, never on their p-values.
        largest = max(level, min(_MOST_LAMBDA, 1 - _LEAST_ABOVE / n_candidates))
        n_absent = (n_candidates - n_within(largest) + 1) / (1 - largest)
        return cls(level=level, rising=True, n_absent=n_absent, largest=largest)

    def at(self, rank: Integers | float) -> Floats:
        """Return the thresholds of these ranks, which begin with 1."""
        steps = np.multiply(self.level, rank if self.rising else 1) / self.n_absent
        return np.asarray(np.minimum(steps, self.largest))


class Thresholds:
    """What a detection asks of these p-values."""

    def __init__(self, detection: ErrorControl, p_values: PValues) -> None:
        self.detection, self.p_values = detection, p_values
        self._steps = Steps.of(detection, n_candidates=p_values.n, n_within=p_values.n_within)

    @cached_property
    def largest(self) -> float:
        """The largest p-value that is detected, 0 for none.

        Raises DecodeError where a candidate that is known by the histogram only might be detected.
        """
        found = float(self._steps.at(1))
        if self._steps.rising:
            ordered = np.sort(self.p_values.rows)
            passing = np.flatnonzero(ordered <= self._steps.at(np.arange(1, len(ordered) + 1)))
            found = float(ordered[passing[-1]]) if len(passing) else 0.0
        if self.p_values.others is not None and self._may_pass(found):
            raise DecodeError(
                f"more than the {len(self.p_values.rows):,} best candidates of the stream may be "
                "detected: use fewer candidates as a list, or a lower level"
            )
        return found

    @property
    def detected(self) -> Booleans:
        """Which of the rows are detected."""
        return self.p_values.rows <= self.largest

    @property
    def own(self) -> float:
        """The p-value up to which a detected candidate stays so if all others stay."""
        return float(self._steps.at(max(int(self.detected.sum()), 1)))

    @property
    def next(self) -> float:
        """The p-value that one candidate more would need to be detected."""
        return float(self._steps.at(min(int(self.detected.sum()) + 1, self.p_values.n)))

    def _may_pass(self, found: float) -> bool:
        """Return whether the histogram allows a p-value from the others' least on to pass."""
        counts = self.p_values.counts
        least, high = np.maximum(EDGES[:-1], self.p_values.least), EDGES[1:]
        # The rank of a p-value is at most the number of those up to the end of its bin.
        most = np.maximum(self._steps.at(np.cumsum(counts)), found)
        return bool(np.any((counts > 0) & (least <= high) & (least <= most)))
