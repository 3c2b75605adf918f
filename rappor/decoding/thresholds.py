"""The p-values up to which candidates are detected."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rappor.decoding.detection import Detection
from rappor.decoding.p_values import EDGES, PValues
from rappor.decoding.significance import Steps
from rappor.ground.errors import DecodeError


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What a detection asks of these p-values."""

    detection: Detection
    p_values: PValues

    @property
    def largest(self) -> float:
        """The largest p-value that is detected, 0 for none.

        Raises DecodeError where a candidate that is known by the histogram only might be detected.
        """
        steps = self._steps()
        found = steps.threshold(self.p_values.rows)
        if self.p_values.others is not None and _may_pass(self.p_values, steps, found):
            raise DecodeError(
                f"more than the {len(self.p_values.rows):,} best candidates of the stream may be "
                "detected: use fewer candidates as a list, or a lower level"
            )
        return found

    @property
    def own(self) -> float:
        """The p-value up to which a detected candidate stays so if all others stay."""
        return float(self._steps().at(max(self._n_detected(), 1)))

    @property
    def next(self) -> float:
        """The p-value that one candidate more would need to be detected."""
        return float(self._steps().at(min(self._n_detected() + 1, self.p_values.n)))

    def _n_detected(self) -> int:
        return int((self.p_values.rows <= self.largest).sum())

    def _steps(self) -> Steps:
        return Steps.of(
            self.detection, n_candidates=self.p_values.n, n_within=self.p_values.n_within
        )


def _may_pass(p_values: PValues, steps: Steps, found: float) -> bool:
    """Return whether the histogram allows a p-value from the others' least on to be detected."""
    counts = p_values.counts
    least, high = np.maximum(EDGES[:-1], p_values.least), EDGES[1:]
    # The rank of a p-value is at most the number of those up to the end of its bin.
    most = np.maximum(steps.at(np.cumsum(counts)), found)
    return bool(np.any((counts > 0) & (least <= high) & (least <= most)))
