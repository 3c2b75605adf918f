"""P-values of strings, and the procedures that decide which strings are detected.

The score of a candidate is the sum of the weighted residuals of its bits. Its p-value is the
probability that an absent string, whose bits are random, has at least this score. Here k, h and m
are so small that all k^(m h) outcomes of the hash functions are enumerated, which gives the exact
probability. The procedures (Benjamini-Hochberg, adaptive, Bonferroni) are compared with their
definitions.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from decodings import FALSE_ALARM, map_by_candidate
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


def fit_no_strings(*collections: Counts) -> tuple[Target, Fit]:
    """Fit a background without any string, so that all ones above it are residuals."""
    target = debias(*add_collections(collections))
    nothing = sparse.csc_array((len(target), 0))
    return target, fit_rows(target, nothing, allow_zero_weights=False)


def draw_counts(params: Params, seed: int, *, heavy: int = 0) -> Counts:
    """Return counts of noise only, with `heavy` additional ones at one random bit of each cohort.

    A frequent string outside the candidates adds ones in this way.
    """
    rng = np.random.default_rng(seed)
    reports = np.full(params.m, 100_000)
    bit_counts = rng.binomial(100_000, params.p_star, size=(params.m, params.k))
    bit_counts[np.arange(params.m), rng.integers(params.k, size=params.m)] += heavy
    return Counts(params, bit_counts, reports)


def enumerate_scores(target: Target, fit: Fit, *, standardised: bool = True) -> NDArray[np.float64]:
    """Return the score of a string for every outcome of its hash functions.

    With `standardised`, scores are divided by their standard deviation. Otherwise they are divided
    by the smaller of this standard deviation and the square root of the information about a string.
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
    # Mean over all strings of the sum of the weights at the bits of a string: a string has h of the
    # k bits of a cohort.
    own_weight = params.h / params.k * fit.weight.sum()
    # Information about the share of a string. The fit of the background takes a part of it.
    information = own_weight - own_weight**2 / fit.weight.sum()
    return np.asarray(sums / min(np.sqrt(information), sums.std()))


def find_threshold(
    p_values: NDArray[np.float64], detection: ErrorControl, *, n_candidates: int
) -> float:
    """Return the largest detected p-value of `n_candidates` candidates.

    Candidates without an entry in `p_values` count as candidates with large p-values.
    """
    all_p_values = PValues(in_memory=p_values, n_further=n_candidates - len(p_values))
    return Thresholds(detection, all_p_values).largest


def compute_log_error(target: Target, fit: Fit, *, smallest: float) -> float:
    """Return the largest error of ln p over all scores whose true tail is above `smallest`.

    The formula assumes a continuous score. The exact tail of a discrete score has steps, so each
    score is compared with the middle of its step: half of its probability counts as above.
    """
    scores = enumerate_scores(target, fit)
    values, times = np.unique(scores.round(9), return_counts=True)
    tail = (times[::-1].cumsum()[::-1] - times / 2) / len(scores)
    # Scores below half a standard deviation detect nothing, so their p-values need no accuracy.
    compared = (values > 0.5) & (tail > smallest)
    p_values = compute_null_tail(target, fit, most_values=0).p_values(values[compared])
    return float(np.abs(np.log(p_values / tail[compared])).max())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("k", "h", "m"), [(8, 1, 5), (16, 1, 4), (6, 2, 3), (4, 1, 8)], ids=str)
def test_the_tail_is_that_of_enumeration(k: int, h: int, m: int, seed: int) -> None:
    """The p-value of a score is within 35 % of its exact tail, down to a tail of .005.

    The exact tail is the proportion of all k^(m h) outcomes of the hash functions in which an
    absent string has at least this score.
    """
    params = Params(k=k, h=h, m=m, f=0.5, p=0.25, q=0.75)
    target, fit = fit_no_strings(draw_counts(params, seed))
    assert compute_log_error(target, fit, smallest=0.005) < np.log(1.35)


def test_the_tail_is_that_of_enumeration_over_two_collections() -> None:
    """The p-value of a score from two collections with different k and h has the same accuracy."""
    first = draw_counts(Params(k=8, h=1, m=3, f=0.5, p=0.25, q=0.75), 1)
    second = draw_counts(Params(k=5, h=2, m=2, f=0.2, p=0.25, q=0.75), 2)
    assert compute_log_error(*fit_no_strings(first, second), smallest=0.005) < np.log(1.35)


