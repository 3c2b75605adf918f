"""Sentences and pages of active installations."""

from __future__ import annotations

import dataclasses
import datetime
import json
from pathlib import Path

import pytest
from shell import Shell, expect_success

from rappor import Params, Population, simulate_counts, trend
from rappor.counts.installations import ActiveInterval, Installations, SampledReports
from rappor.counts.released_counts import Period, ReleasedCounts
from rappor.reporting.installations import build_installations, describe_installations

UNIT = (
    "The unit is a device that reported page in the {pace}: forged reports count, and devices "
    "without consent, devices without an event, {gone}and reports of groups that are too small to "
    "be released are missing."
)
"""Last sentence of every description: what is counted, and which devices are missing."""
GONE = "devices that were gone before the day that they drew, "
"""UNIT contains this part for intervals longer than a week, in which each device draws the day of
its report."""


def interval(
    first: str, last: str, reports: float | None, *, is_complete: bool = True
) -> ActiveInterval:
    """Return an interval between two days (ISO texts), without sampling of devices.

    `reports` is None if no report of the interval is released.
    """
    return ActiveInterval(
        first=datetime.date.fromisoformat(first),
        last=datetime.date.fromisoformat(last),
        parts=() if reports is None else (SampledReports(1.0, reports),),
        is_complete=is_complete,
    )


def replace_reports(month: ActiveInterval, *parts: tuple[float | None, float]) -> ActiveInterval:
    """Return an interval with other reports: pairs of a sampling rate and a number of reports.

    A rate of None is unknown.
    """
    return dataclasses.replace(month, parts=tuple(SampledReports(*part) for part in parts))


SEPTEMBER = interval("2026-09-01", "2026-09-30", 11981.0)
OCTOBER = interval("2026-10-01", "2026-10-31", 12340.0)
MONTHS = Installations(
    metric="page",
    pace="month",
    intervals=(SEPTEMBER, OCTOBER),
    has_other_pace=False,
)
"""Active installations of two months. The pace is the length of an interval. No device reports in
intervals of another length."""


def describe(*intervals: ActiveInterval, pace: str = "month") -> list[str]:
    """Return the sentences about some intervals, except for the last sentence.

    The last sentence names the unit, and is asserted here.
    """
    *sentences, unit = describe_installations(
        dataclasses.replace(MONTHS, intervals=intervals, pace=pace)
    )
    assert unit == UNIT.format(pace=pace, gone=GONE if pace not in ("day", "week") else "")
    return sentences


def test_number_and_change_of_two_months() -> None:
    """The sentence has the number of the last month, and its change since the month before.

    The change of 2.996 % is rounded to a whole per cent.
    """
    assert describe(SEPTEMBER, OCTOBER) == [
        "12,340 active installations in October 2026, 3 % more than in September 2026."
    ]


@pytest.mark.parametrize(
    ("pace", "before", "after", "sentence"),
    [
        (
            "day",
            interval("2026-11-01", "2026-11-01", 100.0),
            interval("2026-11-02", "2026-11-02", 50.4),
            "50 active installations on 2026-11-02, 50 % fewer than on the day before.",
        ),
        (
            "week",
            interval("2026-11-02", "2026-11-08", 1000.0),
            interval("2026-11-09", "2026-11-15", 1005.0),
            "1,005 active installations in the week from 2026-11-09 to 2026-11-15, 0.5 % more "
            "than in the week before.",
        ),
        (
            "quarter",
            interval("2026-04-01", "2026-06-30", 1000.0),
            interval("2026-07-01", "2026-09-30", 1000.4),
            "1,000 active installations in quarter 3 of 2026, as many as in quarter 2 of 2026.",
        ),
        (
            "year",
            interval("2025-01-01", "2025-12-31", 2.0),
            interval("2026-01-01", "2026-12-31", 1.0),
            "1 active installation in 2026, 50 % fewer than in 2025.",
        ),
    ],
)
def test_intervals_have_names(
    pace: str, before: ActiveInterval, after: ActiveInterval, sentence: str
) -> None:
    """An interval has the name that people use, and a change of about 0 is written as "as many as".

    The sentence compares the latest interval with the interval before it. A day or a week before it
    is called "the day before" or "the week before". A month, a quarter or a year has its own date.
    """
    assert describe(before, after, pace=pace) == [sentence]


def test_sampled_devices_have_an_error() -> None:
    """With a sampling rate of 10 %, the number is ten times the reports, and has an error.

    Each device takes part with probability r. The number of reports n is binomial, so the standard
    error of n / r is sqrt(n (1 - r)) / r = sqrt(1,234 * 0.9) / 0.1 = 333.

    Each of the two numbers has a relative error of 2.7 %, so their ratio has an error of
    sqrt(2) * 2.7 % = 4 % if each month samples other devices. If the same devices take part in both
    months, the error is smaller, so the sentence has "at most".
    """
    september, october = (
        replace_reports(month, (0.1, reports))
        for month, reports in ((SEPTEMBER, 1198.1), (OCTOBER, 1234.0))
    )
    assert describe(september, october) == [
        "12,340 active installations in October 2026 (standard error 333), 3 % more than in "
        "September 2026 (standard error at most 4 %).",
        "10 % of the devices take part, and stand for all devices.",
    ]


