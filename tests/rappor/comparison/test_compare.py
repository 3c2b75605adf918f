"""Changes between samples, as `compare_samples` estimates them.

A sample is a set of collections, such as a month. The result has a contrast for each difference,
with an estimate, an interval and a p-value for each candidate, and the candidates that changed at
the chosen error rate.
"""

from __future__ import annotations

import csv
import dataclasses
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
"""Probability that a statistical check fails although the code is right."""

PARAMS = Params(k=32, h=1, m=32, f=0.25, p=0.3, q=0.7)
"""Most samples have these parameters, with noise that is mostly drawn anew."""
STEADY = Params(k=32, h=1, m=32, f=0.5, p=0.1, q=0.9)
"""Parameters whose noise is mostly permanent. A device repeats its noise with each report."""

NAMES = [f"s{i}" for i in range(40)]
ABSENT = [f"x{i}" for i in range(60)]
"""Candidates that no device has."""

BEFORE = np.exp(-np.arange(40) / 8) / np.exp(-np.arange(40) / 8).sum()
"""NAMES have these shares before the change."""
AFTER = BEFORE.copy()
AFTER[[1, 30]] = BEFORE[[30, 1]]
"""Shares after a change: the frequent s1 and the rare s30 exchange their shares. All other shares
stay."""


def draw_sample(
    shares: NDArray[np.float64], seed: int, *, n: float = 2e5, params: Params = PARAMS
) -> Counts:
    """Return simulated counts of n devices that report once each."""
    return simulate_counts(Population(NAMES, list(shares)), params, n_reports=n, seed=seed)


def compute_true_changes(comparison: Comparison) -> NDArray[np.float64]:
    """Return the true difference AFTER - BEFORE of each row."""
    known = dict(zip(NAMES, AFTER - BEFORE, strict=True))
    return np.array([known.get(name, 0.0) for name in comparison.candidates])


def map_directions(comparison: Comparison, contrast: SampleContrast) -> dict[str, str]:
    """Return a dict from the changed candidates to their directions, such as "rise"."""
    return {
        name: str(direction)
        for name, direction in zip(comparison.candidates, contrast.direction, strict=True)
        if direction
    }


@pytest.fixture(scope="module")
def changed() -> Comparison:
    """Return the comparison of two samples of 2e5 different devices.

    s30 becomes frequent (newcomer), and s1 becomes rare (leaver).
    """
    return compare_samples(
        {"May": draw_sample(BEFORE, 1), "June": draw_sample(AFTER, 2)}, NAMES + ABSENT
    )


def test_a_newcomer_and_a_leaver_are_detected(changed: Comparison) -> None:
    """A string that becomes frequent and one that becomes rare are detected, with their directions.

    The two changes are about 30 standard errors. P-values are two-sided.
    """
    (june,) = changed.contrasts
    # One-sided p-values that are doubled without care would exceed 1 for half of the strings.
    assert (june.p_value > 0.6).any()
    assert june.p_value.max() <= 1
    assert (june.kind, june.name, june.how) == ("difference", "from May to June", "rows")
    direction_of = map_directions(changed, june)
    assert (direction_of["s30"], direction_of["s1"]) == ("newcomer", "leaver")
    assert june.unchanged_p_value < FALSE_ALARM
    assert set(changed.candidates[:2]) == {"s1", "s30"}


@pytest.mark.slow
def test_swapping_the_samples_turns_every_sign() -> None:
    """Swapping the samples mirrors differences, intervals and directions, and keeps p-values.

    A procedure that treats the first sample differently would fail. The weights 1 and -1 give the
    same mirrored contrast as swapped samples.
    """
    before, after = draw_sample(BEFORE, 5), draw_sample(AFTER, 6)
    forward = compare_samples({"a": before, "b": after}, NAMES)
    backward = compare_samples({"b": after, "a": before}, list(reversed(NAMES)))
    mirrored = {"newcomer": "leaver", "leaver": "newcomer", "rise": "fall", "fall": "rise", "": ""}
    order = [backward.candidates.index(name) for name in forward.candidates]
    contrast = forward.contrasts[0]
    for swapped in (
        backward.contrasts[0].ordered(np.array(order)),
        forward.contrast([1, -1]),
    ):
        assert contrast.estimate == pytest.approx(-swapped.estimate, abs=1e-9)
        assert contrast.ci_low == pytest.approx(-swapped.ci_high, abs=1e-9)
        assert contrast.p_value == pytest.approx(swapped.p_value, rel=1e-6)
        expected = [mirrored[direction] for direction in contrast.direction]
        assert expected == swapped.direction.tolist()


