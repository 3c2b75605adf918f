"""Intervals of strings: normal, with the sampling variance of few devices."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

from rappor.base.errors import RapporError
from rappor.decoding.decoder import decode
from rappor.decoding.inference import build_normal_interval
from rappor.estimator.error_control import ErrorControl
from rappor.estimator.score_tests import build_normal_tail
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

ERROR = 0.05


@pytest.mark.parametrize("n_held", [0, 3, 15, 30])
def test_where_only_devices_are_sampled_the_interval_is_wilsons(n_held: int) -> None:
    """If the sampling of 30 devices is the only noise, the interval is Wilson's."""
    share = n_held / 30
    low, high = build_normal_interval(
        np.array([share]), np.zeros(1), build_normal_tail(), devices=30
    )(ERROR)
    expected = stats.binomtest(n_held, 30).proportion_ci(1 - ERROR, method="wilson")
    assert low[0] == pytest.approx(expected.low, abs=1e-9)
    assert high[0] == pytest.approx(expected.high, abs=1e-9)


@pytest.mark.parametrize("n_named", [0, 1, 4, 12, 40])
@pytest.mark.parametrize(("low", "high"), [(1 / 464, 0.0611), (0.12, 0.5), (0.25, 0.75)])
def test_an_interval_is_wilsons_of_the_ones_at_a_bit(n_named: int, low: float, high: float) -> None:
    """The ends are Wilson's interval for the probability of a 1, turned into shares.

    Of 200 reports, some have a 1 at the bit. Without the string the probability of a 1 is `low`,
    and with the string `high`. Ends outside [0, 1] have another variance and are not compared.
    """
    n, gap = 200, high - low
    ends = build_normal_interval(
        np.array([(n_named / n - low) / gap]),
        np.array([low * (1 - low) / n / gap**2]),
        build_normal_tail(),
        devices=n,
        slope=(1 - 2 * low) / gap,
    )(ERROR)
    wilson = stats.binomtest(n_named, n).proportion_ci(1 - ERROR, method="wilson")
    for end, expected in zip(ends, (wilson.low, wilson.high), strict=True):
        share = (expected - low) / gap
        if 0 <= share <= 1:
            assert end[0] == pytest.approx(share, abs=1e-9)
        else:
            assert (end[0] < 0) == (share < 0)


@pytest.mark.slow
@pytest.mark.parametrize(("items", "m", "n_reports"), [(2, 8, 300), (8, 4, 1000), (8, 16, 5000)])
def test_intervals_of_items_cover_with_few_reports(items: int, m: int, n_reports: int) -> None:
    """Of 3,200 intervals of eight items of 1 to 50 %, as many contain the share as of 95 %.

    With the variance of share 0 for items outside the selection, 88 to 92 % did. The bound is .925,
    because a sample of 3,200 is below .925 with probability 1e-9. The items of a collection share
    no noise of devices, so the intervals are nearly independent.
    """
    names = [f"i{i}" for i in range(8)]
    shares = np.array([0.5, 0.3, 0.1, 0.1, 0.05, 0.05, 0.02, 0.01]) / (1 if items == 8 else 2.5)
    params = dataclasses.replace(Params.profile("once", encoding="set", items=items), m=m)
    n_covered = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        sets = rng.random((5000, 8)) < shares
        # Larger sets would be cut, which lowers the shares.
        sets = sets[sets.sum(axis=1) <= items]
        texts = [f"{seed}/{name}" for name in names]
        population = Population.from_values(
            "\t".join(text for text, has in zip(texts, row, strict=True) if has) for row in sets
        )
        counts = simulate_counts(population, params, n_reports=n_reports, seed=seed)
        estimates = decode(counts, [*texts, *(f"{seed}/a{i}" for i in range(20))])
        rows = [estimates.candidates.index(text) for text in texts]
        truth = sets.mean(axis=0)
        n_covered += int(
            ((estimates.ci_low[rows] <= truth) & (truth <= estimates.ci_high[rows])).sum()
        )
    assert n_covered >= stats.binom.isf(1 - 1e-9, 3200, 0.95)


