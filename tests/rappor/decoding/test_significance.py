"""P-values against enumeration, and error control against its definition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from decodings import FALSE_ALARM, by_name
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse, stats

from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.estimator.debias import Target, debias
from rappor.estimator.detection_thresholds import Thresholds
from rappor.estimator.device_assumptions import add_collections
from rappor.estimator.error_control import CORRECTIONS, ErrorControl
from rappor.estimator.fit import Fit, fit_rows
from rappor.estimator.p_values import PValues
from rappor.estimator.score_tests import compute_null_tail
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population


def fitted(*collections: Counts) -> tuple[Target, Fit]:
    target = debias(*add_collections(collections))
    nothing = sparse.csc_array((len(target), 0))
    return target, fit_rows(target, nothing, allow_zero_weights=False)


def random_counts(params: Params, seed: int, *, heavy: int = 0) -> Counts:
    """Make counts of noise only. `heavy` adds ones to one bit of every cohort."""
    rng = np.random.default_rng(seed)
    reports = np.full(params.m, 100_000)
    ones = rng.binomial(100_000, params.p_star, size=(params.m, params.k))
    ones[np.arange(params.m), rng.integers(params.k, size=params.m)] += heavy
    return Counts(params, ones, reports)


def enumerate_scores(target: Target, fit: Fit, *, standardised: bool = True) -> NDArray[np.float64]:
    """Return the score of a string for every outcome of its hash functions.

    It is divided by its standard deviation, or by the root of the string's information if that is
    smaller.
    """
    weighted = fit.weight * fit.residual
    tables: list[NDArray[np.float64]] = []
    for group, counts in enumerate(target.counts):
        table = weighted[target.collection_index == group].reshape(counts.params.m, counts.params.k)
        tables.extend(row - row.mean() for row in table for _ in range(counts.params.h))
    sums = np.array([sum(choice) for choice in itertools.product(*tables)])
    if standardised:
        return np.asarray(sums / sums.std())
    params = target.counts[0].params
    own = params.h / params.k * fit.weight.sum()  # of a string in the mean over its bits
    return np.asarray(sums / min(np.sqrt(own - own**2 / fit.weight.sum()), sums.std()))


def threshold(
    p_values: NDArray[np.float64], detection: ErrorControl, *, n_candidates: int
) -> float:
    """Return the largest p-value that is detected. Further candidates count as large p-values."""
    every = PValues(in_memory=p_values, n_further=n_candidates - len(p_values))
    return Thresholds(detection, every).largest


def log_error(target: Target, fit: Fit, *, smallest: float) -> float:
    """Return the largest error of ln p over all scores whose true tail is above `smallest`.

    The formula is for continuous scores; a discrete score's tail is taken at mid-step.
    """
    scores = enumerate_scores(target, fit)
    values, times = np.unique(scores.round(9), return_counts=True)
    tail = (times[::-1].cumsum()[::-1] - times / 2) / len(scores)
    compared = (values > 0.5) & (tail > smallest)
    p_values = compute_null_tail(target, fit, most_values=0).p_values(values[compared])
    return float(np.abs(np.log(p_values / tail[compared])).max())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("k", "h", "m"), [(8, 1, 5), (16, 1, 4), (6, 2, 3), (4, 1, 8)], ids=str)
def test_the_tail_is_that_of_enumeration(k: int, h: int, m: int, seed: int) -> None:
    """Over all k^(m h) outcomes of the hashes, the formula is within 35 % of the exact tail."""
    params = Params(k=k, h=h, m=m, f=0.5, p=0.25, q=0.75)
    target, fit = fitted(random_counts(params, seed))
    assert log_error(target, fit, smallest=0.005) < np.log(1.35)


def test_the_tail_is_that_of_enumeration_over_two_collections() -> None:
    """Collections of different k and h add their draws."""
    first = random_counts(Params(k=8, h=1, m=3, f=0.5, p=0.25, q=0.75), 1)
    second = random_counts(Params(k=5, h=2, m=2, f=0.2, p=0.25, q=0.75), 2)
    assert log_error(*fitted(first, second), smallest=0.005) < np.log(1.35)


def test_a_skewed_tail_is_heavier_than_the_normal_one() -> None:
    """If heavy strings that are no candidates lift bits, the tail exceeds the normal tail."""
    params = Params(k=16, h=1, m=4, f=0.5, p=0.25, q=0.75)
    target, fit = fitted(random_counts(params, 3, heavy=20_000))
    scores = enumerate_scores(target, fit)
    level = np.sort(scores)[-len(scores) // 200]
    share = float((scores >= level).mean())
    p_value = float(compute_null_tail(target, fit, most_values=0).p_values(np.array([level]))[0])
    assert p_value > share / 2
    assert share > 2 * 0.0013499  # the normal tail at 3
    assert level > 2.9


def test_p_values_fall_as_scores_rise() -> None:
    """P-values fall as scores rise, also beyond the last tilt, and stay in [0, 1]."""
    params = Params(k=16, h=1, m=4, f=0.5, p=0.25, q=0.75)
    target, fit = fitted(random_counts(params, 4))
    p_values = compute_null_tail(target, fit, most_values=0).p_values(np.linspace(-30, 60, 2000))
    assert p_values[0] == 1
    assert (np.diff(p_values) <= 0).all()
    assert 0 < p_values[-1] < 1e-9


@pytest.mark.parametrize("heavy", [0, 20_000])
@pytest.mark.parametrize(
    ("k", "h", "m"), [(64, 1, 1), (64, 1, 2), (8, 1, 5), (6, 2, 3), (4, 1, 8)], ids=str
)
def test_few_cohorts_have_the_tail_of_enumeration(k: int, h: int, m: int, heavy: int) -> None:
    """With few cohorts a p-value is at least the exact tail, and hardly more."""
    params = Params(k=k, h=h, m=m, f=0.5, p=0.25, q=0.75)
    target, fit = fitted(random_counts(params, 5, heavy=heavy))
    scores = np.sort(enumerate_scores(target, fit, standardised=False))
    p_values = compute_null_tail(target, fit).p_values(scores)
    n = len(scores)
    tail = (n - np.searchsorted(scores, scores - 1e-9)) / n
    below = (n - np.searchsorted(scores, scores - 0.05)) / n
    assert (p_values >= tail * (1 - 1e-9)).all()
    assert (p_values <= below * (1 + 1e-9)).all()
    assert p_values.min() == pytest.approx(tail.min())
    assert p_values.min() >= (1 - 1e-9) / n


def test_no_residuals_are_no_error() -> None:
    """If every bit fits exactly, a score of 0 has the p-value 1."""
    params = Params(k=4, h=1, m=2, f=0.5, p=0.25, q=0.75)
    target, fit = fitted(Counts(params, np.full((2, 4), 500), [1000, 1000]))
    assert compute_null_tail(target, fit).p_values(np.array([-1.0, 0.0])).tolist() == [1.0, 1.0]


def naive_bh(p_values: list[float], level: float, n: int) -> set[int]:
    """Reject as Benjamini and Hochberg (1995) define it."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    most = 0
    for rank, i in enumerate(order, start=1):
        if p_values[i] <= level * rank / n:
            most = rank
    return {i for i in range(len(p_values)) if most and p_values[i] <= p_values[order[most - 1]]}


