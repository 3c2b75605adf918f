"""Footnotes below estimates and comparisons: each appears exactly if it is true."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rappor import Params, Population, decode, simulate_counts
from rappor.reporting.footnotes import (
    format_overall_test,
    format_unallocated,
    list_findings,
    list_footnotes,
    list_missing_periods,
)
from rappor.reporting.numbers import format_p_value


def format_detection_limit(share: float | None, **halves: int | None) -> str:
    """Return the sentence about the smallest detectable share.

    `halves` has the number of reports, reports of each device, or cohorts with which the share
    would be half as large. A way that is not passed cannot halve the share.
    """
    names = ("with_reports", "with_reports_per_device", "with_cohorts")
    ways = {f"half_detectable_{name}": halves.get(name) for name in names}
    (sentence,) = list_findings({"cohorts": [], "detectable_share": share} | ways)
    return sentence


def test_the_limit_of_detection_says_what_would_halve_it() -> None:
    """The sentence has every way to halve the limit, or states that no share is detectable.

    A limit above 1 means that even a string of all devices would not be detected, so the sentence
    does not name it.
    """
    sentence = format_detection_limit(
        0.01, with_reports=417_914, with_reports_per_device=8, with_cohorts=132
    )
    ways = (
        "about 420,000 reports in all, from different devices, or 8 reports from each device that "
        "has reported"
    )
    needed = f"To detect 0.50 %, you need {ways}, or 140 cohorts."
    assert sentence == f"A share of 1.00 % is detected with 80 % probability. {needed}"
    remedy = format_detection_limit(0.01, with_reports_per_device=8)
    assert remedy.endswith("you need 8 reports from each device that has reported.")
    no_single_way = format_detection_limit(0.01)
    assert no_single_way.endswith("To detect 0.50 %, you need more reports and more cohorts.")
    assert format_detection_limit(1.0).startswith("A share of 100.00 % is detected")
    for share in (None, 1.01):
        assert format_detection_limit(share).startswith("No share can be detected")


def test_small_shares_of_a_billion_devices_have_two_significant_digits() -> None:
    """Neither a limit nor a standard error of many devices reads as 0.0 %.

    The half of a limit of 0.03 % reads as 0.015 %, not as 0.01 %, which would be a third.
    """
    for share, limit, half in ((0.0003, "0.030 %", "0.015 %"), (8e-5, "0.0080 %", "0.0040 %")):
        sentence = format_detection_limit(share, with_reports=4 * 10**9)
        assert sentence == (
            f"A share of {limit} is detected with 80 % probability. To detect {half}, you need "
            "about 4,000,000,000 reports in all, from different devices."
        )


def test_footer_of_a_billion_devices_has_no_number_that_reads_as_zero() -> None:
    """The footer of decoded counts of 1e9 devices has digits for its limit and its error.

    Two significant digits differ from the decoded value by at most a relative 5 %.
    """
    population = Population(["vim", "emacs", "helix"], [3, 2, 1])
    counts = simulate_counts(population, Params.profile("low-noise"), n_reports=1e9, seed=1)
    estimates = decode(counts, ["vim", "emacs"])
    text = " ".join(list_footnotes(estimates))
    error, limit, half = (
        float(re.search(pattern, text)[1]) / 100  # type: ignore[index]
        for pattern in (
            r"\(standard error ([0-9.]+) %\)",
            r"A share of ([0-9.]+) % is detected",
            r"To detect ([0-9.]+) %",
        )
    )
    share = estimates.diagnostics["detectable_share"]
    assert error == pytest.approx(estimates.unallocated_std_error, rel=0.05)
    assert limit == pytest.approx(share, rel=0.05)
    assert half == pytest.approx(share / 2, rel=0.05)


@pytest.mark.parametrize(("n_groups", "number"), [(1, "1 group"), (1200, "1,200 groups")])
def test_number_of_indistinguishable_groups_is_stated(n_groups: int, number: str) -> None:
    """The sentence fits one group and several."""
    (sentence,) = list_findings({"cohorts": [], "groups": [["vi", "vim"]] * n_groups})
    assert sentence == (
        f"The candidates of {number} cannot be distinguished: each shows the total of its group."
    )


@pytest.mark.parametrize(
    ("unallocated", "n_detected", "expected"),
    [
        (0.25, 2, ["25.0 % of the reports are unallocated (standard error 1.0 %): "]),
        (
            -0.02,
            2,
            ["The detected candidates account for all of the reports (standard error 1.0 %"],
        ),
        (1.0, 0, ["No candidate was detected: all reports are unallocated."]),
        (float("nan"), 2, []),
    ],
)
def test_unallocated_share_has_a_sentence_if_shares_add_up_to_1(
    unallocated: float, n_detected: int, expected: list[str]
) -> None:
    """The unallocated share is the rest of the reports that no detected candidate explains.

    A negative rest is noise, so the sentence states that the candidates account for all reports.
    With several values for a device, shares do not add up to 1, the rest is not a number, and there
    is no sentence.
    """
    detected = np.arange(3) < n_detected
    estimates: Any = SimpleNamespace(
        unallocated=unallocated,
        unallocated_std_error=0.01,
        detected=detected,
        mean_listed_items=None,
        has_sets=False,
        value_noun="string",
        collections=[SimpleNamespace(params=Params.profile("balanced"))],
    )
    sentences = list(format_unallocated(estimates))
    assert len(sentences) == len(expected)
    assert all(
        sentence.startswith(start) for sentence, start in zip(sentences, expected, strict=True)
    )


def test_sets_have_a_mean_number_of_items() -> None:
    """Estimates of sets have the mean number of listed items instead of an unallocated share.

    The sum of the shares of all items is the mean number of items of a device, and may exceed 1.
    """
    items = SimpleNamespace(estimate=4.412, std_error=0.0213)
    collections = [SimpleNamespace(params=Params.profile("once", encoding="set", items=12))]
    estimates: Any = SimpleNamespace(
        unallocated=math.nan, mean_listed_items=items, has_sets=True, collections=collections
    )
    shares, mean = format_unallocated(estimates)
    assert "do not add up to 100 %. A device with more than 12 items cuts its set" in shares
    assert mean == "A device has 4.41 of the listed items on average (standard error 0.02)."


def test_overall_test_is_significant_below_a_p_value_of_one_per_cent() -> None:
    """The sentence names the level and the contrasts below it, and then the other contrasts.

    A p-value of exactly 0.01 is not significant. A p-value below 1e-99 is written as "less than
    1e-99", because a smaller number has no further meaning.
    """
    contrasts: Any = [
        SimpleNamespace(name=f"to {name}", unchanged_p_value=p, rows_p_value=None, n_changed=0)
        for name, p in (("May", 0.02), ("June", 0.0099), ("July", 0.01))
    ]
    sentence = format_overall_test(contrasts)
    assert sentence == (
        "Overall test (all candidates), significant at the level 1 %: to June (p = 0.0099); "
        "not significant at the level 1 %: to May (p = 0.02), to July (p = 0.01)."
    )
    assert (format_p_value(1e-98), format_p_value(1e-100)) == ("1e-98", "less than 1e-99")
    assert (format_p_value(None), format_p_value(math.nan)) == ("unknown", "unknown")


@pytest.mark.parametrize(
    ("p_value", "n_changed", "is_explained"), [(0.02, 1, True), (0.02, 0, False), (0.001, 1, False)]
)
def test_a_change_without_a_significant_overall_test_is_explained(
    p_value: float, n_changed: int, is_explained: bool
) -> None:
    """A second sentence resolves the seeming contradiction of both tests, and only that one.

    The p-value of the overall test is 2 %, so it is not significant at the level 1 %. One candidate
    has changed at the false discovery rate of the command.
    """
    contrast: Any = SimpleNamespace(
        name="to May", unchanged_p_value=p_value, rows_p_value=None, n_changed=n_changed
    )
    sentence = format_overall_test([contrast])
    assert ("The overall test has a level of its own" in sentence) is is_explained


def make_period(name: str, reports: int, *, missing: int = 0, withheld: int = 0) -> Any:
    """Return a period of a trend, with numbers of days without reports and of unreleased days."""
    return SimpleNamespace(name=name, reports=reports, missing_days=missing, withheld=withheld)


def test_gaps_name_five_periods_and_count_the_others() -> None:
    """The footnotes name at most five periods without reports, and the number of the others.

    A trend of a year may have a hundred such days. A period without reports is named once, and not
    again for its missing days. Periods with some reports have sentences of their own.
    """
    empty = [make_period(f"day {n}", 0, missing=1) for n in range(7)]
    incomplete, waiting = make_period("half", 10, missing=2), make_period("late", 10, withheld=1)
    comparison: Any = SimpleNamespace(
        samples=[*empty, incomplete, waiting],
        missing=empty,
    )
    assert list(list_missing_periods(comparison)) == [
        "There are no reports for day 0, day 1, day 2, day 3, day 4 and 2 more.",
        "Some days have no reports in half.",
        "Some reports are not yet released for late.",
    ]
    five: Any = SimpleNamespace(samples=empty[:5], missing=empty[:5])
    assert next(iter(list_missing_periods(five))).endswith("day 3, day 4.")