@pytest.mark.slow
def test_unchanged_strings_cancel_without_being_candidates() -> None:
    """Errors of changes are as small with two candidates as with all 40 strings as candidates.

    The bits of both samples are subtracted before the fit. Unchanged strings have the same bits in
    both samples and cancel, candidates or not. In a decode of one sample, strings that are no
    candidates add to the error, so a difference of two decodes has more than twice the error here.
    """
    samples = {"a": draw_sample(BEFORE, 7, n=5e6), "b": draw_sample(AFTER, 8, n=5e6)}
    of_two_candidates, of_all_candidates = (
        compare_samples(samples, names).contrasts[0] for names in (["s1", "s30"], NAMES)
    )
    assert of_two_candidates.std_error[0] == pytest.approx(of_all_candidates.std_error[0], rel=0.1)
    separate_error = math.hypot(
        *(float(decode(c, ["s1", "s30"]).std_error[0]) for c in samples.values())
    )
    assert separate_error > 2 * of_two_candidates.std_error[0]


@pytest.mark.slow
def test_differences_of_the_same_devices_have_smaller_errors() -> None:
    """The error of a difference decreases with the correlation of the device noise.

    The two days have the same devices, whose permanent noise cancels in the difference. The
    correlation is passed as 0 or 1. With None it is unknown, and the variance of the difference is
    estimated from the bits.
    """
    population = Population(NAMES, list(BEFORE))
    first, second = simulate_days(population, STEADY, n_devices=5e4, n_days=2, seed=12)
    samples = {"a": first, "b": second}
    different_devices, unknown_devices, same_devices = (
        compare_samples(samples, NAMES, device_correlation=correlation)
        for correlation in (0.0, None, 1.0)
    )
    errors = [
        float(np.median(comparison.contrasts[0].std_error))
        for comparison in (same_devices, unknown_devices, different_devices)
    ]
    assert errors == sorted(errors)
    assert errors[0] < 0.8 * errors[2]
    assert different_devices.device_correlation == 0.0
    assert unknown_devices.device_correlation is None
    assert same_devices.device_correlation == 1.0
    assert (
        "The correlation of the device noise of two samples is 1.00, as passed."
        in same_devices.assumptions
    )
    assert "is not known" in unknown_devices.assumptions
    assert json.loads(unknown_devices.to_json())["device_correlation"] is None
    # Without a passed correlation, the test that no row changed assumes different devices, which
    # have the largest errors.
    p_values = [
        comparison.contrasts[0].rows_p_value
        for comparison in (different_devices, unknown_devices, same_devices)
    ]
    assert p_values[0] == p_values[1] != p_values[2]


