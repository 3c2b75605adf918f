"""The noise of the models of trust: closed forms, and a curator's samples against them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from rappor.trust.central import geometric, laplace
from rappor.trust.noise import GeometricNoise, LaplaceNoise

FALSE_ALARM = 1e-9
"""Probability that one statistical check fails although the code is right."""


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_errors_of_the_curator_are_those_of_the_distributions(epsilon: float) -> None:
    """By numeric integration, and by the sum over the integers; the same for all counts."""
    square, _ = integrate.quad(lambda x: x * x * epsilon * math.exp(-epsilon * x), 0, 60 / epsilon)
    assert LaplaceNoise(epsilon).std_error(0, 1) == pytest.approx(math.sqrt(square), rel=1e-9)
    assert LaplaceNoise(epsilon).std_error(5, 9) == LaplaceNoise(epsilon).std_error(0, 1)
    x = math.exp(-epsilon)
    total = sum((1 - x) / (1 + x) * 2 * x**k * k * k for k in range(1, round(60 / epsilon)))
    assert GeometricNoise(epsilon).std_error(0, 1) == pytest.approx(math.sqrt(total), rel=1e-9)
    assert GeometricNoise(epsilon).std_error(5, 9) == GeometricNoise(epsilon).std_error(0, 1)


@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_the_curators_noise_has_its_distribution(epsilon: float) -> None:
    """OpenDP's samples against Laplace's distribution and P(k) = (1-x)/(1+x) x^|k|.

    20,000 draws see another scale: noise at 1.5 epsilon fails (14 standard deviations).
    """
    n = 20_000
    x = math.exp(-epsilon)
    drawn = np.array(geometric([100] * n, epsilon)) - 100
    edge = round(2 / epsilon)
    seen = [np.sum(drawn == k) for k in range(-edge, edge + 1)]
    expected = [(1 - x) / (1 + x) * x ** abs(k) for k in range(-edge, edge + 1)]
    seen, expected = [*seen, n - sum(seen)], [*expected, 1 - sum(expected)]
    assert stats.chisquare(seen, np.array(expected) * n).pvalue > FALSE_ALARM
    smooth = np.array(laplace([100.0] * n, epsilon)) - 100
    assert stats.kstest(smooth, stats.laplace(scale=1 / epsilon).cdf).pvalue > FALSE_ALARM
    other = np.array(laplace([0.0] * n, 1.5 * epsilon))
    assert stats.kstest(other, stats.laplace(scale=1 / epsilon).cdf).pvalue < FALSE_ALARM


def test_tail_of_laplace() -> None:
    """P(|error| >= b ln(1/delta)) = delta, at delta = 5 %."""
    n, delta = 20_000, 0.05
    far = int(np.sum(np.abs(laplace([0.0] * n, 2.0)) >= math.log(1 / delta) / 2))
    assert stats.binomtest(far, n, delta).pvalue > FALSE_ALARM
