"""The distribution: quantiles of posteriors under a prior that is learnt from the data.

`estimate_shares` turns de-biased estimates, which may be negative, into shares of a whole. Each
share is the same quantile of its posterior. The quantile is chosen for the smallest expected total
variation, half the sum of the absolute errors.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from benchmarks.populations import POPULATIONS
from rappor.decoding.decoder import decode
from rappor.decoding.distribution import _compute_completeness, estimate_shares
from rappor.decoding.prior import Posterior, fit_prior, fit_quantile_prior, round_scores
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts


@pytest.mark.slow
@given(estimates=st.lists(st.floats(-2, 2), min_size=1, max_size=30), error=st.floats(1e-6, 1.0))
def test_posterior_shares_are_a_subdistribution(estimates: list[float], error: float) -> None:
    """Posterior shares are at least 0 and sum to at most 1, whatever the estimates are.

    The rest belongs to strings that are no candidates.
    """
    shares = estimate_shares(np.array(estimates), np.full(len(estimates), error))[0]
    assert (shares >= 0).all()
    assert shares.sum() <= 1 + 1e-9


@pytest.mark.slow
def test_no_other_quantile_has_a_smaller_expected_total_variation() -> None:
    """The quantile that `estimate_shares` chooses has the smallest expected total variation.

    The rule is compared with five fixed quantiles on 60 lists drawn from a prior: of 600 strings
    80 % are absent, and the others have exponential shares of .002 in the mean. The error of an
    estimate is .001. The share of all other strings counts as one more cell. The tolerance is three
    standard errors of the mean difference.
    """
    rng = np.random.default_rng(5)
    losses = []
    for _ in range(60):
        truth = np.where(rng.random(600) < 0.8, 0.0, rng.exponential(2e-3, 600))
        estimate, error = truth + rng.normal(size=600) * 1e-3, np.full(600, 1e-3)
        z, indices, counts = round_scores(estimate / error)
        posterior = Posterior(fit_quantile_prior(z, counts, fit_prior(z, counts)), z)
        quantiles = [posterior.quantile(q)[indices] * error for q in (0.5, 0.6, 0.7, 0.8, 0.9)]
        shares_by_rule = [estimate_shares(estimate, error)[0], *quantiles]
        losses.append(
            [
                np.abs(shares - truth).sum() + abs((shares - truth).sum())
                for shares in shares_by_rule
            ]
        )
    extra_loss = np.array(losses)[:, 1:] - np.array(losses)[:, :1]
    std_error = extra_loss.std(axis=0) / np.sqrt(len(extra_loss))
    # No fixed quantile is better. All of them except .6 are significantly worse.
    assert (extra_loss.mean(axis=0) > -3 * std_error).all()
    is_other_than_0_6 = [0, 2, 3, 4]
    assert (extra_loss.mean(axis=0) > 3 * std_error)[is_other_than_0_6].all()


@pytest.mark.parametrize(("mean", "spread"), [(0.9, 0.05), (1.0, 0.02), (1.1, 0.03), (0.7, 0.01)])
def test_the_total_is_evidence_of_a_complete_list(mean: float, spread: float) -> None:
    """The odds of a complete list are the ratio of the densities of the estimated total.

    A complete list has the total 1, and an incomplete list any total below 1 with equal density.
    """
    incomplete, _ = integrate.quad(
        lambda total: stats.norm.pdf(mean, total, spread), mean - 12 * spread, 1
    )
    expected = stats.norm.pdf(mean, 1, spread) / incomplete
    completeness = _compute_completeness(mean, spread, 1.0)
    assert completeness == pytest.approx(expected / (1 + expected), rel=1e-6)


def test_a_bad_fit_is_evidence_of_an_incomplete_list() -> None:
    """A p-value p of the fit below 1/e multiplies the odds of a complete list by -e p ln p.

    The factor is continuous at 1/e, and 0 for p = 0. Without noise, the total alone decides.
    """

    def compute_odds(p_value: float) -> float:
        completeness = _compute_completeness(1.0, 0.02, p_value)
        return completeness / (1 - completeness)

    assert compute_odds(0.001) / compute_odds(1.0) == pytest.approx(math.e * 0.001 * math.log(1000))
    assert compute_odds(1 / math.e - 1e-9) == pytest.approx(compute_odds(0.5))
    assert compute_odds(0.0) == 0
    assert _compute_completeness(0.9, 1e-12, 1.0) == 0
    assert _compute_completeness(1.1, 1e-12, 1.0) == pytest.approx(1)


@pytest.mark.parametrize("seed", range(5))
def test_a_complete_list_has_no_remainder_unless_the_fit_is_bad(seed: int) -> None:
    """The shares of a complete list sum to 1 if the candidates explain the counts.

    If they do not, strings are missing, and the same estimates leave a remainder.
    """
    truth = np.concatenate([1 / np.arange(3.0, 103.0), np.zeros(100)])
    truth /= truth.sum()
    error = np.full(200, 0.001)
    estimate = truth + np.random.default_rng([11, seed]).normal(size=200) * error
    # Without this shift, the sum of the estimates would decide: it varies by 14 errors.
    estimate += (1 - estimate.sum()) / 200
    assert estimate_shares(estimate, error, fit_p_value=0.5)[0].sum() > 0.998
    assert estimate_shares(estimate, error, fit_p_value=1e-12)[0].sum() < 0.995


@pytest.mark.slow
@pytest.mark.parametrize(("name", "is_complete"), [("exp", True), ("exp_missing", False)])
def test_decode_recognises_a_list_that_lacks_frequent_strings(name: str, is_complete: bool) -> None:
    """`decode` gives a complete list no remainder, and an incomplete list a remainder.

    The incomplete list lacks ten of 100 strings, two of them frequent, which fit no candidate.
    """
    collection = POPULATIONS[name](3)
    counts = simulate_counts(
        collection.population, Params.profile("balanced"), n_reports=1_000_000, seed=3
    )
    estimates = decode(counts, collection.candidates, distribution=True)
    assert estimates.posterior_share is not None
    remainder = 1 - estimates.posterior_share.sum()
    if is_complete:
        assert remainder < 0.002
    else:
        assert remainder == pytest.approx(collection.non_candidate_share, abs=0.04)
        assert remainder > 0.02


def test_a_candidate_with_an_infinite_error_has_the_posterior_share_0() -> None:
    """A candidate without information in the counts has the posterior share 0.

    Its standard error stays infinite. It changes no share of another candidate. At the other
    extreme, without any noise, the posterior shares are the estimates.
    """
    share_and_error = estimate_shares(np.array([0.5]), np.array([np.inf]))
    assert np.concatenate(share_and_error).tolist() == [0.0, math.inf]
    shares, _ = estimate_shares(np.array([0.5, 0.0]), np.array([0.001, np.inf]))
    assert shares[0] == pytest.approx(0.5, abs=0.001)
    assert shares[1] == 0
    exact, _ = estimate_shares(np.array([0.5, 0.25, 0.0]), np.zeros(3))
    assert exact.tolist() == pytest.approx([0.5, 0.25, 0.0], abs=1e-9)


@pytest.mark.slow
def test_10_000_absent_candidates_have_almost_no_share_together() -> None:
    """The posterior shares of 10,000 absent candidates sum to almost 0.

    Their estimates are noise. The sum of the positive ones alone is .4: 10,000 errors of .0001,
    times .4, the mean of the positive part of a standard normal number. The prior must learn that
    all candidates are absent. In 300 measured lists the sum of the posterior shares had the mean
    .0005 and the standard deviation .0015. The mean of 30 lists then deviates by .0003, so the
    bound of .002 is five standard deviations above .0005.
    """
    error = np.full(10_000, 1e-4)
    lists = np.random.default_rng(7).normal(size=(30, 10_000)) * error
    sums = [estimate_shares(noise, error)[0].sum() for noise in lists]
    assert np.median(sums) == 0
    assert np.mean(sums) < 0.002
