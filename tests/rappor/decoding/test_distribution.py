"""The distribution: quantiles of posteriors under a prior that is learnt from the data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rappor.decoding.distribution import estimate_shares
from rappor.decoding.prior import SMOOTHING, Posterior, fit_prior, round_scores


@pytest.mark.slow
@given(estimates=st.lists(st.floats(-2, 2), min_size=1, max_size=30), error=st.floats(1e-6, 1.0))
def test_shares_are_shares(estimates: list[float], error: float) -> None:
    """For all estimates, posterior shares are at least 0 and sum to at most 1."""
    shares = estimate_shares(np.array(estimates), np.full(len(estimates), error))[0]
    assert (shares >= 0).all()
    assert shares.sum() <= 1 + 1e-9


@pytest.mark.slow
def test_no_other_quantile_has_a_smaller_expected_total_variation() -> None:
    """No other quantile has a smaller mean total variation over 60 lists drawn from a prior.

    The remainder is a cell. The tolerance is three standard errors.
    """
    rng = np.random.default_rng(5)
    losses = []
    for _ in range(60):
        truth = np.where(rng.random(600) < 0.8, 0.0, rng.exponential(2e-3, 600))
        estimate, error = truth + rng.normal(size=600) * 1e-3, np.full(600, 1e-3)
        z, places, counts = round_scores(estimate / error)
        posterior = Posterior(fit_prior(z, counts, smoothing=SMOOTHING), z)
        others = [posterior.quantile(q)[places] * error for q in (0.5, 0.6, 0.7, 0.8, 0.9)]
        answers = [estimate_shares(estimate, error)[0], *others]
        losses.append(
            [np.abs(answer - truth).sum() + abs((answer - truth).sum()) for answer in answers]
        )
    more = np.array(losses)[:, 1:] - np.array(losses)[:, :1]
    assert (more.mean(axis=0) > -3 * more.std(axis=0) / np.sqrt(len(more))).all()
    assert (more.mean(axis=0)[[0, 2, 3, 4]] > 3 * more.std(axis=0)[[0, 2, 3, 4]] / 60**0.5).all()


def test_what_the_data_say_nothing_about_gets_nothing() -> None:
    """A candidate with an infinite error gets the share 0. Without noise all shares are kept."""
    nothing = estimate_shares(np.array([0.5]), np.array([np.inf]))
    assert np.concatenate(nothing).tolist() == [0.0, math.inf]
    shares, _ = estimate_shares(np.array([0.5, 0.0]), np.array([0.001, np.inf]))
    assert shares[0] == pytest.approx(0.5, abs=0.001)
    assert shares[1] == 0
    exact, _ = estimate_shares(np.array([0.5, 0.25, 0.0]), np.zeros(3))
    assert exact.tolist() == pytest.approx([0.5, 0.25, 0.0], abs=1e-9)


@pytest.mark.slow
def test_only_absent_candidates_get_hardly_anything() -> None:
    """Lists of 10,000 absent candidates get a mean share of .0005.

    The sum of the positive estimates is .4. Over 300 lists the standard deviation is .0015.
    """
    error = np.full(10_000, 1e-4)
    lists = np.random.default_rng(7).normal(size=(30, 10_000)) * error
    sums = [estimate_shares(noise, error)[0].sum() for noise in lists]
    assert np.median(sums) == 0
    assert np.mean(sums) < 0.002
