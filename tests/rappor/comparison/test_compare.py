"""Changes between samples, as `compare_samples` finds them.

A sample is a set of collections, such as a month. The result has a contrast for each difference,
with an estimate, an interval and a p-value for each candidate, and the candidates that changed at
the chosen error rate.
"""

from __future__ import annotations

import csv
import io
import json
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from rappor import (
    Candidates,
    Comparison,
    Counts,
    Params,
    Population,
    compare_samples,
    decode,
    simulate_counts,
)
from rappor.base.errors import DecodeError, ParamsError
from rappor.comparison.sample_contrasts import SampleContrast
from rappor.estimator.error_control import ErrorControl
from rappor.simulation import simulate_days

FALSE_ALARM = 1e-9
PARAMS = Params(k=32, h=1, m=32, f=0.25, p=0.3, q=0.7)
STEADY = Params(k=32, h=1, m=32, f=0.5, p=0.1, q=0.9)
"""Most of the noise is permanent, so a device repeats its noise with each report."""

NAMES = [f"s{i}" for i in range(40)]
ABSENT = [f"x{i}" for i in range(60)]
BEFORE = np.exp(-np.arange(40) / 8) / np.exp(-np.arange(40) / 8).sum()
AFTER = BEFORE.copy()
AFTER[[1, 30]] = BEFORE[[30, 1]]
"""Shares after a change: s1, frequent before, has the share of s30, which was rare, and s30 that of
s1. All other shares stay."""


def drawn(
    shares: NDArray[np.float64], seed: int, *, n: float = 2e5, params: Params = PARAMS
) -> Counts:
    """Draw counts of devices that report once each."""
    return simulate_counts(Population(NAMES, list(shares)), params, n_reports=n, seed=seed)


def truth(comparison: Comparison) -> NDArray[np.float64]:
    """Return the true difference of each row of AFTER and BEFORE."""
    known = dict(zip(NAMES, AFTER - BEFORE, strict=True))
    return np.array([known.get(name, 0.0) for name in comparison.candidates])


def directions(comparison: Comparison, contrast: SampleContrast) -> dict[str, str]:
    """Return the changed candidates with their directions."""
    return {
        name: str(direction)
        for name, direction in zip(comparison.candidates, contrast.direction, strict=True)
        if direction
    }


@pytest.fixture(scope="module")
def changed() -> Comparison:
    """Compare two samples of 2e5 different devices, with a newcomer and a leaver."""
    return compare_samples({"May": drawn(BEFORE, 1), "June": drawn(AFTER, 2)}, NAMES + ABSENT)


def test_a_newcomer_and_a_leaver_are_found_and_named(changed: Comparison) -> None:
    """The newcomer s30 and the leaver s1 are detected, and p-values are two-sided.

    The two changes are about 30 standard errors. One-sided p-values of falls would exceed 1 if
    doubled.
    """
    (june,) = changed.contrasts
    assert (june.p_value > 0.6).any()
    assert june.p_value.max() <= 1
    assert (june.kind, june.name, june.how) == ("difference", "from May to June", "rows")
    kinds = directions(changed, june)
    assert (kinds["s30"], kinds["s1"]) == ("newcomer", "leaver")
    assert june.unchanged_p_value < FALSE_ALARM
    assert set(changed.candidates[:2]) == {"s1", "s30"}


@pytest.mark.slow
def test_swapping_the_samples_turns_every_sign() -> None:
    """Swapping the samples mirrors differences, intervals and directions, and keeps p-values."""
    before, after = drawn(BEFORE, 5), drawn(AFTER, 6)
    one = compare_samples({"a": before, "b": after}, NAMES)
    two = compare_samples({"b": after, "a": before}, list(reversed(NAMES)))
    mirrored = {"newcomer": "leaver", "leaver": "newcomer", "rise": "fall", "fall": "rise", "": ""}
    places = [two.candidates.index(name) for name in one.candidates]
    for there, back in (
        (one.contrasts[0], two.contrasts[0].ordered(np.array(places))),
        (one.contrasts[0], one.contrast([1, -1])),
    ):
        assert there.estimate == pytest.approx(-back.estimate, abs=1e-9)
        assert there.ci_low == pytest.approx(-back.ci_high, abs=1e-9)
        assert there.p_value == pytest.approx(back.p_value, rel=1e-6)
        assert [mirrored[direction] for direction in there.direction] == back.direction.tolist()


@pytest.mark.slow
def test_unchanged_strings_cancel_without_being_candidates() -> None:
    """Errors of changes are as small with two candidates as with all 40 strings as candidates.

    A decode of one sample does not have this advantage: strings that are no candidates add to its
    error.
    """
    samples = {"a": drawn(BEFORE, 7, n=5e6), "b": drawn(AFTER, 8, n=5e6)}
    few, every = (compare_samples(samples, names).contrasts[0] for names in (["s1", "s30"], NAMES))
    assert few.std_error[0] == pytest.approx(every.std_error[0], rel=0.1)
    separate_error = math.hypot(
        *(float(decode(c, ["s1", "s30"]).std_error[0]) for c in samples.values())
    )
    assert separate_error > 2 * few.std_error[0]