BH, ADAPTIVE, BONFERRONI = (ErrorControl(method=method) for method in CORRECTIONS)
LISTS = st.lists(
    st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.001, 0.01, 0.05, 1.0])),
    min_size=1,
    max_size=30,
)


@pytest.mark.slow
@given(LISTS, st.floats(0.001, 0.5), st.integers(0, 50))
def test_bh_rejects_by_its_definition(p_values: list[float], level: float, more: int) -> None:
    """Benjamini-Hochberg over all candidates rejects as defined, further candidates included."""
    n = len(p_values) + more
    array = np.array(p_values)
    largest = threshold(array, ErrorControl(alpha=level), n_candidates=n)
    rejected = set(np.flatnonzero(array <= largest).tolist())
    expected = naive_bh(p_values, level, n)
    if largest == 0 and not expected:  # no detection; a p-value of exactly 0 would have been one
        assert (array > 0).all()
    else:
        assert rejected == expected


@given(LISTS, st.floats(0.001, 0.5), st.integers(0, 50))
def test_bonferroni_divides_the_level(p_values: list[float], level: float, more: int) -> None:
    """Bonferroni compares each p-value with level / n."""
    n = len(p_values) + more
    array = np.array(p_values)
    largest = threshold(array, ErrorControl(alpha=level, method="bonferroni"), n_candidates=n)
    assert (array <= largest).tolist() == [p <= level / n for p in p_values]