def test_frequent_unlisted_strings_make_the_tail_heavier() -> None:
    """If frequent strings are no candidates, the p-value of a large score exceeds the normal one.

    Their bits have large residuals, and an absent string that sets several of these bits has a
    large score. A normal p-value would announce such a string.
    """
    params = Params(k=16, h=1, m=4, f=0.5, p=0.25, q=0.75)
    target, fit = fit_no_strings(draw_counts(params, 3, heavy=20_000))
    scores = enumerate_scores(target, fit)
    # Half a per cent of all outcomes exceed `quantile`. It is 2.6 for a normal distribution. The
    # heavy bits move it above 2.9, where the exact tail is twice the normal tail at 3.
    quantile = np.sort(scores)[-len(scores) // 200]
    tail = float((scores >= quantile).mean())
    p_value = float(compute_null_tail(target, fit, most_values=0).p_values(np.array([quantile]))[0])
    assert p_value > tail / 2  # the normal p-value would be smaller
    assert tail > 2 * 0.0013499  # the normal tail at 3
    assert quantile > 2.9


def test_p_values_fall_as_scores_rise() -> None:
    """P-values decrease with the score from 1 towards 0, and are never 0.

    The saddlepoint formula is computed at a grid of tilts. Scores beyond the last tilt are
    extrapolated.
    """
    params = Params(k=16, h=1, m=4, f=0.5, p=0.25, q=0.75)
    target, fit = fit_no_strings(draw_counts(params, 4))
    p_values = compute_null_tail(target, fit, most_values=0).p_values(np.linspace(-30, 60, 2000))
    assert p_values[0] == 1
    assert (np.diff(p_values) <= 0).all()
    assert 0 < p_values[-1] < 1e-9


@pytest.mark.parametrize("heavy", [0, 20_000])
@pytest.mark.parametrize(
    ("k", "h", "m"), [(64, 1, 1), (64, 1, 2), (8, 1, 5), (6, 2, 3), (4, 1, 8)], ids=str
)
def test_few_cohorts_have_the_tail_of_enumeration(k: int, h: int, m: int, heavy: int) -> None:
    """With few cohorts, the p-value is at least the exact tail, and hardly larger.

    The distribution of the score is then computed exactly, on a grid of scores. Rounding to the
    grid makes p-values larger, never smaller: at most the exact tail at a score that is .05
    smaller.
    """
    params = Params(k=k, h=h, m=m, f=0.5, p=0.25, q=0.75)
    target, fit = fit_no_strings(draw_counts(params, 5, heavy=heavy))
    scores = np.sort(enumerate_scores(target, fit, standardised=False))
    p_values = compute_null_tail(target, fit).p_values(scores)
    n = len(scores)
    tail = (n - np.searchsorted(scores, scores - 1e-9)) / n
    tail_of_smaller = (n - np.searchsorted(scores, scores - 0.05)) / n
    assert (p_values >= tail * (1 - 1e-9)).all()
    assert (p_values <= tail_of_smaller * (1 + 1e-9)).all()
    assert p_values.min() == pytest.approx(tail.min())
    # No outcome of n equally likely outcomes has a smaller probability than 1/n.
    assert p_values.min() >= (1 - 1e-9) / n


def test_a_perfect_fit_has_p_values_of_1() -> None:
    """If every bit fits exactly, the score of every string is 0, and its p-value is 1."""
    params = Params(k=4, h=1, m=2, f=0.5, p=0.25, q=0.75)
    target, fit = fit_no_strings(Counts(params, np.full((2, 4), 500), [1000, 1000]))
    assert compute_null_tail(target, fit).p_values(np.array([-1.0, 0.0])).tolist() == [1.0, 1.0]


def reject_by_definition(p_values: list[float], level: float, n: int) -> set[int]:
    """Return the indices that the procedure of Benjamini and Hochberg (1995) rejects.

    The procedure rejects all p-values up to the largest one that is at most level * rank / n.
    """
    ordered = sorted(p_values)
    passing = [p for rank, p in enumerate(ordered, start=1) if p <= level * rank / n]
    return {i for i, p in enumerate(p_values) if passing and p <= passing[-1]}


BH, ADAPTIVE, BONFERRONI = (ErrorControl(method=method) for method in CORRECTIONS)
P_VALUE_LISTS = st.lists(  # the second strategy makes ties, and p-values of 0 and 1, frequent
    st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.001, 0.01, 0.05, 1.0])),
    min_size=1,
    max_size=30,
)


@pytest.mark.slow
@given(P_VALUE_LISTS, st.floats(0.001, 0.5), st.integers(0, 50))
def test_bh_rejects_by_its_definition(p_values: list[float], level: float, more: int) -> None:
    """Benjamini-Hochberg rejects as defined.

    `more` further candidates have no p-values in memory, and count as candidates with p-value 1.
    """
    n = len(p_values) + more
    array = np.array(p_values)
    largest = find_threshold(array, ErrorControl(alpha=level), n_candidates=n)
    rejected = set(np.flatnonzero(array <= largest).tolist())
    expected = reject_by_definition(p_values, level, n)
    # A threshold of 0 means no detection. A p-value of exactly 0 would have been detected.
    if largest == 0 and not expected:
        assert (array > 0).all()
    else:
        assert rejected == expected