@pytest.mark.slow
def test_devices_that_are_the_same_make_differences_more_certain() -> None:
    """Errors shrink with a device correlation that is passed or estimated from the bits."""
    population = Population(NAMES, list(BEFORE))
    first, second = simulate_days(population, STEADY, n_devices=5e4, n_days=2, seed=12)
    samples = {"a": first, "b": second}
    others, seen, same = (
        compare_samples(samples, NAMES, device_correlation=correlation)
        for correlation in (0.0, None, 1.0)
    )
    errors = [
        float(np.median(comparison.contrasts[0].std_error)) for comparison in (same, seen, others)
    ]
    assert errors == sorted(errors)
    assert errors[0] < 0.8 * errors[2]
    assert (others.device_correlation, seen.device_correlation, same.device_correlation) == (
        0.0,
        None,
        1.0,
    )
    assert (
        "The correlation of the device noise of two samples is 1.00, as passed." in same.assumptions
    )
    assert "is not known" in seen.assumptions
    assert json.loads(seen.to_json())["device_correlation"] is None
    # The test that no row changed assumes different devices (the largest errors), unless the
    # correlation is passed.
    rows = [comparison.contrasts[0].rows_p_value for comparison in (others, seen, same)]
    assert rows[0] == rows[1] != rows[2]


@pytest.mark.timeout(3600)
@pytest.mark.slow
@pytest.mark.parametrize("n_pairs", [8, pytest.param(150, marks=pytest.mark.acceptance)])
def test_coverage_and_false_changes(n_pairs: int) -> None:
    """Intervals cover 95 %, at most 5 % of the changes are false, and equal samples rarely differ.

    `error` is the standard error of a rate of 5 % in `n_pairs` independent trials. A rate may miss
    by 6 of them. The mean coverage is over 100 candidates of each pair, which are correlated. It
    has about a tenth of this error, because it is a mean, and may miss by 9.
    """
    false, covered, adjusted, n_rejected = [], [], [], 0
    for seed in range(0, 2 * n_pairs, 2):
        before, after = drawn(BEFORE, 1000 + seed), drawn(AFTER, 1001 + seed)
        comparison = compare_samples({"a": before, "b": after}, NAMES + ABSENT)
        (contrast,) = comparison.contrasts
        expected = truth(comparison)
        false.append(float(np.mean(expected[contrast.changed] == 0)))
        covered.append(np.mean((contrast.ci_low <= expected) & (expected <= contrast.ci_high)))
        inside = (contrast.ci_low_adjusted <= expected) & (expected <= contrast.ci_high_adjusted)
        adjusted.append(np.mean(inside[contrast.changed]))
        same = compare_samples({"a": before, "b": drawn(BEFORE, 2000 + seed)}, NAMES + ABSENT)
        n_rejected += same.contrasts[0].unchanged_p_value < 0.05
    error = math.sqrt(0.05 * 0.95 / n_pairs)
    assert np.mean(false) < 0.05 + 6 * error
    assert abs(np.mean(covered) - 0.95) < 9 * error / 10
    assert np.mean(adjusted) > 0.95 - 6 * error
    assert n_rejected <= stats.binom.isf(FALSE_ALARM, n_pairs, 0.05)


def test_diffuse_changes_are_seen_without_any_candidate() -> None:
    """The test of all rows finds a change of strings that are no candidates."""
    shares = np.roll(BEFORE, 20)
    comparison = compare_samples(
        {"a": drawn(BEFORE, 31), "b": drawn(shares, 32)}, ["nobody has it"]
    )
    assert comparison.contrasts[0].rows_p_value is not None
    assert comparison.contrasts[0].rows_p_value < FALSE_ALARM


@pytest.mark.parametrize(
    ("other", "how"),
    [
        (Params(k=32, h=1, m=64, f=0.25, p=0.3, q=0.7), "separate"),
        (Params(k=32, h=1, m=32, f=0.25, p=0.2, q=0.8), "rows"),
    ],
)
def test_parameters_of_other_bits_are_decoded_apart(other: Params, how: str) -> None:
    """Samples with other f, p and q share rows. Samples with other k, h or m are decoded apart."""
    comparison = compare_samples(
        {"a": drawn(BEFORE, 35), "b": drawn(AFTER, 36, params=other)}, NAMES + ABSENT
    )
    (contrast,) = comparison.contrasts
    assert (contrast.how, contrast.rows_p_value is None) == (how, how == "separate")
    assert {"s1", "s30"} <= set(directions(comparison, contrast))


def test_samples_without_a_cohort_in_common_are_decoded_apart() -> None:
    """Samples with reports in different cohorts are decoded separately."""
    counts, first = drawn(BEFORE, 43), np.arange(32) < 16
    a, b = (
        Counts(PARAMS, counts.bit_counts * half[:, None], counts.cohort_reports * half)
        for half in (first, ~first)
    )
    (contrast,) = compare_samples({"a": a, "b": b}, NAMES).contrasts
    assert (contrast.how, contrast.rows_p_value) == ("separate", None)


