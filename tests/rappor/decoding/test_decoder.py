"""The decoder: what it refuses, what it promises, and what it says about the data."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from rappor.candidates.candidates import Candidates
from rappor.candidates.hashing import bloom_cells, digest_strings
from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.decoding.estimates import Estimates
from rappor.errors import DecodeError
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

FALSE_ALARM = 1e-9
"""Chance that a statistical check below fails although the code is right."""

PARAMS = Params(k=64, h=1, m=32, f=0.25, p=0.1, q=0.6)
POPULATION = Population([f"true {i}" for i in range(8)], [30, 20, 15, 10, 10, 8, 5, 2])
ABSENT = [f"absent {i}" for i in range(24)]
ASKED = [*POPULATION.values, *ABSENT]
N = 1_000_000


def counted(params: Params = PARAMS, *, n: int = N, seed: int = 1) -> Counts:
    return simulate_counts(POPULATION, params, n_reports=n, seed=seed)


def by_name(estimates: Estimates, column: NDArray[Any]) -> dict[str, Any]:
    return dict(zip(estimates.candidates, column.tolist(), strict=True))


def cells_of(texts: list[str], params: Params) -> NDArray[np.int32]:
    """Return the cells of each text, (n, m h), -1 for a repeated bit."""
    return bloom_cells(digest_strings(text.encode() for text in texts), params)


def standardised_errors(estimates: Estimates, population: Population) -> NDArray[np.float64]:
    shares = dict(zip(population.values, population.weights, strict=True))
    truth = np.array([shares.get(text, 0.0) for text in estimates.candidates])
    return np.asarray((estimates.proportion - truth) / estimates.std_error)


def largest_error(n_checks: int) -> float:
    """Return how many standard errors n estimates stay within, but for the false alarms."""
    return float(stats.norm.isf(FALSE_ALARM / 2 / n_checks))


# Refusals


def test_no_reports_are_refused() -> None:
    """Nothing collected has no answer, be it no collection or an empty one."""
    for counts in ([], Counts.zero(PARAMS), [Counts.zero(PARAMS)] * 2):
        with pytest.raises(DecodeError, match="counts must hold at least 1 report, got 0"):
            decode(counts, ASKED)


@pytest.mark.parametrize("candidates", [None, [], Candidates.from_list([])])
def test_no_candidates_are_refused(candidates: Any) -> None:
    """Strings cannot be read out of hashed bits: there must be something to ask about."""
    with pytest.raises(DecodeError, match="candidates must number at least 1, got 0"):
        decode(counted(n=1000), candidates)


def test_collections_of_different_normalizers_are_refused() -> None:
    """One candidate would stand for two different strings."""
    folded = Params(k=64, h=1, m=32, f=0.25, p=0.1, q=0.6, normalize="casefold")
    with pytest.raises(DecodeError, match="counts must share one normalizer"):
        decode([counted(n=1000), counted(folded, n=1000)], ASKED)


def test_candidates_of_another_normalizer_are_refused() -> None:
    """Candidates have to be hashed as the devices hashed their values."""
    folded = Candidates.from_list(ASKED, normalize="casefold")
    with pytest.raises(DecodeError, match="candidates must be normalised by 'none'"):
        decode(counted(n=1000), folded)


def test_candidates_for_a_closed_form_are_refused() -> None:
    """An encoding with a bit for each answer answers for all of them."""
    params = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
    with pytest.raises(DecodeError, match="candidates must be left out"):
        decode(Counts(params, [[5]], [10]), ["true"])


def test_collections_of_different_questions_are_refused() -> None:
    """Categories that differ cannot be pooled, nor an encoding with another one."""
    first, second = (
        Params(k=2, encoding="onehot", categories=names, f=0.5, p=0.25, q=0.75)
        for names in (("a", "b"), ("a", "c"))
    )
    one, other = (Counts(params, [[5, 5]], [10]) for params in (first, second))
    for counts in ([one, other], [one, counted(n=10)]):
        with pytest.raises(DecodeError, match="counts must share one encoding"):
            decode(counts)


@pytest.mark.parametrize("name", ["level", "confidence"])
@pytest.mark.parametrize("value", [math.nan, 0, 1, -0.1, 1.5, math.inf, "0.05"])
def test_impossible_error_rates_are_refused(name: str, value: Any) -> None:
    """Level and confidence lie strictly between 0 and 1."""
    options: dict[str, Any] = {name: value}
    with pytest.raises(DecodeError, match=rf"{name} must be a number in \(0, 1\)"):
        decode(counted(n=1000), ASKED, **options)


def test_an_unknown_correction_is_refused() -> None:
    """The known ones are told."""
    with pytest.raises(DecodeError, match="correction must be one of bh, bonferroni, got 'none'"):
        decode(counted(n=1000), ASKED, correction="none")


# What always holds


def same(a: Estimates, b: Estimates) -> bool:
    """Compare all rows, shares included, and the error of every number to the last bit."""
    return a.to_json() == b.to_json() and all(
        getattr(a, name).tobytes() == getattr(b, name).tobytes()
        for name in ("proportion", "std_error", "p_value", "ci_low_adjusted", "group")
    )


def test_the_same_input_gives_the_same_output() -> None:
    """Bit for bit: nothing in decoding is random."""
    counts = counted()
    first = decode(counts, ASKED, distribution=True)
    assert same(first, decode(counts, ASKED, distribution=True))
    assert not same(first, decode(counted(seed=2), ASKED, distribution=True))


def test_an_iterator_a_list_and_candidates_ask_the_same() -> None:
    """However the candidates are given, and however often, each is asked about once."""
    counts = counted(n=10_000)
    expected = decode(counts, ASKED)
    assert expected.candidates != tuple(ASKED)
    for given_as in (iter(ASKED), Candidates.from_list(ASKED), ASKED + ASKED[:3]):
        assert decode(counts, given_as).to_json() == expected.to_json()


@settings(max_examples=10, deadline=None)
@given(st.permutations(ASKED), st.integers(0, 2**32))
def test_the_order_of_candidates_does_not_matter(order: list[str], seed: int) -> None:
    """Estimates, errors and p-values agree to rounding, detections exactly."""
    counts = counted(n=200_000, seed=seed)
    first, second = decode(counts, ASKED), decode(counts, order)
    assert by_name(first, first.detected) == by_name(second, second.detected)
    for name in ("proportion", "std_error", "p_value"):
        ours = by_name(first, getattr(first, name))
        theirs = by_name(second, getattr(second, name))
        scale = 1e-9 * (1e-3 if name != "p_value" else 1.0)
        assert ours == pytest.approx(theirs, rel=1e-9, abs=scale)


def test_progress_is_told_to_the_end() -> None:
    """Whoever watches sees every candidate screened, and the answer is the same."""
    seen: list[tuple[int, int]] = []
    counts = counted(n=10_000)
    watched = decode(counts, ASKED, progress=lambda _, done, total: seen.append((done, total)))
    assert (len(ASKED), len(ASKED)) in seen
    assert all(0 <= done <= total for done, total in seen)
    assert same(watched, decode(counts, ASKED))


# Small and odd collections


def test_one_candidate_is_answered() -> None:
    """A single question is enough, and what it leaves over is unallocated."""
    estimates = decode(counted(), ["true 0"])
    error = abs(standardised_errors(estimates, POPULATION)[0])
    assert estimates.detected.tolist() == [True]
    assert error < largest_error(1)
    assert estimates.unallocated == pytest.approx(1 - estimates.proportion[0])


def test_an_empty_cohort_is_tolerated() -> None:
    """The other cohorts answer; nothing is divided by nobody."""
    whole = counted()
    ones, reports = whole.ones.copy(), whole.reports.copy()
    ones[3], reports[3] = 0, 0
    estimates = decode(Counts(PARAMS, ones, reports), ASKED, distribution=True)
    assert np.isfinite(estimates.proportion).all()
    assert np.isfinite(estimates.std_error).all()
    assert estimates.diagnostics["cohorts"][0]["empty"] == 1
    assert np.abs(standardised_errors(estimates, POPULATION)).max() < largest_error(len(ASKED))


@pytest.mark.parametrize("n_reports", [1, 2, 40])
def test_hardly_any_reports_detect_nothing_by_chance(n_reports: int) -> None:
    """With nobody holding a candidate, a handful of reports is not taken for a finding."""
    p_values = [
        decode(counted(n=n_reports, seed=seed), ABSENT, level=0.001, correction="bonferroni")
        for seed in range(20)
    ]
    assert sum(bool(estimates.detected.any()) for estimates in p_values) <= 3


@pytest.mark.parametrize("k", [2, 3, 8])
def test_one_cohort_and_few_bits_are_tolerated(k: int) -> None:
    """Every candidate gets a row that is JSON, though most cannot be told apart."""
    params = Params(k=k, h=1, m=1, f=0.5, p=0.25, q=0.75)
    estimates = decode(counted(params), ASKED)
    document = json.loads(estimates.to_json())
    assert len(document["estimates"]) == len(ASKED)
    assert sum(len(group) for group in document["diagnostics"]["groups"]) >= len(ASKED) - k


def test_what_cannot_be_known_has_no_error() -> None:
    """With two bits one candidate's column is the other's and the background's: no number."""
    params = Params(k=2, h=1, m=1, f=0.5, p=0.25, q=0.75)
    estimates = decode(counted(params), ASKED)
    unknown = ~np.isfinite(estimates.std_error)
    assert unknown.any()
    assert not estimates.detected[unknown].any()
    rows = [row for row, lost in zip(estimates.rows(), unknown, strict=True) if lost]
    for row in rows:
        assert row["std_error"] is row["ci_low"] is row["ci_high"] is None
    json.loads(estimates.to_json(), parse_constant=pytest.fail)


