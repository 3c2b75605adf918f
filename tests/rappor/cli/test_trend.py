"""`rappor trend`: counts with their days, and the printed trend."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import functools
import json
from collections import Counter
from pathlib import Path

import pytest
from decodings import released
from shell import REGISTRY, Shell, ok, refused

from rappor import Counts, Population, Registry
from rappor.counts.released_counts import ReleasedCounts
from rappor.simulation import simulate_days

DAY = datetime.date(2026, 11, 2)


@functools.cache
def simulated(metric: str, n_days: int) -> list[Counts]:
    """Return simulated counts of days of the same devices."""
    params = Registry.loads(REGISTRY)[metric].params
    params = dataclasses.replace(params, m=8 if metric == "engine" else 1)
    values = ["duckduckgo", "qwant"] if metric == "engine" else ["light", "dark"]
    population = Population(values, [7, 3])
    return simulate_days(population, params, n_devices=2e4, n_days=n_days, seed=1, metric=metric)


def days_of(*numbers: int, metric: str = "theme") -> ReleasedCounts:
    """Return released counts of consecutive days from the second of November on."""
    counts = simulated(metric, len(numbers))
    days = [DAY + datetime.timedelta(number) for number in numbers]
    return released(dict(zip(days, counts, strict=True)), metric, withheld=(days[-1],))


@pytest.fixture
def days(shell: Shell) -> Shell:
    """Return a shell in a folder with days.json: five days, of which the third has no reports."""
    days_of(0, 1, 3, 4, metric="engine").save(shell.place / "days.json")
    released_days = days_of(0, 1, 3, 4)
    released_days.save(shell.place / "themes.json")
    for number, period in enumerate(released_days.periods):
        period.collections[0].save(shell.place / f"{number}.counts")
    return shell


@pytest.mark.slow
def test_shares_gaps_and_the_course_are_printed(days: Shell) -> None:
    """A row has the first and the last third and bars. A period without reports has a dot."""
    out = ok(days("trend", "days.json", "--candidates", "engines.txt"))
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
    assert "There are no reports for 2026-11-04." in words
    assert "Some reports are not yet released for 2026-11-06." in words
    assert "steps from one day to the next are significant" in words
    assert "Assumed: within a day" in words


@pytest.mark.slow
def test_json_csv_page_and_chart_have_the_same_trend(days: Shell) -> None:
    """JSON, CSV, page and chart contain every period of every string, also without reports."""
    table, page, chart = (days.path(name) for name in ("t.csv", "t.html", "t.svg"))
    files = ("--csv", table, "--html", page, "--chart", chart)
    words = ("--candidates", "engines.txt", "--smooth", "2", "--json")
    document = json.loads(ok(days("trend", "days.json", *words, *files)))
    assert (document["by"], document["window"], document["candidates"]) == ("day", 2, 3)
    with Path(table).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["candidate"] for row in rows] == [row["candidate"] for row in document["rows"]]
    kinds = {"share": 5, "smoothed": 5, "slope": 1, "thirds": 1, "step": 3}
    assert Counter(row["what"] for row in rows) == {key: 2 * n for key, n in kinds.items()}
    assert "2026-11-04: no reports" in Path(page).read_text()
    assert "duckduckgo" in Path(chart).read_text()


@pytest.mark.slow
def test_files_without_days_are_given_theirs(days: Shell) -> None:
    """--from and --by month assign consecutive months to files without days."""
    words = ("trend", "0.counts", "1.counts", "--from", "2026-11-02", "--json")
    for by, stretches in (
        ("month", [("2026-11-02", "2026-11-30"), ("2026-12-01", "2026-12-31")]),
        ("day", [("2026-11-02", "2026-11-02"), ("2026-11-03", "2026-11-03")]),
    ):
        document = json.loads(ok(days(*words, *(("--by", by) if by == "month" else ()))))
        assert (document["metric"], document["by"]) == ("theme", by)
        assert [(sample["first"], sample["last"]) for sample in document["samples"]] == stretches
    err = refused(days("trend", "themes.json", "--from", "2026-11-02"))
    assert "has its own days: omit --from" in err
    err = refused(days(*words[:3], "--from", "9999-12-31"), 1)
    assert "must be before the year 10000" in err


@pytest.mark.slow
def test_answers_of_several_ranges_are_joined(days: Shell) -> None:
    """Results of several ranges are joined in the order of their days.

    Other metrics and overlaps are refused.
    """
    days_of(5, 7).save(days.place / "later.json")
    day_samples = json.loads(ok(days("trend", "later.json", "themes.json", "--json")))["samples"]
    missing = [number for number, day in enumerate(day_samples) if not day["reports"]]
    assert (len(day_samples), missing) == (8, [2, 6])
    waiting = {day["first"] for day in day_samples if day["withheld"]}
    assert waiting == {"2026-11-06", "2026-11-09"}
    for name, code, message in (
        ("themes.json", 1, "periods must not overlap, got 2026-11-02"),
        ("days.json", 2, "counts must be of one metric, got engine, theme"),
    ):
        assert message in refused(days("trend", name, "themes.json", "--json"), code)


def stretch(first: int, last: int) -> ReleasedCounts:
    """Return released counts of a range of days, counted from the second of November."""
    (counts,) = days_of(0).collections
    ends = (DAY + datetime.timedelta(first), DAY + datetime.timedelta(last))
    return released({ends: counts}, "theme")


@pytest.mark.parametrize(("first", "last"), [(6, 12), (2, 3), (-1, 8), (0, 0)])
def test_stretches_that_share_a_day_are_refused(days: Shell, first: int, last: int) -> None:
    """Overlapping ranges are refused, because their devices would be counted twice."""
    stretch(0, 6).save(days.place / "week.json")
    stretch(first, last).save(days.place / "other.json")
    for names in (("week.json", "other.json"), ("other.json", "week.json")):
        assert "periods must not overlap" in refused(days("trend", *names, "--json"), 1)
    stretch(7, 13).save(days.place / "other.json")
    out = ok(days("trend", "other.json", "week.json", "--json"))
    assert [(sample["first"], sample["last"]) for sample in json.loads(out)["samples"]] == [
        ("2026-11-02", "2026-11-08"),
        ("2026-11-09", "2026-11-15"),
    ]


def test_every_period_holds_the_minimum(days: Shell) -> None:
    """Each period needs the metric's minimum of reports, except a period without reports."""
    released_days = days_of(0, 1)
    empty = Counts.zero(released_days.collections[0].params, "theme")
    dates = [DAY + datetime.timedelta(number) for number in range(3)]
    counts = dict(zip(dates, [*released_days.collections, empty], strict=True))
    released(counts, "theme").save(days.place / "gap.json")
    path = days.place / "metrics.toml"
    text = path.read_text()
    n_reports = min(period.n_reports for period in released_days.periods)
    for minimum, code in ((n_reports, 0), (n_reports + 1, 1)):
        path.write_text(
            text.replace("[metrics.theme]", f"[metrics.theme]\nmin_reports = {minimum}")
        )
        got, _, err = days("trend", "gap.json", "--registry", str(path))
        assert (got, f"at least {minimum:,} reports" in err) == (code, code == 1)


def test_files_that_hold_nothing_are_told(days: Shell) -> None:
    """Files without reports give an error, with and without days."""
    nothing = dataclasses.replace(days_of(0), periods=()).to_json()
    undated = b'{"metric": "theme", "collections": []}'
    for content, words in ((nothing, ()), (undated, ("--from", "2026-11-02"))):
        (days.place / "empty.json").write_bytes(content)
        err = refused(days("trend", "empty.json", *words), 1)
        assert "counts must have at least 1 report, got 0" in err


def test_weeks_are_made_of_days(days: Shell) -> None:
    """Days are joined to a week, and a missing day is reported."""
    out = ok(days("trend", "themes.json", "--by", "week"))
    assert "Some days have no reports in 2026-11-02/2026-11-06." in " ".join(out.split())
