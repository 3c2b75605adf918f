"""Plan the encodings that answer for every bit: categories, buckets, yes or no.

Theory of operation
-------------------
Each bit is one answer, so there is nothing to distinguish and nothing to collide. An answer of
share b has the mean mu = p* + (q* - p*) b and, with R reports a device, the error

    error^2 = (mu (1 - mu) + (R - 1) (mu - p) (q - mu)) / (N (q* - p*)^2)

(`rappor.estimator.proportion_tests`). Exact tests of few reports are a little more cautious than
this.

Two categories differ in two bits, one that rises and one that falls, as two strings of one hash do.
So the noise is found as theirs, for an answer of the mean share 1/k. Yes and no differ in one bit,
which either direction may betray; there p* = 1 - q* = 1 / (1 + e^epsilon) is best, for rare and for
even answers, and so it is for the permanent response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rappor.base.errors import ParamsError
from rappor.counts.arrays import Floats
from rappor.planning.noise import Budget, best_high, optimum, settle
from rappor.protocol.encodings import encoding_named, encoding_of
from rappor.protocol.params import Noise, Params

_MOST: Final = 40.0
"""Nats beyond which the noise of one bit ends at what the coins can do."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnswerNoise:
    """Reports to come, of devices that give these answers; `own` is (s,) float64."""

    params: Params
    n_reports: int
    repeated: float

    def errors(self, own: Floats) -> Floats:
        """Return the standard errors of answers with these shares."""
        return np.asarray(np.sqrt(self._one(own) / self.n_reports) / self._gap)

    def parts(self, own: Floats) -> dict[str, float]:
        """Split the variance of an answer of one share, (1,), by cause; the parts sum to one."""
        sampled = self.repeated * self._gap**2 * own * (1 - own) / self._one(own)
        return {"coins": 1 - float(sampled[0]), "sampling": float(sampled[0])}

    @property
    def _gap(self) -> float:
        return self.params.q_star - self.params.p_star

    def _one(self, own: Floats) -> Floats:
        """Return the variance of the mean of one report, times the number of reports."""
        params = self.params
        mean = params.p_star + self._gap * own
        between = (mean - params.p) * (params.q - mean)
        return np.asarray(mean * (1 - mean) + (self.repeated - 1) * between)


def choose_answer_noise(
    budget: Budget, encoding: str, categories: Sequence[str], *, symmetric: bool = False
) -> Params:
    """Return the parameters of least variance that lose at most a budget.

    `symmetric` asks for q = 1 - p.

    Raises ParamsError if the encoding is unknown or hashes its values, or the categories are none
    of it.
    """
    k = encoding_named(encoding).implied_bits(categories)
    if k is None:
        raise ParamsError(f"encoding must answer for every bit, got {encoding}")

    def shaped(noise: Noise) -> Params:
        return Params(encoding=encoding, k=k, categories=tuple(categories), **noise)

    exchanged, bits = _difference(shaped({"f": 0.5, "g": 0.5, "p": 0.25, "q": 0.75}))
    bits /= 2  # in each direction
    level = 1 / k if exchanged and not symmetric else 0.5
    losses = (min(each / bits, _MOST) for each in (budget.epsilon_1, budget.epsilon_inf))
    q_star, b = (best_high(epsilon, level) for epsilon in losses)
    return settle(shaped, budget, (q_star, b), bits=bits)


def best_known(params: Params, epsilon_1: float) -> float:
    """Return the least known variance of a rare answer, times the number of reports.

    For strings, categories and buckets it is the one of large domains [WBLJ17], for yes or no the
    one of randomized response.
    """
    exchanged, _ = _difference(params)
    return optimum(epsilon_1) if exchanged else optimum(epsilon_1) / 4


def _difference(params: Params) -> tuple[bool, float]:
    """Return whether two values differ in a bit each way, and in how many bits at most."""
    worst = encoding_of(params).worst_difference
    return worst(1.0, 1.0) > worst(1.0, 0.0), worst(1.0, 1.0)
