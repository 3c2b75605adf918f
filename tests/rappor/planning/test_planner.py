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
from rappor.planning.dimensions import NEGLIGIBLE_VARIANCE
from rappor.planning.discovery_plan import plan_discovery
from rappor.planning.frequencies import Frequencies, compute_bit_levels
from rappor.planning.noise import choose_noise
from rappor.planning.planned_weights import PlannedWeights
from rappor.planning.power import DetectionTarget, predict
from rappor.simulation.population import Population

BALANCED = Params.profile("balanced")


def exact_zipf(n: int, exponent: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the shares by Zipf's law, string by string."""
    weights = np.arange(1.0, n + 1) ** -exponent
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 2.5])
@pytest.mark.parametrize("n", [1, 7, 1000, 1001, 30_000])
def test_classes_of_ranks_represent_zipfs_law(n: int, exponent: float) -> None:
    """Ranks are grouped in classes of equal share. Number, sum and sum of squares stay.

    The sum of squares decides on the noise of collisions. The last class has a mean share, which is
    up to 3 % larger than that of the last rank.
    """
    frequencies = Frequencies.zipf(n, exponent)
    exact = exact_zipf(n, exponent)
    assert frequencies.n_candidates == n == frequencies.candidates.sum()
    assert frequencies.candidates @ frequencies.shares == pytest.approx(1, abs=1e-12)
    assert frequencies.candidates @ frequencies.shares**2 == pytest.approx(exact @ exact, rel=1e-4)
    assert frequencies.shares[0] == pytest.approx(exact[0], rel=1e-6)
    assert frequencies.shares[-1] == pytest.approx(exact[-1], rel=0.03)


