"""How much the share of each answer changed, where every bit is an answer.

Theory of operation
-------------------
Each sample alone has an exact interval [l, u] of a share (`rappor.decoding.proportions`). The
interval of a weighted sum of shares adds the squares of their distances from the estimates
(Newcombe, Statistics in Medicine 1998, method 10, with exact intervals in place of Wilson's; Zou
and Donner, Statistics in Medicine 2008, for any weights and correlated estimates). At the lower
end of the sum a share of positive weight is at its lower end, one of negative weight at its upper.
Of each squared distance the devices' part of the variance is what samples can have in common
(`rappor.panels.shared_devices`).
Where a metric is complete, shares and intervals are those that sum to one.

The p-value is the probability of missing at which the interval begins to hold 0. So test and
interval never contradict each other, and few reports make them wide, not wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy import special

from rappor.counts.arrays import Floats
from rappor.decoding.closed_form import Answers, CompleteAnswers, read_answers
from rappor.decoding.debias import debias
from rappor.decoding.devices import Merged
from rappor.panels.regression import Changes
from rappor.panels.shared_devices import devices_variance

_FAR: Final = 37.0
"""Largest z score of a p-value: beyond, its probability is near the least number."""

_HALVINGS: Final = 20
"""Halvings of the z score of a p-value: to 4e-5, so to a relative 2e-3 of the least p-value."""


class Joined:
    """The answers of several samples, and intervals of their weighted sum."""

    def __init__(
        self, samples: Sequence[Merged], weights: Floats, overlap: float | None, *, complete: bool
    ) -> None:
        """Read all; DecodeError if they do not have the same answers."""
        counts = [each for sample in samples for each in sample.counts]
        known = [each for sample in samples for each in sample.repetitions]
        read_answers(debias(counts, known), counts[0].params)
        found = [_read(sample, complete=complete) for sample in samples]
        self.answers = [answers for answers, _ in found]
        self.of_devices = np.array([part for _, part in found])
        self.weights, self.overlap = weights[:, None], overlap
        self.estimate = np.asarray(
            weights @ np.array([answers.estimate for answers in self.answers])
        )

    @property
    def std_error(self) -> Floats:
        """The standard error of each sum, (k,)."""
        return self._joined(np.array([each.std_error for each in self.answers]))

    def interval(self, error: float | Floats) -> tuple[Floats, ...]:
        """Return the ends, (k,) each, of intervals that miss with this probability."""
        ends = np.array([each.interval(error) for each in self.answers])
        alone = np.array([each.estimate for each in self.answers])
        below, above = alone - ends[:, 0], ends[:, 1] - alone
        rises = self.weights > 0
        down = self._joined(np.where(rises, below, above))
        up = self._joined(np.where(rises, above, below))
        return self.estimate - down, self.estimate + up

    def _joined(self, distances: Floats) -> Floats:
        """Return the root of the squares of weighted distances, (t, k), added up."""
        parts = self.weights * distances
        alone = (parts**2 * (1 - self.of_devices)).sum(axis=0)
        shared = devices_variance(parts * np.sqrt(self.of_devices), self.overlap)
        return np.asarray(np.sqrt(np.maximum(alone + shared, 0.0)))


def answer_changes(
    samples: Sequence[Merged], weights: Floats, overlap: float | None, *, complete: bool
) -> Changes:
    """Estimate the change of every answer; DecodeError if they do not have the same answers."""
    joined = Joined(samples, weights, overlap, complete=complete)
    # The z score whose interval ends at 0.
    low, high = np.zeros(len(joined.estimate)), np.full(len(joined.estimate), _FAR)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        ends = joined.interval(2 * special.ndtr(-middle))
        inside = (ends[0] <= 0) & (ends[1] >= 0)
        low, high = np.where(inside, low, middle), np.where(inside, middle, high)
    return Changes(
        estimate=joined.estimate,
        std_error=joined.std_error,
        p_value=2 * special.ndtr(-low),
        interval=joined.interval,
        how="answers",
    )


def _read(sample: Merged, *, complete: bool) -> tuple[Answers, Floats]:
    """Return the answers of a sample, and the part of each variance, (k,), that is of devices."""
    target = debias(sample.counts, sample.repetitions)
    answers = read_answers(target, sample.counts[0].params)
    shape = (len(sample.counts), len(answers.estimate))
    devices = target.devices_noise(np.tile(answers.estimate, shape[0])).reshape(shape)
    variance = (answers.weight**2 * np.maximum(devices, 0.0)).sum(axis=0)
    if complete:
        every = np.arange(len(variance))
        together = answers.covariance(every)
        together[every, every] = variance
        answers = CompleteAnswers.of(answers)
        moved = np.eye(len(every)) - answers.common[:, None] / answers.common.sum()
        variance = ((moved @ together) * moved).sum(axis=1)
    return answers, np.clip(variance / np.maximum(answers.std_error, 1e-300) ** 2, 0.0, 1.0)
