"""How much the share of each answer changed, where every bit is an answer.

Theory of operation
-------------------
Each sample alone has an exact interval [l, u] of a share (`rappor.decoding.proportions`). The
interval of the difference of two shares a and b is made of both by adding squares (Newcombe,
Statistics in Medicine 1998, method 10, with exact intervals in place of Wilson's; Zou and Donner,
Statistics in Medicine 2008, for the correlation r of the two estimates):

    low  = b - a - sqrt((b - l_b)^2 - 2 r (b - l_b) (u_a - a) + (u_a - a)^2)
    high = b - a + sqrt((u_b - b)^2 - 2 r (u_b - b) (a - l_a) + (a - l_a)^2)

The p-value is the probability of missing at which the interval begins to hold 0. So test and
interval never contradict each other, and few reports make them wide, not wrong.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from rappor.decoding.closed_form import Answers, read_answers
from rappor.decoding.comparison.changes import Changes
from rappor.decoding.comparison.differences import Sample
from rappor.decoding.debias import Target, debias

_FAR: Final = 37.0
"""Largest z score of a p-value: beyond, its probability is near the least number."""

_HALVINGS: Final = 20
"""Halvings of the z score of a p-value: to 4e-5, so to a relative 2e-3 of the least p-value."""


class Joined:
    """The answers of two samples, and intervals of their differences."""

    def __init__(self, before: Sample, after: Sample, *, overlap: float) -> None:
        """Read both; DecodeError if they do not have the same answers."""
        both = debias(before.counts + after.counts, before.repetitions + after.repetitions)
        read_answers(both, before.counts[0].params)
        targets = [debias(sample.counts, sample.repetitions) for sample in (before, after)]
        self.a, self.b = (read_answers(each, each.counts[0].params) for each in targets)
        self.shared = _correlation(targets, (self.a, self.b), overlap)
        self.difference = self.b.estimate - self.a.estimate

    @property
    def std_error(self) -> NDArray[np.float64]:
        """The standard error of each difference, (k,)."""
        a, b = self.a.std_error, self.b.std_error
        return np.asarray(np.sqrt(np.maximum(a**2 + b**2 - 2 * self.shared * a * b, 0.0)))

    def interval(
        self, error: float | NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the ends, (k,) each, of intervals that miss with this probability."""
        a, b = self.a, self.b
        low_a, high_a = a.proportions.interval(error)
        low_b, high_b = b.proportions.interval(error)
        down = _joined(b.estimate - low_b, high_a - a.estimate, self.shared)
        up = _joined(high_b - b.estimate, a.estimate - low_a, self.shared)
        return self.difference - down, self.difference + up


def answer_changes(before: Sample, after: Sample, *, overlap: float) -> Changes:
    """Estimate the change of every answer; DecodeError if they do not have the same answers."""
    joined = Joined(before, after, overlap=overlap)
    # The z score whose interval ends at 0.
    low, high = np.zeros(len(joined.difference)), np.full(len(joined.difference), _FAR)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        ends = joined.interval(2 * special.ndtr(-middle))
        inside = (ends[0] <= 0) & (ends[1] >= 0)
        low, high = np.where(inside, low, middle), np.where(inside, middle, high)
    return Changes(
        difference=joined.difference,
        std_error=joined.std_error,
        p_value=2 * special.ndtr(-low),
        interval=joined.interval,
        ties=[],
        how="answers",
    )


def _joined(
    first: NDArray[np.float64], second: NDArray[np.float64], shared: NDArray[np.float64]
) -> NDArray[np.float64]:
    return np.asarray(np.sqrt(np.maximum(first**2 - 2 * shared * first * second + second**2, 0.0)))


def _correlation(
    targets: list[Target], answers: tuple[Answers, Answers], overlap: float
) -> NDArray[np.float64]:
    """Return the correlation, (k,), of the estimates of samples whose devices overlap.

    Of samples of several parameter sets it is taken for 0, which makes intervals too wide.
    """
    if overlap == 0 or any(len(target.counts) > 1 for target in targets):
        return np.zeros(len(answers[0].estimate))
    of_devices = [
        np.maximum(target.devices_noise(each.estimate), 0.0)
        for target, each in zip(targets, answers, strict=True)
    ]
    product = answers[0].std_error * answers[1].std_error
    shared = overlap * np.sqrt(of_devices[0] * of_devices[1])
    return np.asarray(np.divide(shared, product, out=np.zeros_like(product), where=product > 0))
