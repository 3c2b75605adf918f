"""Plans of metrics of strings by `plan`, `predict_power` and the command `rappor plan`.

A plan chooses noise (f, p, q), bits k, hashes h and cohorts m within a budget of losses. It
predicts the smallest share that is detected with the chosen power, or the reports that a share
needs. The first tests compare its formulas with enumeration and simulated scores, and later ones
check choices, errors and output.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rappor import (
    DecodeError,
    MetricError,
    Params,
    ParamsError,
    Registry,
    decode,
    epsilon_1,
    epsilon_inf,
    plan,
    predict_power,
    simulate_counts,
)
from rappor.cli.app import run
from rappor.estimator.detection_thresholds import Thresholds
from rappor.estimator.error_control import ErrorControl
from rappor.estimator.p_values import PValues
from rappor.estimator.rank_weights import RankWeights, compute_weight_scale, invert_ranks
from rappor.planning.detection_limit import compute_detection_limit
from rappor.planning.dimensions import NEGLIGIBLE_VARIANCE
from rappor.planning.discovery_plan import plan_discovery
from rappor.planning.entry import write_changed_entry
from rappor.planning.frequencies import Frequencies, compute_bit_levels
from rappor.planning.noise import choose_noise
from rappor.planning.planned_weights import PlannedWeights
from rappor.planning.planner import plan_categorical
from rappor.planning.power import DetectionTarget, predict
from rappor.simulation.population import Population

BALANCED = Params.profile("balanced")


def compute_zipf_shares(n: int, exponent: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the share of each of n strings by Zipf's law, computed string by string."""
    weights = np.arange(1.0, n + 1) ** -exponent
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 2.5])
@pytest.mark.parametrize("n", [1, 7, 1000, 1001, 30_000])
def test_classes_of_ranks_represent_zipfs_law(n: int, exponent: float) -> None:
    """Classes of strings with nearly equal shares have the number, sum and sum of squares of all.

    `Frequencies` groups ranks, because a plan may have a billion candidates. The sum of squared
    shares determines the noise of collisions. A class has the mean share of its ranks, which is up
    to 3 % larger than the share of its last rank.
    """
    frequencies = Frequencies.zipf(n, exponent)
    exact = compute_zipf_shares(n, exponent)
    assert frequencies.n_candidates == n == frequencies.candidates.sum()
    assert frequencies.candidates @ frequencies.shares == pytest.approx(1, abs=1e-12)
    assert frequencies.candidates @ frequencies.shares**2 == pytest.approx(exact @ exact, rel=1e-4)
    assert frequencies.shares[0] == pytest.approx(exact[0], rel=1e-6)
    assert frequencies.shares[-1] == pytest.approx(exact[-1], rel=0.03)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 10.0])
def test_sum_of_a_class_of_ranks_has_the_documented_error(exponent: float) -> None:
    """The sum over a class of ranks has a relative error of exponent (exponent + 1) / (24 a^2).

    a is the first rank of the class. The share of the most frequent string has the weight 1, so the
    quotient of a share and the largest share is a weight. Rounding adds 1e-12.
    """
    frequencies = Frequencies.zipf(2_000, exponent)
    sums = frequencies.candidates * frequencies.shares / frequencies.shares[0]
    last_ranks = np.cumsum(frequencies.candidates)
    first_ranks = last_ranks - frequencies.candidates + 1
    exact = [
        np.sum(np.arange(first, last + 1) ** -exponent)
        for first, last in zip(first_ranks, last_ranks, strict=True)
    ]
    errors = np.abs(sums / exact - 1)
    assert (errors <= exponent * (exponent + 1) / (24 * first_ranks**2) + 1e-12).all()
    # The bound is sharp for the first class that is an integral.
    is_integral = frequencies.candidates > 1
    first_error = errors[is_integral][0]
    bound = exponent * (exponent + 1) / (24 * first_ranks[is_integral][0] ** 2)
    assert first_error == pytest.approx(bound, rel=0.2)


def test_a_table_gives_its_largest_strings_to_the_candidates() -> None:
    """The strings of a table with the largest weights are the candidates, in any order.

    With two candidates, the weights 4 and 2 of 8 are theirs, and the other two strings are no
    candidates. Strings with weight 0 do not exist. Candidates beyond the number of strings, or
    beyond `n_present`, have no device.
    """
    frequencies = Frequencies.of_shares([1, 4, 0, 2, 1], 2)
    assert frequencies.candidates @ frequencies.shares == pytest.approx(6 / 8)
    assert frequencies.non_candidates @ frequencies.shares == pytest.approx(2 / 8)
    assert (frequencies.candidates.sum(), frequencies.non_candidates.sum()) == (2, 2)
    assert frequencies.absent == 0
    assert Frequencies.of_shares([1, 4, 2], 10).absent == 7
    assert Frequencies.of_shares([1, 4, 2], 10, n_present=2).absent == 8


