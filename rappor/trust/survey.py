"""The classic survey by coins: a yes-or-no question that each person answers by two coins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Self

from rappor.errors import ParamsError
from rappor.protocol.params import ONE, threshold
from rappor.protocol.randomizer import Coins
from rappor.ranges import check_integer, check_number

MOST_LOCAL: Final = 20.0
"""Most that an answer may lose: it is then false in 9 of 2^32 coins, too few to round finely."""

MOST_EPSILON: Final = MOST_LOCAL / 2
"""Most that a question may cost: RAPPOR's permanent response loses twice as much."""

_LEAST_STEPS: Final = 4
"""Steps of a 32-bit coin that epsilon must exceed, so that alpha is more than a step of one."""


@dataclass(frozen=True, slots=True)
class CoinSurvey:
    """A survey by coins: the truth with probability alpha, else yes with probability beta [W65].

    `alpha` and `beta` read back as the effective probabilities of 32-bit coins.
    """

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        """Check both once, and keep what the coins really do."""
        check_number("alpha", self.alpha, "(0, 1]")
        check_number("beta", self.beta, "[0, 1]")
        if threshold(self.alpha) == 0:
            raise ParamsError(f"alpha must be at least 2^-32, a coin's step, got {self.alpha!r}")
        for name in ("alpha", "beta"):
            object.__setattr__(self, name, threshold(getattr(self, name)) / ONE)

    @classmethod
    def at(cls, epsilon: float, beta: float = 0.5) -> Self:
        """Return the survey with the least noise whose answers lose at most epsilon.

        With beta = 1/2 it is symmetric randomized response: alpha = 2 g, and an answer is the
        truth with probability 1/2 + g, g = (e^eps - 1) / (2 (e^eps + 1)) [DR14].

        Raises ParamsError for numbers outside their range, or too small for 32-bit coins.
        """
        check_epsilon(epsilon, most=MOST_LOCAL)
        check_number("beta", beta, "(0, 1)")
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
        """The probability of a yes from a person without the property."""
        return (1 - self.alpha) * self.beta

    @property
    def q(self) -> float:
        """The probability of a yes from a person with the property."""
        return self.alpha + (1 - self.alpha) * self.beta

    @property
    def epsilon(self) -> float:
        """The loss of one answer; infinite if an answer can be certain."""
        noise = (1 - self.alpha) * min(self.beta, 1 - self.beta)
        return math.log1p(self.alpha / noise) if noise else math.inf

    def answer(self, coins: Coins, *, truth: bool) -> bool:
        """Return one device's answer, by two fresh coins."""
        first, second = coins(2)
        return truth if first < threshold(self.alpha) else second < threshold(self.beta)

    def estimate(self, n_yes: int, n: int) -> float:
        """Return the estimated share that has the property; unclipped."""
        check_integer("n", n, 1)
        check_integer("n_yes", n_yes, 0, n)
        return (n_yes / n - self.p) / self.alpha

    def variance(self, share: float, n: int) -> float:
        """Return the variance of the estimated share if `share` of the n asked have it."""
        noise = share * self.q * (1 - self.q) + (1 - share) * self.p * (1 - self.p)
        return noise / (n * self.alpha**2)

    def interval(self, n_yes: int, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
        """Return a two-sided interval of the share among the n asked; normal, unclipped."""
        from statistics import NormalDist  # noqa: PLC0415  # 10 ms that only this needs

        check_number("confidence", confidence, "(0, 1)")
        share = self.estimate(n_yes, n)
        reach = NormalDist().inv_cdf((1 + confidence) / 2)
        half = reach * math.sqrt(self.variance(min(max(share, 0.0), 1.0), n))
        return share - half, share + half


def check_epsilon(epsilon: float, *, most: float = MOST_EPSILON) -> None:
    """Raise ParamsError unless 32-bit coins can keep a loss to epsilon."""
    if not _LEAST_STEPS / ONE < epsilon <= most:  # a NaN is not
        raise ParamsError(f"epsilon must be a number in (2^-30, {most:g}], got {epsilon!r}")
