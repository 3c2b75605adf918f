"""The distribution answer: a quantile of the posterior under a prior learnt from the data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import integrate, special, stats

from rappor import Params
from rappor.decoding.distribution import Posterior, Prior, estimate_shares, fit_prior
from rappor.simulation.population import english_words

QUANTILE = 0.7
PARAMS = Params(k=32, h=2, m=8, f=0.25, p=0.2, q=0.6)
PRIOR = Prior(means=np.array([0.5, 4.0, 30.0]), weights=np.array([0.6, 0.1, 0.2, 0.1]))


def above(share: float, z: float) -> float:
    """Return the posterior probability of more than `share`, by numerical integration of Bayes."""

    def joint(value: float) -> float:
        parts = PRIOR.weights[1:] * stats.expon.pdf(value, scale=PRIOR.means)
        return float(stats.norm.pdf(z - value) * parts.sum())

    end = max(z, 0.0) + 12.0
    absent = float(PRIOR.weights[0] * stats.norm.pdf(z))
    upper = integrate.quad(joint, share, end, epsabs=1e-300, epsrel=1e-10, limit=200)[0]
    lower = integrate.quad(joint, 0.0, share, epsabs=1e-300, epsrel=1e-10, limit=200)[0]
    return float(upper / (absent + lower + upper))


@pytest.mark.parametrize("z", [-6.0, -1.0, 0.0, 1.0, 2.0, 2.5, 3.0, 5.0, 9.0, 20.0])
def test_the_quantile_of_the_posterior(z: float) -> None:
    """Where the posterior puts more than the quantile on zero it is zero, else it splits there."""
    share = float(Posterior(PRIOR, np.array([z])).quantile(QUANTILE)[0])
    if share == 0:
        assert above(0.0, z) <= 1 - QUANTILE + 1e-6
    else:
        assert above(share, z) == pytest.approx(1 - QUANTILE, abs=1e-6)


@pytest.mark.parametrize("z", [-6.0, 0.0, 2.0, 5.0, 20.0])
def test_the_moments_are_those_of_the_posterior(z: float) -> None:
    """Mean and variance by sums over a fine grid."""
    posterior = Posterior(PRIOR, np.array([z]))
    mean, variance = float(posterior.mean[0]), float(posterior.variance[0])
    value = (np.arange(200_000) + 0.5) * (max(z, 0.0) + 12.0) / 200_000
    parts = np.exp(-value[:, None] / PRIOR.means) / PRIOR.means
    joint = stats.norm.pdf(z - value) * (parts @ PRIOR.weights[1:]) * value[0] * 2
    whole = joint.sum() + PRIOR.weights[0] * stats.norm.pdf(z)
    first, second = float(joint @ value / whole), float(joint @ value**2 / whole)
    assert mean == pytest.approx(first, rel=1e-6)
    assert variance == pytest.approx(second - first**2, rel=1e-6)


def few_sizes() -> NDArray[np.float64]:
    """Return the shares of 2,000 strings in standard errors, most of them absent."""
    rng = np.random.default_rng(1)
    return np.where(rng.random(2000) < 0.7, 0.0, rng.exponential(8.0, 2000))


def many_sizes() -> NDArray[np.float64]:
    """Return those of 10,000 words: neighbouring parts of the prior are hard to distinguish."""
    weights = np.sort(english_words().weights)[::-1]
    return np.asarray(weights[:10_000] / weights.sum() / 0.00088)


@pytest.mark.parametrize("shares", [few_sizes(), many_sizes()], ids=["few sizes", "many sizes"])
@pytest.mark.parametrize("seed", [0, 5, 14])
def test_the_prior_has_the_largest_likelihood(shares: NDArray[np.float64], seed: int) -> None:
    """No part's weight would raise it: the odds of each are one in the mean, or less.

    Two absent candidates are counted in.
    """
    z = shares + np.random.default_rng([seed, 11]).standard_normal(len(shares))
    z, counts = np.unique(np.rint(z * 64) / 64, return_counts=True)
    prior = fit_prior(z, counts)
    assert prior.weights.sum() == pytest.approx(1)
    parts = [stats.exponnorm.logpdf(z, mean) for mean in prior.means]
    logs = np.column_stack([stats.norm.logpdf(z), *parts])
    whole = special.logsumexp(logs, axis=1, b=prior.weights, keepdims=True)
    odds = counts @ np.exp(logs - whole)
    odds[0] += 2 / prior.weights[0]
    assert (odds / (counts.sum() + 2)).max() < 1 + 1e-5


@given(estimates=st.lists(st.floats(-2, 2), min_size=1, max_size=30), error=st.floats(1e-6, 1.0))
def test_shares_are_shares(estimates: list[float], error: float) -> None:
    """Whatever the estimates, shares are not negative and sum to at most one."""
    shares = estimate_shares(np.array(estimates), np.full(len(estimates), error))[0]
    assert (shares >= 0).all()
    assert shares.sum() <= 1 + 1e-9


@pytest.mark.slow
def test_no_other_quantile_has_a_smaller_expected_total_variation() -> None:
    """Over 60 lists drawn as the prior says, the rest counted, by three standard errors."""
    rng = np.random.default_rng(5)
    losses = []
    for _ in range(60):
        truth = np.where(rng.random(600) < 0.8, 0.0, rng.exponential(2e-3, 600))
        estimate, error = truth + rng.normal(size=600) * 1e-3, np.full(600, 1e-3)
        z, counts = estimate / error, np.ones(600, dtype=np.int64)
        posterior = Posterior(fit_prior(z, counts), z)
        others = [posterior.quantile(q) * error for q in (0.5, 0.6, 0.7, 0.8, 0.9)]
        answers = [estimate_shares(estimate, error)[0], *others]
        losses.append([np.abs(each - truth).sum() + abs((each - truth).sum()) for each in answers])
    more = np.array(losses)[:, 1:] - np.array(losses)[:, :1]
    assert (more.mean(axis=0) > -3 * more.std(axis=0) / np.sqrt(len(more))).all()
    assert (more.mean(axis=0)[[0, 2, 3, 4]] > 3 * more.std(axis=0)[[0, 2, 3, 4]] / 60**0.5).all()


def test_what_the_data_say_nothing_about_gets_nothing() -> None:
    """An infinite error, alone or beside others, is a share of zero; without noise all is kept."""
    nothing = estimate_shares(np.array([0.5]), np.array([np.inf]))
    assert np.concatenate(nothing).tolist() == [0.0, math.inf]
    shares, _ = estimate_shares(np.array([0.5, 0.0]), np.array([0.001, np.inf]))
    assert shares[0] == pytest.approx(0.5, abs=0.001)
    assert shares[1] == 0
    exact, _ = estimate_shares(np.array([0.5, 0.25, 0.0]), np.zeros(3))
    assert exact.tolist() == pytest.approx([0.5, 0.25, 0.0], abs=1e-9)


def test_only_absent_candidates_get_hardly_anything() -> None:
    """Of 10,000 estimates of nothing, whose upper halves sum to .4, most lists get no share at all.

    Over 300 lists the mean is .0005, with a standard deviation of .0015.
    """
    error = np.full(10_000, 1e-4)
    lists = np.random.default_rng(7).normal(size=(30, 10_000)) * error
    sums = [estimate_shares(noise, error)[0].sum() for noise in lists]
    assert np.median(sums) == 0
    assert np.mean(sums) < 0.002
