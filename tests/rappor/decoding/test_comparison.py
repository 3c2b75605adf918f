"""What changed between samples: differences, their errors, and what is called a change."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from rappor import CandidateStream, Comparison, Counts, Params, Population, compare, simulate_counts
from rappor.decoding.comparison.answer_changes import Joined, answer_changes
from rappor.decoding.comparison.changes import rows_p_value
from rappor.decoding.comparison.differences import Sample, differences, estimated_overlap
from rappor.decoding.detection import Detection
from rappor.decoding.devices import merge
from rappor.ground.errors import DecodeError
from rappor.simulation import simulate_days, simulate_repeated

FALSE_ALARM = 1e-9
PARAMS = Params(k=32, h=1, m=32, f=0.25, p=0.3, q=0.7)
STEADY = Params(k=32, h=1, m=32, f=0.5, p=0.1, q=0.9)
"""Most of the noise is permanent: that of a device comes again with each report."""

BOOLEAN = Params(k=1, encoding="boolean", f=0.5, p=0.1, q=0.9)
COLOURS = Params(
    k=3, encoding="onehot", categories=("red", "green", "blue"), f=0.25, p=0.25, q=0.75
)
NAMES = [f"s{i}" for i in range(40)]
ABSENT = [f"x{i}" for i in range(60)]
BEFORE = np.exp(-np.arange(40) / 8) / np.exp(-np.arange(40) / 8).sum()
AFTER = BEFORE.copy()
AFTER[[1, 30]] = BEFORE[[30, 1]]
"""Two strings change places: one all but leaves, one comes, and nothing else changes."""


def drawn(
    shares: NDArray[np.float64], seed: int, *, n: float = 2e5, params: Params = PARAMS
) -> Counts:
    """Draw counts of devices that report once each."""
    return simulate_counts(Population(NAMES, list(shares)), params, n_reports=n, seed=seed)


def days(n: float, seed: int, *, n_days: int = 2) -> list[Counts]:
    """Draw days of the same devices."""
    return simulate_days(
        Population(NAMES, list(BEFORE)), STEADY, n_devices=n, n_days=n_days, seed=seed
    )


def sample_of(*collections: Counts, name: str = "a") -> Sample:
    """Return a sample."""
    merged, repetitions = merge(collections)
    return Sample(name=name, counts=tuple(merged), repetitions=tuple(repetitions))


def truth(comparison: Comparison) -> NDArray[np.float64]:
    """Return the true difference of each row of AFTER and BEFORE."""
    known = dict(zip(NAMES, AFTER - BEFORE, strict=True))
    return np.array([known.get(name, 0.0) for name in comparison.candidates])


@pytest.fixture(scope="module")
def changed() -> Comparison:
    """Two samples of 2e5 other devices, with a newcomer and a leaver."""
    return compare({"May": drawn(BEFORE, 1), "June": drawn(AFTER, 2)}, NAMES + ABSENT)


def test_a_newcomer_and_a_leaver_are_found_and_named(changed: Comparison) -> None:
    """Both are 30 standard errors from nothing."""
    kinds = {row["candidate"]: row["kind"] for row in changed.rows(changed_only=True)}
    assert kinds["s30"] == "newcomer"
    assert kinds["s1"] == "leaver"
    (june,) = changed.against
    assert june.how == "rows"
    assert june.unchanged_p_value < FALSE_ALARM
    assert changed.unchanged_p_value == june.unchanged_p_value
    assert changed.candidates[:2] in (("s1", "s30"), ("s30", "s1"))


def test_p_values_of_unchanged_strings_reach_1(changed: Comparison) -> None:
    """They are two-sided: half of 98 are above 1/2, where those of one tail would all end."""
    (june,) = changed.against
    assert (june.p_value > 0.6).any()
    assert june.p_value.max() <= 1


def test_a_rise_is_no_newcomer(changed: Comparison) -> None:
    """A string that is detected in both samples rises or falls."""
    shares = BEFORE.copy()
    shares[:2] += np.array([-0.5, 0.5]) * BEFORE[0]
    found = compare({"a": drawn(BEFORE, 3), "b": drawn(shares, 4)}, NAMES)
    kinds = {row["candidate"]: row["kind"] for row in found.rows(changed_only=True)}
    assert (kinds.get("s0"), kinds.get("s1")) == ("fall", "rise")
    assert changed.n_tests == 100


def test_swapping_the_samples_turns_every_sign() -> None:
    """Differences, intervals and kinds are mirrored, p-values stay."""
    before, after = drawn(BEFORE, 5), drawn(AFTER, 6)
    there = {row["candidate"]: row for row in compare({"a": before, "b": after}, NAMES).rows()}
    back = {row["candidate"]: row for row in compare({"b": after, "a": before}, NAMES).rows()}
    mirrored = {"newcomer": "leaver", "leaver": "newcomer", "rise": "fall", "fall": "rise", "": ""}
    for name, row in there.items():
        other = back[name]
        assert other["difference"] == pytest.approx(-row["difference"], abs=1e-9)
        assert other["ci_low"] == pytest.approx(-row["ci_high"], abs=1e-9)
        assert other["p_value"] == pytest.approx(row["p_value"], rel=1e-6)
        assert other["kind"] == mirrored[row["kind"]]


def test_the_order_of_candidates_changes_nothing(changed: Comparison) -> None:
    """The same rows in the same order."""
    turned = compare(
        {"May": drawn(BEFORE, 1), "June": drawn(AFTER, 2)}, list(reversed(NAMES + ABSENT))
    )
    assert turned.candidates[:2] == changed.candidates[:2]
    ours = {row["candidate"]: row["difference"] for row in changed.rows()}
    for row in turned.rows():
        assert row["difference"] == pytest.approx(ours[row["candidate"]], abs=1e-12)


def test_unchanged_strings_cancel_though_they_are_no_candidates() -> None:
    """Errors are as small as if all were listed; the estimates' own errors are twice as large."""
    samples = {"a": drawn(BEFORE, 7, n=5e6), "b": drawn(AFTER, 8, n=5e6)}
    few = compare(samples, ["s1", "s30"])
    every = compare(samples, NAMES)
    assert few.against[0].std_error[0] == pytest.approx(every.against[0].std_error[0], rel=0.1)
    apart = math.hypot(*(each for each in _errors_apart(samples)))
    assert apart > 2 * few.against[0].std_error[0]