def colliding(params: Params) -> tuple[str, str, str]:
    """Find two strings with the same bits in every cohort, and a third with others."""
    seen: dict[bytes, str] = {}
    for i in range(10_000):
        text = f"text {i}"
        key = np.sort(cells_of([text], params)[0]).tobytes()
        if key in seen:
            return seen[key], text, next(other for other in seen.values() if other != seen[key])
        seen[key] = text
    raise AssertionError("no two strings collide")


@pytest.mark.parametrize("h", [1, 2])
def test_candidates_of_the_same_bits_are_a_group(h: int) -> None:
    """Both show the group's total, are named together, and count once in what is left."""
    params = Params(k=16, h=h, m=2, f=0.0, p=0.1, q=0.9)
    first, second, third = colliding(params)
    population = Population([first, second, third], [0.3, 0.2, 0.5])
    counts = simulate_counts(population, params, n_reports=N, seed=1)
    estimates = decode(counts, [third, second, first], distribution=True)
    rows = {row["candidate"]: row for row in estimates.rows()}
    ours, theirs = dict(rows[first]), dict(rows[second])
    assert ours.pop("candidate") != theirs.pop("candidate")
    assert ours == theirs
    assert ours["group"] == 1
    assert "group" not in rows[third]
    assert estimates.diagnostics["groups"] == [[second, first]]
    errors = [rows[text]["std_error"] / N for text in (first, third)]
    for text, share, error in zip((first, third), (0.5, 0.5), errors, strict=True):
        assert abs(rows[text]["proportion"] - share) < largest_error(2) * error
    total = rows[first]["proportion"] + rows[third]["proportion"]
    assert estimates.unallocated == pytest.approx(1 - total)


