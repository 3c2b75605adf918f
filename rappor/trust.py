"""Who adds the noise: one yes-or-no question under one epsilon and four kinds of trust.

How many of n devices have a property?

- Nobody is trusted: each device answers at random by its own coins (a survey, symmetric
  randomized response, or RAPPOR, which alone bounds what many answers lose). Noise grows as
  sqrt n.
- A shuffler is trusted to mix the answers and drop who sent them. Each device may then answer
  with less noise, by as much as the batch hides it; a chance of delta is left open.
- A curator is trusted with the truth and adds noise to the sum once. It is constant in n.

Errors are those of the noise alone, for the n devices that were asked: a sample of a larger
population adds share (1 - share) / n to the variance of the share. One person who answers
otherwise changes the true count by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Self

from rappor.errors import ParamsError
from rappor.params import ONE, Params, threshold
from rappor.privacy import epsilon_n
from rappor.randomize import Coins
from rappor.shuffling import local_for

MOST_EPSILON: Final = 10.0
"""Beyond it the 32-bit coins of a permanent response are too coarse, and nothing is protected."""

_MOST_LOCAL: Final = 20.0
"""Most that an answer in a shuffled batch may lose: the limit of 32-bit coins."""

_MOST_DEVICES: Final = 2**53
"""Most devices that are counted without rounding."""


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
        check_epsilon(epsilon, most=_MOST_LOCAL)
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

    def answer(self, truth: bool, coins: Coins) -> bool:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """Devices that add the noise, each to its own answer: yes with chance p or q.

    `epsilon` (but for a chance of `delta`) is lost to who sees what is published, `collector`
    to who receives the answers, and `ten` by ten answers of a device.
    """

    name: str
    trusted: str
    p: float
    q: float
    epsilon: float
    delta: float
    collector: float
    ten: float

    def std_error(self, n_held: int, n: int) -> float:
        """Return the standard deviation of the estimated count, in devices."""
        noise = n_held * self.q * (1 - self.q) + (n - n_held) * self.p * (1 - self.p)
        return math.sqrt(noise) / (self.q - self.p)


@dataclass(frozen=True, slots=True, kw_only=True)
class Central:
    """A curator who knows the truth and adds `noise`, laplace or geometric, to the count."""

    name: str
    trusted: str
    noise: str
    epsilon: float
    delta: float = 0.0
    collector: float = math.inf

    @property
    def ten(self) -> float:
        """The loss by ten answers: they add."""
        return 10 * self.epsilon

    def std_error(self, n_held: int, n: int) -> float:  # noqa: ARG002  # the same for all counts
        """Return the standard deviation of the published count, in devices."""
        return (laplace_error if self.noise == "laplace" else geometric_error)(self.epsilon)


Model = Local | Central


def models(epsilon: float, n: int, *, delta: float = 1e-9, beta: float = 0.25) -> list[Model]:
    """Return the models of trust, each with what it must know to lose epsilon with n devices.

    `delta` is for the shuffled batch, `beta` for the survey that is not symmetric.
    """
    check_epsilon(epsilon)
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= _MOST_DEVICES:
        raise ParamsError(f"n must be an integer in [1, 2^53], got {n!r}")
    batch = CoinSurvey.at(min(local_for(epsilon, n, delta=delta), _MOST_LOCAL))
    return [
        _survey(f"survey by coins, beta = {beta:g}", CoinSurvey.at(epsilon, beta)),
        _survey("symmetric randomized response", CoinSurvey.at(epsilon)),
        _rappor(rappor_bit(epsilon)),
        Local(
            name="shuffled batch",
            trusted="the shuffler",
            p=batch.p,
            q=batch.q,
            epsilon=epsilon,
            delta=delta,
            collector=batch.epsilon,
            ten=10 * epsilon,
        ),
        Central(name="Laplace", trusted="the curator", noise="laplace", epsilon=epsilon),
        Central(
            name="two-sided geometric", trusted="the curator", noise="geometric", epsilon=epsilon
        ),
    ]


def rappor_bit(epsilon: float) -> Params:
    """Return RAPPOR of one bit, symmetric: epsilon by one report, twice that for ever.

    p* = 1 / (e^eps + 1) as in symmetric randomized response, a = f/2 = 1 / (e^(2 eps) + 1),
    and p follows from p* = (1 - a) p + a (1 - p); both are rounded to less loss.
    """
    check_epsilon(epsilon)
    a, p_star = 1 / (math.exp(2 * epsilon) + 1), 1 / (math.exp(epsilon) + 1)
    p = math.ceil((p_star - a) / (1 - 2 * a) * ONE) / ONE
    a = math.ceil(a * ONE) / ONE
    return Params(k=1, encoding="boolean", f=2 * a, p=p, q=1 - p)


def laplace_error(epsilon: float) -> float:
    """Return the standard deviation of Laplace noise of scale 1/epsilon [DMNS06]."""
    return math.sqrt(2) / epsilon


def geometric_error(epsilon: float) -> float:
    """Return that of two-sided geometric noise, x = e^-eps: variance 2x / (1-x)^2.

    Ghosh, Roughgarden and Sundararajan 2009.
    """
    return math.sqrt(2 * math.exp(-epsilon)) / -math.expm1(-epsilon)


def check_epsilon(epsilon: float, *, most: float = MOST_EPSILON) -> None:
    """Raise ParamsError unless epsilon is a loss that 32-bit coins can keep to."""
    if not 4 / ONE < epsilon <= most:  # a NaN is not
        raise ParamsError(f"epsilon must be a number in (2^-30, {most:g}], got {epsilon!r}")


def _survey(name: str, survey: CoinSurvey) -> Local:
    return Local(
        name=name,
        trusted="nobody",
        p=survey.p,
        q=survey.q,
        epsilon=survey.epsilon,
        delta=0.0,
        collector=survey.epsilon,
        ten=10 * survey.epsilon,
    )


def _rappor(params: Params) -> Local:
    one = epsilon_n(params, 1)
    return Local(
        name="RAPPOR",
        trusted="nobody",
        p=params.p_star,
        q=params.q_star,
        epsilon=one,
        delta=0.0,
        collector=one,
        ten=epsilon_n(params, 10),
    )