@pytest.mark.slow
@pytest.mark.parametrize(("n_absent", "grid"), [(1, 400), (2, 100), (3, 40)], ids=str)
@pytest.mark.parametrize("n_present", [0, 1, 4, 30, 60])
def test_the_adaptive_procedure_keeps_its_level_exactly(
    n_absent: int, grid: int, n_present: int
) -> None:
    """The exact false discovery rate of the adaptive procedure is at most its level.

    All outcomes of the p-values of absent candidates are enumerated. These p-values are uniform on
    a grid. Present candidates have the p-value 0, the worst case for the estimate of the absent
    ones.
    """
    rates = []
    for fallen in itertools.combinations_with_replacement(range(1, grid + 1), n_absent):
        p_values = np.concatenate([np.array(fallen) / grid, np.zeros(n_present)])
        largest = threshold(p_values, ADAPTIVE, n_candidates=len(p_values))
        n_detected = (p_values <= largest).sum()
        n_false = (p_values[:n_absent] <= largest).sum()
        times = len(set(itertools.permutations(fallen)))
        rates.append(times * n_false / max(n_detected, 1))
    assert sum(rates) / grid**n_absent <= 0.05


def test_the_adaptive_procedure_counts_what_is_not_passed_as_absent() -> None:
    """Candidates without a p-value count as absent, so the threshold is that of the whole list."""
    rng = np.random.default_rng(1)
    p_values = np.concatenate([rng.uniform(size=600), np.full(400, 1e-9)])
    whole = threshold(p_values, ADAPTIVE, n_candidates=1000)
    smallest = np.sort(p_values)[:800]
    assert threshold(smallest, ADAPTIVE, n_candidates=1000) == whole
    assert whole > threshold(p_values, BH, n_candidates=1000)


def test_the_adaptive_procedure_is_near_bh_where_all_are_absent() -> None:
    """If all candidates are absent, the level is at least nine tenths of that of BH."""
    for n in (1, 2, 10, 20, 30, 40, 100):
        even = np.arange(1, n + 1) / n
        even[0] = 0.9 * 0.05 / n
        assert threshold(even, ADAPTIVE, n_candidates=n) == even[0]


@pytest.mark.parametrize("missing", [0, 2])
@pytest.mark.parametrize("h", [1, 2])
def test_p_values_of_absent_candidates_are_uniform(h: int, missing: int) -> None:
    """P-values of absent candidates are uniform, also if the two heaviest strings are missing.

    The Kolmogorov-Smirnov distance of 3,000 p-values is at most .060, which fails at random once in
    1e9. A tail twice too heavy would fail.
    """
    params = Params(k=128, h=h, m=16, f=0.0, p=0.225, q=0.775)
    population = Population([f"held {i}" for i in range(100)], np.exp(-0.05 * np.arange(100)))
    absent = [f"nobody's {i}" for i in range(3000)]
    counts = simulate_counts(population, params, n_reports=10_000_000, seed=h)
    estimates = decode(counts, [*population.values[missing:], *absent])
    p_values = by_name(estimates, estimates.p_value)
    drawn = [p_values[text] for text in absent]
    assert stats.kstest(drawn, "uniform").pvalue > FALSE_ALARM