@given(st.lists(st.integers(1, 40), min_size=1, max_size=7), st.floats(0.01, 0.5))
def test_level_of_a_bit_has_its_exact_distribution(parts: list[int], density: float) -> None:
    """The distribution of the level of a bit equals an enumeration of all subsets of strings.

    The level of a bit is the sum of the shares of the strings that set it. Each string sets the bit
    with probability `density`. The shares here are multiples of 1/4096, the grid on which
    `compute_bit_levels` computes, so the result must be exact up to rounding. Strings with equal
    shares are one class.
    """
    distinct, sizes = np.unique(parts, return_counts=True)
    frequencies = Frequencies(
        shares=distinct / 4096,
        candidates=sizes.astype(float),
        non_candidates=np.zeros(len(sizes)),
        absent=0,
    )
    exact: dict[int, float] = {}
    for subset in itertools.product([0, 1], repeat=len(parts)):
        level = sum(n for n, is_set in zip(parts, subset, strict=True) if is_set)
        probability = math.prod(density if is_set else 1 - density for is_set in subset)
        exact[level] = exact.get(level, 0.0) + probability
    levels, probabilities = compute_bit_levels(frequencies, density)
    computed = dict(zip(np.rint(levels * 4096).astype(int), probabilities, strict=True))
    for level, probability in exact.items():
        assert computed.get(level, 0.0) == pytest.approx(probability, abs=1e-11)


def test_level_of_a_bit_has_the_exact_mean_and_variance() -> None:
    """The level of a bit has mean d and variance d (1 - d) sum of s^2, for any shares s.

    The shares of 10,000 strings by Zipf's law are no multiples of the grid step. The mean must stay
    exact, and the variance may be wrong by 1 %. d is the density.
    """
    frequencies, density = Frequencies.zipf(10_000), 1 / 64
    levels, probabilities = compute_bit_levels(frequencies, density)
    mean = levels @ probabilities
    assert mean == pytest.approx(density, rel=1e-9)
    exact = density * (1 - density) * float(frequencies.candidates @ frequencies.shares**2)
    assert (levels - mean) ** 2 @ probabilities == pytest.approx(exact, rel=0.01)


def test_error_of_a_rare_string_equals_an_enumeration_of_collisions() -> None:
    """The error of a rare string equals an enumeration of the collisions with two detected strings.

    A rare string sets one bit in each of m cohorts. One bit of a cohort with n / m reports adds the
    Fisher information (n / m) gap^2 / (mu (1 - mu)) about its share, where gap = q* - p*, and mu is
    the expected proportion of ones. mu depends on which of the two detected strings, of shares .75
    and .25, set the bit. The error follows from the mean information over these four cases.
    """
    params, n, shares = BALANCED, 10_000_000, (0.75, 0.25)
    target = DetectionTarget(
        frequencies=Frequencies.of_shares(shares, 2),
        error_control=ErrorControl(method="bonferroni"),
    )
    prediction = predict(params, n, target)
    assert prediction.expected_detections == pytest.approx(2)
    gap, d, rows = params.q_star - params.p_star, 1 / params.k, params.m * params.k
    information = 0.0
    for subset in itertools.product([0, 1], repeat=2):
        probability = math.prod(d if here else 1 - d for here in subset)
        level = sum(share for share, here in zip(shares, subset, strict=True) if here)
        mean = params.p_star + gap * level
        information += probability * n * gap**2 / (params.m * mean * (1 - mean))
    # Two factors reduce the information, because the fit estimates other numbers from the same
    # rows. A row is one bit of one cohort. The background, a constant of all rows, leaves the
    # proportion 1 - d. Each of the two detected strings costs the information of one row.
    information *= params.m * (1 - d) * (1 - 2 / rows)
    assert prediction.absent_std_error == pytest.approx(1 / math.sqrt(information), rel=1e-6)