@pytest.mark.slow
def test_several_samples_have_one_error_rate() -> None:
    """Bonferroni divides the error rate by all tests: 40 candidates times 2 contrasts."""
    samples = {"a": drawn(BEFORE, 40), "b": drawn(AFTER, 42), "c": drawn(AFTER, 43)}
    bonferroni = ErrorControl(method="bonferroni")
    comparison, steps = (
        compare_samples(samples, NAMES, error_control=bonferroni, baseline=baseline)
        for baseline in ("first", "previous")
    )
    assert [contrast.name for contrast in comparison.contrasts] == ["from a to b", "from a to c"]
    assert [contrast.name for contrast in steps.contrasts] == ["from a to b", "from b to c"]
    assert [contrast.n_changed > 0 for contrast in comparison.contrasts] == [True, True]
    assert [contrast.n_changed > 0 for contrast in steps.contrasts] == [True, False]
    for contrast in comparison.contrasts:
        assert contrast.p_value[contrast.changed].max() <= 0.05 / 80


@pytest.mark.slow
def test_weights_of_ones_own_are_a_contrast() -> None:
    """Weights of the analyst give a contrast, whatever their scale. They must sum to 0."""
    samples = {"a": drawn(BEFORE, 45), "b": drawn(BEFORE, 46), "c": drawn(AFTER, 47)}
    comparison = compare_samples(samples, NAMES)
    contrast = comparison.contrast([-0.5, -0.5, 1.0], "c against both")
    assert {"s1", "s30"} <= set(directions(comparison, contrast))
    inside = (contrast.ci_low <= truth(comparison)) & (truth(comparison) <= contrast.ci_high)
    assert inside.mean() > 0.7  # 95 % in expectation, of 40 correlated rows of one simulation
    assert contrast.std_error.mean() < comparison.contrasts[1].std_error.mean()
    large = comparison.contrast([-1e90, 0, 1e90])
    assert large.p_value == pytest.approx(comparison.contrasts[1].p_value, rel=1e-6)
    wrong_sums: list[list[float]] = [[0, 0, 0], [1, 1, -1], [1, -1], []]
    wrong_numbers: list[list[float]] = [
        [math.nan, 0, 1],
        [math.inf, 0, -1],
        [1e200, 0, -1e200],
        [1e-200, 0, -1e-200],
    ]
    for weights in (*wrong_sums, *wrong_numbers):
        with pytest.raises(DecodeError, match="weights must"):
            comparison.contrast(weights)


def test_rows_are_the_same_in_json_csv_and_tables(changed: Comparison) -> None:
    """Rows, JSON, CSV and Arrow tables contain equal numbers. The JSON states its format number."""
    document = json.loads(changed.to_json(include_all=True))
    rows = list(changed.rows(include_all=True))
    assert (document["format"], document["rows"]) == (1, rows)
    assert document["contrasts"][0]["unchanged_p_value"] == changed.contrasts[0].unchanged_p_value
    read = list(csv.DictReader(io.StringIO(changed.to_csv(include_all=True))))
    assert [row["candidate"] for row in read] == [row["candidate"] for row in rows]
    assert [float(row["estimate"]) for row in read] == [row["estimate"] for row in rows]
    table = changed.to_arrow().to_pylist()
    assert [row["estimate"] for row in table] == [row["estimate"] for row in rows]
    changed_rows = json.loads(changed.to_json())["rows"]
    assert len({row["candidate"] for row in changed_rows}) == changed.n_changed


def test_questions_without_an_answer_are_refused() -> None:
    """Arguments that fit no comparison are refused."""
    boolean = Params(k=1, encoding="boolean", f=0.5, p=0.1, q=0.9)
    counts, answers = drawn(BEFORE, 1, n=100), Counts(boolean, [[1]], [2])
    with pytest.raises(DecodeError, match="samples must number at least 2, got 1"):
        compare_samples({"a": counts}, NAMES)
    with pytest.raises(DecodeError, match="sample 'b' must have at least 1 report"):
        compare_samples({"a": counts, "b": Counts.zero(PARAMS)}, NAMES)
    with pytest.raises(DecodeError, match="same kind of values"):
        compare_samples({"a": counts, "b": answers}, NAMES)
    with pytest.raises(DecodeError, match="candidates must be omitted"):
        compare_samples({"a": answers, "b": answers}, NAMES)
    with pytest.raises(DecodeError, match="at most 131,072, got more: product"):
        compare_samples({"a": counts, "b": counts}, Candidates.product(["a"], "abcdefgh", 0, 6))
    with pytest.raises(ParamsError, match="candidates must be a list"):
        compare_samples({"a": counts, "b": counts}, "cat")
    with pytest.raises(DecodeError, match="device_correlation must be a number in"):
        compare_samples({"a": counts, "b": counts}, NAMES, device_correlation=2)
    with pytest.raises(DecodeError, match="must be Counts"):
        compare_samples({"a": counts, "b": 3}, NAMES)  # type: ignore[dict-item]
