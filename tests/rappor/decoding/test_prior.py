"""The prior of shares: largest likelihood, exact posteriors, and sums with honest errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from rappor.decoding.prior import Posterior, Prior, fit_prior, round_scores
from rappor.simulation.population import english_words

PRIOR: Final = Prior(
    centers=np.array([0.0, 0.5, 4.0, 40.0]),
    widths=np.array([0.0, 0.0, 0.0, 3.0]),
    weights=np.array([0.6, 0.1, 0.2, 0.1]),
)
"""Three point masses and a normal distribution."""


def cumulative(share: float, z: float) -> float:
    """Return the posterior probability of at most `share`, by Bayes' theorem for each part."""
    below, whole = 0.0, 0.0
    for center, width, weight in zip(PRIOR.centers, PRIOR.widths, PRIOR.weights, strict=True):
        likelihood = weight * stats.norm.pdf(z, center, np.hypot(1, width))
        whole += likelihood
        if width == 0:
            below += likelihood * (center <= share)
        else:
            variance = 1 / (1 + 1 / width**2)
            mean = variance * (z + center / width**2)
            below += likelihood * stats.norm.cdf(share, mean, np.sqrt(variance))
    return float(below / whole)


@pytest.mark.parametrize("z", [-6.0, 0.0, 1.0, 2.5, 5.0, 20.0, 41.0])
@pytest.mark.parametrize("quantile", [0.3, 0.7, 0.95])
def test_the_quantile_of_the_posterior(z: float, quantile: float) -> None:
    """The quantile is the least share at which the cumulative probability is reached."""
    share = float(Posterior(PRIOR, np.array([z])).quantile(quantile)[0])
    assert cumulative(share + 1e-6, z) >= quantile
    assert share == 0 or cumulative(share - 1e-6, z) <= quantile


@pytest.mark.parametrize("z", [-6.0, 0.0, 2.0, 5.0, 20.0, 41.0])
def test_the_moments_are_those_of_the_posterior(z: float) -> None:
    """Mean and variance equal the sums of the mixture's density over a fine grid."""
    posterior = Posterior(PRIOR, np.array([z]))
    value = np.linspace(0, 80, 400_001)
    density = PRIOR.weights[3] * stats.norm.pdf(value, 40, 3) * (value[1] - value[0])
    for center, weight in zip(PRIOR.centers[:3], PRIOR.weights[:3], strict=True):
        density[np.argmin(np.abs(value - center))] += weight
    joint = density * stats.norm.pdf(z - value)
    first, second = (float(joint @ value**n / joint.sum()) for n in (1, 2))
    assert posterior.mean[0] == pytest.approx(first, rel=1e-5, abs=1e-9)
    assert posterior.variance[0] == pytest.approx(second - first**2, rel=1e-4, abs=1e-6)


def few_sizes() -> NDArray[np.float64]:
    """Return the shares of 2,000 strings in standard errors, most of them absent."""
    rng = np.random.default_rng(1)
    return np.where(rng.random(2000) < 0.7, 0.0, rng.exponential(8.0, 2000))


def many_sizes() -> NDArray[np.float64]:
    """Return the shares of 10,000 words: neighbouring parts are hard to distinguish."""
    weights = np.sort(english_words().weights)[::-1]
    return np.asarray(weights[:10_000] / weights.sum() / 0.00088)


def one_size() -> NDArray[np.float64]:
    """Return the shares of 100 equal strings and 100 absent ones."""
    return np.repeat([4.0, 0.0], 100)


@pytest.mark.parametrize("shares", [few_sizes(), many_sizes(), one_size()], ids=str)
@pytest.mark.parametrize("seed", [0, 5, 14])
def test_the_prior_has_the_largest_likelihood(shares: NDArray[np.float64], seed: int) -> None:
    """No weight can raise the likelihood: the mean odds of each part are at most one."""
    z, _, counts = round_scores(shares + np.random.default_rng([seed, 11]).normal(size=len(shares)))
    prior = fit_prior(z, counts)
    assert prior.weights.sum() == pytest.approx(1)
    densities = stats.norm.pdf(z[:, None], prior.centers, np.hypot(1, prior.widths))
    odds = counts @ (densities / (densities @ prior.weights)[:, None])
    # By concavity, the log-likelihood can rise by this difference at most. Errors need less than 1.
    assert odds.max() - counts.sum() < 0.5


def test_scores_far_apart_have_parts() -> None:
    """A score of any size has a part nearby, and its posterior mean is close to the score."""
    z = np.array([-3.0, 0.0, 5.0, 17.0, 300.0, 1e5, 1e11])
    posterior = Posterior(fit_prior(z, np.ones(len(z), dtype=np.int64)), z)
    assert posterior.mean[3:] == pytest.approx(z[3:], rel=0.1)
    assert (np.diff(posterior.mean) >= 0).all()


def equal(rng: np.random.Generator) -> NDArray[np.float64]:
    """Return 30 equal shares and 30 absent strings."""
    return np.repeat([rng.uniform(2.5, 8.0), 0.0], 30)


def two_sizes(rng: np.random.Generator) -> NDArray[np.float64]:
    """Return 10 large and 50 small equal shares, and 100 absent strings."""
    return np.repeat([rng.uniform(15, 40), rng.uniform(2.5, 5.0), 0.0], [10, 50, 100])


def falling(rng: np.random.Generator) -> NDArray[np.float64]:
    """Return shares by Zipf's law, and as many absent strings."""
    return np.append(rng.uniform(30, 60) / np.arange(1, 101), np.zeros(100))


@pytest.mark.slow
@pytest.mark.parametrize("draw", [equal, two_sizes, falling])
def test_sums_of_chosen_shares_have_honest_errors(
    draw: Callable[[np.random.Generator], NDArray[np.float64]],
) -> None:
    """Intervals of the sums of the rows above 2.5 cover, whatever the shape of the prior is.

    The sums are of all these rows, and of all after the first ten. Coverage of at least .90 is
    refused at a rate of 1e-9 if the true coverage is .95 or more.
    """
    rng = np.random.default_rng(3)
    n, covered = 200, np.zeros(2)
    for _ in range(n):
        theta = draw(rng)
        z, places, counts = round_scores(theta + rng.normal(size=len(theta)))
        posterior = Posterior(fit_prior(z, counts), z)
        order = np.argsort(-z[places], kind="stable")
        chosen = order[z[places[order]] > 2.5]
        for which, rows in enumerate((chosen, chosen[10:])):
            coefficients = np.bincount(places[rows], minlength=len(z)) / counts
            moments = posterior.sum(coefficients, counts)
            error = moments.mean - theta[rows].sum()
            covered[which] += abs(error) <= 1.96 * np.sqrt(moments.variance)
    least = stats.binom.ppf(1e-9, n, 0.95)
    assert (covered >= least).all()


def test_the_influence_is_the_derivative() -> None:
    """Move one score a little: the mean of the sum moves by its influence, far from boundaries."""
    z = np.sort(np.append(np.full(40, 0.0), np.full(60, 6.0)) + np.tile([-0.5, 0.5], 50))
    z, _, counts = round_scores(z)
    coefficients = (z > 3).astype(float)
    influence = Posterior(fit_prior(z, counts), z).sum(coefficients, counts).influence
    # All detected scores move together, so all of their sum does.
    moved = z + 0.125 * (z > 3)
    before, after = (
        Posterior(fit_prior(scores, counts), scores).sum(coefficients, counts).mean
        for scores in (z, moved)
    )
    assert counts @ (influence * coefficients) == pytest.approx(60, rel=0.1)
    assert after - before == pytest.approx(60 * 0.125, rel=0.1)
