"""Input files of an analysis: days that are joined or assigned, and counts that are checked."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from decodings import released
from registries import toml_of

from rappor import Counts, DecodeError, MetricError, Params, Registry
from rappor.counts.input_files import (
    assign_periods,
    check_counts,
    find_metric_name,
    join_released,
    list_epochs,
    read_days,
    read_released,
)

PARAMS = Params.profile("balanced")
DAY = datetime.date(2026, 9, 29)


def counts(name: str = "page", n: int = 1) -> Counts:
    """Return the counts of n empty reports."""
    return Counts(PARAMS, [[0] * PARAMS.k] * PARAMS.m, [n] + [0] * (PARAMS.m - 1), metric=name)


def test_results_are_joined_in_the_order_of_their_days() -> None:
    """Days that overlap, and other metrics, are refused."""
    first, second = (
        released({DAY + datetime.timedelta(number): counts()}, "page") for number in (0, 2)
    )
    joined = join_released([second, first])
    assert [period.first for period in joined.periods] == [first.first, second.first]
    assert (joined.first, joined.last, joined.n_reports) == (first.first, second.last, 2)
    with pytest.raises(DecodeError, match="periods must not overlap"):
        join_released([first, first])
    with pytest.raises(MetricError, match="counts must be of one metric, got page, other"):
        join_released([first, released({DAY: counts("other")}, "other")])


def test_files_without_days_get_consecutive_periods() -> None:
    """Weeks begin on Monday, so the first one may be shorter."""
    files = [("a", [counts()]), ("b", [counts()])]
    periods = assign_periods(files, DAY, "week").periods
    assert [(str(period.first), str(period.last)) for period in periods] == [
        ("2026-09-29", "2026-10-04"),
        ("2026-10-05", "2026-10-11"),
    ]
    assert assign_periods([("a", [counts(), counts("other")])], DAY, "day").metric == ""
    with pytest.raises(DecodeError, match="the days of b must be before the year 10000"):
        assign_periods(files, datetime.date.max, "day")


def test_days_and_epochs_of_files_are_read(tmp_path: Path) -> None:
    """A counts file has no days."""
    metric = Registry.loads(toml_of("page", epoch='"quarter"'))["page"]
    days = tmp_path / "days.json"
    later = DAY + datetime.timedelta(7)
    released({DAY: counts(), later: counts()}, "page").save(days)
    plain = tmp_path / "plain.counts"
    counts().save(plain)
    assert read_days(str(days)) == (DAY, later)
    assert read_days(str(plain)) == ()
    assert read_released(str(plain)) is None
    assert list_epochs([str(days), str(plain)], metric) == ["2026-Q3", "2026-Q4"]


def test_counts_are_checked_against_the_entry() -> None:
    """Name, encoding and minimum of reports."""
    metric = Registry.loads(toml_of("page", min_reports="2"))["page"]
    check_counts([counts(n=2)], metric)
    with pytest.raises(DecodeError, match="at least 2 reports, the minimum of page, got 1"):
        check_counts([counts()], metric)
    with pytest.raises(MetricError, match="counts must be of page, got other"):
        check_counts([counts("other")], metric)
    categories = Params.profile("strict", encoding="onehot", categories=("a", "b"))
    with pytest.raises(MetricError, match="counts must have encoding bloom, got onehot"):
        check_counts([Counts.zero(categories)], metric)
    assert find_metric_name([counts(), counts("")]) == "page"
    assert find_metric_name([counts("")]) == ""
    with pytest.raises(MetricError, match="counts must be of one metric, got other, page"):
        find_metric_name([counts(), counts("other")])
