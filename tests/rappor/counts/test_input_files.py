"""Input files of an analysis: their days, and checks of counts against the entry of a metric.

A file that was downloaded from a collector has the days of its counts. A counts file has no days,
so an analyst assigns them.
"""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from decodings import build_released_counts
from registries import format_registry

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


def make_counts(name: str = "page", n: int = 1) -> Counts:
    """Return the counts of n reports without ones, all of cohort 0."""
    return Counts(PARAMS, [[0] * PARAMS.k] * PARAMS.m, [n] + [0] * (PARAMS.m - 1), metric=name)


def test_released_counts_are_joined_in_the_order_of_their_days() -> None:
    """Released counts of several files are joined in the order of their days.

    Files whose days overlap are refused, because their reports would count twice. Files of
    different metrics are refused, too.
    """
    first, second = (
        build_released_counts({DAY + datetime.timedelta(number): make_counts()}, "page")
        for number in (0, 2)
    )
    joined = join_released([second, first])
    assert [period.first for period in joined.periods] == [first.first, second.first]
    assert (joined.first, joined.last, joined.n_reports) == (first.first, second.last, 2)
    with pytest.raises(DecodeError, match="periods must not overlap"):
        join_released([first, first])
    with pytest.raises(MetricError, match="counts must be of one metric, got page, other"):
        join_released([first, build_released_counts({DAY: make_counts("other")}, "other")])


def test_files_without_days_get_consecutive_periods() -> None:
    """Files without days get consecutive periods, in the order in which they are passed.

    A week begins on Monday, so the first week may be shorter. Counts of several metrics give
    periods without a metric.
    """
    files = [("a", [make_counts()]), ("b", [make_counts()])]
    periods = assign_periods(files, DAY, "week").periods
    assert [(str(period.first), str(period.last)) for period in periods] == [
        ("2026-09-29", "2026-10-04"),
        ("2026-10-05", "2026-10-11"),
    ]
    assert assign_periods([("a", [make_counts(), make_counts("other")])], DAY, "day").metric == ""
    with pytest.raises(DecodeError, match="the days of b must be before the year 10000"):
        assign_periods(files, datetime.date.max, "day")


def test_days_and_epochs_of_files_are_read(tmp_path: Path) -> None:
    """The first and the last day of released counts are read, and the epochs that contain them.

    A counts file has no days, so it has no released counts and no epoch.
    """
    metric = Registry.loads(format_registry("page", epoch='"quarter"'))["page"]
    days = tmp_path / "days.json"
    later = DAY + datetime.timedelta(7)
    build_released_counts({DAY: make_counts(), later: make_counts()}, "page").save(days)
    plain = tmp_path / "plain.counts"
    make_counts().save(plain)
    assert read_days(str(days)) == (DAY, later)
    assert read_days(str(plain)) == ()
    assert read_released(str(plain)) is None
    assert list_epochs([str(days), str(plain)], metric) == ["2026-Q3", "2026-Q4"]


def test_counts_are_checked_against_the_entry() -> None:
    """Counts of another metric, encoding, or with too few reports for the entry are refused.

    Decoding them would give a result under the wrong name, or about few devices.
    """
    metric = Registry.loads(format_registry("page", min_reports="2"))["page"]
    check_counts([make_counts(n=2)], metric)
    with pytest.raises(DecodeError, match="at least 2 reports, the minimum of page, got 1"):
        check_counts([make_counts()], metric)
    with pytest.raises(MetricError, match="counts must be of page, got other"):
        check_counts([make_counts("other")], metric)
    categories = Params.profile("strict", encoding="onehot", categories=("a", "b"))
    with pytest.raises(MetricError, match="counts must have encoding bloom, got onehot"):
        check_counts([Counts.zero(categories)], metric)
    assert find_metric_name([make_counts(), make_counts("")]) == "page"
    assert find_metric_name([make_counts("")]) == ""
    with pytest.raises(MetricError, match="counts must be of one metric, got other, page"):
        find_metric_name([make_counts(), make_counts("other")])
