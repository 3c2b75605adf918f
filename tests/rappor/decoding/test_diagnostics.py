"""Diagnostics and warnings of `decode`.

A collection simulated without faults must raise no alarm. Each fault that a diagnostic is for must
raise its alarm: forged reports, uneven cohorts, missing candidates, few reports or few devices. The
collections and the false-alarm rate of 1e-9 are those of `tests/support/decodings.py`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from decodings import ABSENT, CANDIDATES, FALSE_ALARM, PARAMS, POPULATION, N, cells_of, counted
from scipy import stats

from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.decoding.diagnostics import (
    FIT_FALSE_ALARM,
    INCOMPLETE_FALSE_ALARM,
    RELIABLE_FROM,
    UNEXPLAINED_FALSE_ALARM,
    list_cautions,
)
from rappor.protocol.params import Params
from rappor.simulation import simulate_repeated
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population


def test_an_honest_collection_raises_no_alarm() -> None:
    """Each check raises a false alarm about an honest collection with probability 1e-9 at most."""
    diagnostics = decode(counted(), CANDIDATES).diagnostics
    assert diagnostics["odd_popcounts"] == []
    assert diagnostics["cohorts"][0]["p_value"] > FALSE_ALARM
    assert diagnostics["goodness_of_fit"]["p_value"] > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "n_runs"),
    [
        pytest.param(30, 8),
        pytest.param(300, 8),
        *(pytest.param(n, 100, marks=pytest.mark.acceptance) for n in (30, 300, 3000)),
    ],
)
def test_small_honest_collections_raise_no_alarm(n: int, n_runs: int) -> None:
    """Count the false alarms over `n_runs` collections that contain exactly the candidates.

    The two p-values, of the fit and of the numbers of reports in the cohorts, may be at most 0.05
    in 5 % of the runs. Unexplained bits may appear at their own rate. No warning other than
    `few_reports` may appear.
    """
    # The noise of the profile balanced, with half of its bits.
    params = Params(k=64, m=32, f=0.035972, p=0.008993, q=0.508993)
    n_bad_fits, n_uneven, n_unexplained, n_warnings = 0, 0, 0, 0
    for seed in range(n_runs):
        counts = simulate_counts(POPULATION, params, n_reports=n, seed=seed)
        estimates = decode(counts, CANDIDATES)
        diagnostics = estimates.diagnostics
        n_bad_fits += diagnostics["goodness_of_fit"]["p_value"] <= 0.05
        n_uneven += diagnostics["cohorts"][0]["p_value"] <= 0.05
        n_unexplained += bool(diagnostics["unexplained_bits"])
        n_warnings += sum(warning.code != "few_reports" for warning in estimates.warnings)
        assert (n < RELIABLE_FROM) == any(
            warning.code == "few_reports" for warning in estimates.warnings
        )
    # Largest counts that a binomial distribution exceeds with a probability below 1e-9.
    assert max(n_bad_fits, n_uneven) <= stats.binom.isf(FALSE_ALARM, n_runs, 0.05)
    assert n_unexplained <= stats.binom.isf(FALSE_ALARM, n_runs, UNEXPLAINED_FALSE_ALARM)
    assert n_warnings == 0


@pytest.mark.parametrize("n", [99, 200, 927, 928])
def test_few_reports_of_sets_have_a_sentence(n: int) -> None:
    """Below 2 reports for each of 464 buckets, or below 100 reports, the table warns."""
    params = dataclasses.replace(Params.profile("once", encoding="set"), m=8)
    population = Population.from_values(["git\tvim", "git", ""])
    estimates = decode(simulate_counts(population, params, n_reports=n, seed=1), ["git", "vim"])
    sentences = [
        warning.sentence for warning in estimates.warnings if warning.code == "few_reports"
    ]
    # Enough reports are two for each bucket: 2 * 464 = 928.
    assert len(sentences) == (n < 928)
    # Below 100 reports the sentence is about the reports, from 100 on about the buckets.
    assert all(("A bucket has" in sentence) == (n >= 100) for sentence in sentences)


def test_sets_that_are_cut_have_a_sentence() -> None:
    """With a million devices the misfit of cut sets is visible, and the table names the cause."""
    params = dataclasses.replace(Params.profile("once", encoding="set", items=2), m=8)
    names = ["a", "b", "c", "d", "e"]
    # Every device has all five items, so each report is of two of them. The items own fewer than
    # five buckets in the cohorts in which two of them share a bucket.
    counts = simulate_counts(Population(["\t".join(names)], [1]), params, n_reports=1e6, seed=1)
    sentences = [
        warning.sentence for warning in decode(counts, names).warnings if warning.code == "bad_fit"
    ]
    assert all("sets may have been cut to the largest number of items" in s for s in sentences)
    assert len(sentences) == 1


def test_one_cohort_causes_a_warning() -> None:
    """With one cohort no p-value is below 1/k, and the table warns of it."""
    params = Params(k=64, m=1, f=0.25, p=0.1, q=0.6)
    estimates = decode(simulate_counts(POPULATION, params, n_reports=N, seed=1), CANDIDATES)
    assert estimates.diagnostics["least_p_value"] == pytest.approx(1 / 64)
    # A string has one of 64 bits, so an absent string hits the best bit with probability 1/64. The
    # factor allows for rounding.
    assert estimates.p_value.min() >= (1 - 1e-9) / 64
    sentences = {warning.code: warning.sentence for warning in estimates.warnings}
    assert "no p-value can be below 0.016" in sentences["few_patterns"]


@pytest.mark.parametrize("n_listed", [600, 300], ids=["complete", "half"])
def test_a_complete_list_of_strings_too_rare_to_select_is_no_bad_fit(n_listed: int) -> None:
    """A complete list of strings that are too rare to select causes no `bad_fit`.

    600 strings are equally frequent, and a fifth is detected. The fit of the detected strings is
    bad in both cases. The fit of all candidates is good if the list is complete, and bad if it
    lacks half of the strings.
    """
    params = dataclasses.replace(Params.profile("balanced"), m=32)
    strings = [f"p{i}" for i in range(600)]
    counts = simulate_counts(Population(strings, [1] * 600), params, n_reports=10**6, seed=1)
    estimates = decode(counts, [*strings[:n_listed], *(f"absent {i}" for i in range(150))])
    fit = estimates.diagnostics["goodness_of_fit"]
    assert fit["p_value"] < FIT_FALSE_ALARM
    is_complete = n_listed == len(strings)
    assert (fit["all_candidates_p_value"] > FIT_FALSE_ALARM) == is_complete
    assert ("bad_fit" in {warning.code for warning in estimates.warnings}) != is_complete


def test_an_interval_far_above_zero_without_a_detection_has_a_sentence() -> None:
    """An interval far above 0 without a detection causes the warning `few_patterns`."""
    params = Params(k=2, m=16, f=0.4, p=0.2, q=0.8)
    candidates = ["a", "b", *(f"w{i}" for i in range(20))]
    counts = simulate_counts(Population(["a", "b"], [6, 4]), params, n_reports=10**6, seed=1)
    estimates = decode(counts, candidates)
    undetected = estimates.diagnostics["undetected_intervals"]
    assert estimates.detected.sum() == 0
    assert undetected > 0
    sentences = {warning.code: warning.sentence for warning in estimates.warnings}
    assert f"{undetected} candidate" in sentences["few_patterns"]
    assert "Use more cohorts" in sentences["few_patterns"]
    many_bits = decode(counted(), CANDIDATES)
    assert many_bits.diagnostics["undetected_intervals"] == 0


@pytest.mark.parametrize(("scale", "is_few"), [(1, True), (40, False)])
def test_few_devices_with_uneven_reports_have_a_sentence(scale: int, *, is_few: bool) -> None:
    """If two of 100 devices sent most reports, the table warns of uneven devices."""
    params = Params.profile("strict", encoding="boolean")
    # Of 100 devices, 60 send 1 report, 38 send 5, and 2 send 90. Their reports count as those of
    # (sum of reports)^2 / (sum of squared reports) = 430^2 / 17,210 = 11 even devices. With 40
    # times the devices there are 430 even devices, which is enough.
    reports = scale * (60 * 1 + 38 * 5 + 2 * 90)
    squares = scale * (60 * 1 + 38 * 25 + 2 * 90**2)
    counts = Counts(params, [[reports // 3]], [reports], sum_squared_reports=squares)
    codes = {warning.code: warning.sentence for warning in decode(counts).warnings}
    assert ("few_devices" in codes) == is_few
    assert not is_few or "count as 11 devices" in codes["few_devices"]
    # The same counts, with one report of each device, have enough devices.
    even = decode(counts.with_devices(reports_per_device=1)).warnings
    assert "few_devices" not in {warning.code for warning in even}


def test_each_way_to_halve_the_detectable_share_has_its_number() -> None:
    """Each way to halve the detectable share has its number, or null if it cannot."""

    def limits(params: Params, reports_per_device: int) -> list[int | None]:
        counts = simulate_repeated(
            POPULATION, params, devices={reports_per_device: 20_000}, seed=1
        ).counts
        diagnostics = decode(counts, CANDIDATES).diagnostics
        ways = ("reports", "reports_per_device", "cohorts")
        return [diagnostics[f"half_detectable_with_{way}"] for way in ways]

    permanent = Params(k=64, m=32, f=0.5, p=0.25, q=0.75)
    devices, reports, cohorts = limits(permanent, 30)
    # Half the detectable share needs a quarter of the variance. More devices, who send 30 reports
    # each (20,000 devices send 600,000), reduce the noise to 1/4 with 4 times the reports. The
    # variance of collisions of strings remains, so up to half more reports are necessary.
    assert devices is not None
    assert 4 * 600_000 * 0.99 <= devices <= 4 * 600_000 * 1.5
    # More reports of the same devices, or more cohorts, leave the permanent noise of the devices.
    assert (reports, cohorts) == (None, None)
    fresh = Params(k=64, m=32, f=0.0, p=0.25, q=0.75)
    _, reports, _ = limits(fresh, 1)
    # Without a permanent response, more reports of the same devices reduce the coins. It takes at
    # least 4 reports of each device, because the sampling of devices remains.
    assert reports is not None
    assert reports >= 4


@pytest.mark.slow
def test_repeated_reports_do_not_look_forged() -> None:
    """Few devices with many reports each cause no warning about cohorts and popcounts."""
    params = Params(k=64, m=32, f=0.238406, p=0.059601, q=0.559601)
    for seed in range(5):
        counts = simulate_repeated(POPULATION, params, devices={300: 300}, seed=seed).counts
        diagnostics = decode(counts, CANDIDATES).diagnostics
        assert diagnostics["odd_popcounts"] == []
        assert diagnostics["cohorts"][0]["p_value"] > FALSE_ALARM
        # If the decoder is told that each report is from another device, 300 reports of a device in
        # one cohort look like uneven cohorts.
        wrong = decode(counts, CANDIDATES, reports_per_device=1).diagnostics
        assert wrong["cohorts"][0]["p_value"] < FALSE_ALARM


def test_a_forged_cohort_has_odd_popcounts() -> None:
    """If every report of cohort 5 has all bits set, the diagnostics name cohort 5 and no other."""
    ones = counted().bit_counts.copy()
    ones[5] = counted().cohort_reports[5]
    estimates = decode(Counts(PARAMS, ones, counted().cohort_reports), CANDIDATES)
    odd = estimates.diagnostics["odd_popcounts"]
    assert [(entry["collection"], entry["cohort"]) for entry in odd] == [(0, 5)]
    # An honest report has h = 1 true bit. All bits set means more true bits than there are bits,
    # because noise also clears bits.
    assert odd[0]["true_bits"] > PARAMS.k
    sentences = {warning.code: warning.sentence for warning in estimates.warnings}
    assert sentences["odd_popcounts"].startswith("1 cohort has a number of ones")


SUM = {"sum": 0.92, "std_error": 0.031}
"""The categories of a complete metric sum to 92 % of the reports."""

FULL = {"rows": 512, "rows_per_candidate": 4.0, "fitted": "selected", "overfull": True}
"""Each candidate has an effective number of 4 bits of its own, too few to tell candidates apart."""


@pytest.mark.parametrize(
    ("diagnostics", "code", "sentence"),
    [
        ({"odd_popcounts": [{}, {}]}, "odd_popcounts", "2 cohorts have a number of ones"),
        ({"odd_popcounts": []}, "", ""),
        ({"capacity": FULL}, "overfull", "an effective number of 4.0 of 512 bits"),
        ({"capacity": FULL | {"overfull": False}}, "", ""),
        ({"goodness_of_fit": {"chi2_per_degree": 1.0, "p_value": FIT_FALSE_ALARM}}, "", ""),
        ({"complete": SUM | {"p_value": 0.99 * INCOMPLETE_FALSE_ALARM}}, "incomplete", "to 92 %"),
        ({"complete": SUM | {"p_value": INCOMPLETE_FALSE_ALARM}}, "", ""),
        ({}, "", ""),  # a closed form has no fit to warn about
    ],
)
def test_findings_beyond_their_limits_warn(
    diagnostics: dict[str, Any], code: str, sentence: str
) -> None:
    """Each finding beyond its limit causes one warning with its number."""
    warnings = list(list_cautions(diagnostics, N))
    assert [warning.code for warning in warnings] == ([code] if code else [])
    assert all(sentence in warning.sentence for warning in warnings)


def test_a_heavy_non_candidate_shows_in_unexplained_bits() -> None:
    """If a frequent string is no candidate, its bits are listed as unexplained."""
    params = Params(k=64, h=1, m=32, f=0.0, p=0.1, q=0.9)
    counts = simulate_counts(POPULATION, params, n_reports=N, seed=1)
    estimates = decode(counts, [*POPULATION.values[1:], *ABSENT])
    unexplained = estimates.diagnostics["unexplained_bits"]
    cells = set(cells_of(["true 0"], params)[0].tolist())
    # The record lists at most 10 bits. "true 0", 30 % of the reports, has one bit in each of the 32
    # cohorts. All 10 listed bits must be among these, with a share of 30 %.
    assert len(unexplained) == 10
    assert {bit["cohort"] * params.k + bit["bit"] for bit in unexplained} <= cells
    assert all(bit["share"] == pytest.approx(0.3, rel=0.25) for bit in unexplained)


def test_unbalanced_cohorts_have_a_small_p_value() -> None:
    """If one cohort has 10 % too many reports, the test of even cohorts has a small p-value."""
    counts = counted()
    ones, reports = counts.bit_counts.copy(), counts.cohort_reports.copy()
    reports[0] += reports[0] // 10
    ones[0] += ones[0] // 10
    balance = decode(Counts(PARAMS, ones, reports), CANDIDATES).diagnostics["cohorts"][0]
    assert balance["p_value"] < FALSE_ALARM
    assert balance["largest"] == reports[0]


def test_a_bad_fit_warns_with_the_table() -> None:
    """If none of the collected strings is a candidate, the printed table ends with `bad_fit`."""
    estimates = decode(counted(), ABSENT)
    (warning,) = estimates.warnings
    assert warning.code == "bad_fit"
    sentence = warning.sentence
    assert estimates.diagnostics["goodness_of_fit"]["p_value"] < FIT_FALSE_ALARM
    assert " ".join(str(estimates).split()).endswith(sentence)
    assert sentence.startswith("The variance of the bits is ")
    assert "The counts cannot show which" in sentence


def test_unknown_reports_per_device_cause_a_warning() -> None:
    """`unknown_devices` appears if neither counts nor arguments state the reports per device."""
    params = Params.profile("balanced", encoding="boolean")
    known = simulate_counts(Population(["true", "false"], [1, 1]), params, n_reports=N, seed=1)
    plain = Counts(params, known.bit_counts, known.cohort_reports)
    codes = [
        {warning.code for warning in decode(counts, reports_per_device=reports_per_device).warnings}
        for counts, reports_per_device in ((plain, None), (plain, 1), (known, None))
    ]
    assert codes == [{"unknown_devices"}, set(), set()]
