"""Who adds the noise: one yes-or-no question under one epsilon and three kinds of trust.

How many of n devices have a property?

- Nobody is trusted: each device answers at random by its own coins (a survey, symmetric
  randomized response, or RAPPOR, which alone bounds the loss of many answers). CountNoise grows as
  sqrt n.
- A shuffler is trusted to mix the answers and drop who sent them. Each device may then answer
  with less noise, by as much as the batch hides it; the bound fails with probability delta.
- A curator is trusted with the truth and adds noise to the sum once. It is constant in n.
  Gaussian noise keeps its bound with probability 1 - delta.

Errors are those of the noise alone, for the n devices that were asked: a sample of a larger
population adds share (1 - share) / n to the variance of the share. One person who answers
otherwise changes the true count by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from rappor.base.ranges import read_count
from rappor.privacy.shuffling import find_local_epsilon
from rappor.protocol.loss import epsilon_n
from rappor.protocol.params import ONE, Params
from rappor.trust.noise_distributions import (
    CountNoise,
    GaussianNoise,
    GeometricNoise,
    LaplaceNoise,
    LocalNoise,
)
from rappor.trust.survey import MOST_LOCAL, CoinSurvey, check_epsilon

_MOST_DEVICES: Final = 2**53
"""Most devices that are counted without rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustModel:
    """One way to answer the question: who is trusted, what is lost and which noise is added.

    All losses are in nats. `epsilon` is the loss of one answer to everybody who sees what is
    published (it holds with probability 1 - `delta`), `epsilon_of_collector` the loss to who
    receives the answer, and `epsilon_10` the loss of ten answers of a device.
    """

    name: str
    trusted: str
    epsilon: float
    delta: float = 0.0
    epsilon_of_collector: float
    epsilon_10: float
    noise: CountNoise


def trust_models(
    epsilon: float, n: int, *, delta: float = 1e-9, beta: float = 0.25
) -> list[TrustModel]:
    """Return the models of trust, each with the noise that keeps an answer's loss to epsilon.

    `delta` is for the shuffled batch and for Gaussian noise, `beta` for the survey that is not
    symmetric.

    Raises ParamsError for numbers outside their range.
    """
    check_epsilon(epsilon)
    n = read_count("n", n, 1, _MOST_DEVICES)
    batch = CoinSurvey.at(min(find_local_epsilon(epsilon, n, delta=delta), MOST_LOCAL))
    return [
        _survey(f"survey by coins, beta = {beta:g}", CoinSurvey.at(epsilon, beta)),
        _survey("symmetric randomized response", CoinSurvey.at(epsilon)),
        _rappor(choose_bit_params(epsilon)),
        TrustModel(
            name="shuffled batch",
            trusted="the shuffler",
            epsilon=epsilon,
            delta=delta,
            epsilon_of_collector=batch.epsilon,
            epsilon_10=10 * epsilon,
            noise=LocalNoise(batch.p, batch.q),
        ),
        _central("Laplace", epsilon, LaplaceNoise.at(epsilon)),
        _central("two-sided geometric", epsilon, GeometricNoise.at(epsilon)),
        _central("Gaussian", epsilon, GaussianNoise.at(epsilon, delta), delta=delta),
    ]


def choose_bit_params(epsilon: float) -> Params:
    """Return RAPPOR of one bit, symmetric: epsilon_1 is epsilon, epsilon_inf twice that.

    p* = 1 / (e^eps + 1) as in symmetric randomized response, a = f/2 = 1 / (e^(2 eps) + 1),
    and p follows from p* = (1 - a) p + a (1 - p); both are rounded to less loss.
    """
    check_epsilon(epsilon)
    a, p_star = 1 / (math.exp(2 * epsilon) + 1), 1 / (math.exp(epsilon) + 1)
    p = math.ceil((p_star - a) / (1 - 2 * a) * ONE) / ONE
    a = math.ceil(a * ONE) / ONE
    return Params(k=1, encoding="boolean", f=2 * a, p=p, q=1 - p)


def _survey(name: str, survey: CoinSurvey) -> TrustModel:
    return TrustModel(
        name=name,
        trusted="nobody",
        epsilon=survey.epsilon,
        epsilon_of_collector=survey.epsilon,
        epsilon_10=10 * survey.epsilon,
        noise=LocalNoise(survey.p, survey.q),
    )


def _rappor(params: Params) -> TrustModel:
    epsilon = epsilon_n(params, 1)
    return TrustModel(
        name="RAPPOR",
        trusted="nobody",
        epsilon=epsilon,
        epsilon_of_collector=epsilon,
        epsilon_10=epsilon_n(params, 10),
        noise=LocalNoise(params.p_star, params.q_star),
    )


def _central(name: str, epsilon: float, noise: CountNoise, *, delta: float = 0) -> TrustModel:
    return TrustModel(
        name=name,
        trusted="the curator",
        epsilon=epsilon,
        delta=delta,
        epsilon_of_collector=math.inf,
        epsilon_10=10 * epsilon,
        noise=noise,
    )