@pytest.mark.parametrize(("n_reports", "applied"), [(80, "bh"), (90, "adaptive")])
def test_a_plan_for_few_reports_predicts_what_the_decoder_applies(
    n_reports: int, applied: str
) -> None:
    """For very few reports, plan and decoder both apply Benjamini-Hochberg instead of adaptive.

    The adaptive procedure estimates the number of absent candidates from p-values, which need more
    reports. The limit lies between 80 and 90 reports here. A plan with another limit would predict
    detections that the decoder does not make.
    """
    adaptive = ErrorControl(method="adaptive")
    target = DetectionTarget(frequencies=Frequencies.zipf(100), error_control=adaptive)
    usual = DetectionTarget(frequencies=Frequencies.zipf(100))
    planned = predict_power(BALANCED, target, reports=n_reports)
    counts = simulate_counts(Population(["a"], [1]), BALANCED, n_reports=n_reports, seed=1)
    assert planned.to_dict()["correction"] == applied
    assert decode(counts, ["a"], error_control=adaptive).error_control.method == applied
    same = (
        planned.prediction.expected_detections
        == predict(BALANCED, n_reports, usual).expected_detections
    )
    assert same == (applied == "bh")


@pytest.mark.parametrize("correction", ["bh", "adaptive", "bonferroni"])
@pytest.mark.parametrize("n_reports", [20_000, 1_000_000])
def test_the_expected_number_is_that_of_simulated_scores(correction: str, n_reports: int) -> None:
    """The predicted number of detected strings is the mean of each procedure on simulated scores.

    A score is an estimate divided by its standard error, a normal number with mean share / error.
    4,000 collections of 400 scores are drawn, without counts, and tested by all three procedures.
    """
    shares = compute_zipf_shares(200, 1.0)
    target = DetectionTarget(
        frequencies=Frequencies.of_shares(shares, 400),
        error_control=ErrorControl(method=correction),
    )
    prediction = predict(BALANCED, n_reports, target)
    # Scores of 200 present strings by Zipf's law, and of 200 absent strings.
    z = np.concatenate([shares / prediction.absent_std_error, np.zeros(200)])
    rng = np.random.default_rng(5)
    p_values = stats.norm.sf(rng.normal(z, size=(4000, 400)))
    if correction == "bonferroni":
        detected = p_values <= 0.05 / 400
    else:
        # The adaptive procedure estimates the number of absent strings from p-values above 1/2.
        n_absent = 2 * (1 + (p_values > 0.5).sum(axis=1, keepdims=True))
        rate = 0.05 if correction == "bh" else 0.05 * 400 / n_absent
        detected = stats.false_discovery_control(p_values, axis=1) <= rate
    n_detected = detected[:, :200].sum(axis=1)
    largest_error = 6 * n_detected.std() / math.sqrt(len(n_detected))  # false alarm 1e-9
    # Scores have the error of a rare string here, which is up to 3 % less than a string's own.
    assert (
        abs(prediction.expected_detections - n_detected.mean())
        <= 0.02 * n_detected.mean() + largest_error
    )


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.integers(100, 10**9),
    st.integers(1, 5000),
    st.floats(0, 3),
    st.sampled_from(["bh", "adaptive", "bonferroni"]),
    st.sampled_from([1, 2]),
)
def test_parts_of_an_error_sum_to_1(
    n_reports: int, n_candidates: int, exponent: float, correction: str, h: int
) -> None:
    """The parts of a variance are not negative and sum to 1, and probabilities are in [0, 1].

    A part is the proportion of the variance that has one cause: coins of the devices, sampling of
    the devices, collisions with unexplained strings, or collisions between candidates.
    """
    target = DetectionTarget(
        frequencies=Frequencies.zipf(n_candidates, exponent),
        error_control=ErrorControl(method=correction),
    )
    params = choose_noise(1, 3, k=64, h=h, m=64)
    prediction = predict(params, n_reports, target)
    assert sum(prediction.parts.values()) == pytest.approx(1)
    assert min(prediction.parts.values()) >= -1e-9
    assert 0 <= prediction.expected_detections <= n_candidates
    assert np.all((prediction.probabilities >= 0) & (prediction.probabilities <= 1))
    assert prediction.adjusted_width >= prediction.width * (1 - 1e-12)


