"""The refit of sets: its model of shared buckets, its derivatives, and the resulting shares.

A device with two items that share a bucket in its cohort has one bucket, not two. The linear fit
adds the shares of both items. After it, the refit takes Gauss-Newton steps with the probability
that a device owns each bucket.
"""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any

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


def make_target(params: Params) -> Target:
    """Return rows with one report for each bucket, for functions that read only parameters."""
    counts = Counts(
        params,
        np.ones((params.m, params.k), dtype=np.int64),
        np.full(params.m, params.k, dtype=np.int64),
    )
    return debias([counts], [Repetition(reports_per_device=1.0, source="counts")])


def test_regression_probabilities_are_the_mean_over_all_hashes() -> None:
    """The probabilities of the regression equal an enumeration of the buckets of two items.

    A device has two items, and three own buckets of six after padding. Its report names a bucket
    with a probability that depends on the hashes of both items and on the padding. The regression
    needs the mean over all hashes, for the bucket of an item and for any bucket.
    """
    params = Params(k=6, items=3, keep=0.6, encoding="set", m=2)
    p_star, q_star = params.p_star, params.q_star
    named_bucket_of_item, named_any_bucket = [], []
    for first, second in itertools.product(range(params.k), repeat=2):
        buckets_of_items = {first, second}
        n_other = params.k - len(buckets_of_items)
        # Padding makes each other bucket an own bucket with this probability.
        padding = (params.items - len(buckets_of_items)) / n_other
        # Probability that the report names each bucket.
        named = [
            p_star + (q_star - p_star) * (1.0 if bucket in buckets_of_items else padding)
            for bucket in range(params.k)
        ]
        named_bucket_of_item.append(named[first])
        named_any_bucket += named
    low, high = params.response.regression_probabilities
    # The regression has a term 1 for the bucket of an item, 1/6 for the probability that the other
    # item has the same bucket, and the background (1 - 2) / 6, since the shares sum to 2.
    expected_of_item = low + (high - low) * (1 + 1 / 6 - 1 / 6)
    expected_of_any = low + (high - low) * (2 / 6 - 1 / 6)
    assert np.mean(named_bucket_of_item) == pytest.approx(expected_of_item)
    assert np.mean(named_any_bucket) == pytest.approx(expected_of_any)


def test_one_own_bucket_has_the_probabilities_of_the_response() -> None:
    """With one own bucket (n = 1), the regression has the probabilities p* and q* of categories."""
    params = Params(k=9, items=1, keep=0.5, encoding="set", m=2)
    low, high = params.response.regression_probabilities
    assert (low, high) == pytest.approx((params.p_star, params.q_star))


@pytest.mark.parametrize("share", [0.0, 0.05, 0.7])
def test_derivatives_are_those_of_the_expected_rows(share: float) -> None:
    """The columns of the refit are derivatives of the expected rows by the share of an item.

    They are compared with a difference quotient. An item also changes the padding of all buckets,
    which the background contains, so the derivative of an empty bucket is subtracted.
    """
    params = Params(k=50, items=8, keep=0.5, encoding="set", m=2)
    # Items 0 and 1 share bucket 3 of cohort 0. All other buckets have one item or none.
    rows = np.array([[3, 53], [3, 60], [7, 70]])
    columns = sparse.csc_array(
        (np.ones(6), (rows.ravel(), np.repeat(np.arange(3), 2))), shape=(100, 3)
    )
    target, shares, step = make_target(params), np.array([share, 0.4, 0.2]), 1e-6
    before, derivative = set_refit._compute_rows(target, columns, shares)
    after, _ = set_refit._compute_rows(target, columns, shares + np.array([step, 0, 0]))
    slope = (after - before) / step
    for row_of_item, empty_row in ((3, 10), (53, 99)):
        column = derivative[row_of_item] / (1 - share)
        # The refit leaves out terms of order 1 / k^2 on purpose.
        assert slope[row_of_item] - slope[empty_row] == pytest.approx(column, abs=2 / params.k**2)


@pytest.mark.parametrize(
    ("shares", "shifts"),
    [
        ((0.5, 0.5), [0.25]),  # both .25 if independent, and 0 to .5 otherwise
        ((0.2, 0.7), [0.14]),  # both .14 if independent, and 0 to .2 otherwise
        ((0.3, 0.4), [0.18]),  # both .12 if independent, and 0 to .3 otherwise
        ((0.9, 0.8), [0.08]),  # both .72 if independent, and .7 to .8 otherwise
        ((0.5, 0.2, 0.7), [0.1, 0.15, 0.14]),  # three pairs
        ((0.5,), []),
    ],
)
def test_items_that_may_be_correlated_add_variance_to_their_bucket(
    shares: tuple[float, ...], shifts: list[float]
) -> None:
    """Each pair of items in a bucket adds a variance for their unknown correlation.

    With shares a and b, independent items occur together with probability a b. By the bounds of
    Frechet it lies between max(0, a + b - 1) and min(a, b). The reports cannot show where, so the
    square of the largest distance is added. A row with one item has no such variance.
    """
    in_row = np.append(np.ones(len(shares)), 0.0)
    columns = sparse.csc_array(np.array([in_row, 1.0 - in_row]))
    variance = set_refit._compute_correlation_variance(columns, np.array([*shares, 0.9]))
    assert variance == pytest.approx([sum(shift**2 for shift in shifts), 0.0])