def test_a_table_gives_its_largest_strings_to_the_candidates() -> None:
    """The largest weights of a table, in any order, are those of candidates.

    Strings with weight 0 are left out. Candidates beyond the number of strings are absent.
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
    """The level of a bit is the sum of the shares of the strings that set the bit.

    Each string sets it with probability `density`. Shares are multiples of 1/4096, the grid of the
    computation, so the distribution must equal an enumeration of all subsets of strings.
    """
    shares = np.array(parts) / 4096
    all_present, none = np.ones(len(parts)), np.zeros(len(parts))
    frequencies = Frequencies(shares=shares, candidates=all_present, non_candidates=none, absent=0)
    exact: dict[int, float] = {}
    for subset in itertools.product([0, 1], repeat=len(parts)):
        level = sum(n for n, is_set in zip(parts, subset, strict=True) if is_set)
        probability = math.prod(density if is_set else 1 - density for is_set in subset)
        exact[level] = exact.get(level, 0.0) + probability
    levels, probabilities = compute_bit_levels(frequencies, density)
    computed = dict(zip(np.rint(levels * 4096).astype(int), probabilities, strict=True))
    for level, probability in exact.items():
        assert computed.get(level, 0.0) == pytest.approx(probability, abs=1e-11)


def test_level_of_a_bit_keeps_mean_and_variance_off_the_grid() -> None:
    """Ten thousand strings by Zipf's law have the exact mean and variance of a bit's level."""
    frequencies, density = Frequencies.zipf(10_000), 1 / 64
    levels, probabilities = compute_bit_levels(frequencies, density)
    mean = levels @ probabilities
    assert mean == pytest.approx(density, rel=1e-9)
    exact = density * (1 - density) * float(frequencies.candidates @ frequencies.shares**2)
    assert (levels - mean) ** 2 @ probabilities == pytest.approx(exact, rel=0.01)


def test_error_is_the_mean_information_over_all_layouts() -> None:
    """The error of a rare string equals an enumeration of the collisions with two detected strings.

    Its information is the sum over its m bits of n gap^2 / (m mean (1 - mean)), in the mean over
    the four ways in which two strings of shares .75 and .25 set or do not set such a bit.
    """
    params, n, shares = BALANCED, 10_000_000, (0.75, 0.25)
    question = DetectionTarget(
        frequencies=Frequencies.of_shares(shares, 2),
        error_control=ErrorControl(method="bonferroni"),
    )
    prediction = predict(params, n, question)
    assert prediction.found == pytest.approx(2)
    gap, d, rows = params.q_star - params.p_star, 1 / params.k, params.m * params.k
    information = 0.0
    for subset in itertools.product([0, 1], repeat=2):
        probability = math.prod(d if here else 1 - d for here in subset)
        level = sum(share for share, here in zip(shares, subset, strict=True) if here)
        mean = params.p_star + gap * level
        information += probability * n * gap**2 / (params.m * mean * (1 - mean))
    # Two factors are for what the fit estimates too: the background of each cohort (1 - 1/k), and
    # two other strings on all rows (1 - 2/rows).
    information *= params.m * (1 - d) * (1 - 2 / rows)
    assert prediction.rare_error == pytest.approx(1 / math.sqrt(information), rel=1e-6)


@pytest.mark.parametrize(("n_reports", "applied"), [(80, "bh"), (90, "adaptive")])
def test_a_plan_for_few_reports_predicts_what_the_decoder_applies(
    n_reports: int, applied: str
) -> None:
    """Below a number of reports that is between 80 and 90, BH replaces the adaptive procedure.

    Decoder and plan must replace it at the same number.
    """
    adaptive = ErrorControl(method="adaptive")
    question = DetectionTarget(frequencies=Frequencies.zipf(100), error_control=adaptive)
    usual = DetectionTarget(frequencies=Frequencies.zipf(100))
    planned = predict_power(BALANCED, question, reports=n_reports)
    counts = simulate_counts(Population(["a"], [1]), BALANCED, n_reports=n_reports, seed=1)
    assert planned.to_dict()["correction"] == applied
    assert decode(counts, ["a"], error_control=adaptive).error_control.method == applied
    same = planned.prediction.found == predict(BALANCED, n_reports, usual).found
    assert same == (applied == "bh")


@pytest.mark.parametrize("correction", ["bh", "adaptive", "bonferroni"])
@pytest.mark.parametrize("n_reports", [20_000, 1_000_000])
def test_the_expected_number_is_that_of_simulated_scores(correction: str, n_reports: int) -> None:
    """The expected number of found strings equals that of each procedure on simulated scores."""
    shares = exact_zipf(200, 1.0)
    question = DetectionTarget(
        frequencies=Frequencies.of_shares(shares, 400),
        error_control=ErrorControl(method=correction),
    )
    prediction = predict(BALANCED, n_reports, question)
    # Scores of 200 present strings by Zipf's law, and of 200 absent strings.
    z = np.concatenate([shares / prediction.rare_error, np.zeros(200)])
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
    assert abs(prediction.found - n_detected.mean()) <= 0.02 * n_detected.mean() + largest_error


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
    """The parts are not negative and sum to 1, and all probabilities are in [0, 1]."""
    question = DetectionTarget(
        frequencies=Frequencies.zipf(n_candidates, exponent),
        error_control=ErrorControl(method=correction),
    )
    params = choose_noise(1, 3, k=64, h=h, m=64)
    prediction = predict(params, n_reports, question)
    assert sum(prediction.parts.values()) == pytest.approx(1)
    assert min(prediction.parts.values()) >= -1e-9
    assert 0 <= prediction.found <= n_candidates
    assert np.all((prediction.probabilities >= 0) & (prediction.probabilities <= 1))
    assert prediction.adjusted_width >= prediction.width * (1 - 1e-12)


def test_plan_compares_its_design_with_the_published_one() -> None:
    """At the losses of the design in [EPK14] 5.2 the plan has h = 1 and other noise.

    The published design (h = 2, p = 1/2) is an alternative. Its `excess`, the variance in units of
    the smallest possible one, is 2.5.
    """
    planned = plan(200, epsilon_1=1.0743, epsilon_inf=4.394449, reports=1_000_000)
    params = planned.params
    assert params.h == 1
    assert params == choose_noise(1.0743, 4.394449, k=params.k, m=params.m)
    alternatives = {other.name: other for other in planned.alternatives}
    published = alternatives["h = 2, p = 1/2 [EPK14]"]
    assert (published.params.f, published.params.q) == pytest.approx((0.5, 0.75), abs=1e-5)
    assert round(published.excess, 1) == 2.5
    assert published.share is not None
    assert planned.share is not None
    # A detectable share is proportional to the root of the variance. Rounded thresholds and the
    # number of detected strings differ, for which 12 % are allowed.
    assert published.share / planned.share == pytest.approx(math.sqrt(published.excess), rel=0.12)


@pytest.mark.slow
@pytest.mark.parametrize(("one", "inf"), [(1, 2), (2, 4), (4, 8)])
@pytest.mark.parametrize("reports", [30_000, 1_000_000, 1_000_000_000])
def test_the_variance_of_a_rare_string_is_near_the_optimum(
    one: float, inf: float, reports: int
) -> None:
    """Without limits, collisions add at most the increases that k and m may cause."""
    planned = plan(1000, epsilon_1=one, epsilon_inf=inf, reports=reports)
    assert 1 <= planned.excess <= (1 + NEGLIGIBLE_VARIANCE) ** 2 + 0.005 <= 1.1
    assert epsilon_1(planned.params) <= one
    assert epsilon_inf(planned.params) <= inf


HIDDEN = DetectionTarget(frequencies=Frequencies.of_shares(1 / np.arange(1.0, 1001.0), 10))
"""A thousand strings by Zipf's law, of which only the ten most frequent are candidates."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("question", "one", "reports", "shape"),
    [
        (1, 2, 100, (64, 16)),
        (1000, 0.02, 1e5, (32, 16)),
        (1000, 10, 1e7, (1024, 32)),
        (HIDDEN, 8, 5000, (1024, 64)),
        (HIDDEN, 2, 1e6, (128, 512)),
        (HIDDEN, 2, 1e8, (128, 4096)),
    ],
)
def test_number_of_bits_and_cohorts_of_a_plan(
    question: DetectionTarget | int, one: float, reports: float, shape: tuple[int, int]
) -> None:
    """`shape` is (k, m) of a plan for a number of candidates and epsilon_1.

    Strong noise needs fewer bits, because collisions add little to it. Strings that are no
    candidates need more cohorts, because their collisions do not average out otherwise. With few
    reports, m is so small that a cohort has about a hundred reports.
    """
    params = plan(question, epsilon_1=one, epsilon_inf=2 * one, reports=reports).params
    assert (params.k, params.m) == shape