def _errors_apart(samples: dict[str, Counts]) -> list[float]:
    from rappor import decode  # noqa: PLC0415  # only here

    return [float(decode(each, ["s1", "s30"]).std_error[0]) for each in samples.values()]


@pytest.mark.parametrize("overlap", [0.0, 1.0])
def test_noise_of_differences_is_what_simulations_show(overlap: float) -> None:
    """Mean squares of 1,024 rows of 40 pairs over their variance: 1 within six errors, .044."""
    ratios = []
    for seed in range(40):
        first, second = days(2e4, 100 + seed)
        if overlap == 0:
            second = days(2e4, 500 + seed)[0]
        nothing = np.zeros(STEADY.m * STEADY.k)
        target = differences(
            sample_of(first), sample_of(second), (nothing, nothing), overlap=overlap
        )
        ratios.append(float(np.mean(target.proportions**2 / target.noise(nothing))))
    error = math.sqrt(2 / (40 * STEADY.m * STEADY.k))
    assert abs(np.mean(ratios) - 1) < -stats.norm.ppf(FALSE_ALARM / 2) * error * 1.2


def test_the_overlap_is_estimated_from_the_bits() -> None:
    """Same devices: above 1/2; others: near 0; another parameter set, or few bits: 0."""
    first, second = days(5e4, 9)
    assert estimated_overlap(sample_of(first), sample_of(second)) > 0.5
    assert estimated_overlap(sample_of(first), sample_of(days(5e4, 10)[0])) < 0.3
    other = drawn(BEFORE, 11, params=PARAMS)
    assert estimated_overlap(sample_of(first), sample_of(other)) == 0
    assert estimated_overlap(sample_of(first), sample_of(second, other)) == 0
    few = simulate_days(Population(["yes"], [1]), BOOLEAN, n_devices=1e4, n_days=2, seed=1)
    assert estimated_overlap(*map(sample_of, few)) == 0