def test_each_sampling_rate_is_named() -> None:
    """A month under two sampling rates has the sum of both numbers and both variances.

    100 reports at 10 % and 200 reports at 50 % stand for 1,000 + 400 devices. The variance of n / r
    is n (1 - r) / r^2, hence 100 * 90 + 200 * 2, whose square root is 97.
    """
    assert describe(replace_reports(OCTOBER, (0.1, 100.0), (0.5, 200.0))) == [
        "1,400 active installations in October 2026 (standard error 97).",
        "10 % or 50 % of the devices take part, and stand for all devices.",
    ]


def test_no_number_is_shown_if_the_sampling_rate_is_unknown() -> None:
    """An interval whose sampling rate is unknown has a sentence with the reason, and no number.

    The number of reports alone would be read as the number of devices. The last interval with a
    known rate takes the place of the latest one.
    """
    reason = "is not shown, because devices may have had different sampling rates."
    unknown = [replace_reports(month, (None, 100.0)) for month in (SEPTEMBER, OCTOBER)]
    assert describe(unknown[0], OCTOBER) == [
        "12,340 active installations in October 2026.",
        f"The number in September 2026 {reason}",
    ]
    assert describe(SEPTEMBER, unknown[1]) == [
        "11,981 active installations in September 2026.",
        f"The number in October 2026 {reason}",
    ]
    assert describe(*unknown) == [f"The number of active installations {reason}"]
    page = str(build_installations(dataclasses.replace(MONTHS, intervals=(SEPTEMBER, unknown[1]))))
    assert "<th>2026-10-01/2026-10-31<td>not known<td><td>completely" in page
    assert "100" not in page


def test_unreleased_parts_are_named_without_a_number() -> None:
    """An interval that is released in part has no change, and one without a release has no number.

    Reports that wait for their release are added later, so the number may still grow, and a
    decrease would only mean that reports wait.
    """
    part = dataclasses.replace(OCTOBER, is_complete=False)
    without_number = interval("2026-11-01", "2026-11-30", None, is_complete=False)
    number = "12,340 active installations in October 2026."
    assert describe(SEPTEMBER, part) == [
        number,
        "A part of the number in October 2026 is not released yet.",
    ]
    assert describe(dataclasses.replace(SEPTEMBER, is_complete=False), OCTOBER) == [
        number,
        "A part of the number in September 2026 is not released yet.",
    ]
    assert describe(SEPTEMBER, part, without_number) == [
        number,
        "A part of the number in October 2026 is not released yet.",
        "The number in November 2026 is not released yet.",
    ]
    missing = "The number of active installations is not released yet."
    assert describe(without_number) == describe() == [missing]


def test_devices_of_an_older_registry_are_named() -> None:
    """A sentence states that devices with another interval are not counted.

    After a change of the registry from daily to monthly reports, devices that are not updated still
    report daily. The number is too small until they are updated.
    """
    sentences = describe_installations(dataclasses.replace(MONTHS, has_other_pace=True))
    assert "Devices that still report in another interval are not counted." in sentences


def test_a_page_has_the_number_and_a_table() -> None:
    """The page begins with the number, and its table has the latest interval first.

    A page without a released interval states this. A registry that counts no installations gets no
    part of a page at all.
    """
    installations = dataclasses.replace(
        MONTHS, intervals=(dataclasses.replace(SEPTEMBER, parts=(), is_complete=False), OCTOBER)
    )
    page = str(build_installations(installations))
    assert (
        '<p class="answer"><strong>12,340</strong> active installations in October 2026.</p>'
        in page
    )
    assert page.index("2026-10-01/2026-10-31") < page.index("2026-09-01/2026-09-30")
    assert page.index("completely") < page.index("nothing")
    empty = build_installations(dataclasses.replace(MONTHS, intervals=()))
    assert "The number of active installations is not released yet." in str(empty)
    assert build_installations(None) is None


def test_a_trend_shows_the_number_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The number of installations comes first on the terminal and on the page, and is in the JSON.

    The counts are read from the file that a collector writes. Without installations in the file,
    nothing mentions them.
    """
    params = Params.profile("balanced")
    counts = simulate_counts(Population(["cat", "dog"], [3, 1]), params, n_reports=20_000, seed=1)
    released = ReleasedCounts(
        metric="page",
        first=OCTOBER.first,
        last=OCTOBER.last,
        periods=(Period(first=OCTOBER.first, last=OCTOBER.last, collections=(counts,)),),
        withheld=(),
        installations=MONTHS,
    )
    comparison = trend(released, ["cat", "dog"])
    assert comparison.to_dict()["installations"] == MONTHS.to_dict()
    first_sentence = "12,340 active installations in October 2026, 3 % more than in September 2026."
    page = comparison.to_html()
    assert "<strong>12,340</strong>" in page
    assert page.index("<strong>12,340</strong>") < page.index("<h2")
    shell = Shell(tmp_path, capfd)
    path = tmp_path / "counts.json"
    released.save(path)
    (shell.folder / "pets.txt").write_text("cat\ndog\n")
    words = ("trend", str(path), "--candidates", "pets.txt")
    assert expect_success(shell(*words)).startswith(f"{first_sentence}\n")
    assert json.loads(expect_success(shell(*words, "--json")))["installations"] == MONTHS.to_dict()
    without = trend(dataclasses.replace(released, installations=None), ["cat", "dog"])
    assert "installations" not in without.to_dict()
    assert "active installation" not in without.to_html()
