"""Noise of the models of trust: closed forms, against draws and against OpenDP."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from rappor.base.errors import ParamsError
from rappor.trust.noise_distributions import (
    CountNoise,
    GaussianNoise,
    GeometricNoise,
    LaplaceNoise,
    LocalNoise,
)

FALSE_ALARM = 1e-9
"""Probability that one statistical check fails although the code is right."""

N = 20_000


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_errors_of_the_curator_are_those_of_the_distributions(epsilon: float) -> None:
    """The standard errors equal integrals and sums over the distributions, for all counts."""
    square, _ = integrate.quad(lambda x: x * x * epsilon * math.exp(-epsilon * x), 0, 60 / epsilon)
    laplace, geometric = LaplaceNoise.at(epsilon), GeometricNoise.at(epsilon)
    assert laplace.std_error(0, 1) == pytest.approx(math.sqrt(square), rel=1e-9)
    x = math.exp(-epsilon)
    total = sum((1 - x) / (1 + x) * 2 * x**k * k * k for k in range(1, round(60 / epsilon)))
    assert geometric.std_error(0, 1) == pytest.approx(math.sqrt(total), rel=1e-9)
    for noise in (laplace, geometric, GaussianNoise.at(epsilon, 1e-6)):
        assert noise.std_error(5, 9) == noise.std_error(0, 1)


@pytest.mark.slow  # OpenDP is in the extra dev only
@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_the_curators_noise_is_that_of_opendp(epsilon: float) -> None:
    """Draws have the distribution, and agree with OpenDP's draws.

    A scale of 1.5 epsilon would be detected.
    """
    import opendp.prelude as dp  # noqa: PLC0415 - the extra test lacks it

    dp.enable_features("contrib")
    rng = np.random.default_rng(1)
    laplace = LaplaceNoise.at(epsilon).draw(0, 1, N, rng)
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l1_distance(T=float)
    theirs = dp.m.make_laplace(*space, scale=1 / epsilon)([0.0] * N)
    assert stats.kstest(laplace, stats.laplace(scale=1 / epsilon).cdf).pvalue > FALSE_ALARM
    assert stats.ks_2samp(laplace, theirs).pvalue > FALSE_ALARM
    larger_noise = LaplaceNoise.at(1.5 * epsilon).draw(0, 1, N, rng)
    assert stats.ks_2samp(larger_noise, theirs).pvalue < FALSE_ALARM
    geometric = GeometricNoise.at(epsilon).draw(0, 1, N, rng)
    integers = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    their_integers = dp.m.make_geometric(*integers, scale=1 / epsilon)([0] * N)
    edge = round(2 / epsilon)
    x = math.exp(-epsilon)
    expected = [(1 - x) / (1 + x) * x ** abs(k) for k in range(-edge, edge + 1)]
    for drawn in (geometric, np.array(their_integers)):
        frequencies = [int(np.sum(drawn == k)) for k in range(-edge, edge + 1)]
        all_seen, all_expected = (
            [*frequencies, N - sum(frequencies)],
            [*expected, 1 - sum(expected)],
        )
        assert stats.chisquare(all_seen, np.array(all_expected) * N).pvalue > FALSE_ALARM


@pytest.mark.parametrize("delta", [0.5, 1e-3, 1e-9])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_gaussian_noise_has_its_delta(epsilon: float, delta: float) -> None:
    """The integral of max(0, f(x) - e^epsilon f(x - 1)) is delta.

    Slightly less noise has a larger delta.
    """
    sigma = GaussianNoise.at(epsilon, delta).sigma
    for noise, within in ((sigma, True), (0.999 * sigma, False)):
        cross = 0.5 - epsilon * noise**2  # where both densities are as far apart as e^epsilon
        high = stats.norm.cdf(cross, scale=noise)
        low = stats.norm.cdf(cross - 1, scale=noise)
        assert (high - math.exp(epsilon) * low <= delta * (1 + 1e-6)) == within
    if epsilon < 1:
        assert sigma < math.sqrt(2 * math.log(1.25 / delta)) / epsilon


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_five_suggestions_of_a_person_need_five_times_the_noise(epsilon: float) -> None:
    """Counts that differ by five then differ by epsilon in log-probability."""
    assert LaplaceNoise.at(epsilon, sensitivity=5).scale == 5 * LaplaceNoise.at(epsilon).scale
    one_suggestion, five_suggestions = (
        GaussianNoise.at(epsilon, 1e-6, sensitivity=s) for s in (1, 5)
    )
    assert five_suggestions.sigma == 5 * one_suggestion.sigma
    scale = GeometricNoise.at(epsilon, sensitivity=5).scale
    x = math.exp(-1 / scale)
    loss = max(abs(math.log(x ** abs(k) / x ** abs(k - 5))) for k in range(-50, 50))
    assert loss == pytest.approx(epsilon)
    for wrong in (0, math.inf, math.nan):
        with pytest.raises(ParamsError, match=r"sensitivity must be a number in \(0, infinity\)"):
            LaplaceNoise.at(epsilon, sensitivity=wrong)


@pytest.mark.parametrize("delta", [0.3, 0.05, 1e-6])
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_tails(epsilon: float, delta: float) -> None:
    """By the distributions, the tail has probability delta. For integers it has at most delta."""
    far = LaplaceNoise.at(epsilon).tail(delta, 0, 1)
    assert far == math.log(1 / delta) / epsilon
    assert 2 * stats.laplace(scale=1 / epsilon).sf(far) == pytest.approx(delta)
    x = math.exp(-epsilon)
    j = int(GeometricNoise.at(epsilon).tail(delta, 0, 1))
    assert 2 * x**j / (1 + x) <= delta
    assert j == 1 or 2 * x ** (j - 1) / (1 + x) > delta
    normal = GaussianNoise(3.0).tail(delta, 0, 1)
    assert 2 * stats.norm(scale=3).sf(normal) == pytest.approx(delta)


@pytest.mark.parametrize(
    "noise", [LocalNoise(0.25, 0.75), LaplaceNoise(2), GeometricNoise(2), GaussianNoise(2)], ids=str
)
def test_trials_exceed_the_tail_as_rarely(noise: CountNoise) -> None:
    """One in 20 of 20,000 trials exceeds the tail. One in 16 would be detected."""
    far = noise.tail(0.05, 3000, 10_000)
    errors = np.abs(noise.draw(3000, 10_000, N, np.random.default_rng(3)) - 3000)
    reached = int(np.sum(errors >= far))
    assert stats.binomtest(reached, N, 0.0505, alternative="greater").pvalue > FALSE_ALARM
    assert reached > 0.03 * N