def test_devices_that_are_the_same_make_differences_more_certain() -> None:
    """Errors shrink with the overlap that is given or seen; assumed is said."""
    first, second = days(5e4, 12)
    samples = {"a": first, "b": second}
    others, seen, same = (compare(samples, NAMES, overlap=each) for each in (0.0, None, 1.0))
    errors = [float(np.median(each.against[0].std_error)) for each in (same, seen, others)]
    assert errors == sorted(errors)
    assert errors[0] < 0.8 * errors[2]
    assert "estimated from the bits, minus one standard error" in seen.assumed
    assert "1.00 of b (as given)" in same.assumed


def test_repeated_reports_are_no_other_devices() -> None:
    """Seven reports of each device say less than seven devices."""
    population = Population(NAMES, list(BEFORE))
    week = [
        simulate_repeated(population, STEADY, devices={7: 2e4}, seed=seed).counts
        for seed in (13, 14)
    ]
    known = compare({"a": week[0], "b": week[1]}, NAMES)
    assert known.against[0].sample.devices == pytest.approx(2e4)
    nothing = np.zeros(STEADY.m * STEADY.k)
    variances = [
        differences(sample_of(a), sample_of(b), (nothing, nothing), overlap=0.0).noise(nothing)
        for a, b in (week, [Counts(STEADY, each.ones, each.reports) for each in week])
    ]
    assert np.median(variances[0] / variances[1]) > 3


def test_coverage_and_false_changes() -> None:
    """800 intervals cover 95 % within 9 errors; of 8 pairs without changes few show one."""
    covered, alarms, uncertain = [], 0, 0
    for seed in range(0, 16, 2):
        found = compare(
            {"a": drawn(BEFORE, 20 + seed), "b": drawn(AFTER, 21 + seed)}, NAMES + ABSENT
        )
        (each,) = found.against
        expected = truth(found)
        covered.append((each.ci_low <= expected) & (expected <= each.ci_high))
        nothing = compare(
            {"a": drawn(BEFORE, 60 + seed), "b": drawn(BEFORE, 61 + seed)}, NAMES + ABSENT
        )
        alarms += nothing.n_changed > 0
        uncertain += nothing.unchanged_p_value < 0.05
    share = float(np.mean(covered))
    error = math.sqrt(0.05 * 0.95 / np.size(covered))
    assert abs(share - 0.95) < 1.5 * -stats.norm.ppf(FALSE_ALARM / 2) * error
    most = stats.binom.isf(FALSE_ALARM, 8, 0.05)
    assert alarms <= most
    assert uncertain <= most


@pytest.mark.acceptance
@pytest.mark.timeout(3600)
def test_coverage_and_false_discovery_rate_of_many_pairs() -> None:
    """150 pairs: FDR at most .05, coverage of all intervals and of the adjusted ones."""
    false, covered, adjusted = [], [], []
    for seed in range(0, 300, 2):
        found = compare(
            {"a": drawn(BEFORE, 1000 + seed), "b": drawn(AFTER, 1001 + seed)}, NAMES + ABSENT
        )
        (each,) = found.against
        expected = truth(found)
        false.append(float(np.mean(expected[each.changed] == 0)))
        covered.append(np.mean((each.ci_low <= expected) & (expected <= each.ci_high)))
        inside = (each.ci_low_adjusted <= expected) & (expected <= each.ci_high_adjusted)
        adjusted.append(np.mean(inside[each.changed]))
    assert np.mean(false) < 0.05 + 6 * np.std(false) / math.sqrt(150)
    assert np.mean(covered) > 0.95 - 6 * np.std(covered) / math.sqrt(150)
    assert np.mean(adjusted) > 0.95 - 6 * np.std(adjusted) / math.sqrt(150)


def test_diffuse_changes_are_seen_without_any_candidate() -> None:
    """Rows change though nobody listed what changed."""
    shares = np.roll(BEFORE, 20)
    found = compare({"a": drawn(BEFORE, 31), "b": drawn(shares, 32)}, ["nobody has it"])
    (each,) = found.against
    assert each.rows_p_value is not None
    assert each.rows_p_value < FALSE_ALARM


