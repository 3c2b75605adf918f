"""How much the share of each answer changed, where every bit is an answer.

Theory of operation
-------------------
Each sample alone has an exact interval [l, u] of a share (`rappor.estimator.proportion_tests`). The
interval of a weighted sum of shares adds the squares of their distances from the estimates
(Newcombe, Statistics in Medicine 1998, method 10, with exact intervals in place of Wilson's; Zou
and Donner, Statistics in Medicine 2008, for any weights and correlated estimates). At the lower
end of the sum a share of positive weight is at its lower end, one of negative weight at its upper.
Of each squared distance the devices' part of the variance is what samples can have in common. An
end of the interval is a change, and devices made it: their part of the variance is added, and is 0
at 0 (`rappor.comparison.shared_devices`). If no overlap is given, the most is assumed, which has
it. Where a metric is complete, shares and intervals are those that sum to one.

The p-value is the probability of missing at which the interval begins to hold 0. So test and
interval never contradict each other, and few reports make them wide, not wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import special

from rappor.comparison.change_regression import Changes
from rappor.comparison.shared_devices import (
    ChangeVariance,
    changed_sampling,
    devices_variance,
    least_changed,
)
from rappor.counts.arrays import Floats
from rappor.decoding.closed_form import Answers, CompleteAnswers, read_answers
from rappor.estimator.debias import debias
from rappor.estimator.device_assumptions import AddedCollections
from rappor.estimator.fit import LEAST_NOISE

_FAR: Final = 37.0
"""Largest z score of a p-value: beyond, its probability is near the least number."""

_HALVINGS: Final = 20
"""Halvings of the z score of a p-value: to 4e-5, so to a relative 2e-3 of the least p-value."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Sample:
    """The k answers of one sample, and what its devices bring.

    Attributes
    ----------
    of_devices : (k,) float64. Part of each variance that is of the devices.
    per_device : (k,) float64. 1 over the effective number of devices.
    permanent : (2, k) float64. Variance of the permanent response of one device to a 0 and to a 1,
        in units of a share.
    """

    answers: Answers | CompleteAnswers
    of_devices: Floats
    per_device: Floats
    permanent: Floats