def test_plan_compares_its_design_with_the_published_one() -> None:
    """At the losses of [EPK14] section 5.2, a plan has h = 1 and lists the design of the paper.

    The design of the paper (h = 2, p = 1/2) has 2.5 times the smallest known variance (`excess`).
    The comparison explains to readers of the paper why the plan has other parameters.
    """
    planned = plan(200, epsilon_1=1.0743, epsilon_inf=4.394449, reports=1_000_000)
    params = planned.params
    assert params.h == 1
    assert params == choose_noise(1.0743, 4.394449, k=params.k, m=params.m)
    alternatives = {alternative.name: alternative for alternative in planned.alternatives}
    published = alternatives["h = 2, p = 1/2 [EPK14]"]
    assert (published.params.f, published.params.q) == pytest.approx((0.5, 0.75), abs=1e-5)
    assert round(published.excess, 1) == 2.5
    assert published.share is not None
    assert planned.share is not None
    # A detectable share is proportional to the root of the variance. Rounded thresholds and the
    # number of detected strings differ, for which 12 % are allowed.
    assert published.share / planned.share == pytest.approx(math.sqrt(published.excess), rel=0.12)


@pytest.mark.slow
@pytest.mark.parametrize(("limit_1", "limit_inf"), [(1, 2), (2, 4), (4, 8)])
@pytest.mark.parametrize("reports", [30_000, 1_000_000, 1_000_000_000])
def test_the_variance_of_a_rare_string_is_near_the_optimum(
    limit_1: float, limit_inf: float, reports: int
) -> None:
    """A plan has at most 1.1 times the smallest known variance of a rare string.

    The plan has limits of its two privacy losses, and no limit of the size of a report.
    Finite numbers of bits k and of cohorts m cause collisions. Each of the two may increase the
    variance by `NEGLIGIBLE_VARIANCE`. The remaining .005 is for rounding.
    """
    planned = plan(1000, epsilon_1=limit_1, epsilon_inf=limit_inf, reports=reports)
    assert 1 <= planned.excess <= (1 + NEGLIGIBLE_VARIANCE) ** 2 + 0.005 <= 1.1
    assert epsilon_1(planned.params) <= limit_1
    assert epsilon_inf(planned.params) <= limit_inf


