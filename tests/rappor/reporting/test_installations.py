"""Sentences and pages of active installations."""

from __future__ import annotations

import dataclasses
import datetime
import json
from pathlib import Path

import pytest
from shell import Shell, ok

from rappor import Params, Population, simulate_counts, trend
from rappor.counts.installations import ActiveInterval, Installations
from rappor.counts.released_counts import Period, ReleasedCounts
from rappor.reporting.installations import build_installations, describe_installations

UNIT = (
    "The unit is a device that reported page in the {pace}: forged reports count, and devices "
    "without consent, devices without an event, {gone}and reports of groups that are too small to "
    "be released are missing."
)
GONE = "devices that were gone before the day that they drew, "


def interval(
    first: str, last: str, reports: float | None, *, is_complete: bool = True
) -> ActiveInterval:
    """Return an interval of days as texts."""
    days = (datetime.date.fromisoformat(text) for text in (first, last))
    return ActiveInterval(
        **dict(zip(("first", "last"), days, strict=True)), reports=reports, is_complete=is_complete
    )


SEPTEMBER = interval("2026-09-01", "2026-09-30", 11981.0)
OCTOBER = interval("2026-10-01", "2026-10-31", 12340.0)
MONTHS = Installations(
    metric="page",
    pace="month",
    sampling_rate=1.0,
    intervals=(SEPTEMBER, OCTOBER),
    has_other_pace=False,
)


def describe(*intervals: ActiveInterval, pace: str = "month", share: float = 1.0) -> list[str]:
    """Return the sentences about some intervals, without the last one, which names the unit."""
    *sentences, unit = describe_installations(
        dataclasses.replace(MONTHS, intervals=intervals, pace=pace, sampling_rate=share)
    )
    assert unit == UNIT.format(pace=pace, gone=GONE if pace not in ("day", "week") else "")
    return sentences


def test_the_example_of_the_module() -> None:
    """The change is rounded to a whole per cent."""
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
    """A change that rounds to 0 is named as none."""
    assert describe(before, after, pace=pace) == [sentence]


def test_sampled_devices_have_an_error() -> None:
    """10 % of the devices take part. The standard error is sqrt(1,234 * 0.9) / 0.1 = 333."""
    sampled = (
        dataclasses.replace(month, reports=reports)
        for month, reports in ((SEPTEMBER, 1198.1), (OCTOBER, 1234.0))
    )
    assert describe(*sampled, share=0.1) == [
        "12,340 active installations in October 2026 (standard error 333), 3 % more than in "
        "September 2026 (standard error at most 4 %).",
        "10 % of the devices take part, and stand for all devices.",
    ]


def test_unreleased_parts_are_named_without_a_number() -> None:
    """Then there is no change, because the number may still grow."""
    part = dataclasses.replace(OCTOBER, is_complete=False)
    nothing = interval("2026-11-01", "2026-11-30", None, is_complete=False)
    number = "12,340 active installations in October 2026."
    assert describe(SEPTEMBER, part) == [
        number,
        "A part of the number in October 2026 is not released yet.",
    ]
    assert describe(dataclasses.replace(SEPTEMBER, is_complete=False), OCTOBER) == [
        number,
        "A part of the number in September 2026 is not released yet.",
    ]
    assert describe(SEPTEMBER, part, nothing) == [
        number,
        "A part of the number in October 2026 is not released yet.",
        "The number in November 2026 is not released yet.",
    ]
    missing = "The number of active installations is not released yet."
    assert describe(nothing) == describe() == [missing]


def test_devices_of_an_older_registry_are_named() -> None:
    """The sentence says that they are not counted."""
    sentences = describe_installations(dataclasses.replace(MONTHS, has_other_pace=True))
    assert "Devices that still report in another interval are not counted." in sentences


def test_a_page_has_the_number_and_a_table() -> None:
    """The table begins with the latest interval. Text is escaped."""
    installations = dataclasses.replace(
        MONTHS, intervals=(dataclasses.replace(SEPTEMBER, reports=None, is_complete=False), OCTOBER)
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
    """On the terminal, on the page and in JSON; the counts are read from a collector's file."""
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
    first = "12,340 active installations in October 2026, 3 % more than in September 2026."
    page = comparison.to_html()
    assert "<strong>12,340</strong>" in page
    assert page.index("<strong>12,340</strong>") < page.index("<h2")
    shell = Shell(tmp_path, capfd)
    path = tmp_path / "counts.json"
    released.save(path)
    (shell.place / "pets.txt").write_text("cat\ndog\n")
    words = ("trend", str(path), "--candidates", "pets.txt")
    assert ok(shell(*words)).startswith(f"{first}\n")
    assert json.loads(ok(shell(*words, "--json")))["installations"] == MONTHS.to_dict()
    without = trend(dataclasses.replace(released, installations=None), ["cat", "dog"])
    assert "installations" not in without.to_dict()
    assert "active installation" not in without.to_html()