@given(P_VALUE_LISTS, st.floats(0.001, 0.5), st.integers(0, 50))
def test_bonferroni_divides_the_level(p_values: list[float], level: float, more: int) -> None:
    """Bonferroni rejects the p-values of at most level / n, for n candidates in all."""
    n = len(p_values) + more
    array = np.array(p_values)
    largest = find_threshold(array, ErrorControl(alpha=level, method="bonferroni"), n_candidates=n)
    assert (array <= largest).tolist() == [p <= level / n for p in p_values]


@pytest.mark.slow
@pytest.mark.parametrize(("n_absent", "grid"), [(1, 400), (2, 100), (3, 40)], ids=str)
@pytest.mark.parametrize("n_present", [0, 1, 4, 30, 60])
def test_the_adaptive_procedure_keeps_its_level_exactly(
    n_absent: int, grid: int, n_present: int
) -> None:
    """The exact false discovery rate of the adaptive procedure is at most its level.

    The p-values of `n_absent` absent candidates are uniform on a grid of `grid` values, and all
    their outcomes are enumerated. Present candidates have the p-value 0, which is the worst case:
    the procedure estimates the number of absent candidates from the large p-values, and no present
    candidate adds to them.
    """
    rates = []
    for absent_values in itertools.combinations_with_replacement(range(1, grid + 1), n_absent):
        p_values = np.concatenate([np.array(absent_values) / grid, np.zeros(n_present)])
        largest = find_threshold(p_values, ADAPTIVE, n_candidates=len(p_values))
        n_detected = (p_values <= largest).sum()
        n_false = (p_values[:n_absent] <= largest).sum()
        # Number of orders in which the absent candidates can have these values.
        n_orders = len(set(itertools.permutations(absent_values)))
        rates.append(n_orders * n_false / max(n_detected, 1))
    assert sum(rates) / grid**n_absent <= 0.05


def test_the_adaptive_procedure_counts_candidates_without_p_values_as_absent() -> None:
    """The 800 smallest of 1,000 p-values give the same threshold as all 1,000 p-values.

    A decode of a long list keeps the smallest p-values only, and the others are those of absent
    candidates.
    """
    rng = np.random.default_rng(1)
    p_values = np.concatenate([rng.uniform(size=600), np.full(400, 1e-9)])
    of_all = find_threshold(p_values, ADAPTIVE, n_candidates=1000)
    smallest = np.sort(p_values)[:800]
    assert find_threshold(smallest, ADAPTIVE, n_candidates=1000) == of_all
    # 400 of the 1,000 are present, so the adaptive level is about 1/0.6 of that of BH.
    assert of_all > find_threshold(p_values, BH, n_candidates=1000)


def test_the_adaptive_procedure_is_near_bh_if_all_candidates_are_absent() -> None:
    """If all candidates are absent, the adaptive procedure has at least 0.9 times the level of BH.

    It must not lose much in the case in which it can gain nothing. The p-values are evenly spaced,
    as those of absent candidates are. The smallest one is replaced by .9 times the threshold of BH
    for one detection, which the adaptive procedure must detect.
    """
    for n in (1, 2, 10, 20, 30, 40, 100):
        p_values = np.arange(1, n + 1) / n
        p_values[0] = 0.9 * 0.05 / n
        assert find_threshold(p_values, ADAPTIVE, n_candidates=n) == p_values[0]


@pytest.mark.parametrize("missing", [0, 2])
@pytest.mark.parametrize("h", [1, 2])
def test_p_values_of_absent_candidates_are_uniform(h: int, missing: int) -> None:
    """P-values of absent candidates are uniform, also if two frequent strings are unlisted.

    The Kolmogorov-Smirnov distance of 3,000 uniform p-values from the uniform distribution exceeds
    .060 with probability 1e-9. A tail twice too heavy would fail.
    """
    params = Params(k=128, h=h, m=16, f=0.0, p=0.225, q=0.775)
    population = Population([f"present {i}" for i in range(100)], np.exp(-0.05 * np.arange(100)))
    absent = [f"absent {i}" for i in range(3000)]
    counts = simulate_counts(population, params, n_reports=10_000_000, seed=h)
    estimates = decode(counts, [*population.values[missing:], *absent])
    p_values = map_by_candidate(estimates, estimates.p_value)
    absent_p_values = [p_values[text] for text in absent]
    assert stats.kstest(absent_p_values, "uniform").pvalue > FALSE_ALARM
