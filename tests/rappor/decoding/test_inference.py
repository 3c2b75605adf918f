"""Confidence intervals of shares contain the variance of the sampling of few devices.

The number of devices with a string is random. With few devices, the interval of a share therefore
follows Wilson's score interval of a proportion (`build_normal_interval`).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

from rappor.decoding.decoder import decode
from rappor.decoding.inference import build_normal_interval
from rappor.estimator.error_control import ErrorControl
from rappor.estimator.score_tests import build_normal_tail
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

ERROR = 0.05
"""Error rate of the intervals: they are 95 % intervals."""


def test_normal_tail_falls_beyond_its_last_point() -> None:
    """P-values of the normal tail are those of scipy, and never rise, also beyond 38 deviations.

    Bad case: a p-value that rises again would hide the most frequent strings.
    """
    scores = np.linspace(-45, 120, 3301)
    p_values = build_normal_tail().p_values(scores)
    assert (np.diff(p_values) <= 0).all()
    is_inside = np.abs(scores) <= 37
    # The second derivative of the logarithm is at most 1, so its interpolation over 1/8 deviation
    # is off by at most (1/8)^2 / 8 = .002.
    assert p_values[is_inside] == pytest.approx(stats.norm.sf(scores[is_inside]), rel=0.0025)
    probabilities = np.array([0.5, 1e-9, 1e-300])
    quantiles = build_normal_tail().quantile(probabilities)
    assert quantiles == pytest.approx(stats.norm.isf(probabilities), abs=0.003)


@pytest.mark.parametrize("n_with_string", [0, 3, 15, 30])
def test_interval_without_report_noise_is_wilsons_interval(n_with_string: int) -> None:
    """Without noise of the reports, the interval of a share is Wilson's score interval.

    The number of devices with the string, of 30 sampled ones, is then the only random number. It is
    binomial.
    """
    share = n_with_string / 30
    low, high = build_normal_interval(
        np.array([share]), np.zeros(1), build_normal_tail(), devices=30
    )(ERROR)
    expected = stats.binomtest(n_with_string, 30).proportion_ci(1 - ERROR, method="wilson")
    assert low[0] == pytest.approx(expected.low, abs=1e-9)
    assert high[0] == pytest.approx(expected.high, abs=1e-9)


@pytest.mark.parametrize("n_ones", [0, 1, 4, 12, 40])
@pytest.mark.parametrize(("low", "high"), [(1 / 464, 0.0611), (0.12, 0.5), (0.25, 0.75)])
def test_interval_of_one_bit_is_the_de_biased_wilson_interval(
    n_ones: int, low: float, high: float
) -> None:
    """For one bit, the interval of a share is Wilson's interval of the ones, de-biased.

    Of 200 reports, `n_ones` have a 1 at the bit. Without the string the probability of a 1 is
    `low`, and with the string `high`. `slope` is the derivative of the variance by the share at
    share 0, times the number of devices. Ends outside [0, 1] have another variance and are not
    compared. The three pairs of `low` and `high` are about those of

    - a set of eight items under the profile "once". A report names one of 464 buckets. It names the
      bucket of an absent item with probability 1/464, and the bucket of an item of the set with
      probability .0611;
    - a string under the profile "balanced";
    - symmetric noise.
    """
    n, gap = 200, high - low
    ends = build_normal_interval(
        np.array([(n_ones / n - low) / gap]),
        np.array([low * (1 - low) / n / gap**2]),
        build_normal_tail(),
        devices=n,
        slope=(1 - 2 * low) / gap,
    )(ERROR)
    wilson = stats.binomtest(n_ones, n).proportion_ci(1 - ERROR, method="wilson")
    for end, expected in zip(ends, (wilson.low, wilson.high), strict=True):
        share = (expected - low) / gap
        if 0 <= share <= 1:
            assert end[0] == pytest.approx(share, abs=1e-9)
        else:
            assert (end[0] < 0) == (share < 0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("items", "m", "n_reports", "n_collections"),
    [
        (8, 4, 1000, 50),
        *(
            pytest.param(*numbers, 400, marks=pytest.mark.acceptance)
            for numbers in ((2, 8, 300), (8, 4, 1000), (8, 16, 5000))
        ),
    ],
)
def test_intervals_of_items_cover_with_few_reports(
    items: int, m: int, n_reports: int, n_collections: int
) -> None:
    """95 % intervals of items contain their share in 95 % of the cases, also with few reports.

    Each collection has 13 items with shares of 1 to 50 %. Sets of two items have smaller shares,
    because larger sets are left out here. Two rates are checked: .95 of all intervals contain the
    share, and .025 of the intervals of items of 5 to 20 % end below it. If the program is right,
    each check fails with probability 1e-9.

    In an earlier version, items outside the selection had the variance of an absent item, and the
    second rate was .12 with eight items and 1,000 reports. 50 collections detect a rate of .12 with
    probability .99, and 400 collections detect .05. The items of a collection share no noise of
    devices, so the intervals are nearly independent.
    """
    shares = np.repeat([0.5, 0.3, 0.1, 0.05, 0.02, 0.01], [1, 1, 4, 5, 1, 1])
    if items == 2:
        shares /= 2.5  # Otherwise 16 % of the sets would have more than two items.
    is_medium = (shares >= 0.05) & (shares <= 0.2)
    params = dataclasses.replace(Params.profile("once", encoding="set", items=items), m=m)
    n_covered, n_too_low = 0, 0
    for seed in range(n_collections):
        rng = np.random.default_rng(seed)
        sets = rng.random((5000, len(shares))) < shares
        # Larger sets would be cut, which lowers the shares.
        sets = sets[sets.sum(axis=1) <= items]
        # Each collection has names of its own, hence buckets and collisions of its own.
        texts = np.array([f"{seed}/i{i}" for i in range(len(shares))])
        population = Population.from_values("\t".join(texts[row]) for row in sets)
        counts = simulate_counts(population, params, n_reports=n_reports, seed=seed)
        estimates = decode(counts, [*texts, *(f"{seed}/a{i}" for i in range(20))])
        rows = [estimates.candidates.index(text) for text in texts]
        truth = sets.mean(axis=0)
        is_too_low = estimates.ci_high[rows] < truth
        n_covered += int((~is_too_low & (estimates.ci_low[rows] <= truth)).sum())
        n_too_low += int(is_too_low[is_medium].sum())
    n_medium = n_collections * int(is_medium.sum())
    assert n_covered >= stats.binom.isf(1 - 1e-9, len(shares) * n_collections, 0.95)
    assert n_too_low <= stats.binom.isf(1e-9, n_medium, 0.025)


def test_interval_of_many_devices_is_normal() -> None:
    """With 1e9 devices the interval is the normal one, also for estimates outside [0, 1]."""
    share = np.array([-0.001, 0.0005, 0.5, 0.9999, 1.001])
    error = np.full(5, 0.001)
    low, high = build_normal_interval(share, error**2, build_normal_tail(), devices=1e9)(ERROR)
    half_width = stats.norm.isf(ERROR / 2) * error
    assert low == pytest.approx(share - half_width, abs=1e-6)
    assert high == pytest.approx(share + half_width, abs=1e-6)


def test_intervals_of_undetected_strings_are_no_shorter_than_normal() -> None:
    """With 30 reports, intervals of undetected strings are not shorter than normal intervals.

    The variance of a detected string contains the sampling of its devices, which Wilson's interval
    replaces by a better one. The variance of an undetected string does not contain it, so nothing
    may be subtracted.
    """
    # Noise with epsilon_1 = 4 and epsilon_inf = 8 nats. With stronger noise, the sampling of the
    # devices would be a smaller part of the variance.
    params = Params(k=32, m=16, f=0.035972, p=0.008993, q=0.508993)
    names = [f"s{i}" for i in range(20)]
    counts = simulate_counts(Population(names, np.ones(20)), params, n_reports=30, seed=1)
    estimates = decode(counts, names)
    half_width = 1.9599 * estimates.std_error  # of a normal 95 % interval, rounded down
    assert not estimates.detected.any()
    assert (estimates.ci_low <= estimates.share - half_width).all()
    assert (estimates.ci_high >= estimates.share + half_width).all()


@pytest.mark.parametrize("p_value", [0.5, 1e-3, 1e-12, 1e-300])
def test_the_normal_tail_is_normal(p_value: float) -> None:
    """Quantiles and p-values of the normal tail agree with scipy from .5 to 1e-300."""
    tail = build_normal_tail()
    z = stats.norm.isf(p_value)
    assert tail.quantile(p_value) == pytest.approx(z, abs=1e-3)
    assert tail.p_values(np.array([z]))[0] == pytest.approx(p_value, rel=2e-3)


@pytest.mark.parametrize(("seed", "n_reports"), [(0, 30), (0, 10), (1, 30)])
def test_few_reports_replace_the_adaptive_procedure(seed: int, n_reports: int) -> None:
    """With few reports, the method "adaptive" is replaced by "bh", and the result names "bh".

    "adaptive" estimates the number of absent strings from the p-values. With few reports there are
    few different p-values. Before the replacement, "adaptive" detected nearly all of 100 absent
    strings in every second collection of 30 reports. The collection of seed 0 is one of them.
    """
    params = dataclasses.replace(Params.profile("low-noise"), m=16)
    population = Population([f"{seed}/t"], [1])
    counts = simulate_counts(population, params, n_reports=n_reports, seed=7000 + seed)
    candidates = [f"{seed}/t", *(f"{seed}/a{i}" for i in range(100))]
    adaptive = decode(counts, candidates, error_control=ErrorControl(method="adaptive"))
    by_default = decode(counts, candidates)
    assert adaptive.error_control.method == "bh"
    assert adaptive.detected.tolist() == by_default.detected.tolist()
    assert set(adaptive.detected_candidates) <= {f"{seed}/t"}


def test_many_reports_keep_the_adaptive_procedure() -> None:
    """With 100 reports the method "adaptive" is applied, and the result contains its name."""
    params = Params.profile("balanced")
    counts = simulate_counts(Population(["a", "b"], [1, 1]), params, n_reports=100, seed=1)
    control = ErrorControl(method="adaptive")
    assert decode(counts, ["a", "b"], error_control=control).error_control == control


@pytest.mark.parametrize(("k", "h", "m"), [(2, 4, 4), (4, 16, 2), (8, 8, 4), (16, 16, 2)])
@pytest.mark.parametrize("n", [5, 50])
def test_absent_strings_with_nearly_all_bits_have_no_interval_above_0(
    k: int, h: int, m: int, n: int
) -> None:
    """If strings set nearly all bits, the interval of each absent string begins at 0 or below it.

    With as many hash functions as bits, candidates hardly differ, and the design matrix is nearly
    singular. An end of an interval that is None is infinite. The names of absent strings begin with
    w.
    """
    params = Params(k=k, h=h, m=m, f=0.4, p=0.2, q=0.8)
    population = Population(["a", "b", "c"], [5, 3, 2])
    counts = simulate_counts(population, params, n_reports=100_000, seed=1)
    estimates = decode(counts, ["a", "b", "c", *(f"w{i}" for i in range(n))])
    for row in estimates.rows():
        low = -np.inf if row["ci_low"] is None else row["ci_low"]
        high = np.inf if row["ci_high"] is None else row["ci_high"]
        assert low <= high
        assert not row["candidate"].startswith("w") or low <= 0