@pytest.mark.timeout(3600)
@pytest.mark.slow
@pytest.mark.parametrize("n_pairs", [8, pytest.param(150, marks=pytest.mark.acceptance)])
def test_coverage_and_false_changes(n_pairs: int) -> None:
    """Intervals and tests of changes keep their error rates over many simulated pairs of samples.

    Four rates are checked: the coverage of 95 % intervals, the share of false changes (5 %), the
    coverage of adjusted intervals of changes, and the share of equal samples that differ (5 %).
    `error` is the standard error of a rate of 5 % in `n_pairs` independent trials. Rates may exceed
    their limits by 6 standard errors. The coverage is a mean over the 100 candidates of each pair,
    so its standard error is about `error` / 10. These candidates are correlated, so 9 standard
    errors are allowed.
    """
    false_shares, coverages, adjusted_coverages, n_rejected = [], [], [], 0
    for seed in range(0, 2 * n_pairs, 2):
        before, after = draw_sample(BEFORE, 1000 + seed), draw_sample(AFTER, 1001 + seed)
        comparison = compare_samples({"a": before, "b": after}, NAMES + ABSENT)
        (contrast,) = comparison.contrasts
        expected = compute_true_changes(comparison)
        false_shares.append(float(np.mean(expected[contrast.changed] == 0)))
        coverages.append(np.mean((contrast.ci_low <= expected) & (expected <= contrast.ci_high)))
        inside = (contrast.ci_low_adjusted <= expected) & (expected <= contrast.ci_high_adjusted)
        adjusted_coverages.append(np.mean(inside[contrast.changed]))
        same = compare_samples({"a": before, "b": draw_sample(BEFORE, 2000 + seed)}, NAMES + ABSENT)
        n_rejected += same.contrasts[0].unchanged_p_value < 0.05
    error = math.sqrt(0.05 * 0.95 / n_pairs)
    assert np.mean(false_shares) < 0.05 + 6 * error
    assert abs(np.mean(coverages) - 0.95) < 9 * error / 10
    assert np.mean(adjusted_coverages) > 0.95 - 6 * error
    assert n_rejected <= stats.binom.isf(FALSE_ALARM, n_pairs, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("device_correlation", [None, 0.0])
@pytest.mark.parametrize(
    ("n_reports", "n_pairs"),
    [(200, 8), *(pytest.param(n, 200, marks=pytest.mark.acceptance) for n in (30, 200, 600))],
)
def test_a_small_sample_of_sets_has_no_changes_by_chance(
    n_reports: int, n_pairs: int, device_correlation: float | None
) -> None:
    """Intervals of a sample of few reports against a large one contain 0 if nothing changed.

    A row of the small sample has no 1, or rarely one, and the rows with a 1 are its whole
    information. An earlier version set them aside as outliers. The change of an item was then its
    share in the large sample: of 200 reports, four in five intervals of the items of the population
    excluded 0. Eight pairs have 24 of these intervals, and detect that seven in ten exclude 0 with
    probability .98. Of the intervals of all items, they detect that four in ten do.
    """
    params = dataclasses.replace(Params.profile("once", encoding="set", items=8), m=8)
    population = Population(["git\tvim", "git", "", "git\tvim\tspell"], [60, 22, 10, 8])
    candidates = ["git", "vim", "spell", *ABSENT[:7]]
    large = simulate_counts(population, params, n_reports=1e5, seed=0)
    n_outside, n_present_outside, n_changed = 0, 0, 0
    for seed in range(1, n_pairs + 1):
        small = simulate_counts(population, params, n_reports=n_reports, seed=seed)
        comparison = compare_samples(
            {"a": small, "b": large}, candidates, device_correlation=device_correlation
        )
        (contrast,) = comparison.contrasts
        is_outside = (contrast.ci_low > 0) | (contrast.ci_high < 0)
        n_outside += int(is_outside.sum())
        n_present_outside += int(is_outside[~np.isin(comparison.candidates, ABSENT)].sum())
        n_changed += bool(contrast.changed.any())
        # The p-value of a change is at least the normal tail of its standard errors.
        normal = 2 * stats.norm.sf(np.abs(contrast.estimate / contrast.std_error))
        assert (contrast.p_value >= normal * (1 - 1e-9)).all()
    assert n_outside <= stats.binom.isf(FALSE_ALARM, n_pairs * len(candidates), 0.05)
    assert n_present_outside <= stats.binom.isf(FALSE_ALARM, 3 * n_pairs, 0.05)
    assert n_changed <= stats.binom.isf(FALSE_ALARM, n_pairs, 0.05)


@pytest.mark.slow
def test_changes_of_sets_are_unbiased_if_buckets_are_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Changes of frequent items that share buckets have errors of the stated size.

    Of 12 items of 10 to 80 % in 48 buckets, six rise by 15 points. A device with two items of a
    bucket owns the bucket once, so a change of one of them changes the bucket by less. The sum of
    the squared errors, in standard errors, is chi-squared distributed. Without the refit of sets
    the linear fit exceeds the limit, so the test has power.
    """
    names = [f"item {i}" for i in range(12)]
    before = np.tile([0.1, 0.3, 0.6, 0.8], 3)
    after = before + np.repeat([0.15, 0.0], 6)
    params = Params(k=48, items=12, keep=0.6, encoding="set", m=16)
    samples, shares = {}, []
    for seed, population_shares in enumerate((before, after)):
        sets = np.random.default_rng(seed).random((20_000, 12)) < population_shares
        population = Population.from_values(
            "\t".join(name for name, has in zip(names, row, strict=True) if has) for row in sets
        )
        samples[f"sample {seed}"] = simulate_counts(
            population, params, n_reports=3_000_000, seed=seed
        )
        shares.append(sets.mean(axis=0))

    def compute_squared_errors() -> float:
        """Return the squared errors of the changes, in squared standard errors."""
        comparison = compare_samples(samples, names, device_correlation=0.0)
        (contrast,) = comparison.contrasts
        rows = [comparison.candidates.index(name) for name in names]
        errors = contrast.estimate[rows] - (shares[1] - shares[0])
        return float(np.sum((errors / contrast.std_error[rows]) ** 2))

    limit = stats.chi2.isf(FALSE_ALARM, len(names))
    assert compute_squared_errors() < limit
    monkeypatch.setattr("rappor.comparison.change_regression.has_sets", lambda _: False)
    assert compute_squared_errors() > limit


def test_changes_of_strings_that_are_no_candidates_are_detected() -> None:
    """The test of all rows (`rows_p_value`) is significant if only unlisted strings change.

    An analyst whose list lacks the changed strings still learns that something changed.
    """
    shares = np.roll(BEFORE, 20)
    comparison = compare_samples(
        {"a": draw_sample(BEFORE, 31), "b": draw_sample(shares, 32)}, ["nobody has it"]
    )
    assert comparison.contrasts[0].rows_p_value is not None
    assert comparison.contrasts[0].rows_p_value < FALSE_ALARM


@pytest.mark.parametrize(
    ("later_params", "how"),
    [
        (Params(k=32, h=1, m=64, f=0.25, p=0.3, q=0.7), "separate"),
        (Params(k=32, h=1, m=32, f=0.25, p=0.2, q=0.8), "rows"),
    ],
)
def test_samples_with_other_bits_are_decoded_separately(later_params: Params, how: str) -> None:
    """Rows are subtracted if both samples have the same k, h and m; else estimates are subtracted.

    With other f, p or q, a string still has the same bits, and de-biased rows are comparable. With
    another m, a string has other bits in each sample, so each sample needs a decode of its own.
    """
    comparison = compare_samples(
        {"a": draw_sample(BEFORE, 35), "b": draw_sample(AFTER, 36, params=later_params)},
        NAMES + ABSENT,
    )
    (contrast,) = comparison.contrasts
    assert (contrast.how, contrast.rows_p_value is None) == (how, how == "separate")
    assert {"s1", "s30"} <= set(map_directions(comparison, contrast))


def test_samples_without_a_common_cohort_are_decoded_separately() -> None:
    """Samples whose reports are in different cohorts have no rows in common, so each is decoded."""
    counts, first = draw_sample(BEFORE, 43), np.arange(32) < 16
    a, b = (
        Counts(PARAMS, counts.bit_counts * half[:, None], counts.cohort_reports * half)
        for half in (first, ~first)
    )
    (contrast,) = compare_samples({"a": a, "b": b}, NAMES).contrasts
    assert (contrast.how, contrast.rows_p_value) == ("separate", None)


@pytest.mark.slow
def test_several_samples_have_one_error_rate() -> None:
    """All contrasts of a comparison have one common error rate.

    Bonferroni divides it by the 80 tests of 40 candidates in 2 contrasts. Each sample is compared
    with the first sample (`baseline="first"`) or with the previous one. b and c are equal.
    """
    samples = {
        "a": draw_sample(BEFORE, 40),
        "b": draw_sample(AFTER, 42),
        "c": draw_sample(AFTER, 43),
    }
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
def test_weights_of_the_analyst_are_a_contrast() -> None:
    """An analyst may pass any weights that sum to 0.

    Their scale does not change the p-values. Two samples together have a smaller error than one.
    Weights that do not sum to 0, or are no numbers of an ordinary size, are refused.
    """
    samples = {
        "a": draw_sample(BEFORE, 45),
        "b": draw_sample(BEFORE, 46),
        "c": draw_sample(AFTER, 47),
    }
    comparison = compare_samples(samples, NAMES)
    contrast = comparison.contrast([-0.5, -0.5, 1.0], "c against both")
    assert {"s1", "s30"} <= set(map_directions(comparison, contrast))
    inside = (contrast.ci_low <= compute_true_changes(comparison)) & (
        compute_true_changes(comparison) <= contrast.ci_high
    )
    assert inside.mean() > 0.7  # 95 % in expectation, of 40 correlated rows of one simulation
    assert contrast.std_error.mean() < comparison.contrasts[1].std_error.mean()
    scaled = comparison.contrast([-1e90, 0, 1e90])
    assert scaled.p_value == pytest.approx(comparison.contrasts[1].p_value, rel=1e-6)
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
    """Rows, JSON, CSV and Arrow tables of a comparison contain the same numbers."""
    document = json.loads(changed.to_json(include_all=True))
    rows = list(changed.rows(include_all=True))
    assert (document["format"], document["rows"]) == (1, rows)
    assert document["contrasts"][0]["unchanged_p_value"] == changed.contrasts[0].unchanged_p_value
    csv_rows = list(csv.DictReader(io.StringIO(changed.to_csv(include_all=True))))
    assert [row["candidate"] for row in csv_rows] == [row["candidate"] for row in rows]
    assert [float(row["estimate"]) for row in csv_rows] == [row["estimate"] for row in rows]
    table = changed.to_arrow().to_pylist()
    assert [row["estimate"] for row in table] == [row["estimate"] for row in rows]
    changed_rows = json.loads(changed.to_json())["rows"]
    assert len({row["candidate"] for row in changed_rows}) == changed.n_changed


def test_samples_that_cannot_be_compared_are_refused() -> None:
    """Too few samples, samples without reports, and unsuitable candidates are refused by name."""
    boolean = Params(k=1, encoding="boolean", f=0.5, p=0.1, q=0.9)
    counts, boolean_counts = draw_sample(BEFORE, 1, n=100), Counts(boolean, [[1]], [2])
    with pytest.raises(DecodeError, match="samples must number at least 2, got 1"):
        compare_samples({"a": counts}, NAMES)
    with pytest.raises(DecodeError, match="sample 'b' must have at least 1 report"):
        compare_samples({"a": counts, "b": Counts.zero(PARAMS)}, NAMES)
    with pytest.raises(DecodeError, match="same kind of values"):
        compare_samples({"a": counts, "b": boolean_counts}, NAMES)
    with pytest.raises(DecodeError, match="candidates must be omitted"):
        compare_samples({"a": boolean_counts, "b": boolean_counts}, NAMES)
    with pytest.raises(DecodeError, match="at most 131,072, got more: product"):
        compare_samples({"a": counts, "b": counts}, Candidates.product(["a"], "abcdefgh", 0, 6))
    with pytest.raises(ParamsError, match="candidates must be a list"):
        compare_samples({"a": counts, "b": counts}, "cat")
    with pytest.raises(DecodeError, match="device_correlation must be a number in"):
        compare_samples({"a": counts, "b": counts}, NAMES, device_correlation=2)
    with pytest.raises(DecodeError, match="must be Counts"):
        compare_samples({"a": counts, "b": 3}, NAMES)  # type: ignore[dict-item]


@pytest.mark.parametrize(("k", "h", "m"), [(2, 2, 2), (4, 16, 2), (8, 16, 1)])
def test_candidates_that_set_all_bits_have_wide_intervals(k: int, h: int, m: int) -> None:
    """Nothing is known about their changes, and no computation overflows with a warning."""
    params = Params(k=k, h=h, m=m, f=0.4, p=0.2, q=0.8)
    population = Population(["a", "b", "c"], [5, 3, 2])
    samples = {
        str(seed): simulate_counts(population, params, n_reports=20_000, seed=seed)
        for seed in range(3)
    }
    comparison = compare_samples(samples, [*population.values, *ABSENT[:30]])
    assert not any(contrast.changed.any() for contrast in comparison.contrasts)
    for row in comparison.rows(include_all=True):
        low = -math.inf if row["ci_low"] is None else row["ci_low"]
        high = math.inf if row["ci_high"] is None else row["ci_high"]
        assert low <= row["estimate"] <= high
        assert row["what"] == "share" or high - low > 1
