"""Diagnostics and warnings of `decode`.

A collection simulated without faults must raise no alarm. Each fault that a diagnostic is for must
raise its alarm: forged reports, uneven cohorts, missing candidates, few reports or few devices. The
collections and the false-alarm rate of 1e-9 are those of `tests/support/decodings.py`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from decodings import (
    ABSENT,
    CANDIDATES,
    FALSE_ALARM,
    N_REPORTS,
    PARAMS,
    POPULATION,
    compute_text_cells,
    simulate_population_counts,
)
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
from rappor.decoding.estimates_report import report
from rappor.protocol.params import Params
from rappor.simulation import simulate_repeated
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population


def test_an_honest_collection_raises_no_alarm() -> None:
    """No check raises an alarm about an honest collection. A false alarm has probability 1e-9."""
    diagnostics = decode(simulate_population_counts(), CANDIDATES).diagnostics
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
    """Small honest collections raise false alarms at their nominal rates, and warn of few reports.

    The p-values of the fit and of the balance of cohorts are at most .05 in 5 % of the collections.
    Unexplained bits appear at their own rate. No warning appears except `few_reports`. Asymptotic
    tests would raise more false alarms with 30 reports.
    """
    # Noise with epsilon_1 = 4 and epsilon_inf = 8 nats.
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
def test_few_reports_of_sets_cause_a_warning(n: int) -> None:
    """Estimates of sets warn if a bucket has fewer than two reports on average.

    A report of a set names one of 464 buckets. Standard errors and sums are normal, and the warning
    names them. P-values and lower interval ends are exact with every number of reports.
    """
    params = dataclasses.replace(Params.profile("once", encoding="set"), m=8)
    population = Population.from_values(["git\tvim", "git", ""])
    estimates = decode(simulate_counts(population, params, n_reports=n, seed=1), ["git", "vim"])
    sentences = [
        warning.sentence for warning in estimates.warnings if warning.code == "few_reports"
    ]
    # Enough reports are two for each bucket: 2 * 464 = 928.
    assert len(sentences) == (n < 928)
    end = "standard errors and sums are not reliable. P-values and lower interval ends are."
    assert all(sentence.endswith(end) for sentence in sentences)


@pytest.mark.parametrize("n", [3, 99, 100])
def test_sums_of_few_reports_of_categories_cause_a_warning(n: int) -> None:
    """Sums and differences of categories warn below 100 reports, because they are normal.

    The rows of the table are exact, so a table without sums has no warning.
    """
    params = Params.profile("once", encoding="onehot", categories=("light", "dark"))
    population = Population(["light", "dark"], [9, 1])
    estimates = decode(simulate_counts(population, params, n_reports=n, seed=1))
    with_difference = estimates.with_contrasts([estimates.difference("light", "dark")])
    assert [warning.code for warning in estimates.warnings] == []
    sentences = [warning.sentence for warning in with_difference.warnings]
    assert len(sentences) == (n < RELIABLE_FROM)
    assert all(f"below 100 reports, got {n}." in sentence for sentence in sentences)


def test_sets_that_are_cut_cause_a_warning() -> None:
    """If devices cut their sets, the fit is bad, and the warning names this possible cause.

    A device with more items than the metric allows reports about random items of its set. The
    decoder assumes that no set was cut, so its model does not fit. With a million devices the
    misfit is significant.
    """
    params = dataclasses.replace(Params.profile("once", encoding="set", items=2), m=8)
    names = ["a", "b", "c", "d", "e"]
    # Every device has all five items, and reports about two of them. In the cohorts in which two
    # items share a bucket, the five items have fewer than five buckets, so fewer are cut.
    counts = simulate_counts(Population(["\t".join(names)], [1]), params, n_reports=1e6, seed=1)
    warnings = decode(counts, names).warnings
    (sentence,) = (warning.sentence for warning in warnings if warning.code == "bad_fit")
    assert "sets may have been cut to the largest number of items" in sentence


def test_one_cohort_causes_a_warning() -> None:
    """With one cohort no p-value is below 1/k, and a warning states this limit.

    An absent string has the same bit as a present one with probability 1/k, and then no number
    of reports distinguishes the two.
    """
    params = Params(k=64, m=1, f=0.25, p=0.1, q=0.6)
    estimates = decode(simulate_counts(POPULATION, params, n_reports=N_REPORTS, seed=1), CANDIDATES)
    assert estimates.diagnostics["least_p_value"] == pytest.approx(1 / 64)
    # The factor allows for rounding.
    assert estimates.p_value.min() >= (1 - 1e-9) / 64
    sentences = {warning.code: warning.sentence for warning in estimates.warnings}
    assert "no p-value can be below 0.016" in sentences["few_patterns"]


@pytest.mark.parametrize("n_listed", [600, 300], ids=["complete", "half"])
def test_a_complete_list_of_strings_too_rare_to_select_is_no_bad_fit(n_listed: int) -> None:
    """`bad_fit` means that strings are missing among the candidates, not that they are too rare.

    600 strings are equally frequent, and a fifth of them is detected. The detected strings alone
    fit the counts badly. The fit of all candidates is good if the list is complete, and then there
    is no warning. It is bad if the list lacks half of the strings. The checklist of the page gives
    the same answer as the warning.
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
    checks = {check.question: check for check in report(estimates).checks}
    answer = checks["Do the model's assumptions hold?"].answer
    assert ("do not explain the counts" in answer) != is_complete


