"""The refit of sets: its model of shared buckets, its derivatives, and the shares that it finds."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from scipy import sparse, stats

from rappor import Params, Population, decode, simulate_counts
from rappor.counts.counts import Counts
from rappor.estimator import set_refit
from rappor.estimator.debias import Target, debias
from rappor.estimator.device_assumptions import Repetition

FALSE_ALARM = 1e-9
"""Probability that one statistical check of this file fails although the code is correct. With a
larger value the checks are stricter, and correct code would fail more often."""


def target_of(params: Params) -> Target:
    """Return rows of one report a bucket, for functions that read only the parameters."""
    counts = Counts(
        params,
        np.ones((params.m, params.k), dtype=np.int64),
        np.full(params.m, params.k, dtype=np.int64),
    )
    return debias([counts], [Repetition(reports_per_device=1.0, source="counts")])


def test_regression_probabilities_are_the_mean_over_all_hashes() -> None:
    """For one device with two items in six buckets: the mean proportion in the bucket of an item.

    The means are over all pairs of buckets of the two items, with every way to pad and to draw.
    """
    params = Params(k=6, items=3, keep=0.6, encoding="set", m=2)
    p_star, q_star = params.p_star, params.q_star
    of_item, of_absent = [], []
    for first, second in itertools.product(range(params.k), repeat=2):
        own = {first, second}
        padded = (params.items - len(own)) / (params.k - len(own))
        named = [
            p_star + (q_star - p_star) * (1.0 if bucket in own else padded)
            for bucket in range(params.k)
        ]
        of_item.append(named[first])
        of_absent += named
    low, high = params.response.regression_probabilities
    # y of the bucket of an item: its own share 1, the other item in 1 of k hashes, and the
    # background (1 - 2) / k.
    assert np.mean(of_item) == pytest.approx(low + (high - low) * (1 + 1 / 6 - 1 / 6))
    assert np.mean(of_absent) == pytest.approx(low + (high - low) * (2 / 6 - 1 / 6))


def test_one_own_bucket_has_the_probabilities_of_the_response() -> None:
    """With n = 1 the regression is that of categories."""
    params = Params(k=9, items=1, keep=0.5, encoding="set", m=2)
    low, high = params.response.regression_probabilities
    assert (low, high) == pytest.approx((params.p_star, params.q_star))


@pytest.mark.parametrize("share", [0.0, 0.05, 0.7])
def test_derivatives_are_those_of_the_expected_rows(share: float) -> None:
    """The derivative of the bucket of an item, less that of an empty bucket, is the column."""
    params = Params(k=50, items=8, keep=0.5, encoding="set", m=2)
    # Items 0 and 1 share bucket 3 of cohort 0. All other buckets have one item or none.
    rows = np.array([[3, 53], [3, 60], [7, 70]])
    columns = sparse.csc_array(
        (np.ones(6), (rows.ravel(), np.repeat(np.arange(3), 2))), shape=(100, 3)
    )
    target, shares, step = target_of(params), np.array([share, 0.4, 0.2]), 1e-6
    before, derivative = set_refit._compute_rows(target, columns, shares)
    after, _ = set_refit._compute_rows(target, columns, shares + np.array([step, 0, 0]))
    slope = (after - before) / step
    for own, empty in ((3, 10), (53, 99)):
        column = derivative[own] / (1 - share)
        # Terms of order 1 / k^2 are left out on purpose.
        assert slope[own] - slope[empty] == pytest.approx(column, abs=2 / params.k**2)


def test_items_that_may_be_correlated_add_variance_to_their_bucket() -> None:
    """Two items of 50 % have .25 in common if independent, and between 0 and .5 otherwise."""
    columns = sparse.csc_array(np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    variance = set_refit._compute_correlation_variance(columns, np.array([0.5, 0.5, 0.9]))
    assert variance == pytest.approx([0.25**2, 0.0])


@pytest.mark.slow
def test_shares_of_frequent_items_hold_where_buckets_are_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 12 items of 10 to 90 % in 48 buckets, many buckets are shared in some cohort.

    The linear fit alone is far beyond the distribution of the errors, so the test would see a refit
    that does nothing.
    """
    names = [f"item {i}" for i in range(12)]
    shares = np.tile([0.1, 0.3, 0.6, 0.9], 3)
    params = Params(k=48, items=12, keep=0.6, encoding="set", m=16)
    sets = np.random.default_rng(5).random((20_000, 12)) < shares
    population = Population.from_values(
        "\t".join(name for name, has in zip(names, row, strict=True) if has) for row in sets
    )
    counts = simulate_counts(population, params, n_reports=1_000_000, seed=1)

    def sum_squares() -> float:
        """Return the squared errors of a decode, in squared standard errors."""
        estimates = decode(counts, names)
        rows = estimates.indices_of(names)
        z = (estimates.share[rows] - sets.mean(axis=0)) / estimates.std_error[rows]
        return float(np.sum(z**2))

    limit = stats.chi2.isf(FALSE_ALARM, len(names))
    assert sum_squares() < limit
    monkeypatch.setattr("rappor.decoding.decoder.has_sets", lambda _: False)
    assert sum_squares() > limit


@pytest.mark.slow
def test_sets_have_no_unallocated_share_but_a_mean_number_of_items() -> None:
    """Shares of items do not add up to 1. Their sum is the mean number of items of a device."""
    params = Params.profile("once", encoding="set", items=4)
    population = Population(["git\tvim", "git", "emacs\tgit\tvim", ""], [1, 1, 1, 1])
    counts = simulate_counts(population, params, n_reports=400_000, seed=3)
    estimates = decode(counts, ["nano"], listed=["git", "vim", "emacs"])
    assert np.isnan(estimates.unallocated)
    assert estimates.not_listed is None
    items = estimates.mean_listed_items
    assert items is not None
    assert abs(items.estimate - 1.5) < stats.norm.isf(FALSE_ALARM / 2) * items.std_error
    assert items.std_error < 0.02
    assert estimates.to_dict()["mean_listed_items"]["estimate"] == items.estimate


def test_a_decode_of_sets_does_not_depend_on_the_order_of_candidates() -> None:
    """Rows are sorted by count, whatever the order of the list was."""
    params = dataclasses.replace(Params.profile("once", encoding="set", items=4), m=8)
    population = Population(["a\tb", "b\tc", "d"], [3, 2, 1])
    counts = simulate_counts(population, params, n_reports=100_000, seed=4)
    first = decode(counts, ["a", "b", "c", "d", "x", "y"])
    second = decode(counts, ["y", "d", "x", "c", "b", "a"])
    assert first.candidates[:4] == second.candidates[:4]
    assert first.share[:4] == pytest.approx(second.share[:4])