def test_mass_that_no_candidate_explains_is_unallocated() -> None:
    """Asked about half of the mass, the decoder says that the other half is missing."""
    estimates = decode(counted(), [*POPULATION.values[:2], *ABSENT])
    error = float(np.sqrt((estimates.std_error[estimates.detected] ** 2).sum()))
    assert estimates.detected.sum() >= 2
    assert abs(estimates.unallocated - 0.5) < 2 * largest_error(1) * error


# Agreement with the truth and with plain least squares


def test_estimates_are_those_of_dense_least_squares() -> None:
    """Where everything is detected, estimates and errors are the textbook's.

    The counts are the expected ones moved by half a standard deviation, so that residuals
    show no overdispersion and the noise is the coins' alone.
    """
    params, n = PARAMS, 3_200_000
    texts = list(POPULATION.values)
    design = np.zeros((params.m * params.k, len(texts)))
    for column, rows in enumerate(cells_of(texts, params)):
        design[rows, column] = 1
    counts, proportions = half_noisy(design @ POPULATION.weights, params, n)
    estimates = decode(counts, texts)
    expected, errors = dense_least_squares(design, proportions, params, n / params.m)
    found = by_name(estimates, estimates.proportion)
    assert estimates.detected.all()
    assert np.abs([found[text] for text in texts] - expected).max() < 1e-3 * errors.max()
    assert [by_name(estimates, estimates.std_error)[text] for text in texts] == pytest.approx(
        errors.tolist(), rel=1e-4
    )
    plain = np.linalg.lstsq(np.column_stack([np.ones(len(design)), design]), proportions)[0][1:]
    assert np.abs(plain - expected).max() > 0.01 * errors.max()  # the weights matter