def test_of_many_devices_the_interval_is_normal() -> None:
    """With very many devices the interval is normal, also for estimates outside [0, 1]."""
    share = np.array([-0.001, 0.0005, 0.5, 0.9999, 1.001])
    error = np.full(5, 0.001)
    low, high = build_normal_interval(share, error**2, build_normal_tail(), devices=1e9)(ERROR)
    reach = stats.norm.isf(ERROR / 2) * error
    assert low == pytest.approx(share - reach, abs=1e-6)
    assert high == pytest.approx(share + reach, abs=1e-6)


def test_of_few_devices_intervals_of_the_undetected_are_no_shorter_than_normal() -> None:
    """With few devices, intervals of undetected strings are not shorter than normal ones.

    The sampling of an undetected string is not part of the rows' noise, so none is subtracted.
    """
    params = Params(k=32, m=16, f=0.035972, p=0.008993, q=0.508993)
    names = [f"s{i}" for i in range(20)]
    counts = simulate_counts(Population(names, np.ones(20)), params, n_reports=30, seed=1)
    estimates = decode(counts, names)
    reach = 1.9599 * estimates.std_error
    assert not estimates.detected.any()
    assert (estimates.ci_low <= estimates.share - reach).all()
    assert (estimates.ci_high >= estimates.share + reach).all()


@pytest.mark.parametrize("p_value", [0.5, 1e-3, 1e-12, 1e-300])
def test_the_normal_tail_is_normal(p_value: float) -> None:
    """Quantiles of the normal tail are exact from 1/2 to the smallest positive float64."""
    tail = build_normal_tail()
    z = stats.norm.isf(p_value)
    assert tail.quantile(p_value) == pytest.approx(z, abs=1e-3)
    assert tail.p_values(np.array([z]))[0] == pytest.approx(p_value, rel=2e-3)


@pytest.mark.parametrize(("seed", "n_reports"), [(0, 30), (0, 10), (1, 30)])
def test_few_reports_do_not_count_the_absent_strings(seed: int, n_reports: int) -> None:
    """Adaptive control took nearly all of 100 absent strings for present, with the first seed."""
    params = dataclasses.replace(Params.profile("low-noise"), m=16)
    population = Population([f"{seed}/t"], [1])
    counts = simulate_counts(population, params, n_reports=n_reports, seed=7000 + seed)
    candidates = [f"{seed}/t", *(f"{seed}/a{i}" for i in range(100))]
    adaptive = decode(counts, candidates, error_control=ErrorControl(method="adaptive"))
    usual = decode(counts, candidates)
    assert adaptive.error_control.method == "bh"
    assert adaptive.detected.tolist() == usual.detected.tolist()
    assert np.sum(adaptive.detected & (adaptive.share < 0.5)) == 0


def test_many_reports_do_count_the_absent_strings() -> None:
    """The answer names the correction that was applied."""
    params = Params.profile("balanced")
    counts = simulate_counts(Population(["a", "b"], [1, 1]), params, n_reports=100, seed=1)
    control = ErrorControl(method="adaptive")
    assert decode(counts, ["a", "b"], error_control=control).error_control == control


@pytest.mark.parametrize(("k", "h", "m"), [(2, 4, 4), (4, 16, 2), (8, 8, 4), (16, 16, 2)])
@pytest.mark.parametrize("n", [5, 50])
def test_candidates_that_set_all_bits_say_nothing(k: int, h: int, m: int, n: int) -> None:
    """A sentence, or an interval that excludes no share below; numbers in either case."""
    params = Params(k=k, h=h, m=m, f=0.4, p=0.2, q=0.8)
    population = Population(["a", "b", "c"], [5, 3, 2])
    counts = simulate_counts(population, params, n_reports=100_000, seed=1)
    try:
        estimates = decode(counts, ["a", "b", "c", *(f"w{i}" for i in range(n))])
    except RapporError:
        return
    for row in estimates.rows():
        low = -np.inf if row["ci_low"] is None else row["ci_low"]
        high = np.inf if row["ci_high"] is None else row["ci_high"]
        assert low <= high
        assert not row["candidate"].startswith("w") or low <= 0