@pytest.mark.slow
@pytest.mark.parametrize("correction", ["bh", "bonferroni"])
@pytest.mark.parametrize("share", [0.2, 0.0007])
def test_reports_for_a_share_detect_it_and_fewer_do_not(share: float, correction: str) -> None:
    """The number of reports for a share, and the share of these reports, agree to three digits."""
    question = DetectionTarget(
        frequencies=Frequencies.zipf(500), error_control=ErrorControl(method=correction)
    )
    planned = plan(question, epsilon_1=1, epsilon_inf=3, share=share)
    assert planned.share is not None
    assert planned.share <= share
    # With 2 % fewer reports the share is not detected any more.
    fewer = plan(question, epsilon_1=1, epsilon_inf=3, reports=planned.reports * 98 // 100)
    assert fewer.share is None or fewer.share > share


@pytest.mark.slow
def test_report_size_is_limited_on_request() -> None:
    """`max_bytes` limits k. With 1 or 3 bytes collisions are frequent, and the noise allows for it.

    The noise is then better than noise chosen without collisions (`plain`) at the same k.
    """
    free = plan(1000, epsilon_1=2, epsilon_inf=4, reports=1_000_000)
    for most in (1, 3, 16):
        planned = plan(1000, epsilon_1=2, epsilon_inf=4, reports=1_000_000, max_bytes=most)
        assert planned.params.n_bytes <= most
        assert planned.excess >= free.excess * (1 - 1e-9)
        plain = choose_noise(2, 4, k=planned.params.k, m=planned.params.m)
        assert planned.excess <= excess_of(plain) * (1 + 1e-6)
    assert planned.params == free.params  # 16 bytes are no limit here


def excess_of(params: Params) -> float:
    """Return the excess of existing parameters for the same strings."""
    return predict_power(params, 1000, reports=1_000_000).excess


def test_profiles_are_explained() -> None:
    """The best design with the losses of a profile is as good as the profile, to a thousandth."""
    planned = predict_power(BALANCED, 1000, reports=1_000_000)
    given_design, best_design = planned.alternatives[:2]
    assert given_design.params == BALANCED
    assert given_design.variance == pytest.approx(best_design.variance, rel=1e-3)


@pytest.mark.slow
def test_metric_block_loads_with_the_same_parameters() -> None:
    """The entry reads back with exactly the same parameters. A name with a dot is quoted."""
    for one, inf in ((0.3, 1.1), (1.0743, 4.394449), (5, 30)):
        planned = plan(50, epsilon_1=one, epsilon_inf=inf, reports=100_000)
        for name in ("engine", "page.home"):
            registry = Registry.loads(planned.to_toml(name, expires=date(2030, 12, 31)))
            assert registry.metric(name).params == dataclasses.replace(
                planned.params, interval="day", epoch="quarter"
            )
    with pytest.raises(MetricError, match="name must match"):
        planned.to_toml("No Name", expires=date(2030, 12, 31))


BAD: list[tuple[dict[str, Any], str]] = [
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


@pytest.mark.parametrize(("wrong", "reason"), BAD)
def test_impossible_arguments_are_refused(wrong: dict[str, Any], reason: str) -> None:
    """Contradictory limits are refused in one sentence each."""
    arguments: dict[str, Any] = {"epsilon_1": 2, "epsilon_inf": 4, "reports": 1000, **wrong}
    with pytest.raises(ParamsError, match=reason):
        plan(100, **arguments)


def test_impossible_questions_are_refused() -> None:
    """Candidates, tables, exponents and rates outside their ranges are refused."""
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
    with pytest.raises(ParamsError, match="candidates must number 1, as the answers"):
        predict_power(boolean, 10, reports=100)
    unbounded = Params(k=8, m=64, f=0, p=0.1, q=0.9)
    with pytest.raises(ParamsError, match="epsilon_inf must be a number in"):
        predict_power(unbounded, 10, reports=100)
    with pytest.raises(ParamsError, match="m must be at least"):
        predict_power(Params(k=8, m=2, f=0.5, p=0.25, q=0.75), 1000, reports=100)
    with pytest.raises(DecodeError, match="share must be larger"):
        plan(100, epsilon_1=1, epsilon_inf=2, share=1e-9)


def test_a_plan_stays_within_its_budget_and_records_its_losses() -> None:
    """The losses are at most the budget, and the JSON has both.

    `staying` has the loss of a device whose value stays the same for years: 4 quarters lose 4 times
    epsilon_inf.
    """
    planned = plan(100, epsilon_1=1.5, epsilon_inf=3, reports=1e5)
    document = planned.to_dict()
    assert document["budget"] == {"epsilon_1": 1.5, "epsilon_inf": 3}
    assert document["epsilon_1"] == planned.epsilon_1 == epsilon_1(planned.params) <= 1.5
    assert document["epsilon_inf"] == planned.epsilon_inf == epsilon_inf(planned.params) <= 3
    assert document["reports"] == 100_000
    years = {(row["epoch"], row["years"]): row["epsilon"] for row in document["staying"]}
    assert years["quarter", 1] == pytest.approx(4 * planned.epsilon_inf)


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run `rappor plan`; return exit code and output."""
    code = run(["plan", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


BUDGET = ("--epsilon-1", "2", "--epsilon-inf", "4")
ONCE = ("--profile", "once", "--devices", "1e6")


@pytest.mark.slow
def test_command_prints_the_plan_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON has the library's numbers, and an entry that loads."""
    code, out, _ = command(
        capsys, *BUDGET, "--reports", "1e6", "--candidates", "500", "--name", "engine", "--json"
    )
    assert code == 0
    answer = json.loads(out)
    planned = plan(500, epsilon_1=2, epsilon_inf=4, reports=1_000_000)
    block = answer.pop("toml")
    assert answer == json.loads(json.dumps(planned.to_dict()))
    assert Registry.loads(block).metric("engine").params == dataclasses.replace(
        planned.params, interval="day", epoch="quarter"
    )


def test_command_prints_the_plan_for_people(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The text has losses, limit, interval and error, the alternatives and the entry."""
    (tmp_path / "table.csv").write_text("value,weight\na,5\nb,3\nc,1\n")
    words = ("--table", str(tmp_path / "table.csv"), "--candidates", "20")
    code, out, _ = command(capsys, *BUDGET, "--share", "0.02", *words)
    assert code == 0
    for piece in ("2.0000 nats", "this one", "[EPK14]", "[metrics.my_metric]"):
        assert piece in out
    code, out, _ = command(capsys, "--profile", "strict", "--reports", "3", *words)
    assert code == 0
    assert "no share" in out
    assert "m is too large" in out
    assert "of 128 cohorts, 0 % have at least 10 reports in an interval; m = 1 would do" in out


@pytest.mark.slow
@pytest.mark.parametrize("budget", [ONCE, ("--epsilon-1=4", "--epsilon-inf=4", "--devices=1e6")])
@pytest.mark.parametrize(
    ("days", "reports", "losses"),
    [(7, 76_660, None), (90, 10**6, None), (92, 10**6, None), (200, 2_190_281, [4, 12])],
)
def test_a_permanent_response_without_fresh_noise_is_planned_once_per_epoch(
    capsys: pytest.CaptureFixture[str],
    budget: tuple[str, ...],
    days: int,
    reports: int,
    losses: list[float] | None,
) -> None:
    """With epsilon_1 = epsilon_inf a device reports once in each quarter, at a random time.

    A collection of 7 days has 7.67 % of 1e6 devices, that of a quarter all of them. 200 days
    overlap with 2.19 quarters in the mean and with 3 at most. Errors use the mean number of
    reports, losses the largest: 3 * 4 nats. The entry has interval = "epoch".
    """
    _, out, _ = command(capsys, *budget, "--days", str(days), "--json")
    answer = json.loads(out)
    assert answer["reports"] == reports
    assert Registry.loads(answer["toml"])["my_metric"].interval == "epoch"
    repeats = answer.get("repeats")
    assert (repeats and [round(repeat["epsilon"], 4) for repeat in repeats]) == losses


def test_the_text_of_a_plan_once_per_epoch_states_the_numbers_of_reports(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The text has the share of devices after a week, and mean and largest number of reports."""
    _, out, _ = command(capsys, *ONCE, "--days", "200")
    text = " ".join(out.split())
    assert "better for results of a quarter, not of a week, after which only 8 % of" in text
    assert "2.19 in the mean, at most 3" in text


@pytest.mark.parametrize("correction", ["bh", "bonferroni"])
@pytest.mark.parametrize("n_reports", [20_000, 1_000_000])
def test_the_expected_number_of_a_ranked_list_is_that_of_simulated_scores(
    correction: str, n_reports: int
) -> None:
    """With weights, the expected number equals that of the weighted procedure on simulated scores.

    An absent candidate follows each of 200 present ones in the list.
    """
    shares = exact_zipf(200, 1.0)
    control = ErrorControl(method=correction, ranked=True)
    question = DetectionTarget(
        frequencies=Frequencies.of_shares(shares, 400), error_control=control
    )
    prediction = predict(BALANCED, n_reports, question)
    z = np.zeros(400)
    z[::2] = shares / prediction.rare_error
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
    assert abs(prediction.found - n_detected.mean()) <= 0.02 * n_detected.mean() + largest_error


def test_mean_weights_of_classes_are_those_of_their_ranks() -> None:
    """A class of ranks has the mean weight of its ranks. All candidates have the mean weight 1."""
    frequencies = Frequencies.zipf(50_000)
    weights = PlannedWeights.of(frequencies, ErrorControl(ranked=True))
    sizes = frequencies.candidates.astype(int)
    exact = compute_weight_scale(50_000) * invert_ranks(np.arange(1, 50_001))
    means = np.add.reduceat(exact, np.cumsum(sizes) - sizes) / sizes
    assert weights.weights == pytest.approx(means, rel=1e-9)
    # 1,000 present and 1,000 absent candidates.
    halved = Frequencies.of_shares(exact_zipf(1000, 1.0), 2000)
    spread = PlannedWeights.of(halved, ErrorControl(ranked=True))
    total = spread.weights @ halved.candidates + spread.absent @ spread.absent_weights
    assert total == pytest.approx(2000)
    assert spread.absent.sum() == pytest.approx(1000)
    assert spread.count_absent(1e-6) == pytest.approx(1e-6 * spread.absent @ spread.absent_weights)
    # A bound on the p-value never exceeds the error rate, here .05, whatever the weight is.
    assert spread.weigh_present(1.0).max() == 0.05


def test_ranks_of_a_plan_without_a_list_are_refused() -> None:
    """Categories have no ranks, and candidates of a discovery come from its reports."""
    params = Params.profile("balanced", encoding="onehot", categories=("a", "b", "c"))
    question = DetectionTarget(
        frequencies=Frequencies.zipf(3), error_control=ErrorControl(ranked=True)
    )
    with pytest.raises(ParamsError, match="ranked must be False for categories"):
        predict_power(params, question, reports=1000)
    with pytest.raises(ParamsError, match="ranked must be False for discoveries"):
        plan_discovery(question, epsilon_1=2, epsilon_inf=4, reports=1e7, longest=6)
