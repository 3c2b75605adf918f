"""Shares over time: each period alone, steps, smoothing, gaps and changes of parameters."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import io
import json
from collections.abc import Sequence

import numpy as np
import pytest

from rappor import CandidateStream, Counts, Params, Population, compare, decode, trend
from rappor.counts.released import Period, Released
from rappor.decoding.detection import Detection
from rappor.decoding.trends.stretches import stretches
from rappor.decoding.trends.trend import Trend
from rappor.ground.errors import DecodeError
from rappor.simulation import simulate_days

PARAMS = Params(k=32, h=1, m=16, f=0.5, p=0.1, q=0.9)
"""Most of the noise is permanent: that of a device comes again with each report."""

NAMES = [f"s{i}" for i in range(20)]
ABSENT = [f"x{i}" for i in range(40)]
SHARES = np.exp(-np.arange(20) / 4) / np.exp(-np.arange(20) / 4).sum()
MONDAY = datetime.date(2026, 11, 2)
FALSE_ALARM = 1e-9


def day(number: int) -> datetime.date:
    return MONDAY + datetime.timedelta(number)


def drawn(n_days: int, *, n: float = 5e4, seed: int = 1, params: Params = PARAMS) -> list[Counts]:
    """Draw days of the same devices."""
    population = Population(NAMES, list(SHARES))
    return simulate_days(population, params, n_devices=n, n_days=n_days, seed=seed, metric="page")


def released(
    days: Sequence[tuple[int, Counts]], *, n_days: int, withheld: Sequence[int] = ()
) -> Released:
    """Return counts of some of the days from Monday on."""
    return Released(
        metric="page",
        first=MONDAY,
        last=day(n_days - 1),
        periods=tuple(
            Period(first=day(number), last=day(number), collections=(counts,))
            for number, counts in days
        ),
        withheld=tuple(map(day, withheld)),
    )


ONE = Counts(PARAMS, np.zeros((16, 32)), np.ones(16))
"""A report of each cohort."""

DAYS = [(number, counts) for number, counts in enumerate(drawn(9)) if number != 4]
"""Nine days, Monday to Tuesday of the next week, without the first Friday."""


@pytest.fixture(scope="module")
def found() -> Trend:
    return trend(released(DAYS, n_days=9, withheld=[8]), NAMES + ABSENT, smooth=3)


def test_each_period_is_a_decode_of_its_own(found: Trend) -> None:
    """The same estimates and errors as of that day alone, for every string that is shown."""
    for number, counts in DAYS:
        alone = {row["candidate"]: row for row in decode(counts, NAMES + ABSENT).rows()}
        for column, name in enumerate(found.candidates):
            assert found.levels.proportion[number, column] == alone[name]["proportion"]
            assert found.levels.std_error[number, column] == pytest.approx(
                alone[name]["std_error"] / counts.n_reports, rel=1e-12
            )


def test_intervals_hold_for_the_strings_that_are_shown(found: Trend) -> None:
    """They are those of a decode at 1 - alpha R / c, R being detected at half of the level."""
    counts = [counts for _, counts in DAYS]
    n = int(decode(counts, NAMES + ABSENT, detection=Detection(level=0.025)).detected.sum())
    alone = decode(counts[0], NAMES + ABSENT, detection=Detection(confidence=1 - 0.05 * n / 60))
    low = dict(zip(alone.candidates, alone.ci_low, strict=True))
    assert 3 <= n <= len(found.candidates) < 60
    for column, name in enumerate(found.candidates):
        assert found.levels.ci_low[0, column] == pytest.approx(low[name], rel=1e-12)


def test_a_day_without_reports_stays_visible(found: Trend) -> None:
    """It is a period without reports, a row without numbers, and no step leads to it."""
    assert [period.name for period in found.missing] == ["2026-11-06"]
    assert [period.reports for period in found.periods] == [5e4] * 4 + [0] + [5e4] * 4
    assert [period.withheld for period in found.periods] == [0] * 8 + [1]
    rows = [row for row in found.rows() if row["first"] == "2026-11-06"]
    assert len(rows) == len(found.candidates)
    for row in rows:
        assert (row["proportion"], row["ci_low"], row["detected"]) == (None, None, False)
        assert "step" not in row


def test_steps_are_differences_from_the_day_before_with_reports(found: Trend) -> None:
    """As `compare` finds them, at the part of the level that the choice of strings leaves."""
    samples = {str(day(number)): counts for number, counts in DAYS}
    counts = [counts for _, counts in DAYS]
    part = decode(counts, NAMES + ABSENT, detection=Detection(level=0.025)).detected.sum() / 60
    again = compare(
        samples, found.candidates, baseline="previous", detection=Detection(level=0.05 * part)
    )
    ours = {(row["first"], row["candidate"]): row for row in found.rows() if "step" in row}
    assert len(ours) == 7 * len(found.candidates)
    for row in again.rows():
        mine = ours[row["sample"], row["candidate"]]
        assert mine["step"] == row["difference"]
        assert mine["changed"] == row["changed"]


def test_a_step_of_the_same_devices_is_known_better_than_two_levels(found: Trend) -> None:
    """Their permanent noise cancels: the error is far below that of two independent days."""
    assert found.steps is not None
    first = found.steps.against[0]
    assert first.overlap > 0.8
    place = {name: i for i, name in enumerate(found.steps.candidates)}
    for column, name in enumerate(found.candidates):
        apart = np.hypot(*found.levels.std_error[:2, column])
        assert first.std_error[place[name]] < 0.8 * apart


def test_smoothed_estimates_are_of_the_days_together(found: Trend) -> None:
    """A decode of up to three days; none before there are three, nor on a day without reports."""
    smoothed = found.smoothed
    assert smoothed is not None
    assert np.isnan(smoothed.proportion[:2]).all()
    by_day = dict(DAYS)
    together = decode([by_day[3], by_day[5]], NAMES + ABSENT)
    shares = dict(zip(together.candidates, together.proportion, strict=True))
    for column, name in enumerate(found.candidates):
        assert smoothed.proportion[5, column] == shares[name]
    assert smoothed.counted == (0, 0, 3, 3, 0, 2, 2, 3, 3)


def test_weeks_of_days_know_that_the_devices_are_the_same() -> None:
    """Five reports of each device tell far less than as many devices, and a day is missing."""
    days = [(number, counts.of_devices(5e4)) for number, counts in DAYS]
    found = trend(released(days, n_days=9), NAMES, by="week")
    assert [period.name for period in found.periods] == [
        "2026-11-02/2026-11-08",
        "2026-11-09/2026-11-10",
    ]
    assert [period.missing_days for period in found.periods] == [1, 0]
    assert found.periods[0].reports == 3e5
    assert found.periods[0].devices < 0.25 * 3e5
    one = decode([counts for number, counts in days if number < 7], NAMES)
    assert found.levels.std_error[0, 0] == one.std_error[one.candidates.index(found.candidates[0])]


def test_a_string_of_one_day_is_shown() -> None:
    """All days together do not show it, and that day does."""
    burst = Population([*NAMES, "burst"], [*(SHARES * 0.94), 0.06])
    days = [(i, counts) for i, counts in enumerate(drawn(5, n=1e5, seed=2))]
    days[2] = (2, simulate_days(burst, PARAMS, n_devices=2e4, n_days=1, seed=3, metric="page")[0])
    candidates = [*NAMES, *ABSENT, "burst"]
    whole = decode([counts for _, counts in days], candidates, detection=Detection(level=0.025))
    assert not whole.detected[whole.candidates.index("burst")]
    found = trend(released(days, n_days=5), candidates)
    column = found.candidates.index("burst")
    assert found.levels.detected[:, column].tolist() == [i == 2 for i in range(5)]
    kinds = {
        row["first"]: row["step"] > 0
        for row in found.rows()
        if row["candidate"] == "burst" and row.get("changed")
    }
    assert kinds == {str(day(2)): True, str(day(3)): False}


@pytest.mark.parametrize("by", [None, "day", "week", "month"])
def test_a_range_without_ends_is_that_of_its_reports(by: str | None) -> None:
    """So it is written where nobody said from when or until when; what waits belongs to it."""
    given = released([(3, DAYS[3][1]), (5, DAYS[4][1])], n_days=7, withheld=[2, 6])
    endless = dataclasses.replace(given, first=datetime.date.min, last=datetime.date.max)
    within = dataclasses.replace(given, first=day(2), last=day(6))
    found, expected = (trend(each, NAMES, by=by).periods for each in (endless, within))
    assert found == expected


def test_a_change_of_parameters_is_marked() -> None:
    """At the first period of the new ones, with both losses; gaps do not hide it."""
    other = dataclasses.replace(PARAMS, p=0.2, q=0.8)
    days = [(0, drawn(1)[0]), (1, drawn(1)[0]), (3, drawn(1, params=other)[0])]
    (change,) = trend(released(days, n_days=4), NAMES).params_changes
    assert change.period == "2026-11-05"
    assert [each.fingerprint for each in change.before] == [PARAMS.fingerprint]
    assert [each.fingerprint for each in change.after] == [other.fingerprint]
    assert change.after[0].epsilon_1 < change.before[0].epsilon_1
    assert change.after[0].epsilon_inf == change.before[0].epsilon_inf


def test_answers_are_all_shown() -> None:
    """In their own order, with the interval of each."""
    params = Params(k=2, encoding="onehot", categories=("no", "yes"), f=0.25, p=0.25, q=0.75)
    population = Population(["no", "yes"], [9, 1])
    days = simulate_days(population, params, n_devices=1e4, n_days=2, seed=1, metric="page")
    found = trend(released(list(enumerate(days)), n_days=2))
    alone = decode(days[1])
    assert found.candidates == ("no", "yes")
    assert found.levels.ci_low[1].tolist() == alone.ci_low.tolist()


def test_json_and_csv_have_the_rows_of_the_record(found: Trend) -> None:
    """Every period of every string, in both."""
    document = json.loads(found.to_json())
    rows = list(found.rows())
    assert document["rows"] == rows
    assert len(rows) == 9 * len(found.candidates)
    assert document["periods"][4]["reports"] == 0
    table = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [row["candidate"] for row in table] == [row["candidate"] for row in rows]
    assert [row["proportion"] for row in table] == [
        "" if row["proportion"] is None else str(row["proportion"]) for row in rows
    ]


def test_periods_of_other_lengths_stay_as_they_are() -> None:
    """Nothing is known to be missing between them."""
    (one, two) = drawn(2)
    counts = Released(
        metric="page",
        first=MONDAY,
        last=day(20),
        periods=(
            Period(first=day(0), last=day(2), collections=(one,)),
            Period(first=day(9), last=day(20), collections=(two,)),
        ),
        withheld=(),
    )
    found = trend(counts, NAMES)
    assert (found.by, len(found.periods), found.missing) == ("period", 2, ())
    with pytest.raises(DecodeError, match="by must not be finer than the counts, got day"):
        trend(counts, NAMES, by="day")


def test_a_range_without_a_beginning_begins_with_what_waits() -> None:
    """Every day of it is a stretch, and each says whether its reports are missing or wait."""
    counts = Released(
        metric="page",
        first=datetime.date.min,
        last=day(4),
        periods=(Period(first=day(2), last=day(2), collections=(ONE,)),),
        withheld=(day(0), day(4)),
    )
    kind, found = stretches(counts, None)
    assert kind == "day"
    assert [(each.first, each.missing_days, each.withheld) for each in found] == [
        (day(0), 1, 1),
        (day(1), 1, 0),
        (day(2), 0, 0),
        (day(3), 1, 0),
        (day(4), 1, 1),
    ]


def test_weeks_and_months_are_cut_at_the_ends_of_the_range() -> None:
    """Of counts of weeks only a whole week can be missing; days of a month are counted."""
    weeks = Released(
        metric="page",
        first=day(3),
        last=day(18),
        periods=tuple(
            Period(first=first, last=last, collections=(ONE,))
            for first, last in ((day(3), day(6)), (day(14), day(18)))
        ),
        withheld=(day(7), day(13)),
    )
    kind, found = stretches(weeks, None)
    assert kind == "week"
    assert [(each.first, each.last, each.missing_days, each.withheld) for each in found] == [
        (day(3), day(6), 0, 0),
        (day(7), day(13), 7, 2),
        (day(14), day(18), 0, 0),
    ]
    days = released([(0, ONE), (40, ONE)], n_days=45)
    kind, found = stretches(days, "month")
    assert [(each.first, each.last, each.missing_days) for each in found] == [
        (MONDAY, datetime.date(2026, 11, 30), 28),
        (datetime.date(2026, 12, 1), day(44), 15),
    ]


def test_questions_without_an_answer_are_refused() -> None:
    """No reports, a stream, candidates of answers, and too many days."""
    one = drawn(1)[0]
    stream = CandidateStream.from_strings(NAMES)
    nothing = released([(0, Counts.zero(PARAMS, "page"))], n_days=1)
    with pytest.raises(DecodeError, match="at least 1 report"):
        trend(nothing, NAMES)
    with pytest.raises(DecodeError, match="do not accept a stream"):
        trend(released([(0, one)], n_days=1), stream)  # type: ignore[arg-type]
    with pytest.raises(DecodeError, match="at most 1,000 days"):
        trend(released([(0, one)], n_days=1001), NAMES)
    with pytest.raises(DecodeError, match="smooth must be"):
        trend(released([(0, one)], n_days=1), NAMES, smooth=0)
