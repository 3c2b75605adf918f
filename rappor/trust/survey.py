"""The classic survey by coins: a yes-or-no question that each person answers by two coins."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Final, Self

from rappor.base.errors import MissingExtraError, ParamsError
from rappor.base.ranges import check_integer, check_number
from rappor.protocol.params import ONE, threshold
from rappor.protocol.randomizer import Coins

MOST_LOCAL: Final = 20.0
"""Most that an answer may lose: it is then false in 9 of 2^32 coins, too few to round finely."""

MOST_EPSILON: Final = MOST_LOCAL / 2
"""Most that a question may cost: RAPPOR's permanent response loses twice as much."""

_CERTAIN: Final = 1e-12
"""Distance of a probability from 0 and 1, and of a variance from none, that still counts."""

_HALVINGS: Final = 42

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
        """Return a two-sided interval of the share among the n asked, unclipped.

        It is Clopper and Pearson's, from the tails of a binomial count of the same mean and
        variance: of n people, those who have the property and those who have not vary less
        together than n alike would.

        Raises MissingExtraError without scipy.
        """
        check_number("confidence", confidence, "(0, 1)")
        share = self.estimate(n_yes, n)
        if self.alpha == 1:
            return share, share  # everybody told the truth
        tail = (1 - confidence) / 2
        ends = -self.p / self.alpha, (1 - self.p) / self.alpha
        low = _bisect(lambda x: self._tails(x, n_yes, n)[0] >= tail, *ends)
        high = _bisect(lambda x: self._tails(x, n_yes, n)[1] <= tail, *ends)
        return low, high

    def _tails(self, share: float, n_yes: int, n: int) -> tuple[float, float]:
        """Return the probabilities of n_yes or more, and of n_yes or fewer, at a share."""
        special = _special()
        mean = min(max(self.p + self.alpha * share, _CERTAIN), 1 - _CERTAIN)
        inside = min(max(share, 0.0), 1.0)
        level = self.p + self.alpha * inside
        binomial = max(level * (1 - level), _CERTAIN)
        factor = max(self.variance(inside, n) * n * self.alpha**2 / binomial, _CERTAIN)
        yes, no = n_yes / factor, (n - n_yes) / factor
        more = float(special.betainc(yes, no + 1, mean)) if n_yes else 1.0
        fewer = float(special.betaincc(yes + 1, no, mean)) if n_yes < n else 1.0
        return more, fewer


def _bisect(above: Callable[[float], bool], low: float, high: float) -> float:
    """Return the point from which on `above` holds, to 1e-12 of the range."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if above(middle) else (middle, high)
    return (low + high) / 2


def _special() -> ModuleType:
    try:
        return importlib.import_module("scipy.special")
    except ImportError:
        raise MissingExtraError("analysis") from None


def check_epsilon(epsilon: float, *, most: float = MOST_EPSILON) -> None:
    """Raise ParamsError unless 32-bit coins can keep a loss to epsilon."""
    if not _LEAST_STEPS / ONE < epsilon <= most:  # a NaN is not
        raise ParamsError(f"epsilon must be a number in (2^-30, {most:g}], got {epsilon!r}")
