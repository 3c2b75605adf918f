"""The classic survey by coins: a yes-or-no question that each person answers at random."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Self

from rappor.errors import ParamsError
from rappor.protocol.params import ONE, threshold
from rappor.protocol.randomizer import Coins

MOST_EPSILON: Final = 10.0
"""Beyond it the 32-bit coins of a permanent response are too coarse, and nothing is protected."""


MOST_LOCAL: Final = 20.0
"""Most that an answer in a shuffled batch may lose: the limit of 32-bit coins."""


@dataclass(frozen=True, slots=True)
class CoinSurvey:
    """A survey by coins: the truth with chance alpha, else yes with chance beta [W65].

    `alpha` and `beta` read back as the effective probabilities of 32-bit coins.
    """

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        """Check both once, and keep what the coins really do."""
        for name, value, low in (("alpha", self.alpha, "("), ("beta", self.beta, "[")):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 <= value <= 1 or (low == "(" and threshold(value) == 0):
                raise ParamsError(f"{name} must be a number in {low}0, 1], got {value!r}")
            object.__setattr__(self, name, threshold(value) / ONE)

    @classmethod
    def at(cls, epsilon: float, beta: float = 0.5) -> Self:
        """Return the survey with the least noise whose answers lose at most epsilon.

        With beta = 1/2 it is symmetric randomized response: alpha = 2 g, and an answer is the
        truth with chance 1/2 + g, g = (e^eps - 1) / (2 (e^eps + 1)) [DR14].
        """
        check_epsilon(epsilon, most=MOST_LOCAL)
        if not 0 < beta < 1:
            raise ParamsError(f"beta must be a number in (0, 1), got {beta!r}")
        rare = min(threshold(beta), ONE - threshold(beta)) / ONE  # as 32-bit coins draw it
        gain = math.expm1(epsilon) * rare
        t_alpha = math.floor(gain / (1 + gain) * ONE)  # rounded to less loss
        if t_alpha == 0:
            raise ParamsError(
                f"epsilon must be larger for 32-bit coins at beta = {beta:g}, got {epsilon!r}"
            )
        return cls(t_alpha / ONE, beta)

    @property
    def p(self) -> float:
        """Chance of a yes from who does not have the property."""
        return (1 - self.alpha) * self.beta

    @property
    def q(self) -> float:
        """Chance of a yes from who has it."""
        return self.alpha + (1 - self.alpha) * self.beta

    @property
    def epsilon(self) -> float:
        """The loss of one answer; infinite if an answer can be certain."""
        noise = (1 - self.alpha) * min(self.beta, 1 - self.beta)
        return math.log1p(self.alpha / noise) if noise else math.inf

    def answer(self, truth: bool, coins: Coins) -> bool:  # noqa: FBT001 - the value that is asked
        """Answer for one device, with two fresh coins."""
        first, second = coins(2)
        return truth if first < threshold(self.alpha) else second < threshold(self.beta)

    def estimate(self, n_yes: int, n: int) -> float:
        """Return the estimated share that has the property; unclipped."""
        if not 0 <= n_yes <= n or n < 1:
            raise ParamsError(f"n_yes must be in [0, n] and n at least 1, got {n_yes} of {n}")
        return (n_yes / n - self.p) / self.alpha

    def variance(self, share: float, n: int) -> float:
        """Return the variance of the estimated share if this share of the n asked has it."""
        noise = share * self.q * (1 - self.q) + (1 - share) * self.p * (1 - self.p)
        return noise / (n * self.alpha**2)

    def interval(self, n_yes: int, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
        """Return a two-sided interval of the share among the n asked; normal, unclipped."""
        from statistics import NormalDist  # noqa: PLC0415  # 10 ms that only this needs

        if not 0 < confidence < 1:
            raise ParamsError(f"confidence must be a number in (0, 1), got {confidence!r}")
        share = self.estimate(n_yes, n)
        reach = NormalDist().inv_cdf((1 + confidence) / 2)
        half = reach * math.sqrt(self.variance(min(max(share, 0.0), 1.0), n))
        return share - half, share + half


def check_epsilon(epsilon: float, *, most: float = MOST_EPSILON) -> None:
    """Raise ParamsError unless epsilon is a loss that 32-bit coins can keep to."""
    if not 4 / ONE < epsilon <= most:  # a NaN is not
        raise ParamsError(f"epsilon must be a number in (2^-30, {most:g}], got {epsilon!r}")