HIDDEN = DetectionTarget(frequencies=Frequencies.of_shares(1 / np.arange(1.0, 1001.0), 10))
"""A thousand strings by Zipf's law, of which only the ten most frequent are candidates."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "limit_1", "reports", "shape"),
    [
        (1, 2, 100, (64, 4)),
        (1000, 0.02, 1e5, (32, 16)),
        (1000, 10, 1e7, (1024, 32)),
        (HIDDEN, 8, 5000, (1024, 64)),
        (HIDDEN, 2, 1e6, (128, 512)),
        (HIDDEN, 2, 1e8, (128, 4096)),
    ],
)
def test_number_of_bits_and_cohorts_of_a_plan(
    target: DetectionTarget | int, limit_1: float, reports: float, shape: tuple[int, int]
) -> None:
    """The numbers of bits and cohorts grow until collisions add little to the noise.

    With strong noise (epsilon_1 = .02), collisions add little, and 32 bits suffice. With weak noise
    (10), 1,024 bits are needed. Frequent strings that are no candidates bias the estimates of the
    candidates that collide with them, so HIDDEN needs more cohorts. With few reports, m is so small
    that a cohort has about a hundred reports: 5,000 reports give 64 cohorts. With the few devices
    of the first row, m is the least, 4.

    The parameter `shape` is (k, m).
    """
    params = plan(target, epsilon_1=limit_1, epsilon_inf=2 * limit_1, reports=reports).params
    assert (params.k, params.m) == shape


@pytest.mark.parametrize("days", [1, 30])
@pytest.mark.parametrize("devices", [80, 119, 300, 479, 700, 5_000])
def test_a_plan_chooses_no_number_of_cohorts_of_which_it_warns(devices: int, days: int) -> None:
    """The planned cohorts have enough devices in each interval, also if devices report repeatedly.

    A plan for 300 devices once chose m = 16, and said that m was too large. With 30 reports of each
    device the plan has 30 times as many reports, but in an interval no more of them. The smallest m
    is 4, which needs 80 devices.
    """
    target = DetectionTarget(frequencies=Frequencies.zipf(1_000), reports_per_device=days)
    planned = plan(target, epsilon_1=2, epsilon_inf=4, reports=devices * days)
    assert not planned.filling.is_m_too_large
    assert planned.params.m == min(planned.filling.recommended_m, 16)


@pytest.mark.slow
@pytest.mark.parametrize(("share", "correction"), [(0.2, "bonferroni"), (0.0007, "bh")])
def test_reports_for_a_share_detect_it_and_fewer_do_not(share: float, correction: str) -> None:
    """The planned number of reports detects the share, and 2 % fewer reports do not."""
    target = DetectionTarget(
        frequencies=Frequencies.zipf(500), error_control=ErrorControl(method=correction)
    )
    planned = plan(target, epsilon_1=1, epsilon_inf=3, share=share)
    assert planned.share is not None
    assert planned.share <= share
    fewer = plan(target, epsilon_1=1, epsilon_inf=3, reports=planned.reports * 98 // 100)
    assert fewer.share is None or fewer.share > share


@pytest.mark.slow
def test_report_size_is_limited_on_request() -> None:
    """`max_bytes` limits the bits of a report, and the noise is chosen for frequent collisions.

    With 8 or 24 bits, the strings of other devices often set a bit of a rare string. The best noise
    is then another one than without collisions (`noise_without_collisions`). A limit of 16 bytes,
    which the plan does not need, changes nothing.
    """
    unlimited = plan(1000, epsilon_1=2, epsilon_inf=4, reports=1_000_000)
    for most in (1, 3, 16):
        planned = plan(1000, epsilon_1=2, epsilon_inf=4, reports=1_000_000, max_bytes=most)
        assert planned.params.n_bytes <= most
        assert planned.excess >= unlimited.excess * (1 - 1e-9)
        noise_without_collisions = choose_noise(2, 4, k=planned.params.k, m=planned.params.m)
        assert planned.excess <= compute_excess(noise_without_collisions) * (1 + 1e-6)
    assert planned.params == unlimited.params  # the last limit is 16 bytes


def compute_excess(params: Params) -> float:
    """Return the excess of parameters for 1,000 candidates and 1e6 reports."""
    return predict_power(params, 1000, reports=1_000_000).excess


def test_profiles_are_explained() -> None:
    """The first alternatives of a profile are its own design, and the best one with its losses.

    Their variances agree to a thousandth, so planned parameters would not be better.
    """
    planned = predict_power(BALANCED, 1000, reports=1_000_000)
    design_of_profile, best_design = planned.alternatives[:2]
    assert design_of_profile.params == BALANCED
    assert design_of_profile.variance == pytest.approx(best_design.variance, rel=1e-3)


@pytest.mark.slow
def test_metric_block_loads_with_the_same_parameters() -> None:
    """The printed entry loads with exactly the planned parameters. A name with a dot is quoted."""
    for limit_1, limit_inf in ((0.3, 1.1), (1.0743, 4.394449), (5, 30)):
        planned = plan(50, epsilon_1=limit_1, epsilon_inf=limit_inf, reports=100_000)
        for name in ("engine", "page.home"):
            registry = Registry.loads(planned.to_toml(name, expires=date(2030, 12, 31)))
            assert registry.metric(name).params == dataclasses.replace(
                planned.params, interval="day", epoch="quarter"
            )
    with pytest.raises(MetricError, match="name must match"):
        planned.to_toml("No Name", expires=date(2030, 12, 31))


REFUSED_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    *(({"epsilon_1": number}, "epsilon_1 must be a number in") for number in (0, math.inf)),
    ({"epsilon_1": 5}, "epsilon_inf must be at least epsilon_1"),
    ({"epsilon_inf": math.nan}, "epsilon_inf must be a number in"),
    *(({"reports": number}, "reports must be an integer in") for number in (0, 1.5)),
    ({"reports": None}, "exactly one of reports and share must be given"),
    ({"share": 0.1}, "exactly one of reports and share must be given"),
    *(
        ({"reports": None, "share": number}, "share must be a number in")
        for number in (0, 1.1, math.nan)
    ),
    ({"max_bytes": 0}, "max_bytes must be an integer of at least 1"),
    ({"max_bytes": 1, "hashes": 3}, "max_bytes must be at least 2 for h = 3"),
    *(({"hashes": number}, "h must be an integer in") for number in (0, 17)),
]
"""Each row changes valid arguments of `plan`, and has the beginning of the refusal."""


@pytest.mark.parametrize(("wrong", "reason"), REFUSED_ARGUMENTS)
def test_impossible_arguments_are_refused(wrong: dict[str, Any], reason: str) -> None:
    """Arguments outside their ranges, and contradictory ones, are refused by their names."""
    arguments: dict[str, Any] = {"epsilon_1": 2, "epsilon_inf": 4, "reports": 1000, **wrong}
    with pytest.raises(ParamsError, match=reason):
        plan(100, **arguments)


def test_frequencies_and_rates_outside_their_ranges_are_refused() -> None:
    """Numbers of candidates, tables, exponents and rates outside their ranges are refused."""
    for n in (0, -1, 1.5, True, 10**10):
        with pytest.raises(ParamsError, match="candidates must be an integer in"):
            Frequencies.zipf(n)  # type: ignore[arg-type]
    for exponent in (-1, math.nan, 11):
        with pytest.raises(ParamsError, match="zipf must be a number in"):
            Frequencies.zipf(10, exponent)
    for table in ([], [0, 0], [1, -1], [1, math.nan], [[1]], ["x"]):
        with pytest.raises(ParamsError, match="table must"):
            Frequencies.of_shares(table, 10)
    with pytest.raises(ParamsError, match="n_present must be an integer in"):
        Frequencies.of_shares([1, 2], 10, n_present=3)
    with pytest.raises(ParamsError, match="power must be a number in"):
        DetectionTarget(frequencies=Frequencies.zipf(3), power=1.0)


def test_parameters_and_shares_without_a_plan_are_refused() -> None:
    """Too many candidates, infinite losses, too few cohorts and unreachable shares are refused."""
    boolean = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
    with pytest.raises(ParamsError, match="candidates must number 1, as the categories"):
        predict_power(boolean, 10, reports=100)
    unbounded = Params(k=8, m=64, f=0, p=0.1, q=0.9)
    with pytest.raises(ParamsError, match="epsilon_inf must be a number in"):
        predict_power(unbounded, 10, reports=100)
    with pytest.raises(ParamsError, match="m must be at least"):
        predict_power(Params(k=8, m=2, f=0.5, p=0.25, q=0.75), 1000, reports=100)
    with pytest.raises(DecodeError, match="share must be larger"):
        plan(100, epsilon_1=1, epsilon_inf=2, share=1e-9)


def test_the_search_for_reports_tries_the_largest_number() -> None:
    """A share that 8e14 reports detect has a plan, although four times as many are refused."""
    arguments: dict[str, Any] = {"epsilon_1": 0.001, "epsilon_inf": 0.001}
    share = plan_categorical("boolean", **arguments, reports=8e14).share
    assert share is not None
    planned = plan_categorical("boolean", **arguments, share=share)
    assert planned.reports == pytest.approx(8e14, rel=0.01)
    with pytest.raises(DecodeError, match="share must be larger"):
        plan_categorical("boolean", **arguments, share=share / 2)


def test_a_share_that_underflows_is_no_class() -> None:
    """A number that is 0 as a share of the sum is dropped, because 0 has no logarithm."""
    assert Frequencies.of_shares([1, 1, 5e-324], 3).absent == 1


def test_a_detection_limit_exists_for_every_level() -> None:
    """A tiny level per candidate has a limit, and a power below the level has the limit 0."""
    params = Params.profile("balanced")
    assert compute_detection_limit(params, 10**6, level=1e-17) == pytest.approx(0.0079, abs=1e-4)
    assert compute_detection_limit(params, 10**6, level=0.9, power=0.05) == 0


def test_a_table_of_designs_has_the_plan_once() -> None:
    """The table of a plan has one row for the plan and one for each other design."""
    planned = plan(100, epsilon_1=2, epsilon_inf=4, reports=1e6)
    names = planned.to_arrow()["name"].to_pylist()
    assert names == ["this plan", *(design.name for design in planned.alternatives[1:])]


def test_an_entry_that_is_written_anew_tells_what_it_lacks() -> None:
    """An inline entry is written anew without its candidates, and a comment tells to keep them."""
    entry = (
        '[budget]\ntotal = 100\n[metrics]\npage = {description = "d", owner = "o", '
        'expires = 2099-01-01, epoch = "quarter", encoding = "bloom", profile = "balanced"%s}\n'
    )
    params = plan(100, epsilon_1=2, epsilon_inf=4, reports=1e6).params
    comment = "# Keep the other keys"
    assert comment in write_changed_entry(entry % ', candidates = ["a", "b"]', "page", params)
    assert comment not in write_changed_entry(entry % "", "page", params)


def test_a_discovery_of_very_long_strings_is_refused_at_once() -> None:
    """The lengths with too many combinations are not counted one after another."""
    with pytest.raises(DecodeError, match="do not reach strings of 100,000"):
        plan_discovery(10, epsilon_1=2, epsilon_inf=4, reports=1e6, longest=100_000)


def test_a_plan_stays_within_its_budget_and_records_its_losses() -> None:
    """The losses of a plan are at most its budget, and the JSON has budget and losses.

    "staying" lists the loss of a device that keeps its value for years. Each quarter has a
    permanent response of its own, so a year of four quarters loses 4 epsilon_inf.
    """
    planned = plan(100, epsilon_1=1.5, epsilon_inf=3, reports=1e5)
    document = planned.to_dict()
    assert document["budget"] == {"epsilon_1": 1.5, "epsilon_inf": 3}
    assert document["epsilon_1"] == planned.epsilon_1 == epsilon_1(planned.params) <= 1.5
    assert document["epsilon_inf"] == planned.epsilon_inf == epsilon_inf(planned.params) <= 3
    assert document["reports"] == 100_000
    years = {(row["epoch"], row["years"]): row["epsilon"] for row in document["staying"]}
    assert years["quarter", 1] == pytest.approx(4 * planned.epsilon_inf)


def run_plan(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run `rappor plan`; return the exit code, the output and the errors."""
    code = run(["plan", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


BUDGET = ("--epsilon-1", "2", "--epsilon-inf", "4")
"""Options for losses of 2 and 4 nats."""
ONCE = ("--profile", "once", "--devices", "1e6")
"""Options for the profile whose devices report once in an epoch."""


@pytest.mark.slow
def test_command_prints_the_plan_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON of `rappor plan` has the numbers of the library, and an entry that loads."""
    code, out, _ = run_plan(
        capsys, *BUDGET, "--reports", "1e6", "--candidates", "500", "--name", "engine", "--json"
    )
    assert code == 0
    document = json.loads(out)
    planned = plan(500, epsilon_1=2, epsilon_inf=4, reports=1_000_000)
    block = document.pop("toml")
    assert document == json.loads(json.dumps(planned.to_dict(interval="day")))
    assert Registry.loads(block).metric("engine").params == dataclasses.replace(
        planned.params, interval="day", epoch="quarter"
    )


def test_command_prints_the_plan_for_people(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The text of `rappor plan` has losses, alternatives and an entry.

    With three reports the text also states that no share is detected, and that the profile has too
    many cohorts to release their counts.
    """
    (tmp_path / "table.csv").write_text("value,weight\na,5\nb,3\nc,1\n")
    words = ("--table", str(tmp_path / "table.csv"), "--candidates", "20")
    code, out, _ = run_plan(capsys, *BUDGET, "--share", "0.02", *words)
    assert code == 0
    for piece in ("2.0000 nats", "this one", "[EPK14]", "[metrics.my_metric]"):
        assert piece in out
    code, out, _ = run_plan(capsys, "--profile", "strict", "--reports", "3", *words)
    assert code == 0
    assert "no share" in out
    assert "m is too large" in out
    text = " ".join(out.split())
    assert "of 128 cohorts, 0 % have at least 10 reports in an interval; no m would do" in text


@pytest.mark.slow
@pytest.mark.parametrize("budget", [ONCE, ("--epsilon-1=4", "--epsilon-inf=4", "--devices=1e6")])
@pytest.mark.parametrize(
    ("days", "reports", "losses"),
    [(7, 84_021, None), (90, 10**6, None), (92, 10**6, None), (200, 2_208_552, [4, 12])],
)
def test_a_permanent_response_without_fresh_noise_is_planned_once_per_epoch(
    capsys: pytest.CaptureFixture[str],
    budget: tuple[str, ...],
    days: int,
    reports: int,
    losses: list[float] | None,
) -> None:
    """With epsilon_1 = epsilon_inf a device reports once in each quarter, on a day that it draws.

    Such a device has no instantaneous noise, so a second report would add nothing. A quarter has
    365.25 / 4 = 91.31 days on average, and the drawn day is none of its last 8. A collection of 7
    days begins with a quarter, and has reports of 7 / 83.31 = 8.40 % of 1e6 devices. A collection
    of a quarter, of 90 or of 92 days, has reports of all devices. 200 days have two quarters and
    17.38 / 83.31 = 0.21 of a third one, and overlap with 3 at most. Errors follow
    from the mean number of reports, losses from the largest number: 3 * 4 nats. The registry entry
    has interval = "epoch".

    With more than one report of a device, `repeats` of the JSON compares one report with the
    planned number of reports. `losses` are the losses of these two rows, in nats.
    """
    _, out, _ = run_plan(capsys, *budget, "--days", str(days), "--json")
    document = json.loads(out)
    assert document["reports"] == reports
    assert Registry.loads(document["toml"])["my_metric"].interval == "epoch"
    if losses is None:
        assert document.get("repeats") is None
    else:
        assert [round(row["epsilon"], 4) for row in document["repeats"]] == losses


def test_the_text_of_a_plan_once_per_epoch_states_the_numbers_of_reports(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The text warns that few devices have reported after a week, and names both numbers.

    The numbers of reports of a device in 200 days are 2.21 in the mean and 3 at most.
    """
    _, out, _ = run_plan(capsys, *ONCE, "--days", "200")
    text = " ".join(out.split())
    assert "better for results of a quarter, not of a week, after which only 8 % of" in text
    assert "2.21 in the mean, at most 3" in text


@pytest.mark.parametrize("correction", ["bh", "bonferroni"])
@pytest.mark.parametrize("n_reports", [20_000, 1_000_000])
def test_the_expected_number_of_a_ranked_list_is_that_of_simulated_scores(
    correction: str, n_reports: int
) -> None:
    """For a ranked list, the predicted number is the mean of the weighted procedure on scores.

    The rank of a candidate in the list gives its p-value a weight. An absent candidate follows each
    of the 200 present ones, so half of the weight is lost on absent candidates.
    """
    shares = compute_zipf_shares(200, 1.0)
    control = ErrorControl(method=correction, ranked=True)
    target = DetectionTarget(frequencies=Frequencies.of_shares(shares, 400), error_control=control)
    prediction = predict(BALANCED, n_reports, target)
    z = np.zeros(400)
    z[::2] = shares / prediction.absent_std_error
    rng = np.random.default_rng(6)
    weights = RankWeights.of(np.arange(1, 401), np.arange(400), n_ranks=400)
    n_detected = np.array(
        [
            Thresholds(control, PValues(in_memory=stats.norm.sf(rng.normal(z))), weights)
            .detected[::2]
            .sum()
            for _ in range(4000)
        ]
    )
    largest_error = 6 * n_detected.std() / math.sqrt(len(n_detected))  # false alarm 1e-9
    # Scores have the error of a rare string here, which is up to 3 % less than a string's own.
    assert (
        abs(prediction.expected_detections - n_detected.mean())
        <= 0.02 * n_detected.mean() + largest_error
    )


def test_mean_weights_of_classes_are_those_of_their_ranks() -> None:
    """A class of ranks has the mean weight of its ranks, and all candidates have the mean weight 1.

    Weights with mean 1 keep the error rate [GRW06]. Larger weights would announce more absent
    strings than the rate promises.
    """
    frequencies = Frequencies.zipf(50_000)
    weights = PlannedWeights.of(frequencies, ErrorControl(ranked=True))
    sizes = frequencies.candidates.astype(int)
    exact = compute_weight_scale(50_000) * invert_ranks(np.arange(1, 50_001))
    means = np.add.reduceat(exact, np.cumsum(sizes) - sizes) / sizes
    assert weights.weights == pytest.approx(means, rel=1e-9)
    # 1,000 present and 1,000 absent candidates.
    half_absent = Frequencies.of_shares(compute_zipf_shares(1000, 1.0), 2000)
    planned = PlannedWeights.of(half_absent, ErrorControl(ranked=True))
    weight_of_absent = planned.absent @ planned.absent_weights
    assert planned.weights @ half_absent.candidates + weight_of_absent == pytest.approx(2000)
    assert planned.absent.sum() == pytest.approx(1000)
    # An absent candidate of weight w is detected with probability 1e-6 w.
    assert planned.count_absent(1e-6) == pytest.approx(1e-6 * weight_of_absent)
    # `weigh_present` multiplies a p-value threshold by the weight of each class. The result is at
    # most the error rate .05, so a large weight detects no string with a larger p-value.
    assert planned.weigh_present(1.0).max() == 0.05


def test_ranks_of_a_plan_without_a_list_are_refused() -> None:
    """Ranks are refused for categories and for discoveries.

    Categories have no order. The candidates of a discovery come from its own reports, and ranks
    must come from elsewhere to keep the error rate.
    """
    params = Params.profile("balanced", encoding="onehot", categories=("a", "b", "c"))
    target = DetectionTarget(
        frequencies=Frequencies.zipf(3), error_control=ErrorControl(ranked=True)
    )
    with pytest.raises(ParamsError, match="ranked must be False for categories"):
        predict_power(params, target, reports=1000)
    with pytest.raises(ParamsError, match="ranked must be False for discoveries"):
        plan_discovery(target, epsilon_1=2, epsilon_inf=4, reports=1e7, longest=6)