def half_noisy(
    theta: NDArray[np.float64], params: Params, n: int
) -> tuple[Counts, NDArray[np.float64]]:
    """Return counts half a standard deviation around the expected, and their proportions."""
    gap = params.q_star - params.p_star
    mean = params.p_star + gap * theta
    per_cohort = n // params.m
    chance = np.random.default_rng(1).standard_normal(len(mean))
    ones = np.rint(per_cohort * mean + 0.5 * chance * np.sqrt(per_cohort * mean * (1 - mean)))
    counts = Counts(params, ones.reshape(params.m, params.k), np.full(params.m, per_cohort))
    return counts, (ones / per_cohort - params.p_star) / gap


def dense_least_squares(
    design: NDArray[np.float64], proportions: NDArray[np.float64], params: Params, n: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit a level and all columns, weighted by the binomial variance of the fit itself."""
    columns = np.column_stack([np.ones(len(design)), design])
    gap = params.q_star - params.p_star
    fitted = np.full(len(design), 1 / params.k)
    for _ in range(30):
        mean = params.p_star + gap * np.clip(fitted, 0, 1)
        weight = n * gap**2 / (mean * (1 - mean))
        inverse = np.linalg.inv(columns.T @ (weight[:, None] * columns))
        beta = inverse @ (columns.T @ (weight * proportions))
        fitted = columns @ beta
    return beta[1:], np.sqrt(inverse.diagonal())[1:]


@pytest.mark.parametrize("h", [1, 2])
def test_errors_are_honest_standard_errors(h: int) -> None:
    """Over 20 collections the mean squared standardised error of 32 estimates is one.

    With 640 of them, nearly independent, the mean of squares has standard deviation
    sqrt(2/640) = .056; the bound is 6.1 of those with as much again for dependence.
    """
    params = Params(k=64, h=h, m=32, f=0.25, p=0.1, q=0.6)
    errors = [
        standardised_errors(decode(counted(params, seed=seed), ASKED), POPULATION)
        for seed in range(20)
    ]
    assert abs(float(np.mean(np.square(errors))) - 1) < 0.5


def test_two_parameter_sets_decoded_together_beat_each_alone() -> None:
    """Rows of both stack: errors shrink as for independent data, and the truth is met."""
    other = Params(k=100, h=2, m=16, f=0.1, p=0.2, q=0.7)
    collections = [counted(), counted(other, seed=2)]
    alone = [decode(counts, ASKED) for counts in collections]
    together = decode(collections, ASKED)
    assert together.reports == 2 * N
    assert np.abs(standardised_errors(together, POPULATION)).max() < largest_error(len(ASKED))
    errors = [by_name(estimates, estimates.std_error) for estimates in (*alone, together)]
    for text in ASKED:
        first, second, both = (table[text] for table in errors)
        pooled = 1 / math.hypot(1 / first, 1 / second)
        assert both < min(first, second)
        assert both == pytest.approx(pooled, rel=0.2)


def test_halves_decoded_together_are_the_whole() -> None:
    """Two collections of the same parameters say what their sum says, within half an error."""
    first, second = counted(seed=1), counted(seed=2)
    stacked, summed = decode([first, second], ASKED), decode(first + second, ASKED)
    assert by_name(stacked, stacked.detected) == by_name(summed, summed.detected)
    ours, theirs = (by_name(estimates, estimates.proportion) for estimates in (stacked, summed))
    error = float(summed.std_error.max())
    assert max(abs(ours[text] - theirs[text]) for text in ASKED) < error


@pytest.mark.parametrize("missing", [0, 2])
@pytest.mark.parametrize("h", [1, 2])
def test_p_values_of_absent_candidates_are_uniform(h: int, missing: int) -> None:
    """Also at low noise with the two heaviest strings unasked.

    3,000 p-values are held to a Kolmogorov-Smirnov distance of .060, which fails by chance
    once in 1e9; a tail twice as heavy as it should be would show.
    """
    params = Params(k=128, h=h, m=16, f=0.0, p=0.225, q=0.775)
    population = Population([f"held {i}" for i in range(100)], np.exp(-0.05 * np.arange(100)))
    absent = [f"nobody's {i}" for i in range(3000)]
    counts = simulate_counts(population, params, n_reports=10_000_000, seed=h)
    estimates = decode(counts, [*population.values[missing:], *absent])
    p_values = by_name(estimates, estimates.p_value)
    drawn = [p_values[text] for text in absent]
    assert stats.kstest(drawn, "uniform").pvalue > FALSE_ALARM


# Closed forms: p* = .375, q* = .625, gap .25


def one_hot(names: tuple[str, ...], encoding: str = "onehot", bits: int | None = None) -> Params:
    k = bits or len(names)
    return Params(k=k, encoding=encoding, categories=names, f=0.5, p=0.25, q=0.75)


def error_at(mean: float, n: int) -> float:
    return math.sqrt(mean * (1 - mean) / n) / 0.25


def test_one_hot_is_the_inverse_of_its_noise() -> None:
    """Proportions, errors and p-values as on paper; the rest is what is not detected."""
    counts = Counts(one_hot(("a", "b", "c")), [[4000, 5000, 3700]], [10_000])
    estimates = decode(counts)
    assert estimates.candidates == ("b", "a", "c")
    assert estimates.proportion.tolist() == pytest.approx([0.5, 0.1, -0.02])
    errors = [error_at(mean, 10_000) for mean in (0.5, 0.4, 0.375)]
    assert estimates.std_error.tolist() == pytest.approx(errors)
    null = error_at(0.375, 10_000)
    expected = [stats.norm.sf(share / null) for share in (0.5, 0.1, -0.02)]
    assert estimates.p_value.tolist() == pytest.approx(expected)
    assert estimates.detected.tolist() == [True, True, False]
    assert estimates.unallocated == pytest.approx(0.4)
    assert estimates.ci_low[0] == pytest.approx(0.5 - 1.959964 * errors[0])
    assert estimates.ci_high[0] == pytest.approx(0.5 + 1.959964 * errors[0])


def test_one_hot_shares_are_the_nearest_on_the_simplex() -> None:
    """They sum to one, none is negative, and all moved by the same multiple of variance."""
    counts = Counts(one_hot(("a", "b", "c")), [[4000, 5000, 3700]], [10_000])
    estimates = decode(counts, distribution=True)
    assert estimates.share is not None
    share, variance = estimates.share, estimates.std_error**2
    assert share.sum() == pytest.approx(1)
    assert (share >= 0).all()
    pull = (estimates.proportion - share) / variance
    held = share > 0
    assert held[:2].all()
    assert pull[held].tolist() == pytest.approx([pull[0]] * int(held.sum()))
    assert (pull[~held] <= pull[0]).all()


def test_a_boolean_is_one_proportion() -> None:
    """No rest is told: what is not true is false."""
    params = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
    estimates = decode(Counts(params, [[4500]], [10_000]))
    assert estimates.candidates == ("true",)
    assert estimates.proportion[0] == pytest.approx(0.3)
    assert estimates.std_error[0] == pytest.approx(error_at(0.45, 10_000))
    assert math.isnan(estimates.unallocated)
    assert estimates.to_dict()["unallocated"] is None


def test_flags_are_proportions_of_their_own() -> None:
    """They may sum to more than one; their shares are each cut to [0, 1]."""
    counts = Counts(one_hot(("a", "b", "c"), "flags"), [[6000, 5750, 3500]], [10_000])
    estimates = decode(counts, distribution=True)
    assert estimates.share is not None
    assert estimates.proportion.tolist() == pytest.approx([0.9, 0.8, -0.1])
    assert estimates.share.tolist() == pytest.approx([0.9, 0.8, 0.0])
    assert math.isnan(estimates.unallocated)


def test_buckets_are_named_by_their_intervals() -> None:
    """Two open ends and what is between the edges, each with its own proportion."""
    counts = Counts(one_hot(("0", "10"), "buckets", 3), [[4000, 5000, 3750]], [10_000])
    estimates = decode(counts)
    assert estimates.candidates == ("[0, 10)", "(-inf, 0)", "[10, inf)")
    assert estimates.proportion.tolist() == pytest.approx([0.5, 0.1, 0.0])


def test_closed_forms_pool_by_inverse_variance() -> None:
    """Two collections of different noise weigh as their variances say."""
    quiet = Params(k=1, encoding="boolean", f=0.0, p=0.25, q=0.75)
    noisy = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
    counts = [Counts(quiet, [[4000]], [10_000]), Counts(noisy, [[4500]], [10_000])]
    estimates = decode(counts)
    pooled = float(estimates.proportion[0])
    assert pooled == pytest.approx(0.3)
    variances = [0.4 * 0.6 / 10_000 / 0.25, error_at(0.45, 10_000) ** 2]
    expected = 1 / math.sqrt(sum(1 / variance for variance in variances))
    assert estimates.std_error[0] == pytest.approx(expected, rel=1e-6)


def test_a_binned_normal_has_the_published_errors() -> None:
    """[EPK14] section 5.1: f = 0, p = .5, q = .75: sd 632 a bin at 1e5 reports."""
    names = tuple(str(edge) for edge in range(100))
    params = Params(k=101, encoding="buckets", categories=names, f=0.0, p=0.5, q=0.75)
    counts = Counts(params, np.full((1, 101), 50_000), [100_000])
    assert decode(counts).std_error * 100_000 == pytest.approx(np.full(101, 632.5), abs=0.1)


# The table


@pytest.fixture(name="estimates", scope="module")
def _estimates() -> Estimates:
    return decode(counted(), ASKED, distribution=True)


def test_rows_have_the_keys_of_the_contract(estimates: Estimates) -> None:
    """Always eight, the adjusted interval where detected, the share where asked for."""
    always = ["candidate", "count", "std_error", "proportion", "ci_low", "ci_high", "p_value"]
    always += ["detected"]
    adjusted = ["ci_low_adjusted", "ci_high_adjusted"]
    for row in estimates.rows():
        assert list(row) == always + (adjusted if row["detected"] else []) + ["share"]
    without = next(decode(counted(n=1000), ABSENT).rows())
    assert list(without) == always + (adjusted if without["detected"] else [])


def test_rows_agree_with_the_columns(estimates: Estimates) -> None:
    """Counts are proportions times reports; the adjusted interval holds the plain one."""
    for i, row in enumerate(estimates.rows()):
        assert row["candidate"] == estimates.candidates[i]
        assert row["count"] == pytest.approx(estimates.proportion[i] * N)
        assert row["std_error"] == pytest.approx(estimates.std_error[i] * N)
        if row["detected"]:
            assert row["ci_low_adjusted"] <= row["ci_low"] < row["proportion"]
            assert row["proportion"] < row["ci_high"] <= row["ci_high_adjusted"]


def test_rows_are_sorted_by_count(estimates: Estimates) -> None:
    """Largest first, and the heavy strings lead."""
    assert (np.diff(estimates.proportion) <= 0).all()
    assert estimates.candidates[:2] == ("true 0", "true 1")


def test_detected_rows_can_be_had_alone(estimates: Estimates) -> None:
    """The same rows, less the others, in rows, JSON and CSV."""
    every = list(estimates.rows())
    found = [row for row in every if row["detected"]]
    assert 0 < len(found) < len(every)
    assert list(estimates.rows(detected_only=True)) == found
    assert json.loads(estimates.to_json(detected_only=True))["estimates"] == found
    assert len(estimates.to_csv(detected_only=True).splitlines()) == 1 + len(found)


def test_json_reads_back(estimates: Estimates) -> None:
    """One strict object of four keys that is the dictionary."""
    document = json.loads(estimates.to_json(), parse_constant=pytest.fail)
    assert list(document) == ["estimates", "reports", "unallocated", "diagnostics"]
    assert document == estimates.to_dict()
    assert document["reports"] == N


def test_csv_reads_back(estimates: Estimates, tmp_path: Any) -> None:
    """Every number survives, in text and in the file, whatever is in a candidate's name."""
    odd = decode(counted(n=1000), ['a,"b"', "c\nd", "é"])
    path = tmp_path / "estimates.csv"
    assert path.write_text("old") == 3
    for each in (estimates, odd):
        text = each.to_csv(path)
        assert path.read_bytes().decode() == text
        for row, read in zip(each.rows(), csv.DictReader(io.StringIO(text)), strict=True):
            assert read["candidate"] == row["candidate"]
            assert float(read["count"]) == row["count"]
            assert float(read["p_value"]) == row["p_value"]
            assert read["detected"] == str(row["detected"])


def test_frames_have_the_columns(estimates: Estimates) -> None:
    """Pandas and Arrow hold the same numbers under the contract's names."""
    table, frame = estimates.to_arrow(), estimates.to_pandas()
    columns = ["candidate", "count", "std_error", "proportion", "ci_low", "ci_high", "p_value"]
    columns += ["detected", "ci_low_adjusted", "ci_high_adjusted", "share", "group"]
    assert table.column_names == list(frame.columns) == columns
    assert table["candidate"].to_pylist() == list(frame["candidate"]) == list(estimates.candidates)
    expected = [row["count"] for row in estimates.rows()]
    assert table["count"].to_pylist() == frame["count"].tolist() == expected
    assert "share" not in decode(counted(n=1000), ABSENT).to_arrow().column_names


def test_people_read_a_summary(estimates: Estimates) -> None:
    """The text lists the detected and counts the rest; the representation is one line."""
    lines = str(estimates).splitlines()
    n_found = int(estimates.detected.sum())
    assert len(lines) == n_found + 2
    assert lines[1].startswith("true 0 ")
    assert lines[-1].startswith(f"{n_found} of 32 candidates detected in 1,000,000 reports")
    assert repr(estimates) == f"Estimates({n_found} detected of 32 candidates, 1000000 reports)"


# Diagnostics


def test_an_honest_collection_raises_no_alarm(estimates: Estimates) -> None:
    """Each of the checks calls an honest collection odd once in 1e9 or less."""
    found = estimates.diagnostics
    assert found["odd_popcounts"] == []
    assert found["cohorts"][0]["p_value"] > FALSE_ALARM
    assert found["goodness_of_fit"]["p_value"] > FALSE_ALARM


def test_a_forged_cohort_has_odd_popcounts() -> None:
    """Reports of nothing but ones are no honest device's; the cohort is named."""
    ones = counted().ones.copy()
    ones[5] = counted().reports[5]
    estimates = decode(Counts(PARAMS, ones, counted().reports), ASKED)
    odd = estimates.diagnostics["odd_popcounts"]
    assert [(entry["collection"], entry["cohort"]) for entry in odd] == [(0, 5)]
    assert odd[0]["true_bits"] > PARAMS.k


def test_an_unasked_heavy_string_shows_in_unexplained_bits() -> None:
    """The bits told are that string's, with about its share."""
    params = Params(k=64, h=1, m=32, f=0.0, p=0.1, q=0.9)
    counts = simulate_counts(POPULATION, params, n_reports=N, seed=1)
    estimates = decode(counts, [*POPULATION.values[1:], *ABSENT])
    unexplained = estimates.diagnostics["unexplained_bits"]
    cells = set(cells_of(["true 0"], params)[0].tolist())
    assert len(unexplained) == 10
    assert {bit["cohort"] * params.k + bit["bit"] for bit in unexplained} <= cells
    assert all(bit["share"] == pytest.approx(0.3, rel=0.25) for bit in unexplained)


def test_unbalanced_cohorts_show() -> None:
    """A tenth more reports in one cohort do not come about by chance."""
    counts = counted()
    ones, reports = counts.ones.copy(), counts.reports.copy()
    reports[0] += reports[0] // 10
    ones[0] += ones[0] // 10
    balance = decode(Counts(PARAMS, ones, reports), ASKED).diagnostics["cohorts"][0]
    assert balance["p_value"] < FALSE_ALARM
    assert balance["largest"] == reports[0]


@pytest.mark.parametrize("m", [2, 8, 32])
@pytest.mark.parametrize(
    "noise", [(0.0, 1e-6, 1 - 1e-6), (0.0, 0.1, 0.9), (0.25, 0.1, 0.6)], ids=str
)
def test_no_heavy_string_is_lost_where_noise_is_small(
    noise: tuple[float, float, float], m: int
) -> None:
    """With 1e8 reports every one of five asked strings is detected, within six errors."""
    f, p, q = noise
    params = Params(k=32, m=m, f=f, p=p, q=q)
    names, weights = [f"s{i}" for i in range(5)], [0.5, 0.25, 0.15, 0.07, 0.03]
    counts = simulate_counts(Population(names, weights), params, n_reports=10**8, seed=1)
    found = decode(counts, names + [f"absent{i}" for i in range(50)])
    rows = {row["candidate"]: row for row in found.rows()}
    for name, weight in zip(names, weights, strict=True):
        assert rows[name]["detected"]
        # Six standard errors: missed with chance 2e-9 under the normal law.
        assert abs(rows[name]["count"] - weight * 1e8) < 6 * rows[name]["std_error"]