def test_an_interval_far_above_zero_without_a_detection_causes_a_warning() -> None:
    """A candidate that is not detected although its interval lies above 0 causes a warning.

    With k = 2 bits, absent strings have the bits of present ones too often, so no p-value is small.
    A reader would take the missing detection for a missing string. The warning recommends
    more cohorts.
    """
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
    estimates_of_many_bits = decode(simulate_population_counts(), CANDIDATES)
    assert estimates_of_many_bits.diagnostics["undetected_intervals"] == 0


@pytest.mark.parametrize(("scale", "is_few"), [(1, True), (40, False)])
def test_few_devices_with_uneven_reports_cause_a_warning(scale: int, *, is_few: bool) -> None:
    """If two of 100 devices sent most reports, a warning has the effective number of devices.

    As many devices with equal numbers of reports would have the same errors.
    """
    params = Params.profile("strict", encoding="boolean")
    # Of 100 devices, 60 send 1 report, 38 send 5, and 2 send 90. Their reports count as those of
    # (sum of reports)^2 / (sum of squared reports) = 430^2 / 17,210 = 11 even devices. With 40
    # times the devices there are 430 even devices, which is enough.
    reports = scale * (60 * 1 + 38 * 5 + 2 * 90)
    squares = scale * (60 * 1 + 38 * 25 + 2 * 90**2)
    counts = Counts(params, [[reports // 3]], [reports], sum_squared_reports=squares)
    sentences = {warning.code: warning.sentence for warning in decode(counts).warnings}
    assert ("few_devices" in sentences) == is_few
    if is_few:
        assert "count as 11 devices" in sentences["few_devices"]
    # The same counts, with one report of each device, have enough devices.
    even = decode(counts.with_devices(reports_per_device=1)).warnings
    assert "few_devices" not in {warning.code for warning in even}


def test_each_way_to_halve_the_detectable_share_has_its_number() -> None:
    """The diagnostics have the numbers of devices, reports and cohorts that halve the limit.

    The limit is the share of a string that is detected with probability .8. Half of this share
    needs a quarter of the variance. Each of the three numbers reduces only a part of the variance:
    more devices reduce all but the noise of collisions, more reports of the same devices reduce the
    instantaneous noise, and more cohorts reduce the noise of collisions. A number is None if the
    other parts are more than a quarter of the variance.
    """

    def read_ways(params: Params, reports_per_device: int) -> list[int | None]:
        """Return the three numbers for a collection from 20,000 devices.

        The number of devices is given as their number of reports in all.
        """
        counts = simulate_repeated(
            POPULATION, params, devices={reports_per_device: 20_000}, seed=1
        ).counts
        diagnostics = decode(counts, CANDIDATES).diagnostics
        ways = ("reports", "reports_per_device", "cohorts")
        return [diagnostics[f"half_detectable_with_{way}"] for way in ways]

    permanent = Params(k=64, m=32, f=0.5, p=0.25, q=0.75)
    devices, reports, cohorts = read_ways(permanent, 30)
    # 20,000 devices have sent 30 reports each, 600,000 in all. Four times as many devices reduce
    # the noise of devices to a quarter. More devices do not reduce the noise of collisions, so up
    # to half more of them are necessary.
    assert devices is not None
    assert 4 * 600_000 * 0.99 <= devices <= 4 * 600_000 * 1.5
    # More reports of the same devices, or more cohorts, leave the permanent noise of the devices.
    assert (reports, cohorts) == (None, None)
    fresh = Params(k=64, m=32, f=0.0, p=0.25, q=0.75)
    _, reports, _ = read_ways(fresh, 1)
    # Without a permanent response, more reports of the same devices average the noise out. At least
    # four reports of each device are needed, and more than four, as the sampling of devices
    # remains.
    assert reports is not None
    assert reports >= 4


@pytest.mark.slow
def test_repeated_reports_do_not_look_forged() -> None:
    """300 devices with 300 reports each cause no alarm about cohorts and numbers of ones.

    All reports of a device are in one cohort and have the same permanent noise, so cohorts differ
    more than with independent reports.
    """
    # Noise with the losses of the profile "balanced", 2 and 4 nats, and with g = 1/2.
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
    """A cohort whose reports have all bits set is listed under `odd_popcounts`.

    A popcount is the number of ones of a report. It is odd, in the sense of strange, if honest
    devices would not send it. A simple forger sets all bits to raise all strings. Here every report
    of cohort 5 is forged, and the diagnostics name cohort 5 and no other.
    """
    bit_counts = simulate_population_counts().bit_counts.copy()
    bit_counts[5] = simulate_population_counts().cohort_reports[5]
    estimates = decode(
        Counts(PARAMS, bit_counts, simulate_population_counts().cohort_reports), CANDIDATES
    )
    odd_cohorts = estimates.diagnostics["odd_popcounts"]
    assert [(entry["collection"], entry["cohort"]) for entry in odd_cohorts] == [(0, 5)]
    # An honest report has h = 1 true bit. All bits set means more true bits than there are bits,
    # because noise also clears bits.
    assert odd_cohorts[0]["true_bits"] > PARAMS.k
    sentences = {warning.code: warning.sentence for warning in estimates.warnings}
    assert sentences["odd_popcounts"].startswith("1 cohort has a number of ones")


SUM_OF_CATEGORIES = {"sum": 0.92, "std_error": 0.031}
"""Diagnostic of a complete metric: its categories should have all reports, and have 92 %."""

TOO_MANY_CANDIDATES = {
    "rows": 512,
    "rows_per_candidate": 4.0,
    "fitted": "selected",
    "overfull": True,
}
"""Diagnostic of a list with too many candidates for the 512 bits of all cohorts ("overfull"). Each
candidate has an effective number of 4 bits of its own, too few to tell candidates apart."""


@pytest.mark.parametrize(
    ("diagnostics", "code", "sentence"),
    [
        ({"odd_popcounts": [{}, {}]}, "odd_popcounts", "2 cohorts have a number of ones"),
        ({"odd_popcounts": []}, "", ""),
        (
            {"capacity": TOO_MANY_CANDIDATES},
            "overfull",
            "an effective number of 4.0 of 512 bits",
        ),
        ({"capacity": TOO_MANY_CANDIDATES | {"overfull": False}}, "", ""),
        ({"goodness_of_fit": {"chi2_per_degree": 1.0, "p_value": FIT_FALSE_ALARM}}, "", ""),
        (
            {"complete": SUM_OF_CATEGORIES | {"p_value": 0.99 * INCOMPLETE_FALSE_ALARM}},
            "incomplete",
            "to 92 %",
        ),
        ({"complete": SUM_OF_CATEGORIES | {"p_value": INCOMPLETE_FALSE_ALARM}}, "", ""),
        ({}, "", ""),  # a closed form has no fit to warn about
    ],
)
def test_diagnostics_beyond_their_limits_cause_warnings(
    diagnostics: dict[str, Any], code: str, sentence: str
) -> None:
    """A diagnostic beyond its limit causes one warning with its number, and none at the limit."""
    warnings = list(list_cautions(diagnostics, N_REPORTS))
    assert [warning.code for warning in warnings] == ([code] if code else [])
    assert all(sentence in warning.sentence for warning in warnings)


def test_bits_of_a_frequent_unlisted_string_are_unexplained() -> None:
    """If a frequent string is no candidate, the diagnostics list its bits with its share.

    An analyst sees that a string of about 30 % is missing from the list, and can search for it.
    """
    params = Params(k=64, h=1, m=32, f=0.0, p=0.1, q=0.9)
    counts = simulate_counts(POPULATION, params, n_reports=N_REPORTS, seed=1)
    estimates = decode(counts, [*POPULATION.values[1:], *ABSENT])
    unexplained = estimates.diagnostics["unexplained_bits"]
    cells = set(compute_text_cells(["true 0"], params)[0].tolist())
    # "true 0" has 30 % of the reports, and one bit in each of the 32 cohorts. The diagnostics list
    # at most 10 bits.
    assert len(unexplained) == 10
    assert {bit["cohort"] * params.k + bit["bit"] for bit in unexplained} <= cells
    # 5 % of 0.3 are seven standard errors of a bit, which are 0.002.
    assert all(bit["share"] == pytest.approx(0.3, rel=0.05) for bit in unexplained)


def test_unbalanced_cohorts_have_a_small_p_value() -> None:
    """A cohort with 10 % too many reports makes the test of equal cohorts significant.

    Honest devices draw their cohorts uniformly. A forger may send all of its reports to one cohort.
    """
    counts = simulate_population_counts()
    bit_counts, reports = counts.bit_counts.copy(), counts.cohort_reports.copy()
    reports[0] += reports[0] // 10
    bit_counts[0] += bit_counts[0] // 10
    balance = decode(Counts(PARAMS, bit_counts, reports), CANDIDATES).diagnostics["cohorts"][0]
    assert balance["p_value"] < FALSE_ALARM
    assert balance["largest"] == reports[0]


def test_a_bad_fit_warns_with_the_table() -> None:
    """If no candidate has any device, the printed table ends with the sentence of `bad_fit`."""
    estimates = decode(simulate_population_counts(), ABSENT)
    (warning,) = estimates.warnings
    assert warning.code == "bad_fit"
    sentence = warning.sentence
    assert estimates.diagnostics["goodness_of_fit"]["p_value"] < FIT_FALSE_ALARM
    assert " ".join(str(estimates).split()).endswith(sentence)
    assert sentence.startswith("The variance of the bits is ")
    assert "The counts cannot show which" in sentence


def test_unknown_reports_per_device_cause_a_warning() -> None:
    """A warning appears if neither counts nor arguments contain the reports per device.

    The errors then assume one report of each device, and may be too small.
    """
    params = Params.profile("balanced", encoding="boolean")
    known = simulate_counts(
        Population(["true", "false"], [1, 1]), params, n_reports=N_REPORTS, seed=1
    )
    unknown = Counts(params, known.bit_counts, known.cohort_reports)
    codes = [
        {warning.code for warning in decode(counts, reports_per_device=reports_per_device).warnings}
        for counts, reports_per_device in ((unknown, None), (unknown, 1), (known, None))
    ]
    assert codes == [{"unknown_devices"}, set(), set()]