def test_rows_of_no_reports_say_nothing() -> None:
    """Cohorts that are empty in one sample are left out."""
    whole = drawn(BEFORE, 33, n=2000)
    reports = np.where(np.arange(32) < 3, 0, whole.reports)
    ones = np.where(np.arange(32)[:, None] < 3, 0, whole.ones)
    found = compare({"a": Counts(PARAMS, ones, reports), "b": drawn(BEFORE, 34, n=2000)}, NAMES)
    assert np.isfinite(found.against[0].std_error).all()
    nothing = np.zeros(PARAMS.m * PARAMS.k)
    target = differences(
        sample_of(Counts(PARAMS, ones, reports)), sample_of(whole), (nothing, nothing), overlap=0
    )
    assert 0.001 < rows_p_value(target) <= 1


def test_parameters_that_share_no_bits_are_decoded_apart() -> None:
    """Errors add; the change of places is found all the same."""
    other = Params(k=32, h=1, m=64, f=0.25, p=0.3, q=0.7)
    found = compare({"a": drawn(BEFORE, 35), "b": drawn(AFTER, 36, params=other)}, NAMES + ABSENT)
    assert found.against[0].how == "apart"
    assert found.against[0].rows_p_value is None
    assert {"s1", "s30"} <= {row["candidate"] for row in found.rows(changed_only=True)}


def test_samples_without_a_cohort_in_common_are_decoded_apart() -> None:
    """Half of the cohorts sent in each: there is no row to compare."""
    halves = []
    for seed, half in ((43, np.arange(32) < 16), (44, np.arange(32) >= 16)):
        counts = drawn(BEFORE, seed)
        ones, reports = counts.ones * half[:, None], counts.reports * half
        halves.append(Counts(PARAMS, ones, reports))
    found = compare({"a": halves[0], "b": halves[1]}, NAMES)
    assert (found.against[0].how, found.against[0].rows_p_value) == ("apart", None)


def test_noise_may_differ_between_samples() -> None:
    """Other f, p and q set the same bits: rows are compared one by one."""
    other = Params(k=32, h=1, m=32, f=0.25, p=0.2, q=0.8)
    found = compare({"a": drawn(BEFORE, 37), "b": drawn(AFTER, 38, params=other)}, NAMES + ABSENT)
    assert found.against[0].how == "rows"
    assert {"s1", "s30"} <= {row["candidate"] for row in found.rows(changed_only=True)}


def test_several_samples_have_one_error_rate() -> None:
    """Each is compared with the first; the correction counts all rows of all."""
    samples = {"a": drawn(BEFORE, 40), "b": drawn(BEFORE, 41), "c": drawn(AFTER, 42)}
    found = compare(samples, NAMES, detection=Detection(correction="bonferroni"))
    assert [each.sample.name for each in found.against] == ["b", "c"]
    assert found.n_tests == 80
    assert found.unchanged_p_value == min(2 * found.against[1].unchanged_p_value, 1)
    assert {row["sample"] for row in found.rows(changed_only=True)} == {"c"}
    largest = max(row["p_value"] for row in found.rows(changed_only=True))
    assert largest <= 0.05 / 80


def test_answers_are_compared_in_their_order() -> None:
    """One-hot answers: no candidates, no rows; the change of 10 points is found."""
    before, after = (
        simulate_counts(
            Population(list(COLOURS.categories), shares), COLOURS, n_reports=5e4, seed=i
        )
        for i, shares in enumerate([[5, 3, 2], [4, 4, 2]])
    )
    found = compare({"a": before, "b": after})
    assert found.candidates == COLOURS.categories
    assert [row["kind"] for row in found.rows()] == ["fall", "rise", ""]
    assert (found.against[0].how, found.against[0].rows_p_value) == ("answers", None)


def test_test_and_interval_of_an_answer_agree() -> None:
    """A p-value is below an error rate where the interval of that rate leaves out 0."""
    for a, b in ((3, 2), (9, 12), (14, 2)):
        first, second = (Counts(BOOLEAN, [[ones]], [20]) for ones in (a, b))
        changes = answer_changes(sample_of(first), sample_of(second), overlap=0.0)
        p = float(changes.p_value[0])
        for error, outside in ((min(p * 1.01, 1), True), (p * 0.99, False)):
            low, high = changes.interval(error)
            assert bool((low[0] > 0) | (high[0] < 0)) is (outside and p < 1)


