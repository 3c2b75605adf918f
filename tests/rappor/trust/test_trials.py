"""Trials of the models of trust agree with the closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from rappor.base.errors import ParamsError
from rappor.trust.models import trust_models
from rappor.trust.noise_distributions import LocalNoise
from rappor.trust.trials import run_trials, try_model

FALSE_ALARM = 1e-9
"""Probability that one statistical check fails although the code is right."""


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0])
def test_trials_agree_with_closed_forms(epsilon: float) -> None:
    """Mean and mean square error of 60,000 trials agree.

    A difference of a tenth would be detected. Fourth moments in units of sd^4 give the variance of
    a mean square: 3 for sums of answers, 6 for Laplace, 6 + 1/sd^2 (here below 9) for the geometric
    distribution. The factor 1.3 covers the skewness of squares, which changes tails by less at this
    number of trials.
    """
    n, n_true, runs = 50_000, 15_000, 60_000
    z = float(stats.norm.isf(FALSE_ALARM / 2))
    for model in trust_models(epsilon, n):
        error = model.noise.std_error(n_true, n)
        estimates = run_trials(model, n_true=n_true, n=n, runs=runs, seed=1)
        assert abs(estimates.mean() - n_true) < z * error / math.sqrt(runs)
        square = float(np.mean((estimates - n_true) ** 2)) / error**2
        fourth = 3.0 if isinstance(model.noise, LocalNoise) else 9.0
        assert abs(square - 1) < 1.3 * z * math.sqrt((fourth - 1) / runs)
        assert (1.3 + 1.21) * z * math.sqrt((fourth - 1) / runs) < 1.1**2 - 1  # the power


def test_a_trial_has_both_errors_of_its_seed() -> None:
    """The errors are the closed form and the root mean square. Another seed gives other trials."""
    model = trust_models(1.0, 1000)[0]
    trial = try_model(model, n_true=300, n=1000, runs=50, seed=4)
    same, other_seed = (
        run_trials(model, n_true=300, n=1000, runs=50, seed=seed) for seed in (4, 5)
    )
    assert trial.std_error == model.noise.std_error(300, 1000)
    assert trial.observed == pytest.approx(math.sqrt(np.mean((same - 300) ** 2)))
    assert not np.array_equal(same, other_seed)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"n_true": 10, "runs": 1}, r"n_true must be an integer in \[0, 9\], got 10"),
        ({"n_true": 1, "runs": 0}, r"runs must be an integer in \[1, 10,000,000\], got 0"),
        ({"n": -5, "runs": 1}, r"^n must be an integer of at least 1, got -5"),
        ({"n": 9.5, "runs": 1}, r"^n must be an integer of at least 1, got 9.5"),
    ],
)
def test_counts_outside_their_range_are_refused(counts: dict[str, int], message: str) -> None:
    """The message has the name of the number."""
    with pytest.raises(ParamsError, match=message):
        run_trials(trust_models(1.0, 9)[0], **({"n": 9, "n_true": 1} | counts))


def test_counts_beyond_32_bits() -> None:
    """All models work for 2^53 devices."""
    n = 2**53
    for model in trust_models(1.0, n):
        estimates = run_trials(model, n_true=n // 2, n=n, runs=10, seed=1)
        assert np.abs(estimates - n // 2).max() < 100 * model.noise.std_error(n // 2, n) + 2