def test_largest_bias_by_correlation_is_that_of_extreme_correlations() -> None:
    """The diagnostics have the largest bias that a correlation of an item with others can cause.

    A device with the item has 0 to n - 1 other own buckets, and a device without it 0 to n. Their
    mean number is known. The covariance of item and number is smallest if the devices with the item
    have the fewest other buckets, and largest if they have the most. The bias is stated in standard
    errors of the share.
    """
    params = Params(k=50, items=8, keep=0.5, encoding="set", m=2)
    # Items 0 and 1 share bucket 3 of cohort 0. All other buckets have one item or none.
    rows = np.array([[3, 53], [3, 60], [7, 70]])
    columns = sparse.csc_array(
        (np.ones(6), (rows.ravel(), np.repeat(np.arange(3), 2))), shape=(100, 3)
    )
    shares, std_error = np.array([0.7, 0.4, 0.2]), np.array([0.01, 0.02, 0.04])
    design: Any = SimpleNamespace(columns=lambda chosen: columns[:, chosen])
    fit = SimpleNamespace(coin_variance=np.ones(100), tau2=0.0, residual=np.zeros(100))
    selection: Any = SimpleNamespace(fit=fit, std_error=std_error)
    result = set_refit.describe_correlation(
        dataclasses.replace(make_target(params), extra_variance=np.zeros(100)),
        set_refit.SetDesign(
            design=design,
            row_derivative=np.ones(100),
            selected=np.arange(3),
            shares=shares,
        ),
        selection,
    )
    # Mean number of buckets with an item: in cohort 0, 1 - .3 * .6 for the shared bucket and .2 for
    # the other, and in cohort 1 .7 + .4 + .2.
    n_filled = (1.02 + 1.3) / 2
    expected = 0.0
    for share, error in zip(shares, std_error, strict=True):
        # `mean` is the mean number of the other own buckets. n is 8, so all devices with the item
        # together have at most 7 `share` of them, and those without it at most 8 (1 - share).
        mean = n_filled - share
        least, most = max(0.0, mean - 8 * (1 - share)), min(7 * share, mean)
        shift = max(share * mean - least, most - share * mean) / (50 - mean)
        expected = max(expected, shift / error)
    assert result == {"p_value": 1.0, "shift_errors": pytest.approx(expected)}


@pytest.mark.slow
def test_shares_of_frequent_items_are_unbiased_if_buckets_are_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Shares of 12 items of 10 to 90 % in 48 buckets have errors of the stated size.

    Many buckets have several frequent items. The sum of the squared errors, in standard errors, is
    chi-squared distributed. Without the refit the linear fit exceeds the limit, so the test has
    power.
    """
    names = [f"item {i}" for i in range(12)]
    shares = np.tile([0.1, 0.3, 0.6, 0.9], 3)
    params = Params(k=48, items=12, keep=0.6, encoding="set", m=16)
    sets = np.random.default_rng(5).random((20_000, 12)) < shares
    population = Population.from_values(
        "\t".join(name for name, has in zip(names, row, strict=True) if has) for row in sets
    )
    counts = simulate_counts(population, params, n_reports=1_000_000, seed=1)

    def compute_squared_errors() -> float:
        """Return the squared errors of a decode, in squared standard errors."""
        estimates = decode(counts, names)
        rows = estimates.indices_of(names)
        z = (estimates.share[rows] - sets.mean(axis=0)) / estimates.std_error[rows]
        return float(np.sum(z**2))

    limit = stats.chi2.isf(FALSE_ALARM, len(names))
    assert compute_squared_errors() < limit
    monkeypatch.setattr("rappor.decoding.decoder.has_sets", lambda _: False)
    assert compute_squared_errors() > limit


@pytest.mark.slow
def test_sets_have_no_unallocated_share_but_a_mean_number_of_items() -> None:
    """Sets have no unallocated share: the sum of the listed shares is the mean number of items.

    A device has several items, so shares do not add up to 1, and "1 minus the sum" means nothing.
    The four sets have 2, 1, 3 and 0 listed items, 1.5 in the mean.
    """
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
    """The estimates of sets do not depend on the order of the candidates.

    The refit takes a fixed number of steps, each from the shares of all items at once.
    """
    params = dataclasses.replace(Params.profile("once", encoding="set", items=4), m=8)
    population = Population(["a\tb", "b\tc", "d"], [3, 2, 1])
    counts = simulate_counts(population, params, n_reports=100_000, seed=4)
    first = decode(counts, ["a", "b", "c", "d", "x", "y"])
    second = decode(counts, ["y", "d", "x", "c", "b", "a"])
    assert first.candidates[:4] == second.candidates[:4]
    assert first.share[:4] == pytest.approx(second.share[:4])


@pytest.mark.slow
def test_items_that_occur_together_cause_a_warning() -> None:
    """If four items occur on the same devices, the fit shows it, and a warning appears.

    In some of 64 cohorts two of the items share a bucket. If both occur on the same 60 % of the
    devices, .6 of the devices own this bucket. If they are independent, .84 do. Independent items
    cause no warning.
    """
    names = [f"item {i}" for i in range(4)]
    params = Params(k=48, items=6, keep=0.6, encoding="set", m=64)
    rng = np.random.default_rng(7)
    independent = rng.random((20_000, 4)) < 0.6
    together = np.repeat(independent[:, :1], 4, axis=1)
    codes = []
    for sets in (independent, together):
        population = Population.from_values(
            "\t".join(name for name, has in zip(names, row, strict=True) if has) for row in sets
        )
        counts = simulate_counts(population, params, n_reports=1_000_000, seed=1)
        codes.append({warning.code for warning in decode(counts, names).warnings})
    assert "correlated_items" not in codes[0]
    assert "correlated_items" in codes[1]