class Joined:
    """The answers of several samples, and intervals of their weighted sum."""

    def __init__(
        self,
        samples: Sequence[AddedCollections],
        weights: Floats,
        overlap: float | None,
        *,
        complete: bool,
    ) -> None:
        """Read all; DecodeError if they do not have the same answers."""
        counts = [each for sample in samples for each in sample.counts]
        known = [each for sample in samples for each in sample.repetitions]
        read_answers(debias(counts, known), counts[0].params)
        found = [_read(sample, complete=complete) for sample in samples]
        self.answers = [sample.answers for sample in found]
        self.of_devices = np.array([sample.of_devices for sample in found])
        self.weights, self.overlap = weights[:, None], overlap
        self.estimate = np.asarray(
            weights @ np.array([answers.estimate for answers in self.answers])
        )
        self._unchanged = self._joined(np.array([each.std_error for each in self.answers]))
        nothing = np.zeros(len(self.estimate))
        self.changed, self._others = ChangeVariance(nothing, nothing), nothing
        if overlap:
            self._add_changed(found, overlap)

    def _add_changed(self, samples: Sequence[_Sample], overlap: float) -> None:
        """Add the variance of devices whose value changed."""
        noise = np.maximum([each.std_error**2 for each in self.answers], LEAST_NOISE)
        slope = self.weights * noise / (self.weights**2 * noise).sum(axis=0)
        per_device = np.array([sample.per_device for sample in samples])
        weights = np.broadcast_to(self.weights, per_device.shape)
        linear, square = (overlap * each for each in changed_sampling(weights, per_device, slope))
        zero, one = np.mean([sample.permanent for sample in samples], axis=0)
        self.changed = ChangeVariance(linear * (1 + zero + one), square)
        z = np.abs(self.estimate) / np.maximum(self._unchanged, 1e-300)
        self._others = 2 * zero * linear * least_changed(self.estimate, 2 * special.ndtr(-z))

    @property
    def std_error(self) -> Floats:
        """The standard error of each sum, (k,), at a change as large as the estimate."""
        return np.sqrt(self._unchanged**2 + self._others + self.changed.at(self.estimate))

    @property
    def p_value(self) -> Floats:
        """The probability of missing, (k,), at which each interval ends at 0."""
        low, high = np.zeros(len(self.estimate)), np.full(len(self.estimate), _FAR)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            ends = self.interval(2 * special.ndtr(-middle))
            inside = (ends[0] <= 0) & (ends[1] >= 0)
            low, high = np.where(inside, low, middle), np.where(inside, middle, high)
        return np.asarray(2 * special.ndtr(-low))

    def interval(self, error: float | Floats) -> tuple[Floats, ...]:
        """Return the ends, (k,) each, of intervals that miss with this probability."""
        ends = np.array([each.interval(error) for each in self.answers])
        alone = np.array([each.estimate for each in self.answers])
        below, above = alone - ends[:, 0], ends[:, 1] - alone
        rises = self.weights > 0
        down = self._joined(np.where(rises, below, above))
        up = self._joined(np.where(rises, above, below))
        others = special.ndtri(np.asarray(error) / 2) ** 2 * self._others
        down, up = (np.sqrt(each**2 + others) for each in (down, up))
        return self.changed.interval(self.estimate, down, up, error)

    def _joined(self, distances: Floats) -> Floats:
        """Return the root of the squares of weighted distances, (t, k), added up."""
        parts = self.weights * distances
        alone = (parts**2 * (1 - self.of_devices)).sum(axis=0)
        shared = devices_variance(parts * np.sqrt(self.of_devices), self.overlap)
        return np.asarray(np.sqrt(np.maximum(alone + shared, 0.0)))


def answer_changes(
    samples: Sequence[AddedCollections], weights: Floats, overlap: float | None, *, complete: bool
) -> Changes:
    """Estimate the change of every answer; DecodeError if they do not have the same answers."""
    joined = Joined(samples, weights, overlap, complete=complete)
    return Changes(
        estimate=joined.estimate,
        std_error=joined.std_error,
        p_value=joined.p_value,
        interval=joined.interval,
        how="answers",
    )


def _read(sample: AddedCollections, *, complete: bool) -> _Sample:
    """Return the answers of a sample, and what its devices bring."""
    target = debias(sample.counts, sample.repetitions)
    answers = read_answers(target, sample.counts[0].params)
    shape = (len(sample.counts), len(answers.estimate))

    def devices_noise(theta: Floats) -> Floats:
        devices = target.devices_noise(np.tile(theta, shape[0])).reshape(shape)
        return np.asarray((answers.weight**2 * np.maximum(devices, 0.0)).sum(axis=0))

    variance = devices_noise(answers.estimate)
    devices = (target.reports / target.repeated).reshape(shape)
    per_device = (answers.weight**2 / np.maximum(devices, LEAST_NOISE)).sum(axis=0)
    ends = (np.zeros(shape[1]), np.ones(shape[1]))
    permanent = np.array([devices_noise(end) for end in ends]) / per_device
    if complete:
        every = np.arange(len(variance))
        together = answers.covariance(every)
        alone = answers.std_error
        together[every, every] = variance
        answers = CompleteAnswers.of(answers)
        moved = np.eye(len(every)) - answers.common[:, None] / answers.common.sum()
        variance = ((moved @ together) * moved).sum(axis=1)
        # Shares that sum to one have a part of the noise of each; the values themselves stay.
        permanent *= (answers.std_error / np.maximum(alone, 1e-300)) ** 2
    return _Sample(
        answers=answers,
        of_devices=np.clip(variance / np.maximum(answers.std_error, 1e-300) ** 2, 0.0, 1.0),
        per_device=per_device,
        permanent=permanent,
    )
