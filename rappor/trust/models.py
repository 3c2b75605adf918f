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
from typing import Final

from rappor.errors import ParamsError
from rappor.privacy.shuffling import local_for
from rappor.protocol.loss import epsilon_n
from rappor.protocol.params import ONE, Params
from rappor.trust.survey import MOST_LOCAL, CoinSurvey, check_epsilon

_MOST_DEVICES: Final = 2**53
"""Most devices that are counted without rounding."""


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


def trust_models(epsilon: float, n: int, *, delta: float = 1e-9, beta: float = 0.25) -> list[Model]:
    """Return the models of trust, each with what it must know to lose epsilon with n devices.

    `delta` is for the shuffled batch, `beta` for the survey that is not symmetric.
    """
    check_epsilon(epsilon)
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= _MOST_DEVICES:
        raise ParamsError(f"n must be an integer in [1, 2^53], got {n!r}")
    batch = CoinSurvey.at(min(local_for(epsilon, n, delta=delta), MOST_LOCAL))
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
