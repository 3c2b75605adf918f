"""Models of trust: who adds the noise to the answers of one yes-or-no question.

How many of n devices have a property?

- Nobody is trusted. Each device randomizes its own answer by its own coins: a survey by coins,
  symmetric randomized response, or RAPPOR, which alone bounds the loss of many answers. The noise
  grows as sqrt(n).
- A shuffler is trusted to mix the answers and to drop their senders. Each device may then add less
  noise, because the batch hides its answer. It is (epsilon, delta)-private.
- A curator is trusted with the true answers, and adds noise to their sum once. The noise does not
  depend on n. Gaussian noise is (epsilon, delta)-private.

`trust_models` returns the mechanisms at one epsilon with their noise, and `rappor.trust.trials`
simulates them. The result is for teaching and for choosing a model.

The errors contain the noise alone, for the n devices that answered. If the devices are a sample of
a larger population, share (1 - share) / n is added to the variance of the share. The sensitivity of
the count is 1: one person with another answer changes the true count by one.

Example at epsilon = 1 and n = 100,000: symmetric randomized response has a standard error of 303
devices, the shuffled batch of 8, and the Laplace noise of a curator of 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from rappor.base.ranges import read_count
from rappor.privacy.shuffling import find_local_epsilon
from rappor.protocol.loss import epsilon_n
from rappor.protocol.params import Params
from rappor.protocol.thresholds import ONE
from rappor.trust.coin_survey import MOST_LOCAL, CoinSurvey, check_epsilon
from rappor.trust.noise_distributions import (
    CountNoise,
    GaussianNoise,
    GeometricNoise,
    LaplaceNoise,
    LocalNoise,
)

_MOST_DEVICES: Final = 2**53
"""Largest number of devices. Floats contain every integer up to this number exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustModel:
    """One way to answer the question: the trusted party, the privacy losses and the noise.

    Attributes
    ----------
    name : name of the mechanism.
    trusted : the party that must be trusted.
    epsilon : loss of one answer to observers of the published number, in nats.
    delta : delta of (epsilon, delta)-differential privacy; 0 for pure differential privacy.
    epsilon_of_collector : loss to the party that receives the answer, in nats.
    epsilon_10 : loss of ten answers of a device, in nats.
    noise : distribution of the noise.
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
    """Return seven models of trust, each with the noise that keeps one answer's loss to epsilon.

    Parameters
    ----------
    epsilon : loss of one answer in nats, in (2^-30, 10].
    n : number of devices, at least 1.
    delta : delta of the (epsilon, delta)-differential privacy of the shuffled batch and of Gaussian
        noise, in (0, 1).
    beta : probability of a random "yes", in (0, 1), in the survey that is not symmetric.

    Raises
    ------
    ParamsError
        A number is outside its range.

    Examples
    --------
    >>> models = trust_models(1.0, 100_000)
    >>> [(model.name, round(model.noise.std_error(30_000, 100_000))) for model in models[1:5]]
    [('symmetric randomized response', 303), ('RAPPOR', 303), ('shuffled batch', 8), ('Laplace', 1)]
    """
    check_epsilon(epsilon)
    # 1e5 is accepted as a number of devices.
    n = read_count("n", n, 1, _MOST_DEVICES)
    # A survey's coins have 32 bits, so a device's own loss has a bound even in a large batch.
    batch = CoinSurvey.at(min(find_local_epsilon(epsilon, n, delta=delta), MOST_LOCAL))
    return [
        _build_survey_model(f"survey by coins, beta = {beta:g}", CoinSurvey.at(epsilon, beta)),
        _build_survey_model("symmetric randomized response", CoinSurvey.at(epsilon)),
        _build_rappor_model(choose_bit_params(epsilon)),
        TrustModel(
            name="shuffled batch",
            trusted="the shuffler",
            epsilon=epsilon,
            delta=delta,
            epsilon_of_collector=batch.epsilon,
            # Every answer draws new noise, so ten answers lose ten times epsilon.
            epsilon_10=10 * epsilon,
            noise=LocalNoise(batch.p, batch.q),
        ),
        _build_curator_model("Laplace", epsilon, LaplaceNoise.at(epsilon)),
        _build_curator_model("two-sided geometric", epsilon, GeometricNoise.at(epsilon)),
        _build_curator_model("Gaussian", epsilon, GaussianNoise.at(epsilon, delta), delta=delta),
    ]


def choose_bit_params(epsilon: float) -> Params:
    """Choose RAPPOR's parameters of one symmetric bit with epsilon_1 = epsilon.

    The loss of any number of reports, epsilon_inf, is twice epsilon. The bit is symmetric, so
    q = 1 - p, and p* is the probability of a false report. Let a = f/2 be the probability of a
    false permanent bit. Then

        p* = 1 / (e^epsilon + 1)          as in symmetric randomized response: epsilon_1
        a  = 1 / (e^(2 epsilon) + 1)      epsilon_inf
        p* = (1 - a) p + a (1 - p)        which gives p

    Parameters
    ----------
    epsilon : loss of one report in nats, in (2^-30, 10].

    Raises
    ------
    ParamsError
        epsilon is outside its range.

    Examples
    --------
    >>> params = choose_bit_params(1.0)
    >>> round(params.p_star, 3), round(params.f, 3)
    (0.269, 0.238)
    """
    check_epsilon(epsilon)
    p_false_permanent, p_star = 1 / (math.exp(2 * epsilon) + 1), 1 / (math.exp(epsilon) + 1)
    # Round to more noise in both responses, so that neither loss is exceeded: p up to the next
    # 32-bit threshold, then a.
    p = math.ceil((p_star - p_false_permanent) / (1 - 2 * p_false_permanent) * ONE) / ONE
    p_false_permanent = math.ceil(p_false_permanent * ONE) / ONE
    return Params(k=1, encoding="boolean", f=2 * p_false_permanent, p=p, q=1 - p)


def _build_survey_model(name: str, survey: CoinSurvey) -> TrustModel:
    """Return the model of a survey: whoever receives an answer learns no more than its loss."""
    return TrustModel(
        name=name,
        trusted="nobody",
        epsilon=survey.epsilon,
        epsilon_of_collector=survey.epsilon,
        # Every answer draws new coins, so the losses of ten answers add up.
        epsilon_10=10 * survey.epsilon,
        noise=LocalNoise(survey.p, survey.q),
    )


def _build_rappor_model(params: Params) -> TrustModel:
    """Return the model of RAPPOR for one bit."""
    epsilon = epsilon_n(params, 1)
    return TrustModel(
        name="RAPPOR",
        trusted="nobody",
        epsilon=epsilon,
        epsilon_of_collector=epsilon,
        # The permanent response is repeated: ten answers lose at most epsilon_inf.
        epsilon_10=epsilon_n(params, 10),
        noise=LocalNoise(params.p_star, params.q_star),
    )


def _build_curator_model(
    name: str, epsilon: float, noise: CountNoise, *, delta: float = 0
) -> TrustModel:
    """Return the model of a curator who receives true answers and publishes a noisy count."""
    return TrustModel(
        name=name,
        trusted="the curator",
        epsilon=epsilon,
        delta=delta,
        # The curator receives the true answer.
        epsilon_of_collector=math.inf,
        epsilon_10=10 * epsilon,
        noise=noise,
    )
