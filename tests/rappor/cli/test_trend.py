"""`rappor trend`: counts with their days, and the printed trend."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import functools
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from decodings import build_released_counts
from shell import REGISTRY, Shell, expect_refusal, expect_success

from rappor import Counts, Population, Registry
from rappor.counts.released_counts import ReleasedCounts
from rappor.simulation import simulate_days

DAY = datetime.date(2026, 11, 2)
"""Day 0 of all tests. It is a Monday, so that weeks are whole."""


@functools.cache
def simulate_metric(metric: str, n_days: int) -> list[Counts]:
    """Return simulated counts of n days, on each of which the same 20,000 devices report.

    The first of two values has the share 70 %. The metric "engine" has strings, "theme" has
    categories.
    """
    params = Registry.loads(REGISTRY)[metric].params
    # Eight cohorts in place of 128 make the decodes fast. Categories have one cohort.
    params = dataclasses.replace(params, m=8 if metric == "engine" else 1)
    values = ["duckduckgo", "qwant"] if metric == "engine" else ["light", "dark"]
    population = Population(values, [7, 3])
    return simulate_days(population, params, n_devices=2e4, n_days=n_days, seed=1, metric=metric)


def simulate_released_days(*numbers: int, metric: str = "theme") -> ReleasedCounts:
    """Return released counts of some days. A number n stands for the day n days after `DAY`.

    Some reports of the last day are withheld.
    """
    counts = simulate_metric(metric, len(numbers))
    days = [DAY + datetime.timedelta(number) for number in numbers]
    return build_released_counts(dict(zip(days, counts, strict=True)), metric, withheld=(days[-1],))


@pytest.fixture
def days(shell: Shell) -> Shell:
    """Return a shell in a folder with counts of five days, of which the third has no reports.

    The metric "engine" is in days.json, and "theme" in themes.json. The counts of the four days
    with reports of "theme" are also in the files 0.counts to 3.counts, which contain no days.
    """
    simulate_released_days(0, 1, 3, 4, metric="engine").save(shell.folder / "days.json")
    released_days = simulate_released_days(0, 1, 3, 4)
    released_days.save(shell.folder / "themes.json")
    for number, period in enumerate(released_days.periods):
        period.collections[0].save(shell.folder / f"{number}.counts")
    return shell


@pytest.mark.slow
def test_the_trend_of_each_string_is_printed(days: Shell) -> None:
    """A row has the change, the shares of the first and the last third, and a bar for each day.

    A day without reports has a dot in place of its bar.
    """
    out = expect_success(days("trend", "days.json", "--candidates", "engines.txt"))
    lines = out.splitlines()
    assert lines[0] == "from 2026-11-02 to 2026-11-06, by the trend line"
    assert lines[1].split() == [
        *("candidate", "change", "trend,", "points", "95", "%", "interval"),
        *("first", "third", "last", "third", "p-value", "days"),
    ]
    rows = {line.split()[0]: line.split() for line in lines[2:4]}
    assert set(rows) == {"duckduckgo", "qwant"}
    assert [len(row[-1]) for row in rows.values()] == [5, 5]
    assert [row[-1][2] for row in rows.values()] == ["\u00b7", "\u00b7"]
    words = " ".join(out.split())
    assert "so it is not the last third (2026-11-06) minus the first third (2026-11-02). " in words
    assert "There are no reports for 2026-11-04." in words
    assert "Some reports are not yet released for 2026-11-06." in words
    assert "steps from one day to the next are significant" in words
    assert "Assumed: within a day" in words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("days_after", "is_noted"), [((0, 1, 3, 4), True), ((57, 58, 59, 60), False)]
)
def test_days_of_one_epoch_have_a_note(
    days: Shell, days_after: tuple[int, ...], is_noted: bool
) -> None:
    """The output says that days of one epoch do not show devices that changed their value.

    The metric has the epoch "quarter". The day 60 days after `DAY` is 2027-01-01.
    """
    simulate_released_days(*days_after).save(days.folder / "days.json")
    document = json.loads(
        expect_success(days("trend", "days.json", "--registry", "metrics.toml", "--json"))
    )
    note = "All days are in one epoch (2026-Q4), in which a device repeats the value of its first"
    assert (note in document["assumptions"]) is is_noted


@pytest.mark.slow
def test_json_csv_page_and_chart_have_the_same_trend(days: Shell) -> None:
    """JSON, CSV, page and chart contain every period of every string, also without reports.

    engines.txt has three candidates. The rows have the two strings that are detected.
    """
    table, page, chart = (days.path(name) for name in ("t.csv", "t.html", "t.svg"))
    files = ("--csv", table, "--html", page, "--chart", chart)
    words = ("--candidates", "engines.txt", "--smooth", "2", "--json")
    document = json.loads(expect_success(days("trend", "days.json", *words, *files)))
    assert (document["by"], document["window"], document["candidates"]) == ("day", 2, 3)
    with Path(table).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["candidate"] for row in rows] == [row["candidate"] for row in document["rows"]]
    # Rows of each string: five days, one slope, one difference of the last and the first third, and
    # a step from each of the four days with reports to the next.
    kinds = {"share": 5, "smoothed": 5, "slope": 1, "thirds": 1, "step": 3}
    assert Counter(row["what"] for row in rows) == {key: 2 * n for key, n in kinds.items()}
    assert "2026-11-04: no reports" in Path(page).read_text()
    drawing = Path(chart).read_text()
    assert "duckduckgo" in drawing
    assert "<title>engine, 2026-11-02 to 2026-11-06: Shares of the reports by day" in drawing


@pytest.mark.slow
def test_files_without_days_get_consecutive_periods(days: Shell) -> None:
    """--from assigns consecutive days, or months with --by month, to files without days."""
    words = ("trend", "0.counts", "1.counts", "--from", "2026-11-02", "--json")
    for by, periods in (
        ("month", [("2026-11-02", "2026-11-30"), ("2026-12-01", "2026-12-31")]),
        ("day", [("2026-11-02", "2026-11-02"), ("2026-11-03", "2026-11-03")]),
    ):
        document = json.loads(
            expect_success(days(*words, *(("--by", by) if by == "month" else ())))
        )
        assert (document["metric"], document["by"]) == ("theme", by)
        assert [(sample["first"], sample["last"]) for sample in document["samples"]] == periods


@pytest.mark.slow
def test_files_of_several_ranges_are_joined(days: Shell) -> None:
    """Files of several ranges are joined in the order of their days.

    Files of another metric, and ranges with a common day, are refused.
    """
    simulate_released_days(5, 7).save(days.folder / "later.json")
    day_samples = json.loads(expect_success(days("trend", "later.json", "themes.json", "--json")))[
        "samples"
    ]
    missing = [number for number, day in enumerate(day_samples) if not day["reports"]]
    assert (len(day_samples), missing) == (8, [2, 6])
    withheld = {day["first"] for day in day_samples if day["withheld"]}
    assert withheld == {"2026-11-06", "2026-11-09"}
    shutil.copy(days.folder / "themes.json", days.folder / "copy.json")
    for name, code, message in (
        ("copy.json", 1, "periods must not overlap, got 2026-11-02"),
        ("days.json", 2, "counts must be of one metric, got engine, theme"),
    ):
        assert message in expect_refusal(days("trend", name, "themes.json", "--json"), code)


def release_days(first: int, last: int) -> ReleasedCounts:
    """Return released counts of a range of days, by the numbers of days after 2 November 2026."""
    (counts,) = simulate_released_days(0).collections
    ends = (DAY + datetime.timedelta(first), DAY + datetime.timedelta(last))
    return build_released_counts({ends: counts}, "theme")


# The week has the days 0 to 6. The ranges share its last day, lie inside, contain it, and share its
# first day.
@pytest.mark.parametrize(("first", "last"), [(6, 12), (2, 3), (-1, 8), (0, 0)])
def test_ranges_with_a_common_day_are_refused(days: Shell, first: int, last: int) -> None:
    """Ranges with a common day are refused, because its reports would be counted twice.

    Adjacent ranges are accepted in any order.
    """
    release_days(0, 6).save(days.folder / "week.json")
    release_days(first, last).save(days.folder / "other.json")
    for names in (("week.json", "other.json"), ("other.json", "week.json")):
        assert "periods must not overlap" in expect_refusal(days("trend", *names, "--json"), 1)
    release_days(7, 13).save(days.folder / "other.json")
    out = expect_success(days("trend", "other.json", "week.json", "--json"))
    assert [(sample["first"], sample["last"]) for sample in json.loads(out)["samples"]] == [
        ("2026-11-02", "2026-11-08"),
        ("2026-11-09", "2026-11-15"),
    ]


def test_every_period_needs_the_minimum(days: Shell) -> None:
    """Each period needs the metric's minimum of reports, except a period without reports."""
    released_days = simulate_released_days(0, 1)
    empty = Counts.zero(released_days.collections[0].params, "theme")
    dates = [DAY + datetime.timedelta(number) for number in range(3)]
    counts = dict(zip(dates, [*released_days.collections, empty], strict=True))
    build_released_counts(counts, "theme").save(days.folder / "gap.json")
    path = days.folder / "metrics.toml"
    text = path.read_text()
    n_reports = min(period.n_reports for period in released_days.periods)
    for minimum, code in ((n_reports, 0), (n_reports + 1, 1)):
        path.write_text(
            text.replace("[metrics.theme]", f"[metrics.theme]\nmin_reports = {minimum}")
        )
        exit_code, _, err = days("trend", "gap.json", "--registry", str(path))
        assert (exit_code, f"at least {minimum:,} reports" in err) == (code, code == 1)


def test_files_without_reports_are_refused(days: Shell) -> None:
    """Files without reports give an error, with and without days."""
    nothing = dataclasses.replace(simulate_released_days(0), periods=()).to_json()
    undated = b'{"metric": "theme", "collections": []}'
    for content, words in ((nothing, ()), (undated, ("--from", "2026-11-02"))):
        (days.folder / "empty.json").write_bytes(content)
        err = expect_refusal(days("trend", "empty.json", *words), 1)
        assert "counts must have at least 1 report, got 0" in err


def test_days_are_joined_to_weeks(days: Shell) -> None:
    """With --by week, days are joined to weeks. A footnote names a week with a missing day."""
    out = expect_success(days("trend", "themes.json", "--by", "week"))
    assert "Some days have no reports in 2026-11-02/2026-11-06." in " ".join(out.split())
