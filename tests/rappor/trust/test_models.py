"""Models of trust, from a curator with all values to noise on each device, at one epsilon."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rappor.base.errors import ParamsError
from rappor.privacy.shuffling import compute_shuffled_epsilon
from rappor.protocol.loss import epsilon_inf, epsilon_n
from rappor.trust.coin_survey import MOST_EPSILON
from rappor.trust.models import choose_bit_params, trust_models
from rappor.trust.noise_distributions import LocalNoise


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 3.0, MOST_EPSILON])
def test_rappor_of_one_bit(epsilon: float) -> None:
    """RAPPOR with one bit loses epsilon with one report, and 2 epsilon with all reports.

    Probabilities are rounded to 32-bit coins, so both losses are a little smaller. Large losses
    need rare coins, which are rounded more.
    """
    params = choose_bit_params(epsilon)
    rough = 1e-7 if epsilon < 5 else 0.02
    assert epsilon_n(params, 1) == pytest.approx(epsilon, rel=rough)
    assert epsilon_inf(params) == pytest.approx(2 * epsilon, rel=rough)
    assert epsilon_n(params, 1) <= epsilon * (1 + 1e-14)
    assert epsilon_inf(params) <= 2 * epsilon * (1 + 1e-14)
    assert params.p_star + params.q_star == pytest.approx(1)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
def test_models_keep_the_same_epsilon(epsilon: float) -> None:
    """Every model has the required epsilon.

    The loss of local noise follows from the probabilities of a response. Shuffled responses
    (`delta` above 0) lose more one by one, and their batch has the required epsilon.
    """
    for model in trust_models(epsilon, 100_000):
        assert model.epsilon == pytest.approx(epsilon, rel=1e-6)
        if not isinstance(model.noise, LocalNoise):
            assert model.epsilon_of_collector == math.inf
            continue
        p, q = model.noise.p, model.noise.q
        loss = math.log(max(q / p, (1 - p) / (1 - q)))
        assert model.epsilon_of_collector == pytest.approx(loss, rel=1e-6)
        if model.delta:
            assert (
                compute_shuffled_epsilon(loss * (1 - 1e-6), 100_000, delta=model.delta) <= epsilon
            )
            assert loss > 1.2 * epsilon
        else:
            assert loss == pytest.approx(epsilon, rel=1e-6)


def test_local_noise_grows_and_central_noise_does_not() -> None:
    """With 100 times as many devices, the error of a count by local noise grows by sqrt(100).

    The error of shuffled responses hardly grows, and that of a curator's noise does not grow.
    """
    few, many = (
        [model.noise.std_error(3 * n // 10, n) for model in trust_models(1.0, n)]
        for n in (10_000, 1_000_000)
    )
    assert trust_models(1.0, 1e5) == trust_models(1.0, 100_000)  # type: ignore[arg-type]
    growth = np.array(many) / np.array(few)
    assert growth[:3] == pytest.approx([10, 10, 10], rel=1e-6)
    assert growth[3] < 1.1
    assert list(growth[4:]) == [1, 1, 1]


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan, 10.1])
def test_epsilon_outside_its_range_is_refused(epsilon: float) -> None:
    """An epsilon that 32-bit coins cannot represent raises ParamsError."""
    for function in (lambda e: trust_models(e, 10), choose_bit_params):
        with pytest.raises(ParamsError, match=r"epsilon must be a number in \(2\^-30, 10\], got"):
            function(epsilon)


@pytest.mark.parametrize(
    ("n", "delta", "message"),
    [
        (0, 1e-9, r"n must be an integer in \[1, 9,007,199,254,740,992\], got 0"),
        (2**53 + 1, 1e-9, r"n must be an integer in \[1, 9,007,199,254,740,992\], got"),
        (10, 0.0, r"delta must be a number in \(0, 1\)"),
    ],
)
def test_numbers_outside_their_range_are_refused(n: int, delta: float, message: str) -> None:
    """A number outside its range is refused, and the message names the argument."""
    with pytest.raises(ParamsError, match=message):
        trust_models(1.0, n, delta=delta)