@pytest.mark.parametrize("shares", [(0.1, 0.1), (0.5, 0.5), (0.05, 0.4)])
def test_intervals_of_few_answers_hold_exactly(shares: tuple[float, float]) -> None:
    """All ways in which 20 and 25 devices can answer, each as a flag of its own, weighted."""
    n = (20, 25)
    ways = list(itertools.product(range(n[0] + 1), range(n[1] + 1)))
    flags = Params(
        k=len(ways),
        encoding="flags",
        categories=tuple(map(str, range(len(ways)))),
        f=0.25,
        p=0.25,
        q=0.75,
    )
    first, second = (sample_of(Counts(flags, [[way[i] for way in ways]], [n[i]])) for i in range(2))
    low, high = Joined(first, second, overlap=0.0).interval(0.05)
    gap = flags.q_star - flags.p_star
    weights = np.outer(
        *(
            stats.binom.pmf(np.arange(size + 1), size, flags.p_star + gap * share)
            for size, share in zip(n, shares, strict=True)
        )
    ).ravel()
    difference = shares[1] - shares[0]
    assert weights @ ((low <= difference) & (difference <= high)) >= 0.95
    if difference == 0:
        assert weights @ ((low > 0) | (high < 0)) <= 0.05


def test_correlated_answers_have_shorter_intervals() -> None:
    """The same devices on two days: the overlap that is given lowers the error."""
    population = Population(["yes", "no"], [3, 7])
    first, second = simulate_days(population, BOOLEAN, n_devices=1e4, n_days=2, seed=1)
    wide, narrow = (compare({"a": first, "b": second}, overlap=each) for each in (None, 1.0))
    assert narrow.against[0].std_error[0] < 0.9 * wide.against[0].std_error[0]
    assert wide.against[0].overlap == 0


def test_indistinguishable_candidates_share_a_change() -> None:
    """Two spellings of one bit pattern are one group, with one estimate."""
    tiny = Params(k=2, h=1, m=1, f=0.25, p=0.3, q=0.7)
    population = Population(["a", "b", "c", "d"], [4, 3, 2, 1])
    before, after = (simulate_counts(population, tiny, n_reports=1e4, seed=seed) for seed in (1, 2))
    found = compare({"a": before, "b": after}, ["a", "b", "c", "d"])
    for group in set(found.group.tolist()) - {0}:
        members = found.against[0].difference[found.group == group]
        assert np.ptp(members) == 0
    assert found.group.any()


def test_rows_are_the_same_in_json_csv_and_tables(changed: Comparison) -> None:
    """Every number of a row, in every form."""
    document = json.loads(changed.to_json())
    rows = list(changed.rows())
    assert document["changes"] == rows
    assert document["samples"][0]["unchanged_p_value"] == changed.unchanged_p_value
    read = list(csv.DictReader(io.StringIO(changed.to_csv())))
    assert [row["candidate"] for row in read] == [row["candidate"] for row in rows]
    assert [float(row["difference"]) for row in read] == [row["difference"] for row in rows]
    table = changed.to_arrow().to_pylist()
    assert [row["p_value"] for row in table] == [row["p_value"] for row in rows]
    assert len(json.loads(changed.to_json(changed_only=True))["changes"]) == changed.n_changed


def test_questions_without_an_answer_are_refused() -> None:
    """One sentence each."""
    counts, answers = drawn(BEFORE, 1, n=100), Counts(BOOLEAN, [[1]], [2])
    with pytest.raises(DecodeError, match="samples must number at least 2, got 1"):
        compare({"a": counts}, NAMES)
    with pytest.raises(DecodeError, match="sample 'b' must have at least 1 report"):
        compare({"a": counts, "b": Counts.zero(PARAMS)}, NAMES)
    with pytest.raises(DecodeError, match="same kind of values"):
        compare({"a": counts, "b": answers}, NAMES)
    with pytest.raises(DecodeError, match="candidates must be omitted"):
        compare({"a": answers, "b": answers}, NAMES)
    with pytest.raises(DecodeError, match="a stream is not compared"):
        compare({"a": counts, "b": counts}, CandidateStream.from_strings(["a"]))
    with pytest.raises(DecodeError, match="candidates must be a list"):
        compare({"a": counts, "b": counts}, "cat")
    with pytest.raises(DecodeError, match="overlap must be a number in"):
        compare({"a": counts, "b": counts}, NAMES, overlap=2)
    with pytest.raises(DecodeError, match="must be Counts"):
        compare({"a": counts, "b": 3}, NAMES)  # type: ignore[dict-item]
